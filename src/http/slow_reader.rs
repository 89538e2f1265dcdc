//! Ends a connection whose other end reads too slowly, because unread answers take this node's memory. Knows nothing of
//! HTTP.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long an answer may take from the first write that has to wait until all of the answer is sent.
const READ_WITHIN: Duration = Duration::from_secs(20);

/// A connection whose other end must read.
pub(super) struct SlowReader<IO> {
    io: IO,
    /// Runs while bytes wait to be sent.
    left: Option<Pin<Box<Sleep>>>,
}

impl<IO> SlowReader<IO> {
    pub(super) fn new(io: IO) -> Self {
        Self { io, left: None }
    }

    /// The outcome, or an error if it is pending and the time is over.
    fn within<T>(&mut self, outcome: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_pending() {
            let left = self.left.get_or_insert_with(|| Box::pin(sleep(READ_WITHIN)));
            ready!(left.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        outcome
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for SlowReader<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for SlowReader<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.within(outcome, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_flush(cx);
        if outcome.is_ready() {
            // All that was written is sent.
            self.left = None;
        }
        self.within(outcome, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_shutdown(cx);
        self.within(outcome, cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_read_byte_by_byte_ends_in_time_and_one_that_is_read_does_not() {
        let (near, mut far) = duplex(16);
        let mut near = SlowReader::new(near);
        let answer = tokio::spawn(async move {
            let start = Instant::now();
            let written = async {
                near.write_all(&[0; 64]).await?;
                near.flush().await?;
                near.write_all(&[0; 64]).await
            };
            (written.await.map_err(|error| error.kind()), start.elapsed())
        });
        far.read_exact(&mut [0; 64]).await.unwrap();
        for _ in 0..30 {
            sleep(Duration::from_secs(1)).await;
            let _ended = far.read(&mut [0; 1]).await;
        }
        let (written, took) = answer.await.unwrap();
        assert_eq!(written, Err(io::ErrorKind::TimedOut));
        assert!(took >= READ_WITHIN && took < READ_WITHIN * 2, "{took:?}");
    }
}
