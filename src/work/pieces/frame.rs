//! The frames in which a node sends a payload to another one that keeps pieces, and the line that answers a list
//! (docs/protocol.md#pieces). Owns the bytes and their bounds, and nothing of what they mean.
//!
//! A frame is a kind, the body's length in 4 bytes, big-endian, and the body.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

use super::PieceId;

/// The longest body: what is read from a payload at a time.
const MAX_BODY: usize = 256 * 1024;
/// The most pieces of a list.
pub(crate) const LISTED_AT_ONCE: usize = 128;
/// A hash and a length.
const ID: usize = 36;
const LIST: u8 = 1;
const RAW: u8 = 2;
const DECODED: u8 = 3;
const COPY: u8 = 4;
const END: u8 = 5;
/// The beginning of the line that answers a list; then a `1` for each piece that is there, and a `0` for each other one.
const ANSWER: &str = "Pieces ";

/// What a node sends of a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PieceFrame {
    /// Pieces that come in the payload. They are numbered from 0, in the order in which they are listed.
    List(Vec<PieceId>),
    /// The next bytes of the payload.
    Raw(Vec<u8>),
    /// The next bytes whose base64 is in the payload.
    Decoded(Vec<u8>),
    /// The same, which a piece has that is there.
    Copy {
        /// Its number.
        piece: u32,
        /// Its first byte.
        from: u32,
        /// How many of them.
        length: u32,
    },
    /// The payload has ended: its length and its hash.
    End {
        /// Bytes of all of it.
        length: u64,
        /// SHA-256 of all of it.
        hash: [u8; 32],
    },
}

impl PieceFrame {
    /// Adds the frame to what is to be sent.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let (kind, start) = (out.len(), out.len() + 5);
        out.extend_from_slice(&[0; 5]);
        out[kind] = match self {
            Self::List(pieces) => {
                for piece in pieces {
                    out.extend_from_slice(&piece.hash);
                    out.extend_from_slice(&piece.length.to_be_bytes());
                }
                LIST
            }
            Self::Raw(bytes) => {
                out.extend_from_slice(bytes);
                RAW
            }
            Self::Decoded(bytes) => {
                out.extend_from_slice(bytes);
                DECODED
            }
            Self::Copy { piece, from, length } => {
                out.extend([piece, from, length].into_iter().flat_map(|number| number.to_be_bytes()));
                COPY
            }
            Self::End { length, hash } => {
                out.extend_from_slice(&length.to_be_bytes());
                out.extend_from_slice(hash);
                END
            }
        };
        let length = (out.len() - start) as u32;
        out[kind + 1..start].copy_from_slice(&length.to_be_bytes());
    }

    /// Reads the next frame.
    ///
    /// # Errors
    /// The connection ended, or the frame is invalid: [`io::ErrorKind::InvalidData`].
    pub(crate) async fn read(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let kind = reader.read_u8().await?;
        let length = reader.read_u32().await? as usize;
        if length > MAX_BODY {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).await?;
        Self::parse(kind, body).ok_or(io::ErrorKind::InvalidData.into())
    }

    fn parse(kind: u8, body: Vec<u8>) -> Option<Self> {
        let number = |at: usize| body.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
        match (kind, body.len()) {
            (RAW, _) => Some(Self::Raw(body)),
            (DECODED, _) => Some(Self::Decoded(body)),
            (LIST, length) if length % ID == 0 && length <= ID * LISTED_AT_ONCE => {
                let ids = body.chunks_exact(ID).map(|id| {
                    let (hash, length) = id.split_first_chunk()?;
                    Some(PieceId { hash: *hash, length: u32::from_be_bytes(length.try_into().ok()?) })
                });
                ids.collect::<Option<_>>().map(Self::List)
            }
            (COPY, 12) => Some(Self::Copy { piece: number(0)?, from: number(4)?, length: number(8)? }),
            (END, 40) => {
                let (length, hash) = body.split_first_chunk()?;
                Some(Self::End { length: u64::from_be_bytes(*length), hash: hash.try_into().ok()? })
            }
            _ => None,
        }
    }
}

/// The line that says which pieces of a list are there.
pub(crate) fn answer(there: &[bool]) -> String {
    let signs: String = there.iter().map(|is_there| if *is_there { '1' } else { '0' }).collect();
    format!("{ANSWER}{signs}\n")
}

/// Reads such a line; `None` if it is another one.
pub(crate) fn read_answer(line: &str) -> Option<impl Iterator<Item = bool> + '_> {
    Some(line.strip_prefix(ANSWER)?.bytes().map(|sign| sign == b'1'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_come_back_and_lies_are_refused() {
        let pieces = [PieceId::of(b"a"), PieceId::of(b"bc")].to_vec();
        let frames = [
            PieceFrame::List(pieces),
            PieceFrame::Raw(b"{}".to_vec()),
            PieceFrame::Decoded(b"PK".to_vec()),
            PieceFrame::Copy { piece: 1, from: 2, length: 3 },
            PieceFrame::End { length: 1 << 40, hash: PieceId::of(b"").hash },
        ];
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.write(&mut bytes));
        let mut reader = &bytes[..];
        for frame in frames {
            assert_eq!(PieceFrame::read(&mut reader).await.unwrap(), frame);
        }
        assert!(reader.is_empty());
        for bad in [
            &b""[..],
            b"\x02\0\0\0\x05abc",
            b"\x02\0\x04\0\x01",
            b"\x01\0\0\0\x01a",
            b"\x04\0\0\0\x04aaaa",
            b"\x05\0\0\0\x01a",
            b"\x09\0\0\0\0",
        ] {
            assert!(PieceFrame::read(&mut &bad[..]).await.is_err(), "{bad:?}");
        }
        let mut long = Vec::new();
        PieceFrame::List(vec![PieceId::of(b""); LISTED_AT_ONCE + 1]).write(&mut long);
        assert!(PieceFrame::read(&mut &long[..]).await.is_err());
    }

    #[test]
    fn an_answer_says_which_pieces_are_there() {
        let there = [true, false, true];
        let line = answer(&there);
        assert_eq!(line, "Pieces 101\n");
        assert_eq!(read_answer(line.trim()).unwrap().collect::<Vec<_>>(), there);
        assert!(read_answer("Following work unit x").is_none());
    }
}
