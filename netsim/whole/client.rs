//! A client of the control socket. It sends the requests of the world's jobs and reads the answers.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// The longest time that a healthy node takes for an answer.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) struct Client(BufReader<UnixStream>);

fn late(_: tokio::time::error::Elapsed) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer")
}

impl Client {
    pub(super) async fn connect(socket: &Path) -> io::Result<Self> {
        let mut client = Self(BufReader::new(UnixStream::connect(socket).await?));
        client.line().await?;
        Ok(client)
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        timeout(PATIENCE, self.0.read_line(&mut line)).await.map_err(late)??;
        match line.strip_suffix('\n') {
            Some(line) => match line.strip_prefix("ERROR: ") {
                Some(error) => Err(io::Error::other(error.to_owned())),
                None => Ok(line.to_owned()),
            },
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        timeout(PATIENCE, self.0.get_mut().write_all(bytes)).await.map_err(late)?
    }

    pub(super) async fn ask(&mut self, line: &str) -> io::Result<String> {
        self.send(format!("{line}\n").as_bytes()).await?;
        self.line().await
    }

    pub(super) async fn ask_json(&mut self, line: &str) -> io::Result<Value> {
        let answer = self.ask(line).await?;
        serde_json::from_str(&answer).map_err(io::Error::other)
    }

    /// Begins a submission. Returns the unit's ID.
    pub(super) async fn begin(&mut self, request: &str) -> io::Result<String> {
        let created = self.ask(request).await?;
        let id = created.strip_prefix("Work unit created with ID ");
        let id = id.and_then(|id| id.strip_suffix(". Send stdin data and EOF."));
        id.map(str::to_owned).ok_or_else(|| io::Error::other(created.clone()))
    }

    /// Ends the submission. Returns once it is accepted.
    pub(super) async fn finish(&mut self) -> io::Result<Value> {
        self.0.get_mut().shutdown().await?;
        let line = self.line().await?;
        serde_json::from_str(&line).map_err(io::Error::other)
    }

    /// Reads a unit's whole output as receptorctl does, which shuts its writing side after the request.
    pub(super) async fn all_results(mut self, unit: &str, into: &mut Vec<u8>) -> io::Result<bool> {
        self.ask(&format!("work results {unit}")).await?;
        self.0.get_mut().shutdown().await?;
        self.0.read_to_end(into).await.map(|_| true)
    }

    /// Reads a unit's output from a position until its end or the time limit. Returns whether it reached the end.
    pub(super) async fn results(
        mut self,
        unit: &str,
        from: usize,
        into: &mut Vec<u8>,
        limit: Duration,
    ) -> io::Result<bool> {
        self.ask(&format!("work results {unit} {from}")).await?;
        match timeout(limit, self.0.read_to_end(into)).await {
            Ok(read) => read.map(|_| true),
            Err(_) => Ok(false),
        }
    }
}
