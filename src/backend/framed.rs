//! The halves of a session whose packets are frames in a byte stream, over TCP or TLS.
//!
//! It owns an end that loses nothing. Closing a socket with unread bytes in it resets the connection, and the
//! kernel then discards what it has not sent yet. So a dropped reader goes to the writer, which reads to the end of
//! the peer's stream.

use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};

use super::SessionEnd;
use super::frame_reader::FrameReader;
use super::frame_writer::FrameWriter;

/// The inner reader of a dropped [`FramedReader`], for the writer to read on.
type Returned<R> = Arc<Mutex<Option<FrameReader<R>>>>;

/// The receiving half.
#[derive(Debug)]
pub(super) struct FramedReader<R> {
    /// `None` only while this is being dropped.
    frames: Option<FrameReader<R>>,
    returned: Returned<R>,
}

/// The sending half.
#[derive(Debug)]
pub(super) struct FramedWriter<R, W> {
    pub(super) frames: FrameWriter<W>,
    returned: Returned<R>,
}

/// Both halves of a session over a pair of streams.
pub(super) fn framed<R, W>(receiving: R, sending: W) -> (FramedReader<R>, FramedWriter<R, W>)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let returned = Arc::new(Mutex::new(None));
    let writer = FramedWriter { frames: FrameWriter::new(sending), returned: returned.clone() };
    (FramedReader { frames: Some(FrameReader::new(receiving)), returned }, writer)
}

impl<R: AsyncRead + Unpin> FramedReader<R> {
    pub(super) async fn read_batch(&mut self, out: &mut Vec<BytesMut>) -> Result<(), SessionEnd> {
        match &mut self.frames {
            Some(frames) => frames.read_batch(out).await,
            None => Err(SessionEnd::AlreadyOver),
        }
    }
}

impl<R> Drop for FramedReader<R> {
    fn drop(&mut self) {
        *self.returned.lock() = self.frames.take();
    }
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> FramedWriter<R, W> {
    pub(super) async fn close(mut self) -> io::Result<()> {
        self.frames.finish().await?;
        let returned = self.returned.lock().take();
        if let Some(mut reader) = returned {
            let mut waste = Vec::new();
            while reader.read_batch(&mut waste).await.is_ok() {
                waste.clear();
            }
        }
        Ok(())
    }
}
