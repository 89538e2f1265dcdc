//! Cuts files into pieces where their content says so, so that a change moves no boundary but those beside it. Pure.
//! Owns the sizes. Small files are cut as if they were one, so that thousands of them are few pieces.

use fastcdc::v2020::FastCDC;

/// The bytes of a piece.
const LEAST: usize = 16 << 10;
const AVERAGE: usize = 64 << 10;
const MOST: usize = super::MOST_OF_PIECE as usize;
/// A file of this size has its own pieces, wherever it stands in its zip.
const ALONE: u64 = 32 << 10;
/// A piece ends early once this many other bytes have come in between, so that nobody waits long for it.
const GAP: usize = 1 << 20;

/// Files that arrive bit by bit.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    /// What is not cut yet.
    bytes: Vec<u8>,
    /// Bytes that belong to no file and came since the first of `bytes`.
    between: usize,
    is_alone: bool,
}

impl Cutter {
    /// A file of this size begins.
    pub(super) fn begin(&mut self, size: u64, piece: &mut impl FnMut(&[u8])) {
        let is_alone = size >= ALONE;
        if is_alone || self.is_alone {
            self.end(piece);
        }
        self.is_alone = is_alone;
    }

    /// Bytes of a file.
    pub(super) fn push(&mut self, bytes: &[u8], piece: &mut impl FnMut(&[u8])) {
        self.bytes.extend_from_slice(bytes);
        // A piece is never longer, so nothing that comes later moves its end.
        self.cut(MOST, piece);
    }

    /// So many bytes that belong to no file.
    pub(super) fn pass(&mut self, count: usize, piece: &mut impl FnMut(&[u8])) {
        if !self.bytes.is_empty() {
            self.between += count;
            if self.between >= GAP {
                self.end(piece);
            }
        }
    }

    /// Ends the last piece.
    pub(super) fn end(&mut self, piece: &mut impl FnMut(&[u8])) {
        self.cut(1, piece);
    }

    /// Cuts off pieces while at least `enough` bytes are left.
    fn cut(&mut self, enough: usize, piece: &mut impl FnMut(&[u8])) {
        let mut left = &self.bytes[..];
        while left.len() >= enough {
            let next = FastCDC::new(left, LEAST, AVERAGE, MOST).next();
            let (cut, rest) = left.split_at(next.map_or(left.len(), |chunk| chunk.length));
            piece(cut);
            left = rest;
            self.between = 0;
        }
        let done = self.bytes.len() - left.len();
        self.bytes.drain(..done);
    }
}
