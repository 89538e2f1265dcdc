//! Lists what a payload consists of while it is read for the first time: runs of bytes of one kind, and pieces of its
//! files; and reads it for the second time, when it is known which of them have to be sent. Owns that both readings are
//! the same. Knows neither who has what nor how it is sent.

use std::io::{self, Read};

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::PieceId;
use super::cutter::Cutter;
use super::parts::{PayloadPart, PayloadParts};

/// Bytes of one kind that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Run {
    /// Of the payload.
    Raw(u32),
    /// Decoded from base64.
    Decoded(u32),
    /// The same, of a file: bytes of the pieces, in their order.
    File(u32),
}

/// What a bit of a payload has.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// Its bytes.
    pub(crate) runs: Vec<Run>,
    /// Pieces that end in it, or soon before it.
    pub(crate) pieces: Vec<PieceId>,
}

/// A payload that is read for the first time.
pub(crate) struct Lister {
    parts: PayloadParts,
    cutter: Cutter,
    hash: digest::Context,
    length: u64,
}

impl Default for Lister {
    fn default() -> Self {
        let hash = digest::Context::new(&digest::SHA256);
        Self { parts: PayloadParts::default(), cutter: Cutter::default(), hash, length: 0 }
    }
}

impl Lister {
    /// The next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Listed {
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        let Self { parts, cutter, .. } = self;
        let mut listed = Listed::default();
        parts.push(bytes, &mut |part| listed.add(cutter, part));
        listed
    }

    /// What is left, and the length and the hash of all.
    pub(crate) fn end(mut self) -> (Listed, u64, [u8; 32]) {
        let Self { parts, cutter, .. } = &mut self;
        let mut listed = Listed::default();
        parts.end(&mut |part| listed.add(cutter, part));
        cutter.end(&mut |piece| listed.pieces.push(PieceId::of(piece)));
        let mut hash = [0; 32];
        hash.copy_from_slice(self.hash.finish().as_ref());
        (listed, self.length, hash)
    }
}

impl Listed {
    fn add(&mut self, cutter: &mut Cutter, part: PayloadPart<'_>) {
        let pieces = &mut self.pieces;
        cut(cutter, part, &mut |piece| pieces.push(PieceId::of(piece)));
        let next = match part {
            PayloadPart::Begins(_) => return,
            PayloadPart::Raw(bytes) => Run::Raw(bytes.len() as u32),
            PayloadPart::Decoded(bytes) => Run::Decoded(bytes.len() as u32),
            PayloadPart::File(bytes) => Run::File(bytes.len() as u32),
        };
        match (self.runs.last_mut(), next) {
            (Some(Run::Raw(last)), Run::Raw(more))
            | (Some(Run::Decoded(last)), Run::Decoded(more))
            | (Some(Run::File(last)), Run::File(more)) => *last += more,
            _ => self.runs.push(next),
        }
    }
}

/// Cuts the pieces of a part.
pub(super) fn cut(cutter: &mut Cutter, part: PayloadPart<'_>, piece: &mut impl FnMut(&[u8])) {
    match part {
        PayloadPart::Begins(size) => cutter.begin(size, piece),
        PayloadPart::File(bytes) => cutter.push(bytes, piece),
        PayloadPart::Raw(bytes) | PayloadPart::Decoded(bytes) => cutter.pass(bytes.len(), piece),
    }
}

/// A payload that is read for the second time, by the lengths of its runs. Reading blocks.
pub(crate) struct SecondReading<R> {
    payload: R,
    /// Decoded bytes that were not asked for yet: at most two.
    decoded: Vec<u8>,
}

impl<R: Read> SecondReading<R> {
    pub(crate) fn new(payload: R) -> Self {
        Self { payload, decoded: Vec::new() }
    }

    /// The next bytes of the payload.
    ///
    /// # Errors
    /// The payload cannot be read, or is no longer what it was.
    pub(super) fn raw(&mut self, count: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count as usize];
        self.payload.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// The next decoded bytes.
    ///
    /// # Errors
    /// As [`Self::raw`].
    pub(super) fn decoded(&mut self, count: u32) -> io::Result<Vec<u8>> {
        let count = count as usize;
        let quads = count.saturating_sub(self.decoded.len()).div_ceil(3);
        let characters = self.raw((quads * 4) as u32)?;
        BASE64.decode_vec(characters, &mut self.decoded).map_err(io::Error::other)?;
        if self.decoded.len() < count {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let rest = self.decoded.split_off(count);
        Ok(std::mem::replace(&mut self.decoded, rest))
    }

    /// Passes decoded bytes over.
    ///
    /// # Errors
    /// As [`Self::raw`].
    pub(super) fn skip(&mut self, count: u32) -> io::Result<()> {
        let whole = u64::from(count).saturating_sub(self.decoded.len() as u64) / 3;
        if whole == 0 {
            return self.decoded(count).map(drop);
        }
        io::copy(&mut self.payload.by_ref().take(whole * 4), &mut io::sink())?;
        let left = count as usize - self.decoded.len() - whole as usize * 3;
        self.decoded.clear();
        self.decoded(left as u32).map(drop)
    }
}
