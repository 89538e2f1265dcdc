//! Brings lines to the receiver: by HTTP, where a status confirms them, or as they are over TCP, where nothing does. Owns when a
//! line counts as received. Tries for ever, ever more slowly.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http_body_util::Full;
use jiff::Timestamp;
use serde_json::json;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, split};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::SinkShelf;
use super::buffer::SinkBatch;
use crate::os::back_off::BackOff;
use crate::os::tcp;
use crate::rpc::Duplex;
use crate::rpc::post::{Poster, place, post_to};

/// How long to connect may take, and how long until lines are written or answered.
const CONNECTED_WITHIN: Duration = Duration::from_secs(10);
const TAKEN_WITHIN: Duration = Duration::from_secs(60);
/// The pauses between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Bytes that the kernel may hold unsent, which it doubles, and how many bytes are written after a line before it counts as
/// received: what both kernels may hold, and a dead receiver has not read.
const UNSENT: usize = 64 << 10;
const SAFE: usize = 256 << 10;
/// The most of an answer that is read.
const ANSWER: usize = 64 << 10;
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(15))
    .with_interval(Duration::from_secs(5))
    .with_retries(3);
const NDJSON: HeaderValue = HeaderValue::from_static("application/x-ndjson");

const LATE: &str = "it does not answer in time";
const CLOSED: &str = "it has closed the connection";

/// Why lines cannot be sent. People alone read it.
type SinkFault = Box<dyn Error + Send + Sync>;

pub(super) struct SinkSender {
    shelf: Arc<SinkShelf>,
    pauses: BackOff,
}

impl SinkSender {
    pub(super) fn new(shelf: Arc<SinkShelf>) -> Self {
        Self { shelf, pauses: BackOff::new(FIRST_PAUSE, LONGEST_PAUSE) }
    }

    pub(super) async fn run(mut self) {
        let is_http = matches!(self.shelf.options.address.scheme_str(), Some("http" | "https"));
        loop {
            let failed = match is_http {
                true => self.post().await.err(),
                false => self.stream().await.err(),
            };
            let Some(error) = failed else { continue };
            if self.pauses.failures() == 0 {
                let address = &self.shelf.options.address;
                tracing::warn!(%address, %error, "cannot send events to the sink: they wait on disk");
            }
            self.shelf.counters.note_failure(Timestamp::now(), error.to_string());
            sleep(self.pauses.next()).await;
        }
    }

    /// The receiver has taken something.
    fn note_success(&mut self, lines: u64) {
        if self.pauses.failures() > 0 {
            tracing::info!(address = %self.shelf.options.address, "the sink takes events again");
            self.pauses.reset();
        }
        self.shelf.counters.note_success(lines);
    }

    async fn connect(&self) -> Result<Box<dyn Duplex>, SinkFault> {
        let (host, port) = place(&self.shelf.options.address);
        let stream = within(CONNECTED_WITHIN, TcpStream::connect((host, port))).await??;
        tcp::tune(&stream, &KEEPALIVE);
        SockRef::from(&stream).set_send_buffer_size(UNSENT)?;
        Ok(match &self.shelf.options.tls {
            Some(tls) => Box::new(tls.connect(stream, host).await?),
            None => Box::new(stream),
        })
    }

    /// The lines from this number on, if there are any. The first tells how many were dropped before them.
    async fn lines_now(&self, from: u64) -> io::Result<SinkBatch> {
        let mut batch = self.shelf.with(move |_, buffer| buffer.read(from)).await?;
        if batch.lost > 0 {
            let SinkShelf { name, node, .. } = &*self.shelf;
            let (id, at) = (format!("{name}lost-{}", batch.first), Timestamp::now());
            let lost = json!({"id": id, "node": node, "at": at, "lost": batch.lost});
            batch.text.splice(0..0, format!("{lost}\n").into_bytes());
        }
        Ok(batch)
    }

    /// The same once there are some.
    async fn lines(&self, from: u64) -> io::Result<SinkBatch> {
        loop {
            let batch = self.lines_now(from).await?;
            if batch.lines > 0 {
                return Ok(batch);
            }
            self.shelf.news.notified().await;
        }
    }

    /// Sends what waits by HTTP: once there are no more lines, there is no connection either.
    async fn post(&mut self) -> Result<(), SinkFault> {
        let next = self.shelf.with(|_, buffer| Ok(buffer.confirmed())).await?;
        let mut batch = self.lines(next).await?;
        let mut receiver = Poster::new(self.connect().await?).await?;
        while batch.lines > 0 {
            let (lines, end) = (batch.lines, batch.end());
            let request = self.request(batch.text).await?;
            let (status, _answer) = within(TAKEN_WITHIN, receiver.post(request, ANSWER)).await??;
            if !status.is_success() {
                return Err(format!("it answers {status}").into());
            }
            self.shelf.with(move |_, buffer| buffer.confirm(end)).await?;
            self.note_success(lines);
            batch = self.lines_now(end).await?;
        }
        Ok(())
    }

    async fn request(&self, text: Vec<u8>) -> Result<Request<Full<Bytes>>, SinkFault> {
        let mut request = post_to(&self.shelf.options.address).header(CONTENT_TYPE, NDJSON);
        if let Some(file) = self.shelf.options.token.clone() {
            let token = spawn_blocking(move || file.read()).await??;
            let mut value = HeaderValue::from_bytes(&[b"Bearer ", &token[..]].concat())?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        Ok(request.body(Full::new(text.into()))?)
    }

    /// Sends lines over TCP until the connection fails. Those that it may have swallowed are sent again on the next one.
    async fn stream(&mut self) -> Result<Infallible, SinkFault> {
        let mut next = self.shelf.with(|_, buffer| Ok(buffer.confirmed())).await?;
        let mut batch = self.lines(next).await?;
        let (reading, mut writing) = split(self.connect().await?);
        let mut closed = std::pin::pin!(closed(reading));
        let mut under_way = UnderWay::default();
        loop {
            let written = within(TAKEN_WITHIN, async {
                writing.write_all(&batch.text).await?;
                writing.flush().await
            });
            tokio::select! {
                written = written => written??,
                () = &mut closed => return Err(CLOSED.into()),
            }
            next = batch.end();
            if let Some(safe) = under_way.add(next, batch.text.len()) {
                self.shelf.with(move |_, buffer| buffer.confirm(safe)).await?;
            }
            self.note_success(batch.lines);
            batch = tokio::select! {
                lines = self.lines(next) => lines?,
                () = &mut closed => return Err(CLOSED.into()),
            };
        }
    }
}

async fn within<T>(time: Duration, answer: impl Future<Output = T>) -> Result<T, SinkFault> {
    timeout(time, answer).await.map_err(|_| LATE.into())
}

/// Lines that were written, and may not have arrived.
#[derive(Debug, Default)]
struct UnderWay {
    written: VecDeque<(u64, usize)>,
    bytes: usize,
}

impl UnderWay {
    /// Notes what was written up to this line. Returns before which line all have arrived, if that has changed.
    fn add(&mut self, end: u64, bytes: usize) -> Option<u64> {
        self.written.push_back((end, bytes));
        self.bytes += bytes;
        let mut safe = None;
        while let Some((end, bytes)) = self.written.front()
            && self.bytes - bytes >= SAFE
        {
            (safe, self.bytes) = (Some(*end), self.bytes - bytes);
            self.written.pop_front();
        }
        safe
    }
}

/// Returns when the receiver has closed the connection. What it says is not read by anybody.
async fn closed(mut reading: impl AsyncRead + Unpin) {
    let mut ignored = [0; 1024];
    while matches!(reading.read(&mut ignored).await, Ok(1..)) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_tcp_a_line_has_arrived_once_enough_was_written_after_it() {
        let mut under_way = UnderWay::default();
        assert_eq!(under_way.add(10, SAFE - 1), None);
        assert_eq!(under_way.add(20, SAFE - 1), None);
        assert_eq!(under_way.add(21, 1), Some(10));
        assert_eq!(under_way.add(30, 2 * SAFE), Some(21));
        assert_eq!(under_way.add(31, 1), None);
    }
}
