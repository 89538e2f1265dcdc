//! Writes batches of packets to any byte stream, many frames with one system call.
//!
//! It owns the frames whose sending has begun, so that a dropped future never leaves half a frame behind: the next
//! write goes on at the exact byte. It never copies a packet, and knows no sockets.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tracing::error;

use crate::wire::{MAX_MESSAGE, frame};

/// Frames in one write; each takes two of the kernel's 1,024 slices.
const FRAMES_PER_WRITE: usize = 64;

/// Writes frames to `W`.
#[derive(Debug)]
pub(super) struct FrameWriter<W> {
    io: W,
    /// At most [`FRAMES_PER_WRITE`] frames that were taken from a batch; the first may be partly written.
    begun: VecDeque<QueuedFrame>,
    /// Bytes of the first frame that are written already, prefix included.
    written: usize,
}

#[derive(Debug)]
struct QueuedFrame {
    prefix: [u8; frame::PREFIX_LEN],
    packet: Bytes,
}

impl QueuedFrame {
    fn len(&self) -> usize {
        self.prefix.len() + self.packet.len()
    }
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    pub(super) fn new(io: W) -> Self {
        Self { io, begun: VecDeque::new(), written: 0 }
    }

    /// The stream below.
    #[cfg(test)]
    pub(super) fn io(&self) -> &W {
        &self.io
    }

    /// See [`super::Writer::write_batch`].
    pub(super) async fn write_batch(&mut self, batch: &mut VecDeque<Bytes>) -> io::Result<()> {
        loop {
            self.begin(batch);
            if self.begun.is_empty() {
                return self.io.flush().await;
            }
            self.write_some().await?;
        }
    }

    /// Bytes of the frames begun that are not written yet.
    pub(super) fn unsent(&self) -> usize {
        self.begun.iter().map(QueuedFrame::len).sum::<usize>() - self.written
    }

    /// Sends the frames begun, then ends the stream in order. Waits for a slow peer without a limit.
    pub(super) async fn finish(&mut self) -> io::Result<()> {
        self.write_batch(&mut VecDeque::new()).await?;
        self.io.shutdown().await
    }

    /// Moves packets from the batch to the frames begun, up to what one write takes.
    fn begin(&mut self, batch: &mut VecDeque<Bytes>) {
        while self.begun.len() < FRAMES_PER_WRITE {
            let Some(packet) = batch.pop_front() else { break };
            match frame::prefix(packet.len()) {
                Some(prefix) => self.begun.push_back(QueuedFrame { prefix, packet }),
                None => {
                    error!(
                        len = packet.len(),
                        limit = MAX_MESSAGE,
                        "dropped a packet that no frame can carry"
                    );
                }
            }
        }
    }

    async fn write_some(&mut self) -> io::Result<()> {
        let Self { io, begun, written, .. } = self;
        let count = poll_fn(|cx| {
            let mut slices = [IoSlice::new(&[]); 2 * FRAMES_PER_WRITE];
            let used = fill(&mut slices, begun, *written);
            Pin::new(&mut *io).poll_write_vectored(cx, &slices[..used])
        })
        .await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.on_written(count);
        Ok(())
    }

    fn on_written(&mut self, count: usize) {
        self.written += count;
        while let Some(first) = self.begun.front()
            && self.written >= first.len()
        {
            self.written -= first.len();
            self.begun.pop_front();
        }
    }
}

/// Points slices at the frames' bytes, from `skip` bytes into the first; gives the number of slices used.
fn fill<'a>(slices: &mut [IoSlice<'a>], frames: &'a VecDeque<QueuedFrame>, mut skip: usize) -> usize {
    let mut used = 0;
    for part in frames.iter().flat_map(|frame| [&frame.prefix[..], &frame.packet[..]]) {
        let skipped = skip.min(part.len());
        skip -= skipped;
        if skipped < part.len() {
            slices[used] = IoSlice::new(&part[skipped..]);
            used += 1;
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use super::*;

    /// Takes at most `limit` bytes at a time and counts.
    struct Slow {
        limit: usize,
        calls: usize,
        taken: Vec<u8>,
    }

    impl AsyncWrite for Slow {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            panic!("a write that is not vectored");
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            parts: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            assert!(parts.iter().all(|part| !part.is_empty()));
            let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
            let count = bytes.len().min(self.limit);
            self.taken.extend(&bytes[..count]);
            self.calls += 1;
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn packets(count: u8) -> VecDeque<Bytes> {
        (0..count).map(|number| vec![number; usize::from(number) % 7].into()).collect()
    }

    fn framed(packets: &VecDeque<Bytes>) -> Vec<u8> {
        packets.iter().flat_map(|packet| [&[packet.len() as u8, 0][..], packet].concat()).collect()
    }

    async fn written(limit: usize, mut batch: VecDeque<Bytes>) -> Slow {
        let mut writer = FrameWriter::new(Slow { limit, calls: 0, taken: Vec::new() });
        writer.write_batch(&mut batch).await.unwrap();
        assert!(batch.is_empty() && writer.begun.is_empty());
        writer.io
    }

    #[tokio::test]
    async fn every_break_between_writes_continues_at_the_byte() {
        let batch = packets(200);
        for limit in 1..40 {
            assert_eq!(written(limit, batch.clone()).await.taken, framed(&batch), "limit {limit}");
        }
    }

    #[tokio::test]
    async fn many_packets_go_with_one_call() {
        assert_eq!(written(usize::MAX, packets(64)).await.calls, 1);
        assert_eq!(written(usize::MAX, packets(65)).await.calls, 2);
    }
}
