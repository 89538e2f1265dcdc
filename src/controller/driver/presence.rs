//! Which nodes are there: who sees which instance, by the clock of this process, and the nodes that discovery found.
//! Looks neither at the mesh nor at the store.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::candidates::{Candidate, OwnCandidates};
use crate::controller::core::{InstanceName, Patience, Sighting, SightingKey, SightingWatch, Time};

#[derive(Default)]
pub(super) struct Presence {
    sightings: Mutex<SightingWatch>,
    candidates: Mutex<OwnCandidates>,
    /// Notified when an operator has enabled or added one of the candidates.
    taken: Notify,
}

impl Presence {
    /// Notes what a heartbeat has read about who sees whom. If the store has lost its last commits, earlier sightings
    /// do not count.
    pub(super) fn note(
        &self,
        all: Vec<(SightingKey, Sighting)>,
        went_back: bool,
        now: Time,
        blind: Duration,
    ) {
        let mut sightings = self.sightings.lock();
        if went_back {
            *sightings = SightingWatch::default();
        }
        sightings.note(all, now, blind);
    }

    /// Notes that a heartbeat failed, so that the time since the last one does not count as anybody's silence.
    pub(super) fn interrupt(&self) {
        self.sightings.lock().interrupt();
    }

    /// How long each instance has been silent, and how long it may be.
    pub(super) fn patience(&self, now: Time, lost_after: Duration) -> Patience {
        Patience { sightings: self.sightings.lock().clone(), now, lost_after }
    }

    /// Notes the nodes that discovery found; `None` if discovery is off.
    pub(super) fn note_found(&self, found: Option<Vec<Candidate>>, registered: &BTreeSet<InstanceName>) {
        let mut candidates = self.candidates.lock();
        match found {
            Some(found) => candidates.note(found, registered),
            None => candidates.clear(),
        }
    }

    pub(super) fn found(&self) -> Vec<Candidate> {
        self.candidates.lock().list()
    }

    pub(super) fn found_as(&self, name: &InstanceName) -> Option<Candidate> {
        self.candidates.lock().get(name)
    }

    /// Requests a new look at the mesh, because an operator has enabled or added a candidate.
    pub(super) fn take(&self) {
        self.taken.notify_one();
    }

    pub(super) async fn taken(&self) {
        self.taken.notified().await;
    }
}
