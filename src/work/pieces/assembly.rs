//! Puts a payload together again from what another node sends of it and from pieces that are here. Owns the check that
//! it is the payload that was meant. Does not read pieces itself, and knows neither whose they are nor what a unit is.

use std::collections::VecDeque;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{PieceFrame, PieceId};

/// The most pieces that are there, are listed, and were not reached yet.
const MOST_LISTED: usize = 16 * 1024;

/// What a frame asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AssemblyStep {
    /// To say which of these pieces are there: see [`Assembly::listed`].
    List(Vec<PieceId>),
    /// To add these bytes to the payload.
    Bytes(Vec<u8>),
    /// To add bytes of this piece: see [`Assembly::copy`].
    Piece(PieceId),
    /// Nothing: the payload is whole.
    End,
}

/// Why a payload cannot be put together. The sender then sends it as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AssemblyError {
    /// Not what the sender has.
    #[error("it is not the one that was sent")]
    Differs,
    /// It cannot be read, or is not what its hash says.
    #[error("a piece of it is gone")]
    Gone,
    /// Frames that do not follow from each other.
    #[error("its frames are invalid")]
    Invalid,
}

/// A payload that is being put together.
pub(crate) struct Assembly {
    /// Those of the listed pieces that are there and were not passed yet, with their numbers.
    listed: VecDeque<(u32, PieceId)>,
    /// How many pieces were listed.
    count: u32,
    /// The piece that was read last.
    read: Option<(u32, Vec<u8>)>,
    /// The latest copy: its first byte, and how many.
    wanted: (usize, usize),
    /// Decoded bytes that wait for more: at most two.
    waiting: Vec<u8>,
    hash: digest::Context,
    length: u64,
}

impl Default for Assembly {
    fn default() -> Self {
        Self {
            listed: VecDeque::new(),
            count: 0,
            read: None,
            wanted: (0, 0),
            waiting: Vec::new(),
            hash: digest::Context::new(&digest::SHA256),
            length: 0,
        }
    }
}

impl Assembly {
    /// Takes a frame.
    ///
    /// # Errors
    /// The payload cannot be put together.
    pub(crate) fn handle(&mut self, frame: PieceFrame) -> Result<AssemblyStep, AssemblyError> {
        match frame {
            PieceFrame::List(_) if self.listed.len() > MOST_LISTED => Err(AssemblyError::Invalid),
            PieceFrame::List(pieces) => Ok(AssemblyStep::List(pieces)),
            PieceFrame::Raw(bytes) => {
                let mut out = self.pad();
                out.extend_from_slice(&bytes);
                Ok(AssemblyStep::Bytes(self.add(out)))
            }
            PieceFrame::Decoded(bytes) => Ok(AssemblyStep::Bytes(self.encode(&bytes))),
            PieceFrame::Copy { piece, from, length } => {
                self.listed.drain(..self.listed.partition_point(|(number, _)| *number < piece));
                let first = self.listed.front().filter(|(number, _)| *number == piece);
                let there = first.ok_or(AssemblyError::Invalid)?.1;
                self.wanted = (from as usize, length as usize);
                match &self.read {
                    Some((number, _)) if *number == piece => self.copied().map(AssemblyStep::Bytes),
                    _ => Ok(AssemblyStep::Piece(there)),
                }
            }
            PieceFrame::End { length, hash } => {
                let is_same = self.waiting.is_empty()
                    && self.length == length
                    && self.hash.clone().finish().as_ref() == hash;
                if is_same { Ok(AssemblyStep::End) } else { Err(AssemblyError::Differs) }
            }
        }
    }

    /// Bytes so far.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Notes which of the pieces are there.
    pub(crate) fn listed(&mut self, pieces: &[PieceId], there: &[bool]) {
        let numbered = (self.count..).zip(pieces).zip(there);
        self.listed
            .extend(numbered.filter(|(_, there)| **there).map(|((number, piece), _)| (number, *piece)));
        self.count = self.count.saturating_add(pieces.len() as u32);
    }

    /// The bytes to add, now that the piece was read.
    ///
    /// # Errors
    /// It was not there, or has no such bytes.
    pub(crate) fn copy(&mut self, piece: Option<Vec<u8>>) -> Result<Vec<u8>, AssemblyError> {
        let (number, _) = self.listed.front().ok_or(AssemblyError::Invalid)?;
        self.read = Some((*number, piece.ok_or(AssemblyError::Gone)?));
        self.copied()
    }

    fn copied(&mut self) -> Result<Vec<u8>, AssemblyError> {
        let (from, length) = self.wanted;
        let (number, piece) = self.read.take().ok_or(AssemblyError::Invalid)?;
        let bytes = piece.get(from..).and_then(|rest| rest.get(..length)).ok_or(AssemblyError::Invalid)?;
        let encoded = self.encode(bytes);
        self.read = Some((number, piece));
        Ok(encoded)
    }

    /// The base64 of what waits and of these bytes, but for what still has to wait.
    fn encode(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut all = std::mem::take(&mut self.waiting);
        all.extend_from_slice(bytes);
        self.waiting = all.split_off(all.len() / 3 * 3);
        self.add(BASE64.encode(all).into_bytes())
    }

    /// Ends base64.
    fn pad(&mut self) -> Vec<u8> {
        BASE64.encode(std::mem::take(&mut self.waiting)).into_bytes()
    }

    fn add(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        self.hash.update(&bytes);
        self.length += bytes.len() as u64;
        bytes
    }
}
