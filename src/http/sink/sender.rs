//! Brings lines to the receiver: by HTTP, where a status confirms them, or as they are over TCP, where nothing does. Owns when a
//! line counts as received. Tries for ever, ever more slowly.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde_json::json;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, split};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_util::either::Either;
use tokio_util::task::AbortOnDropHandle;

use super::buffer::SinkBatch;
use super::{SinkOptions, SinkShelf};
use crate::http::token::TokenError;
use crate::os::back_off::BackOff;
use crate::os::tcp;
use crate::tls::{HandshakeError, Secured};

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

type SinkIo = Either<TcpStream, Box<Secured<TcpStream>>>;

/// Why lines cannot be sent.
#[derive(Debug, thiserror::Error)]
enum SinkFault {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Tls(#[from] HandshakeError),
    #[error("{0}")]
    Token(#[from] TokenError),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("{0}")]
    Request(#[from] http::Error),
    #[error("it answers {0}")]
    Status(StatusCode),
    #[error("it does not answer in time")]
    Late(#[from] tokio::time::error::Elapsed),
    #[error("it has closed the connection")]
    Closed,
}

pub(super) struct SinkSender {
    options: Arc<SinkOptions>,
    shelf: Arc<SinkShelf>,
    pauses: BackOff,
}

impl SinkSender {
    pub(super) fn new(options: Arc<SinkOptions>, shelf: Arc<SinkShelf>) -> Self {
        Self { options, shelf, pauses: BackOff::new(FIRST_PAUSE, LONGEST_PAUSE) }
    }

    pub(super) async fn run(mut self) {
        loop {
            let is_http = matches!(self.options.address.scheme_str(), Some("http" | "https"));
            let failed = match is_http {
                true => self.post().await.err(),
                false => self.stream().await.err(),
            };
            let Some(error) = failed else { continue };
            if self.pauses.failures() == 0 {
                let address = &self.options.address;
                tracing::warn!(%address, %error, "cannot send events to the sink: they wait on disk");
            }
            sleep(self.pauses.next()).await;
        }
    }

    /// The receiver has taken something.
    fn note_success(&mut self, lines: u64) {
        if self.pauses.failures() > 0 {
            tracing::info!(address = %self.options.address, "the sink takes events again");
            self.pauses.reset();
        }
        self.shelf.counters.sent.fetch_add(lines, Relaxed);
    }

    async fn connect(&self) -> Result<SinkIo, SinkFault> {
        let address = &self.options.address;
        let host = address.host().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let usual = if address.scheme_str() == Some("https") { 443 } else { 80 };
        let target = (bare, address.port_u16().unwrap_or(usual));
        let stream = timeout(CONNECTED_WITHIN, TcpStream::connect(target)).await??;
        tcp::tune(&stream, &KEEPALIVE);
        SockRef::from(&stream).set_send_buffer_size(UNSENT)?;
        Ok(match &self.options.tls {
            Some(tls) => Either::Right(Box::new(tls.connect(stream, host).await?)),
            None => Either::Left(stream),
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
        let (mut requests, connection) = http1::handshake(TokioIo::new(self.connect().await?)).await?;
        let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
        while batch.lines > 0 {
            let (lines, end) = (batch.lines, batch.end());
            let request = self.request(batch.text).await?;
            let answer = timeout(TAKEN_WITHIN, requests.send_request(request)).await??;
            let status = answer.status();
            // So that the connection can be used again.
            let _rest = timeout(TAKEN_WITHIN, Limited::new(answer.into_body(), ANSWER).collect()).await?;
            if !status.is_success() {
                return Err(SinkFault::Status(status));
            }
            self.shelf.with(move |_, buffer| buffer.confirm(end)).await?;
            self.note_success(lines);
            batch = self.lines_now(end).await?;
        }
        Ok(())
    }

    async fn request(&self, text: Vec<u8>) -> Result<Request<Full<Bytes>>, SinkFault> {
        let address = &self.options.address;
        let path = address.path_and_query().map_or("/", |path| path.as_str());
        let host = address.authority().map_or("", |authority| authority.as_str());
        let mut request = Request::post(path).header(HOST, host).header(CONTENT_TYPE, NDJSON);
        if let Some(file) = self.options.token.clone() {
            let token = spawn_blocking(move || file.read()).await.map_err(io::Error::other)??;
            let mut value =
                HeaderValue::from_bytes(&[b"Bearer ", &token[..]].concat()).map_err(http::Error::from)?;
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
            let written = async {
                timeout(TAKEN_WITHIN, async {
                    writing.write_all(&batch.text).await?;
                    writing.flush().await
                })
                .await
            };
            tokio::select! {
                written = written => written??,
                () = &mut closed => return Err(SinkFault::Closed),
            }
            next = batch.end();
            if let Some(safe) = under_way.add(next, batch.text.len()) {
                self.shelf.with(move |_, buffer| buffer.confirm(safe)).await?;
            }
            self.note_success(batch.lines);
            batch = tokio::select! {
                lines = self.lines(next) => lines?,
                () = &mut closed => return Err(SinkFault::Closed),
            };
        }
    }
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
