//! One connection to a control service: dialling, the greeting, command and answer lines, raw tunnels.
//! Owns limits of time and size; does not know what the commands mean.

use std::{future::Future, io, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{
        AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf,
    },
    net::{TcpStream, UnixStream},
    time::timeout,
};

use super::{ControlError, Deadlines, Endpoint};
use crate::tls::{ClientOptions, ClientProfile};

/// The longest answer taken: the status of a mesh of 1,000 nodes is several megabytes.
const ANSWER_LIMIT: usize = 64 << 20;
/// The longest greeting taken: other services may talk for ever.
const GREETING_LIMIT: usize = 4096;
const GREETING: &str = "Receptor Control, node ";

/// Any socket underneath.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}
pub(super) type Stream = BufReader<Box<dyn Socket>>;

/// One command, one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command(String);

impl Command {
    /// A command in words, such as `work list`.
    ///
    /// # Errors
    /// [`ControlError::NotOneLine`] if it holds a line break.
    pub fn words(line: &str) -> Result<Self, ControlError> {
        if line.contains(['\n', '\r']) {
            return Err(ControlError::NotOneLine(line.to_owned()));
        }
        Ok(Self(line.to_owned()))
    }

    /// A command as a JSON object with a member `command`.
    pub fn json(command: &Value) -> Self {
        Self(command.to_string())
    }

    /// The line, without its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An open connection whose greeting has been read.
pub struct Connection {
    stream: Stream,
    node: String,
    deadlines: Deadlines,
}

impl Connection {
    pub(super) async fn open(
        endpoint: &Endpoint,
        deadlines: Deadlines,
        tls: Option<&ClientProfile>,
    ) -> Result<Self, ControlError> {
        let opened = async {
            let socket = dial(endpoint, tls)
                .await
                .map_err(|source| ControlError::Unreachable { endpoint: endpoint.clone(), source })?;
            Self::greeted(BufReader::new(socket), endpoint, deadlines).await
        };
        limited("greeting", deadlines.connect, opened).await
    }

    async fn greeted(
        mut stream: Stream,
        endpoint: &Endpoint,
        deadlines: Deadlines,
    ) -> Result<Self, ControlError> {
        let line = read_line(&mut stream, "greeting", GREETING_LIMIT).await?;
        match line.strip_prefix(GREETING) {
            Some(node) => Ok(Self { node: node.to_owned(), stream, deadlines }),
            None => Err(ControlError::NotControl { endpoint: endpoint.clone(), greeting: excerpt(&line) }),
        }
    }

    /// The node's ID, as it introduced itself.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Sends a command and waits for its answer, a JSON value on one line.
    ///
    /// # Errors
    /// [`ControlError::Refused`] with the node's words; others if no proper answer came.
    pub async fn command(&mut self, command: &Command) -> Result<Value, ControlError> {
        let answer = self.ask(command).await?;
        parse_json("the command", &answer)
    }

    /// Sends a command and waits for its answer line, whatever it is except `ERROR:`.
    pub(super) async fn ask(&mut self, command: &Command) -> Result<String, ControlError> {
        let asked = async {
            let line = format!("{}\n", command.as_str());
            let write = async {
                self.stream.write_all(line.as_bytes()).await?;
                // TLS may have taken the end of a long line, and not have sent it.
                self.stream.flush().await
            };
            let write = write.await;
            // A server that refuses may close while we still write: its words count more than our failure.
            match read_answer(&mut self.stream, "answer").await {
                Err(ControlError::Closed(_) | ControlError::Io { .. }) if write.is_err() => {
                    Err(write.map_err(ControlError::io("sending a command")).expect_err("checked above"))
                }
                answer => answer,
            }
        };
        limited("answer", self.deadlines.answer, asked).await
    }

    /// Turns the connection into a tunnel to `service` of `node`.
    ///
    /// # Errors
    /// [`ControlError::Refused`] if the node cannot reach it.
    pub async fn connect_to(
        mut self,
        node: &str,
        service: &str,
        tls_client: Option<&str>,
    ) -> Result<Tunnel, ControlError> {
        let mut command = json!({"command": "connect", "node": node, "service": service});
        if let Some(profile) = tls_client {
            command["tls"] = profile.into();
        }
        let answer = self.ask(&Command::json(&command)).await?;
        if answer != "Connecting" {
            return Err(ControlError::Protocol { question: "connect", answer: excerpt(&answer) });
        }
        Ok(Tunnel { stream: self.stream, deadlines: self.deadlines })
    }

    pub(super) fn into_stream(self) -> Stream {
        self.stream
    }

    pub(super) fn deadlines(&self) -> Deadlines {
        self.deadlines
    }
}

/// Raw bytes to and from a service somewhere in the mesh.
pub struct Tunnel {
    stream: Stream,
    deadlines: Deadlines,
}

impl Tunnel {
    /// The two directions; shutting the writer down half-closes.
    pub fn split(self) -> (ReadHalf<impl AsyncRead>, WriteHalf<impl AsyncWrite>) {
        tokio::io::split(self.stream)
    }

    /// Talks to the control service at the tunnel's other end.
    ///
    /// # Errors
    /// [`ControlError::NotControl`] if it is none.
    pub async fn into_connection(self) -> Result<Connection, ControlError> {
        let far = Endpoint::Unix("(through the mesh)".into());
        limited("greeting", self.deadlines.connect, Connection::greeted(self.stream, &far, self.deadlines))
            .await
    }
}

/// Runs `work` with a limit of time.
pub(super) async fn limited<T>(
    what: &'static str,
    after: Duration,
    work: impl Future<Output = Result<T, ControlError>>,
) -> Result<T, ControlError> {
    timeout(after, work).await.unwrap_or(Err(ControlError::TimedOut { what, after }))
}

/// Reads an answer line; `ERROR:` becomes [`ControlError::Refused`].
pub(super) async fn read_answer<R: AsyncBufRead + Unpin>(
    stream: &mut R,
    what: &'static str,
) -> Result<String, ControlError> {
    let line = read_line(stream, what, ANSWER_LIMIT).await?;
    match line.strip_prefix("ERROR:") {
        Some(text) => Err(ControlError::Refused(text.trim().to_owned())),
        None => Ok(line),
    }
}

/// Reads an answer that must be JSON.
pub(super) fn parse_json(question: &'static str, line: &str) -> Result<Value, ControlError> {
    serde_json::from_str(line).map_err(|_| ControlError::Protocol { question, answer: excerpt(line) })
}

/// At most 200 characters of what a stranger sent.
pub(super) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

async fn read_line<R: AsyncBufRead + Unpin>(
    stream: &mut R,
    what: &'static str,
    limit: usize,
) -> Result<String, ControlError> {
    let mut line = Vec::new();
    loop {
        let buffer = stream.fill_buf().await.map_err(ControlError::io("waiting for an answer"))?;
        if buffer.is_empty() {
            return Err(ControlError::Closed(what));
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&buffer[..end.unwrap_or(buffer.len())]);
        let used = end.map_or(buffer.len(), |end| end + 1);
        stream.consume(used);
        if line.len() > limit {
            let answer = format!("a line of more than {limit} bytes");
            return Err(ControlError::Protocol { question: what, answer });
        }
        if end.is_some() {
            let text = String::from_utf8_lossy(&line);
            return Ok(text.trim_end_matches('\r').to_owned());
        }
    }
}

async fn dial(endpoint: &Endpoint, tls: Option<&ClientProfile>) -> io::Result<Box<dyn Socket>> {
    match endpoint {
        Endpoint::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        Endpoint::Tcp { host, port } => Ok(Box::new(dial_tcp(host, *port).await?)),
        Endpoint::Tls { host, port } => {
            let profile = match tls {
                Some(profile) => profile.clone(),
                None => {
                    let options = ClientOptions { name: "(none)".to_owned(), ..ClientOptions::default() };
                    ClientProfile::open(options, None).map_err(io::Error::other)?
                }
            };
            let stream = dial_tcp(host, *port).await?;
            Ok(Box::new(profile.connect(stream, host).await?.ending_like_tcp()))
        }
    }
}

/// Results may be silent for hours: only the kernel's probes can tell a vanished host from a quiet job.
const KEEPALIVE: socket2::TcpKeepalive =
    socket2::TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));

async fn dial_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    crate::os::tcp::tune(&stream, &KEEPALIVE);
    Ok(stream)
}
