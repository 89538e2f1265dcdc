//! The frames in which our own nodes send a unit's output and states to a follower. They come after the line that
//! answers `work follow`, a command that a Go node refuses as bad.
//!
//! A frame is a kind (1 status, 2 output), the body's length in 4 bytes, big-endian, and the body: a unit's report
//! as JSON, or bytes of stdout. The final status is the last frame and follows the last byte of output.

use std::io;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::UnitReport;

/// The beginning of the line before the frames; the unit's ID follows.
pub const ANSWER: &str = "Following work unit ";
/// The end of that line if the node keeps pieces of this caller's payloads.
pub const KEEPS_PIECES: &str = ", keeping pieces";
/// The longest body accepted, in bytes; output comes in far smaller pieces.
const MAX_BODY: u32 = 1024 * 1024;
const STATUS: u8 = 1;
const OUTPUT: u8 = 2;

/// What a follower receives.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// The unit's status.
    Status(UnitReport),
    /// The next bytes of its output.
    Output(Bytes),
}

impl Frame {
    /// Reads the next frame.
    ///
    /// # Errors
    /// The connection ended, or the frame is invalid.
    pub async fn read(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let kind = reader.read_u8().await?;
        let length = reader.read_u32().await?;
        if length > MAX_BODY {
            return Err(io::Error::other(format!("a frame of {length} bytes is too long")));
        }
        let mut body = vec![0; length as usize];
        reader.read_exact(&mut body).await?;
        match kind {
            STATUS => serde_json::from_slice(&body).map(Self::Status).map_err(io::Error::other),
            OUTPUT => Ok(Self::Output(body.into())),
            other => Err(io::Error::other(format!("unknown kind of frame {other}"))),
        }
    }

    /// Writes the frame.
    ///
    /// # Errors
    /// A failed write.
    pub async fn write(self, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let (kind, body) = match self {
            Self::Status(report) => (STATUS, serde_json::to_vec(&report)?.into()),
            Self::Output(bytes) => (OUTPUT, bytes),
        };
        let mut header = [kind, 0, 0, 0, 0];
        header[1..].copy_from_slice(&(body.len() as u32).to_be_bytes());
        writer.write_all_buf(&mut Buf::chain(&header[..], body)).await?;
        writer.flush().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::UnitState;

    #[tokio::test]
    async fn frames_come_back_and_lies_are_refused() {
        let report: UnitReport = serde_json::from_str(r#"{"State":3,"Detail":"x","StdoutSize":3}"#).unwrap();
        assert_eq!(report.state, UnitState::Failed);
        let frames = [Frame::Output(Bytes::from_static(b"abc")), Frame::Status(report)];
        let mut bytes = Vec::new();
        for frame in frames.clone() {
            frame.write(&mut bytes).await.unwrap();
        }
        let mut reader = &bytes[..];
        for frame in frames {
            assert_eq!(Frame::read(&mut reader).await.unwrap(), frame);
        }
        for bad in
            [&b""[..], b"\x02\xff\xff\xff\xff", b"\x02\0\0\0\x05abc", b"\x09\0\0\0\0", b"\x01\0\0\0\x02{}"]
        {
            assert!(Frame::read(&mut &bad[..]).await.is_err(), "{bad:?}");
        }
    }
}
