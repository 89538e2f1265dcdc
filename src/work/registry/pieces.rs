//! Payloads in pieces, for units that other nodes submit: puts them together with what the store has of the same
//! caller, and has pieces kept of what has arrived. `work::pieces` knows how.

use std::fs::{File, OpenOptions};

use super::{Registry, UnitSubmission};
use crate::work::pieces::{Assembly, AssemblyError, AssemblyStep, PieceFrame, answer};
use crate::work::remote::WORTH_IT;
use crate::work::{Submitter, WorkError};

/// What a frame leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Assembled {
    /// This line is to be answered.
    Answer(String),
    /// More frames have to come.
    More,
    /// The payload is whole.
    Whole,
}

/// A payload that has arrived, and whose it is.
#[derive(Debug)]
pub(crate) struct Arrived {
    submitter: Option<Submitter>,
    /// Its file, if it is worth being kept.
    payload: Option<File>,
}

impl UnitSubmission {
    /// What has arrived. A short job may end, and its payload be gone, before anybody can look again.
    pub(crate) async fn arrived(&self) -> Arrived {
        let dir = self.entry.dir.clone();
        let open = move || dir.open("stdin", OpenOptions::new().read(true)).ok();
        let length = self.entry.dir.payload_size() + self.ahead.len() as u64;
        let payload = match !self.is_whole && length >= WORTH_IT {
            true => self.store().blocking(open).await,
            false => None,
        };
        Arrived { submitter: self.entry.status().submitter, payload }
    }

    /// Adds what a frame says to the payload.
    ///
    /// # Errors
    /// As [`Self::write`]; or the payload cannot be put together.
    pub(crate) async fn assemble(
        &mut self,
        assembly: &mut Assembly,
        frame: PieceFrame,
    ) -> Result<Assembled, WorkError> {
        let store = self.registry.pieces.clone();
        let submitter = self.entry.status().submitter;
        let bytes = match assembly.handle(frame)? {
            AssemblyStep::List(pieces) => {
                let there = match submitter {
                    Some(submitter) => store.has(submitter, &pieces),
                    None => vec![false; pieces.len()],
                };
                assembly.listed(&pieces, &there);
                return Ok(Assembled::Answer(answer(&there)));
            }
            AssemblyStep::Bytes(bytes) => bytes,
            AssemblyStep::Piece(piece) => {
                let submitter = submitter.ok_or(AssemblyError::Gone)?;
                let read = move || store.read(submitter, piece);
                assembly.copy(self.store().blocking(read).await)?
            }
            AssemblyStep::End => return Ok(Assembled::Whole),
        };
        self.write(&bytes).await.map(|()| Assembled::More)
    }
}

impl Registry {
    /// Has pieces kept of a payload whose unit has started, for later payloads of the same caller. Returns whether the
    /// caller should list its next one.
    pub(crate) fn keep_pieces(&self, arrived: Arrived) -> bool {
        let Arrived { submitter: Some(submitter @ Submitter::Node { .. }), payload } = arrived else {
            return false;
        };
        if !self.pieces.is_on() {
            return false;
        }
        let is_kept = payload.map(|payload| self.keeper.keep(payload, submitter)).is_some();
        is_kept || self.pieces.knows(submitter)
    }
}
