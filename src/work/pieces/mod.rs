//! Pieces of payloads that a node keeps, so that the same project is not sent to it with every job
//! (docs/protocol.md#pieces). Owns how a payload is taken apart and put together again, and what is kept of it and for
//! whom. Knows neither units nor connections.
//!
//! `parts` recognises ansible-runner's streams, `cutter` cuts the files in them, `list` is both for a node that sends,
//! `steps` says what it sends then, in `frame`s, `assembly` puts that together, `keeper` keeps pieces of it in the `store`.

mod assembly;
mod cutter;
mod frame;
mod index;
mod keeper;
mod list;
mod parts;
mod steps;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use self::assembly::{Assembly, AssemblyError, AssemblyStep};
pub(crate) use self::frame::{LISTED_AT_ONCE, PieceFrame, answer, read_answer};
pub(crate) use self::index::CallerPieces;
pub(crate) use self::keeper::PieceKeeper;
pub(crate) use self::list::{Lister, Run, SecondReading};
pub(crate) use self::steps::Steps;
pub(crate) use self::store::PieceStore;

use aws_lc_rs::digest::{SHA256, digest};

/// The most bytes of a piece.
pub(crate) const MOST_OF_PIECE: u32 = 256 * 1024;

/// What a piece consists of, by hash and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PieceId {
    /// SHA-256.
    pub(crate) hash: [u8; 32],
    pub(crate) length: u32,
}

impl PieceId {
    /// The ID of a piece of these bytes, which are at most [`MOST_OF_PIECE`].
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
        Self { hash, length: u32::try_from(bytes.len()).unwrap_or(u32::MAX) }
    }
}
