//! One direction of an in-process link: a bounded pipe of bytes.
//!
//! It behaves like a socket: the writer waits while the pipe is full, the reader still gets what was written before
//! the end, and a cut loses everything. It knows no packets and no names.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes under way before the writer has to wait.
const CAPACITY: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct Pipe {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    bytes: BytesMut,
    writer_done: bool,
    reader_gone: bool,
    cut: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl State {
    fn wake(&mut self) {
        let wakers = [self.reader.take(), self.writer.take()];
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    fn check_uncut(&self) -> io::Result<()> {
        if self.cut { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

impl Pipe {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Breaks the pipe for both ends; false if it was no longer in use.
    pub(super) fn cut(&self) -> bool {
        let mut state = self.state.lock();
        let was_open = !state.cut && !state.writer_done && !state.reader_gone;
        state.cut = true;
        state.bytes = BytesMut::new();
        state.wake();
        was_open
    }

    fn poll_read(&self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state.lock();
        state.check_uncut()?;
        if state.bytes.is_empty() && !state.writer_done {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = out.remaining().min(state.bytes.len());
        out.put_slice(&state.bytes[..count]);
        state.bytes.advance(count);
        state.wake();
        Poll::Ready(Ok(()))
    }

    fn poll_write(&self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut state = self.state.lock();
        state.check_uncut()?;
        if state.reader_gone || state.writer_done {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let before = state.bytes.len();
        if before >= CAPACITY {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        for part in parts {
            let space = CAPACITY - state.bytes.len();
            state.bytes.extend_from_slice(&part[..space.min(part.len())]);
        }
        state.wake();
        Poll::Ready(Ok(state.bytes.len() - before))
    }

    fn on_writer_done(&self) {
        let mut state = self.state.lock();
        state.writer_done = true;
        state.wake();
    }

    fn on_reader_gone(&self) {
        let mut state = self.state.lock();
        state.reader_gone = true;
        state.bytes = BytesMut::new();
        state.wake();
    }
}

/// Where the pipe's bytes come out.
#[derive(Debug)]
pub(crate) struct PipeReader(Arc<Pipe>);

impl PipeReader {
    pub(super) fn new(pipe: &Arc<Pipe>) -> Self {
        Self(pipe.clone())
    }
}

impl AsyncRead for PipeReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read(cx, out)
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        self.0.on_reader_gone();
    }
}

/// Where bytes go into the pipe.
#[derive(Debug)]
pub(crate) struct PipeWriter(Arc<Pipe>);

impl PipeWriter {
    pub(super) fn new(pipe: &Arc<Pipe>) -> Self {
        Self(pipe.clone())
    }
}

impl AsyncWrite for PipeWriter {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.on_writer_done();
        Poll::Ready(Ok(()))
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        self.0.on_writer_done();
    }
}
