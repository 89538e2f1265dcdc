//! Which nodes are there: who sees which instance, by the clock of this process; and the nodes that discovery found. It looks
//! at no mesh and asks no store.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::candidates::{Candidate, Candidates};
use crate::controller::core::{InstanceName, Patience, Sighting, SightingKey, SightingWatch, Time};

#[derive(Default)]
pub(super) struct Presence {
    sightings: Mutex<SightingWatch>,
    candidates: Mutex<Candidates>,
    /// An operator took one of them.
    taken: Notify,
}

impl Presence {
    /// What a heartbeat has read of who sees whom. Nothing of before counts if the store has lost its last commits.
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

    /// A heartbeat failed: nobody was seen to be silent meanwhile.
    pub(super) fn interrupt(&self) {
        self.sightings.lock().interrupt();
    }

    /// How long each instance has been silent, and how long it may be.
    pub(super) fn patience(&self, now: Time, lost_after: Duration) -> Patience {
        Patience { sightings: self.sightings.lock().clone(), now, lost_after }
    }

    /// Discovery found these; `None` if it is off.
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

    /// An operator took a candidate: the mesh is looked at again.
    pub(super) fn take(&self) {
        self.taken.notify_one();
    }

    pub(super) async fn taken(&self) {
        self.taken.notified().await;
    }
}
