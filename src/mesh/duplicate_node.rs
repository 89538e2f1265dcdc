//! What others say in our name, be it another node with our ID, our own past, or a liar: it is outdone
//! (docs/protocol.md#duplicates).
//!
//! Nobody who hears an update can tell who made it. So nothing of that kind ends this node: what is newer than its own
//! word is answered by something newer still, and an operator is told. Only a peer that opens a session as this node, and
//! proves by a certificate that it may, shows that there are two of them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::RngExt;

use super::throttle::Throttle;
use super::{Event, Mesh, Now, SessionId, Tick};
use crate::wire::{NodeId, RoutingUpdate};

/// Between two notices of one epoch.
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);
/// Notices that are given at once.
const MOST_NOTICES: usize = 16;
/// Between two later epochs: of two nodes with one ID, the one that has to take them is then rarely believed.
const EPOCH_INTERVAL: Duration = Duration::from_secs(10);
/// Between two warnings of one neighbour.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Neighbours that are remembered for it: the last ones.
const MOST_SPEAKERS: usize = 16;
/// A later epoch exceeds the one before by at most this: nobody can have it distrusted before it is taken.
const LONGEST_STEP: u64 = 64;
/// Sequences beyond this are not outdone by others: a later epoch begins.
const LAST_SEQUENCE: u64 = u64::MAX >> 1;

/// What is known of others that speak in our name.
#[derive(Debug)]
pub(super) struct DuplicateNodes {
    /// The epoch of this node's start: what is older than this in our name was said by another process.
    started: u64,
    notices: Throttle,
    /// Later epochs than ours of which a notice has to be given.
    newer: BTreeSet<u64>,
    epochs: Throttle,
    /// The neighbours that such updates came by: when the last one did, and when a warning was given.
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

    /// The neighbours that brought updates in our name that are not ours, and how long ago the last one, the latest first.
    pub(super) fn speakers(&self, now: Tick) -> Vec<(NodeId, Duration)> {
        let mut all: Vec<_> =
            self.speakers.iter().map(|(by, (heard, _))| (by.clone(), now.since(*heard))).collect();
        all.sort_by_key(|(_, since)| *since);
        all
    }

    /// Such an update came by that neighbour; true if it is time for a warning.
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
    /// An update in our name: an echo, or what we have not said.
    pub(super) fn handle_update_in_our_name(&mut self, session: SessionId, update: &RoutingUpdate, now: Now) {
        let is_unsaid = update.epoch == self.epoch && self.is_unsaid(update);
        // Whoever hears that believes in our epoch no more.
        let is_accused = update.suspected_duplicate == self.epoch;
        if is_accused || (is_unsaid && update.sequence > LAST_SEQUENCE) {
            self.duplicates.epochs.request(now.tick);
        } else if is_unsaid {
            self.own_update.outdo(update.sequence);
            self.own_update.request(now.tick);
        }
        if update.epoch > self.epoch {
            // Not outdone by an epoch later still: there may be none, and a receptor node that started after us
            // ends by a notice.
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

    /// True if this node has not sent an update of its present epoch.
    fn is_unsaid(&self, update: &RoutingUpdate) -> bool {
        match update.sequence.cmp(&self.own_update.sequence()) {
            Ordering::Less => false,
            Ordering::Equal => self.forwarded(update.clone()) != Some(self.own_update.message()),
            Ordering::Greater => true,
        }
    }

    /// Somebody has opened a session as this node. If a certificate says that it may, and it was here first, this one
    /// must stop. What has an epoch of ours may be ourselves, dialled by mistake.
    pub(super) fn meet_duplicate(&mut self, session: SessionId, update: &RoutingUpdate) {
        let policy = self.sessions.get(session).map(|state| state.policy());
        let is_proven = policy.is_some_and(|policy| policy.certified.is_some() && policy.certifies(&self.id));
        if is_proven && update.epoch < self.duplicates.started {
            self.outbox.report(Event::WeAreDuplicate);
        }
    }

    /// Answers what was said in our name, if that is due. The answer to a flood must not be a flood of its own, so this is
    /// throttled.
    pub(super) fn answer_duplicates(&mut self, now: Tick) {
        if self.duplicates.epochs.take(now) {
            self.epoch = self.epoch.saturating_add(self.rng.random_range(1..=LONGEST_STEP));
            self.own_update.begin_epoch();
            self.own_update.request(now);
        }
        if self.duplicates.notices.take(now) {
            let newer = std::mem::take(&mut self.duplicates.newer);
            newer.into_iter().for_each(|epoch| self.flood_own_update(epoch, now));
            // The notices only correct who is believed; our links come with the next update.
            self.own_update.request(now);
        }
    }
}
