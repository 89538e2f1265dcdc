//! Updates that others send in our name, be it another node with our ID, our own past, or a liar: this node outdoes
//! them (docs/protocol.md#duplicates).
//!
//! Nobody who receives an update can tell who made it. So no update stops this node: it answers a newer one in its name
//! with one that is newer still, and tells the operator. Only a peer that opens a session as this node, and proves by a
//! certificate that it may, shows that there are two of them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::RngExt;

use super::throttle::Throttle;
use super::{Event, Mesh, Now, SessionId, Tick};
use crate::wire::{NodeId, RoutingUpdate};

/// Between two rounds of notices.
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);
/// Most notices in one round.
const MOST_NOTICES: usize = 16;
/// Between two new epochs, so that of two nodes with one ID, the one that has to take them is rarely believed.
const EPOCH_INTERVAL: Duration = Duration::from_secs(10);
/// Between two warnings about one neighbour.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Most neighbours that are remembered for this; the one heard longest ago is dropped first.
const MOST_SPEAKERS: usize = 16;
/// A new epoch exceeds the last one by a random step up to this, so that nobody can have it distrusted in advance.
const LONGEST_STEP: u64 = 64;
/// A sequence beyond this is not outdone by a higher one, but by a new epoch.
const LAST_SEQUENCE: u64 = u64::MAX >> 1;

/// What is known of updates that others send in our name.
#[derive(Debug)]
pub(super) struct DuplicateNodes {
    /// The epoch at this node's start: an older one in our name comes from another process.
    started: u64,
    notices: Throttle,
    /// Epochs later than ours that notices still have to name.
    newer: BTreeSet<u64>,
    epochs: Throttle,
    /// The neighbours that brought such updates: when the last one came, and when a warning was given.
    speakers: BTreeMap<NodeId, (Tick, Tick)>,
}

impl DuplicateNodes {
    pub(super) fn new(started: u64) -> Self {
        Self {
            started,
            notices: Throttle::new(NOTICE_INTERVAL),
            newer: BTreeSet::new(),
            epochs: Throttle::new(EPOCH_INTERVAL),
            speakers: BTreeMap::new(),
        }
    }

    /// When the next notice or the next epoch is due.
    pub(super) fn due(&self) -> Option<Tick> {
        [self.notices.due(), self.epochs.due()].into_iter().flatten().min()
    }

    /// The neighbours that brought updates in our name that are not ours, and how long ago the last one came; latest
    /// first.
    pub(super) fn speakers(&self, now: Tick) -> Vec<(NodeId, Duration)> {
        let mut all: Vec<_> =
            self.speakers.iter().map(|(by, (heard, _))| (by.clone(), now.since(*heard))).collect();
        all.sort_by_key(|(_, since)| *since);
        all
    }

    /// Such an update came from neighbour `by`; true if it is time for a warning.
    fn note_speaker(&mut self, by: NodeId, now: Tick) -> bool {
        let known = self.speakers.get(&by).map(|(_, warned)| *warned);
        let warns = known.is_none_or(|warned| now.since(warned) >= WARNING_INTERVAL);
        self.speakers.insert(by, (now, known.filter(|_| !warns).unwrap_or(now)));
        if self.speakers.len() > MOST_SPEAKERS {
            let oldest = self.speakers.iter().min_by_key(|(_, (heard, _))| *heard);
            oldest.map(|(by, _)| by.clone()).map(|by| self.speakers.remove(&by));
        }
        warns
    }
}

impl Mesh {
    /// An update in our name: an echo of ours, or one that we have not sent.
    pub(super) fn handle_update_in_our_name(&mut self, session: SessionId, update: &RoutingUpdate, now: Now) {
        let is_unsaid = update.epoch == self.epoch && self.is_unsaid(update);
        // A node that hears such a notice no longer believes our epoch.
        let is_accused = update.suspected_duplicate == self.epoch;
        if is_accused || (is_unsaid && update.sequence > LAST_SEQUENCE) {
            self.duplicates.epochs.request(now.tick);
        } else if is_unsaid {
            self.own_update.outdo(update.sequence);
            self.own_update.request(now.tick);
        }
        if update.epoch > self.epoch {
            // Not outdone by a still later epoch, because there may be none, and because a notice stops a receptor
            // node with our ID that started after us.
            self.duplicates.newer.insert(update.epoch);
            if self.duplicates.newer.len() > MOST_NOTICES {
                self.duplicates.newer.pop_first();
            }
            self.duplicates.notices.request(now.tick);
        } else if !is_accused && !is_unsaid {
            return;
        }
        if let Some(peer) = self.peer(session).cloned()
            && self.duplicates.note_speaker(peer, now.tick)
        {
            self.outbox.report(Event::SpokenFor { session, epoch: update.epoch });
        }
    }

    /// True if this node has not sent this update of its present epoch.
    fn is_unsaid(&self, update: &RoutingUpdate) -> bool {
        match update.sequence.cmp(&self.own_update.sequence()) {
            Ordering::Less => false,
            Ordering::Equal => self.forwarded(update.clone()) != Some(self.own_update.message()),
            Ordering::Greater => true,
        }
    }

    /// Somebody has opened a session as this node. If a certificate says that it may, and it was here first, this node
    /// must stop. A peer with an epoch of ours may be this node, which has dialled itself by mistake.
    pub(super) fn meet_duplicate(&mut self, session: SessionId, update: &RoutingUpdate) {
        let policy = self.sessions.get(session).map(|state| state.policy());
        let is_proven = policy.is_some_and(|policy| policy.certified.is_some() && policy.certifies(&self.id));
        if is_proven && update.epoch < self.duplicates.started {
            self.outbox.report(Event::WeAreDuplicate);
        }
    }

    /// Answers updates that others sent in our name, if this is due. Throttled, because the answer to a flood must not
    /// be another flood.
    pub(super) fn answer_duplicates(&mut self, now: Tick) {
        if self.duplicates.epochs.take(now) {
            self.epoch = self.epoch.saturating_add(self.rng.random_range(1..=LONGEST_STEP));
            self.own_update.begin_epoch();
            self.own_update.request(now);
        }
        if self.duplicates.notices.take(now) {
            let newer = std::mem::take(&mut self.duplicates.newer);
            newer.into_iter().for_each(|epoch| self.flood_own_update(epoch, now));
            // The notices only correct which node is believed; our links come with the next update.
            self.own_update.request(now);
        }
    }
}
