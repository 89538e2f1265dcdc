//! Reads whole packets from any byte stream, in batches.
//!
//! It owns the waiting: when to read, when a silence lets the buffer shrink, and how a stream ends. `read_buffer`
//! owns the memory, and `wire` the layout of a frame.

use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout_at};

use super::SessionEnd;
use super::read_buffer::ReadBuffer;

/// The most packets that one `read_batch` appends.
pub const MAX_BATCH_PACKETS: usize = 256;

/// `read_batch` stops appending once it has appended this many bytes.
pub const MAX_BATCH_BYTES: usize = 256 * 1024;

/// After a silence of this length, a session gives a grown buffer back.
const SILENCE: Duration = Duration::from_secs(1);

/// Reads frames from `R`.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    io: R,
    buffer: ReadBuffer,
    /// When the silence began; kept here so that dropped `read_batch` futures do not restart it.
    silent_since: Option<Instant>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(io: R) -> Self {
        Self { io, buffer: ReadBuffer::new(), silent_since: None }
    }

    /// See [`super::Reader::read_batch`].
    pub(super) async fn read_batch(&mut self, out: &mut Vec<BytesMut>) -> Result<(), SessionEnd> {
        while !self.take_packets(out) {
            if let Err(end) = self.receive().await {
                self.buffer.on_end();
                return Err(end);
            }
        }
        Ok(())
    }

    /// Appends the packets at hand; false if there were none.
    fn take_packets(&mut self, out: &mut Vec<BytesMut>) -> bool {
        let (mut packets, mut bytes) = (0, 0);
        while packets < MAX_BATCH_PACKETS && bytes < MAX_BATCH_BYTES {
            let Some(packet) = self.buffer.next_packet() else { break };
            packets += 1;
            bytes += packet.len();
            out.push(packet);
        }
        packets > 0
    }

    /// Reads once, or shrinks the buffer after a silence. Cancel safe, as `read_buf` is.
    async fn receive(&mut self) -> Result<(), SessionEnd> {
        let grown = self.buffer.is_grown();
        let bytes = self.buffer.for_reading();
        let room = bytes.capacity() - bytes.len();
        let reading = self.io.read_buf(bytes);
        let read = if grown {
            let since = *self.silent_since.get_or_insert_with(Instant::now);
            timeout_at(since + SILENCE, reading).await
        } else {
            Ok(reading.await)
        };
        self.silent_since = None;
        match read {
            Ok(count) => self.on_read(room, count?),
            Err(_elapsed) => {
                self.buffer.on_silence();
                Ok(())
            }
        }
    }

    fn on_read(&mut self, room: usize, count: usize) -> Result<(), SessionEnd> {
        if count > 0 {
            self.buffer.on_read(room, count);
            return Ok(());
        }
        Err(match self.buffer.unfinished() {
            0 => SessionEnd::Closed,
            received => SessionEnd::Truncated { received },
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::time::advance;

    use super::*;

    async fn after_bulk() -> (tokio::io::DuplexStream, FrameReader<tokio::io::DuplexStream>) {
        let (mut theirs, ours) = tokio::io::duplex(1 << 20);
        let mut reader = FrameReader::new(ours);
        theirs.write_all(&[&[0, 4][..], &[1; 1024]].concat().repeat(1_000)).await.unwrap();
        let mut packets = Vec::new();
        while packets.len() < 1_000 {
            reader.read_batch(&mut packets).await.unwrap();
        }
        assert!(reader.buffer.is_grown());
        (theirs, reader)
    }

    async fn start_and_drop(reader: &mut FrameReader<tokio::io::DuplexStream>) {
        let mut none = Vec::new();
        tokio::select! {
            biased;
            read = reader.read_batch(&mut none) => panic!("{read:?}"),
            () = std::future::ready(()) => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_shrinks_the_buffer_even_if_reads_are_dropped() {
        let (_theirs, mut reader) = after_bulk().await;
        for _ in 0..10 {
            assert!(reader.buffer.is_grown());
            start_and_drop(&mut reader).await;
            advance(SILENCE / 10 + Duration::from_millis(1)).await;
        }
        start_and_drop(&mut reader).await;
        assert!(!reader.buffer.is_grown());
    }

    #[tokio::test]
    async fn batches_are_bounded_in_packets_and_in_bytes() {
        for (len, frames) in [(0_u16, 3_000_usize), (36, 3_000), (60_000, 40)] {
            let (mut theirs, mut reader) = after_bulk().await;
            let frame = [&len.to_le_bytes()[..], &vec![1; usize::from(len)]].concat();
            let writing = async { theirs.write_all(&frame.repeat(frames)).await.unwrap() };
            let reading = async {
                let mut largest = 0;
                let mut left = frames;
                while left > 0 {
                    let mut batch = Vec::new();
                    reader.read_batch(&mut batch).await.unwrap();
                    left -= batch.len();
                    largest = largest.max(batch.len());
                }
                largest
            };
            let ((), largest) = tokio::join!(writing, reading);
            let bound = MAX_BATCH_PACKETS.min(MAX_BATCH_BYTES / usize::from(len.max(1)) + 1);
            assert!(largest <= bound, "{largest} packets of {len} bytes");
            assert!(largest > 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_session_keeps_its_buffer() {
        let (mut theirs, mut reader) = after_bulk().await;
        let mut packets = Vec::new();
        for _ in 0..10 {
            advance(SILENCE / 2).await;
            start_and_drop(&mut reader).await;
            assert!(reader.buffer.is_grown(), "silence is counted from the last packet");
            theirs.write_all(&[&[0, 80][..], &[1; 20_480]].concat()).await.unwrap();
            reader.read_batch(&mut packets).await.unwrap();
            assert!(reader.buffer.is_grown());
        }
        assert_eq!(packets.len(), 10);
    }
}
