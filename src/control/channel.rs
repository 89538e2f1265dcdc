//! One client's connection: reads lines from it, then, where a command asks for them, the raw bytes after the line.
//!
//! Owns the only buffer of a session and its bound, and finds out whether a client is still there. It does not
//! know what the lines mean. Bytes that arrived together with a line stay in the buffer and are read next.

use std::future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::RequestRefusal;
use super::lines::{FREE, LineRoom};
use crate::os::answers::PAGE;
use crate::stream::MeshStream;
use crate::tls::Secured;

/// The longest command line, in bytes, without its newline.
pub(super) const MAX_LINE: usize = 1024 * 1024;

/// Bytes by which the buffer grows for each further read of a line.
const READ: usize = 4096;
/// Bytes of the first read of a line.
const FIRST_READ: usize = 256;

/// The most characters of an error's text.
const MAX_ERROR: usize = 4096;

/// How long a client may take to read one [`PAGE`] of a large answer: other clients wait for its room.
const UNREAD_FOR: Duration = Duration::from_secs(60);

/// The largest send buffer that a Unix socket gets for an answer: a client that does not read holds that much of the
/// kernel's memory.
const MOST_ROOM: usize = 1024 * 1024;

/// A connection of any kind.
pub(super) trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send {
    /// Ready once the other side has closed both directions; `None` if that cannot be seen.
    fn watch(&self) -> Option<ClosedWatch> {
        None
    }

    /// Whether a client that has ended its direction is still there for an answer, where that can be seen.
    fn still_listens(&self) -> bool {
        true
    }

    /// Whether the other end is known to be one of our own nodes.
    fn leads_to_our_own(&self) -> bool {
        false
    }

    /// Enlarges the send buffer for that many bytes, where the kernel does not do so itself.
    fn make_room(&self, _bytes: usize) {}
}

impl ClientStream for UnixStream {
    fn watch(&self) -> Option<ClosedWatch> {
        hang_up(self.as_fd())
    }

    /// A client that was killed has closed both directions in one step.
    fn still_listens(&self) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // If the socket cannot be asked, the client counts as there: only the end of its payload was seen.
        !(poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP))
    }

    /// The status of a large mesh is more than a Unix socket takes at once. Each further part would wait until the
    /// client gets a processor, and then until this process does: milliseconds on a busy machine.
    fn make_room(&self, bytes: usize) {
        let socket = SockRef::from(self);
        if socket.send_buffer_size().is_ok_and(|room| room < 2 * bytes.min(MOST_ROOM)) {
            // The kernel doubles the size for its own needs, and grants no more than the machine allows.
            let _as_before = socket.set_send_buffer_size(bytes.min(MOST_ROOM));
        }
    }
}

impl ClientStream for TcpStream {
    fn watch(&self) -> Option<ClosedWatch> {
        hang_up(self.as_fd())
    }
}

impl ClientStream for Secured<TcpStream> {
    fn watch(&self) -> Option<ClosedWatch> {
        hang_up(self.io().as_fd())
    }
}

impl ClientStream for MeshStream {
    fn watch(&self) -> Option<ClosedWatch> {
        Some(Box::pin(self.closed()))
    }

    fn leads_to_our_own(&self) -> bool {
        MeshStream::leads_to_our_own(self)
    }
}

#[cfg(test)]
impl ClientStream for tokio::io::DuplexStream {}

/// Keeps what is written until it is flushed, as TLS may.
#[cfg(test)]
impl ClientStream for tokio::io::BufWriter<tokio::io::DuplexStream> {}

/// Ready once the other side has closed both directions.
type ClosedWatch = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Ready once the peer of a socket is gone, not if it only sends nothing more. Watches a copy of the descriptor,
/// because the readiness of the original belongs to reads and writes. `UnixStream` serves for every family here,
/// because only readiness is asked.
fn hang_up(socket: BorrowedFd<'_>) -> Option<ClosedWatch> {
    let copy = std::os::unix::net::UnixStream::from(socket.try_clone_to_owned().ok()?);
    let copy = UnixStream::from_std(copy).ok()?;
    Some(Box::pin(async move {
        loop {
            match copy.ready(Interest::WRITABLE).await {
                Ok(ready) if ready.is_write_closed() => return,
                // Forgets that the socket is writable, so that the next `ready` waits for a change.
                Ok(_) => {
                    let forget = || io::Result::<()>::Err(io::ErrorKind::WouldBlock.into());
                    let _ = copy.try_io(Interest::WRITABLE, forget);
                }
                Err(_) => return future::pending().await,
            }
        }
    }))
}

/// The result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadLine {
    /// A line that is not empty, without carriage returns and newline.
    Text(Vec<u8>),
    /// More than [`MAX_LINE`] bytes without a newline.
    TooLong,
    /// The client sends nothing more.
    End,
}

/// A connection and the bytes read ahead from it. Its `AsyncRead` and `AsyncWrite` are for the raw bytes after a line.
pub(super) struct Channel {
    link: Box<dyn ClientStream>,
    ahead: BytesMut,
    room: LineRoom,
    ended: bool,
    /// Made by the first call of [`Self::gone`].
    watch: Option<ClosedWatch>,
    patience: Duration,
}

impl Channel {
    /// A channel that gives a client `patience` to read each answer, and takes the memory for lines from `room`.
    pub(super) fn new(link: Box<dyn ClientStream>, patience: Duration, room: LineRoom) -> Self {
        Self { link, ahead: BytesMut::new(), room, ended: false, watch: None, patience }
    }

    /// Whether the client is known to be one of our own nodes.
    pub(super) fn leads_to_our_own(&self) -> bool {
        self.link.leads_to_our_own()
    }

    /// Whether a client that has ended its direction is still there for an answer, where that can be seen.
    pub(super) fn still_listens(&self) -> bool {
        self.link.still_listens()
    }

    /// Waits until a line has begun, or the client sends nothing more. Skips empty lines.
    pub(super) async fn line_begins(&mut self) -> io::Result<()> {
        loop {
            let empty = self.ahead.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            self.ahead.advance(empty);
            if !self.ahead.is_empty() || self.fill().await? == 0 {
                return Ok(());
            }
        }
    }

    /// The next line; skips empty ones. Bytes before the end of the stream count as a line, even without a newline.
    /// Cancel safe.
    pub(super) async fn read_line(&mut self) -> io::Result<ReadLine> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.ahead[searched..].iter().position(|&byte| byte == b'\n') {
                let line = self.take(searched + end);
                self.ahead.advance(1);
                searched = 0;
                if !line.is_empty() {
                    return Ok(ReadLine::Text(line));
                }
                continue;
            }
            searched = self.ahead.len();
            if searched > MAX_LINE {
                return Ok(ReadLine::TooLong);
            }
            if self.fill().await? == 0 {
                let line = self.take(searched);
                return Ok(if line.is_empty() { ReadLine::End } else { ReadLine::Text(line) });
            }
        }
    }

    /// Drops the beginning of a line that will not be read to its end.
    pub(super) fn drop_line(&mut self) {
        self.ahead = BytesMut::new();
        self.room.free();
    }

    /// Takes `len` bytes as a line. After a long line the remaining bytes are copied, so that its memory is freed.
    fn take(&mut self, len: usize) -> Vec<u8> {
        let line = self.ahead.split_to(len);
        if len > FREE {
            self.ahead = BytesMut::from(&self.ahead[..]);
        }
        self.room.free();
        line.iter().copied().filter(|&byte| byte != b'\r').collect()
    }

    /// Reads ahead, at most one byte beyond the longest line.
    async fn fill(&mut self) -> io::Result<usize> {
        if self.ahead.is_empty() {
            // An idle connection keeps no buffer, because thousands may wait.
            self.ahead = BytesMut::new();
            let mut first = [0; FIRST_READ];
            let count = self.link.read(&mut first).await?;
            self.ahead.extend_from_slice(&first[..count]);
            return Ok(count);
        }
        self.room.grow_to(self.ahead.len() + READ).await;
        self.ahead.reserve(READ);
        let room = (MAX_LINE + 1).saturating_sub(self.ahead.len());
        self.link.read_buf(&mut (&mut self.ahead).limit(room)).await
    }

    /// Sends a whole text.
    ///
    /// # Errors
    /// Any error of the connection, and `TimedOut` for a client that does not read it.
    pub(super) async fn send(&mut self, text: impl AsRef<[u8]>) -> io::Result<()> {
        let text = text.as_ref();
        self.link.make_room(text.len());
        let sent = async {
            self.link.write_all(text).await?;
            self.link.flush().await
        };
        match timeout(self.patience, sent).await {
            Ok(sent) => sent,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")),
        }
    }

    /// Sends a line that may be long: another thread makes it, once there is room for it.
    pub(super) async fn send_large(
        &mut self,
        make: impl Fn() -> Vec<u8> + Send + Sync + 'static,
    ) -> io::Result<()> {
        let Some(line) = self.room.answer.print(make).await else {
            return self.refuse("the answer cannot be made").await;
        };
        self.link.make_room(line.len());
        // A slow client has time for each page; one that reads nothing loses its connection, because others wait for
        // the room.
        for part in line.chunks(PAGE) {
            timeout(UNREAD_FOR, self.send(part))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        }
        self.room.answer.give_back();
        Ok(())
    }

    /// Answers with one line of JSON, or with the reason of the refusal.
    pub(super) async fn answer(&mut self, answer: Result<Value, RequestRefusal>) -> io::Result<()> {
        match answer {
            Ok(value) => self.send(&format!("{value}\n")).await,
            Err(refusal) => self.refuse(&refusal.to_string()).await,
        }
    }

    /// Answers with an error. Control characters in the text become spaces, so that it stays on one line.
    pub(super) async fn refuse(&mut self, text: &str) -> io::Result<()> {
        tracing::debug!(error = text, "refused");
        // The text may hold a whole line of the client, which may never read the answer: only a part is sent.
        let line: String =
            text.chars().take(MAX_ERROR).map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.send(&format!("ERROR: {line}\n")).await
    }

    /// Waits until the client is gone, and discards what it sends meanwhile. A client that has only closed its writing
    /// side is not gone: it still reads.
    pub(super) async fn gone(&mut self) {
        self.ahead.clear();
        let mut waste = [0; 512];
        while !self.ended {
            match self.link.read(&mut waste).await {
                Ok(0) => self.ended = true,
                Ok(_) => {}
                Err(_) => return,
            }
        }
        if self.watch.is_none() {
            self.watch = self.link.watch();
        }
        match &mut self.watch {
            Some(watch) => watch.await,
            None => future::pending().await,
        }
    }

    /// Closes the connection so that the client gets its whole answer. Bytes that still arrive are discarded for a
    /// limited time, because closing a socket with unread bytes resets the connection, and the client may lose the
    /// answer's end.
    pub(super) async fn close(mut self, limit: Duration) {
        let drained = async {
            self.link.shutdown().await?;
            let mut waste = vec![0; FIRST_READ];
            while self.link.read(&mut waste).await? > 0 {}
            io::Result::Ok(())
        };
        // After an error the client is gone, and after a timeout it has had its time.
        let _ = timeout(limit, drained).await;
    }
}

impl AsyncRead for Channel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.link).poll_read(cx, buf);
        }
        let len = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead.split_to(len));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Channel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.link).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::LineBudget;
    use crate::control::peer::PeerAccount;

    #[tokio::test]
    async fn an_answer_is_sent_to_its_end_although_nobody_reads_it_yet() {
        let (near, mut far) = UnixStream::pair().unwrap();
        // Half as much again as a Unix socket takes by default, and no more than every machine allows.
        let answer = vec![b'x'; 300_000];
        let mut channel = Channel::new(
            Box::new(near),
            Duration::from_secs(10),
            LineBudget::default().room(true, PeerAccount::Local),
        );
        channel.send(&answer).await.unwrap();
        drop(channel);
        let mut read = Vec::new();
        far.read_to_end(&mut read).await.unwrap();
        assert!(read == answer);
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_answer_over_a_slow_link_takes_its_time_and_one_that_is_not_read_does_not() {
        const WHOLE: usize = 20 << 20;
        let (near, mut far) = tokio::io::duplex(64 << 10);
        let room = LineBudget::default().room(true, PeerAccount::Hosts(None));
        let mut channel = Channel::new(Box::new(near), Duration::from_secs(600), room);
        let reader = tokio::spawn(async move {
            let (mut second, mut left) = (vec![0; 200_000], WHOLE);
            while left > 0 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let part = left.min(second.len());
                far.read_exact(&mut second[..part]).await.unwrap();
                left -= part;
            }
            far
        });
        channel.send_large(|| vec![b'x'; WHOLE]).await.unwrap();
        let (_far, start) = (reader.await.unwrap(), tokio::time::Instant::now());
        let unread = channel.send_large(|| vec![b'x'; WHOLE]).await;
        assert_eq!(unread.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        assert_eq!(start.elapsed().as_secs(), UNREAD_FOR.as_secs());
    }
}
