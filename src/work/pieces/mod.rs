//! Pieces of payloads that nodes have sent before, so that the same project is not sent twice. `store` keeps them as
//! files, apart by caller; `index` knows which there are, and which go first.

#![allow(dead_code, reason = "nothing is sent in pieces yet")]

mod index;
mod store;

use aws_lc_rs::digest::{SHA256, digest};

pub(crate) use self::index::CallerPieces;
pub(crate) use self::store::PieceStore;

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
