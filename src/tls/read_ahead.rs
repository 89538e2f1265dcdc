//! A byte stream that reads ahead under load. Knows nothing of TLS.
//!
//! TLS asks for 4 KiB at a time, each with a system call. Here, a full read is taken as a sign that more is at hand:
//! from then on reads are large, until one finds nothing. The buffer exists only during that time, so an idle
//! connection, or a stranger's, costs none. Writes pass through.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;

/// Bytes of a large read.
const AHEAD: usize = 64 * 1024;

/// The stream, and the bytes that were read ahead.
#[derive(Debug)]
pub(super) struct ReadAhead<IO> {
    io: IO,
    buffer: BytesMut,
    /// Whether the last read was full.
    much: bool,
}

impl<IO> ReadAhead<IO> {
    pub(super) fn new(io: IO) -> Self {
        Self { io, buffer: BytesMut::new(), much: false }
    }

    pub(super) fn io(&self) -> &IO {
        &self.io
    }
}

impl<IO: AsyncRead + Unpin> ReadAhead<IO> {
    /// Reads into the buffer, or frees it if nothing is at hand.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.buffer.reserve(AHEAD);
        let read = poll_read_buf(Pin::new(&mut self.io), cx, &mut self.buffer);
        if !matches!(read, Poll::Ready(Ok(1..))) {
            self.much = false;
            self.buffer = BytesMut::new();
        }
        read
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for ReadAhead<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.buffer.is_empty() && !this.much {
            ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
            this.much = buf.remaining() == 0;
            return Poll::Ready(Ok(()));
        }
        if this.buffer.is_empty() {
            ready!(this.poll_fill(cx))?;
        }
        let len = this.buffer.len().min(buf.remaining());
        buf.put_slice(&this.buffer[..len]);
        this.buffer.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for ReadAhead<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// A stream that counts the reads that brought something.
    struct CountedReads<IO>(IO, usize);

    impl<IO: AsyncRead + Unpin> AsyncRead for CountedReads<IO> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let read = Pin::new(&mut self.0).poll_read(cx, buf);
            self.1 += usize::from(read.is_ready());
            read
        }
    }

    #[tokio::test]
    async fn bulk_takes_few_reads_and_arrives_whole_with_its_end() {
        let sent: Vec<u8> = (0..1_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let (mut far, near) = duplex(1 << 20);
        far.write_all(&sent).await.unwrap();
        drop(far);
        let mut ahead = ReadAhead::new(CountedReads(near, 0));
        let (mut received, mut chunk) = (Vec::new(), [0; 4096]);
        loop {
            let len = ahead.read(&mut chunk).await.unwrap();
            if len == 0 {
                break;
            }
            received.extend_from_slice(&chunk[..len]);
        }
        assert!(received == sent);
        assert!(ahead.io.1 < 2 * sent.len() / AHEAD, "{} reads", ahead.io.1);
        assert_eq!(ahead.read(&mut chunk).await.unwrap(), 0, "the end stays the end");
    }

    #[tokio::test]
    async fn a_quiet_stream_has_no_buffer() {
        let (mut far, near) = duplex(1 << 20);
        let mut ahead = ReadAhead::new(near);
        let mut chunk = [0; 4096];
        far.write_all(&[7; 100_000]).await.unwrap();
        let mut left = 100_000;
        while left > 0 {
            left -= ahead.read(&mut chunk).await.unwrap();
        }
        assert!(ahead.buffer.capacity() > 0 && ahead.much);
        let waiting = tokio::select! {
            biased;
            _ = ahead.read(&mut chunk) => false,
            () = std::future::ready(()) => true,
        };
        assert!(waiting);
        assert_eq!((ahead.buffer.capacity(), ahead.much), (0, false));
        far.write_all(b"x").await.unwrap();
        assert_eq!(ahead.read(&mut chunk).await.unwrap(), 1);
        assert_eq!(ahead.buffer.capacity(), 0);
    }
}
