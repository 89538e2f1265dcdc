//! A list of units as one line of JSON, made piece by piece: even for ten thousand units, neither all reports nor the
//! whole text are ever in memory, and the client can begin to read at once. Owns which units are listed, and the JSON
//! around the reports. `status` owns what is in a report.

use std::sync::Arc;

use super::Registry;
use crate::work::status::Status;
use crate::work::units::Entry;
use crate::work::{Caller, Origin};

/// The approximate bytes in a piece.
const PIECE: usize = 64 * 1024;

/// A list that is being sent.
#[derive(Debug)]
pub struct Listing {
    registry: Registry,
    entries: std::vec::IntoIter<Arc<Entry>>,
    begun: bool,
    ended: bool,
}

impl Listing {
    pub(super) fn new(registry: Registry, entries: Vec<Arc<Entry>>) -> Self {
        Self { registry, entries: entries.into_iter(), begun: false, ended: false }
    }

    /// The next piece; `None` after the last piece, which ends the line.
    ///
    /// # Errors
    /// None is known, because reports consist of texts, numbers and JSON.
    pub fn piece(&mut self) -> Result<Option<String>, serde_json::Error> {
        if self.ended {
            return Ok(None);
        }
        let mut text = String::with_capacity(PIECE + PIECE / 4);
        while text.len() < PIECE {
            let Some(entry) = self.entries.next() else {
                text.push_str(if self.begun { "}\n" } else { "{}\n" });
                self.ended = true;
                break;
            };
            text.push(if self.begun { ',' } else { '{' });
            self.begun = true;
            text.push_str(&serde_json::to_string(&entry.id)?);
            text.push(':');
            text.push_str(&self.registry.report_json(&entry)?);
        }
        Ok(Some(text))
    }
}

/// Whether a list for this caller includes a unit, provided that the caller may look at it.
pub(super) fn is_listed(status: &Status, caller: &Caller) -> bool {
    match caller.origin {
        Origin::Unix | Origin::Tcp => true,
        Origin::Mesh { .. } => status.submitter.is_some_and(|kept| kept.is_same_caller(caller.submitter())),
    }
}
