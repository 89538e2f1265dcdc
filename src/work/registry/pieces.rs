//! Payloads in pieces, for units that other nodes submit: puts them together with what the store has of the same
//! caller, and has pieces kept of what has arrived. `work::pieces` knows how.

use std::fs::OpenOptions;

use super::{Registry, UnitSubmission};
use crate::work::pieces::{Asked, Assembly, AssemblyError, PieceFrame, answer};
use crate::work::remote::WORTH_IT;
use crate::work::units::Entry;
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

impl UnitSubmission {
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
            Asked::List(pieces) => {
                let there = match submitter {
                    Some(submitter) => store.has(submitter, &pieces),
                    None => vec![false; pieces.len()],
                };
                assembly.listed(&pieces, &there);
                return Ok(Assembled::Answer(answer(&there)));
            }
            Asked::Bytes(bytes) => bytes,
            Asked::Piece(piece) => {
                let submitter = submitter.ok_or(AssemblyError::Gone)?;
                let read = move || store.read(submitter, piece);
                assembly.copy(self.store().blocking(read).await)?
            }
            Asked::End => return Ok(Assembled::Whole),
        };
        self.write(&bytes).await.map(|()| Assembled::More)
    }
}

impl Registry {
    /// Has pieces kept of the payload of a unit that has just started, for later payloads of the same caller. Returns
    /// whether the caller should list its next one.
    pub(crate) async fn keep_pieces(&self, unit: &str) -> bool {
        let Ok(entry) = self.units.find(unit) else { return false };
        let Some(submitter @ Submitter::Node { .. }) = entry.status().submitter else { return false };
        self.pieces.is_on() && (self.keep_payload(&entry, submitter).await || self.pieces.knows(submitter))
    }

    async fn keep_payload(&self, entry: &Entry, submitter: Submitter) -> bool {
        let dir = entry.dir.clone();
        let open = move || {
            let payload = dir.open("stdin", OpenOptions::new().read(true)).ok()?;
            payload.metadata().is_ok_and(|facts| facts.len() >= WORTH_IT).then_some(payload)
        };
        let payload = self.units.store().blocking(open).await;
        let is_kept = payload.is_some();
        if let Some(payload) = payload {
            self.keeper.keep(payload, submitter);
        }
        is_kept
    }
}
