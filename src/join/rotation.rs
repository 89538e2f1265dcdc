//! A new authority takes the place of the former one, in three steps, each of which can be looked at: both are trusted; new
//! certificates are the new one's; the former one is forgotten.
//!
//! Owns which step it is, and who keeps it from the next. Files say it: `ca.crt` has the certificates, that of the signer
//! first; `ca.key` and `other.key` their keys, in the order in which they came. It refuses to know how nodes are told.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::JoinError;
use super::authority::Authority;
use super::record::Record;

/// What is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RotationStep {
    /// Nodes learn that they have to trust two.
    Trusting,
    /// Nodes get certificates of the new one.
    Renewing,
}

/// A rotation that was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rotation {
    /// The step.
    pub(crate) step: RotationStep,
    /// The nodes that are not that far.
    pub(crate) waits_for: Vec<String>,
}

/// What a node has said of the authorities that it trusts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TrustingNode {
    /// The node.
    pub(crate) node: String,
    /// The number of what it was told last.
    pub(crate) number: u64,
}

impl Authority {
    /// The rotation that is under way.
    ///
    /// # Errors
    /// A document cannot be read.
    pub(crate) fn rotation(&self, now: Timestamp) -> Result<Option<Rotation>, JoinError> {
        let Some(step) = self.step() else { return Ok(None) };
        let is_member = |record: &Record| record.ends().is_some_and(|end| now < end);
        let members = self.records()?.into_iter().filter(is_member);
        let (told, number) = (self.trusting()?, self.trusted_number());
        let trusts = |node: &str| told.iter().any(|one| one.node == node && one.number >= number);
        let waits_for = match step {
            RotationStep::Trusting => {
                members.map(|record| record.node).filter(|node| !trusts(node)).collect()
            }
            RotationStep::Renewing => {
                let signer = self.signer()?;
                let is_new = |record: &Record| {
                    let last = record.certificates.last().and_then(|last| last.by.as_ref());
                    // It was made, and the node says that it has it.
                    last == Some(&signer) && trusts(&record.node)
                };
                members.filter(|record| !is_new(record)).map(|record| record.node).collect()
            }
        };
        Ok(Some(Rotation { step, waits_for }))
    }

    /// Notes which authorities a node trusts, if it is one of the mesh.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn note_trust(&self, node: &str, number: u64) -> Result<(), JoinError> {
        let is_known = self.record(node)?.is_some_and(|record| !record.is_removed());
        let before = self.trusting_node(node)?;
        if !is_known || number != self.trusted_number() || before.is_some_and(|one| one.number == number) {
            return Ok(());
        }
        self.write_trusting(&TrustingNode { node: node.to_owned(), number })
    }
}
