//! This node's own routing updates: when the next one is due, and what stands in it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use rand::distr::{Alphanumeric, SampleString};

use super::probe::PeerKind;
use super::throttle::BackOff;
use super::{Event, Mesh, Options, SessionId, Tick};
use crate::wire::name::MAX_NODE_ID;
use crate::wire::{Cost, NodeId, RoutingUpdate, WireError};

/// The state of the own updates.
#[derive(Debug)]
pub(super) struct OwnUpdate {
    /// The latest that was used, be it by others.
    latest: u64,
    /// Of the latest one that established neighbours were sent.
    sequence: u64,
    message: Bytes,
    throttle: BackOff,
    /// The next regular round.
    next: Tick,
    /// Since when newcomers wait for an answer, and when they get it.
    newcomers: Option<(Tick, Tick)>,
}

impl OwnUpdate {
    pub(super) fn new(options: &Options, now: Tick) -> Self {
        Self {
            latest: 0,
            sequence: 0,
            message: Bytes::new(),
            throttle: BackOff::new(options.update_hold, options.update_hold_long),
            next: now + options.update_interval,
            newcomers: None,
        }
    }

    /// The sequence of the latest update that established neighbours were sent.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Somebody has used that sequence in our name: ours go on after it.
    pub(super) fn outdo(&mut self, sequence: u64) {
        self.latest = self.latest.max(sequence);
    }

    /// Sequences start again.
    pub(super) fn begin_epoch(&mut self) {
        (self.latest, self.sequence) = (0, 0);
    }

    /// That update.
    pub(super) fn message(&self) -> Bytes {
        self.message.clone()
    }

    /// The own links have changed.
    pub(super) fn request(&mut self, now: Tick) {
        self.throttle.request(now);
    }

    /// The next regular round comes at that time at the latest.
    pub(super) fn bring_forward(&mut self, due: Tick) {
        self.next = self.next.min(due);
    }

    pub(super) fn due(&self) -> Tick {
        let newcomers = self.newcomers.map(|(_, due)| due);
        [self.throttle.due(), newcomers].into_iter().flatten().fold(self.next, Tick::min)
    }

    /// True if an update is due.
    pub(super) fn take_due(&mut self, now: Tick) -> bool {
        self.throttle.take(now) || self.due() <= now
    }
}

impl Mesh {
    /// Introduces this node to whoever is at the other end, who is told of no links before we know who that is.
    pub(super) fn greeting(&mut self) -> Bytes {
        let update_id = self.new_update_id();
        self.own_update_with(Arc::default(), update_id, 0).message().unwrap_or_default()
    }

    pub(super) fn new_update_id(&mut self) -> String {
        Alphanumeric.sample_string(&mut self.rng, 8)
    }

    fn own_update_with(
        &self,
        connections: Arc<BTreeMap<NodeId, Cost>>,
        update_id: String,
        suspected_duplicate: u64,
    ) -> RoutingUpdate {
        RoutingUpdate {
            node_id: Some(self.id.clone()),
            update_id,
            epoch: self.epoch,
            sequence: self.own_update.latest,
            connections,
            forwarding_node: self.id.clone(),
            suspected_duplicate,
        }
    }

    /// The next version of our own list of links, as a message for neighbours. Should the list not fit into a message, which
    /// [`Mesh::excess_bytes`] keeps from happening, it is sent empty and reported.
    pub(super) fn announced_update(&mut self, suspected_duplicate: u64) -> Bytes {
        let connections = self.lsdb.own_links().cloned().unwrap_or_default();
        self.own_update.latest += 1;
        let update_id = self.new_update_id();
        let mut update = self.own_update_with(connections, update_id, suspected_duplicate);
        let message = update.message().unwrap_or_else(|error| {
            self.outbox.report(Event::UpdateTooLarge(error.into()));
            update.connections = Arc::default();
            update.message().unwrap_or_default()
        });
        self.own_update.sequence = self.own_update.latest;
        self.own_update.message = message.clone();
        message
    }

    /// How long until the next own update if nothing changes.
    pub(super) fn update_round(&mut self) -> Duration {
        let (options, nodes) = (&self.options, self.lsdb.reachable());
        let relaxed =
            (options.relaxed_interval + options.relaxed_per_node * nodes).max(options.update_interval);
        let round = if self.sessions.all_meshd() { relaxed } else { options.update_interval };
        self.jittered(round)
    }

    pub(super) fn jittered(&mut self, time: Duration) -> Duration {
        time.mul_f64(self.rng.random_range(0.9..1.0))
    }

    pub(super) fn flood_own_update(&mut self, suspected_duplicate: u64, now: Tick) {
        self.own_update.throttle.note_done(now);
        self.own_update.newcomers = None;
        self.own_update.next = now + self.update_round();
        if self.sessions.by_peer().is_empty() {
            return;
        }
        let message = self.announced_update(suspected_duplicate);
        self.counters.own_updates += 1;
        self.flood(&message, &[]);
    }

    /// A node of which nothing was known has to hear of us (docs/protocol.md#flooding), unless one of its neighbours is
    /// a meshd node, which has sent it everything already. Where it was heard through a meshd node that is likely, so
    /// the answer may wait for those to other newcomers: a large mesh that starts would else announce itself again and
    /// again.
    pub(super) fn answer_newcomer(&mut self, session: SessionId, now: Tick) {
        let kind = self.sessions.established(session).map(|established| established.liveness.kind());
        if kind == Some(PeerKind::Other) {
            self.own_update.request(now);
        } else {
            // A node that joins has heard of few when it hears of the first one.
            let since = self.own_update.newcomers.map_or(now, |(since, _)| since);
            let nodes = u32::try_from(self.lsdb.len()).unwrap_or(u32::MAX);
            let due = since + self.options.answer_hold + self.options.answer_per_node * nodes;
            self.own_update.newcomers = Some((since, due));
        }
    }

    /// The size that the own update would have with one more neighbour, if that is too much. Refused early:
    /// others have to pass it on under names longer than ours.
    pub(super) fn excess_bytes(&self, peer: &NodeId) -> Option<usize> {
        // Each link takes a name of at most 255 bytes and some for its cost.
        const MOST_PER_LINK: usize = 2 * MAX_NODE_ID + 40;
        let links = self.lsdb.own_links()?;
        if (links.len() + 2) * MOST_PER_LINK < self.options.max_own_message {
            return None;
        }
        let mut connections = (**links).clone();
        connections.insert(peer.clone(), Cost::DEFAULT);
        let update_id = String::from("8letters");
        let bytes = match self.own_update_with(connections.into(), update_id, 0).message() {
            Ok(message) => message.len(),
            Err(WireError::TooLarge { len, .. }) => len,
            Err(_) => return None,
        };
        (bytes > self.options.max_own_message).then_some(bytes)
    }
}
