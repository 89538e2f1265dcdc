//! This node's own routing updates: when the next one is due, and what it contains.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use rand::distr::{Alphanumeric, SampleString};

use super::probe::PeerKind;
use super::throttle::SlowingThrottle;
use super::{Event, Mesh, Options, SessionId, Tick};
use crate::wire::name::MAX_NODE_ID;
use crate::wire::{Cost, NodeId, RoutingUpdate, WireError};

/// The state of the own updates.
#[derive(Debug)]
pub(super) struct OwnUpdate {
    /// The latest sequence that was used in our name, by us or by others.
    latest: u64,
    /// The sequence of the latest update that established neighbours were sent.
    sequence: u64,
    message: Bytes,
    throttle: SlowingThrottle,
    /// The next regular round.
    next: Tick,
    /// When the first newcomer began to wait for an answer, and when the answer is due.
    newcomers: Option<(Tick, Tick)>,
}

impl OwnUpdate {
    pub(super) fn new(options: &Options, now: Tick) -> Self {
        Self {
            latest: 0,
            sequence: 0,
            message: Bytes::new(),
            throttle: SlowingThrottle::new(options.update_hold, options.update_hold_long),
            next: now + options.update_interval,
            newcomers: None,
        }
    }

    /// The sequence of the latest update that established neighbours were sent.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Somebody has used `sequence` in our name: our next one is greater.
    pub(super) fn outdo(&mut self, sequence: u64) {
        self.latest = self.latest.max(sequence);
    }

    /// Sequences start again, because the epoch is new.
    pub(super) fn begin_epoch(&mut self) {
        (self.latest, self.sequence) = (0, 0);
    }

    /// The latest update that established neighbours were sent.
    pub(super) fn message(&self) -> Bytes {
        self.message.clone()
    }

    /// The own links have changed.
    pub(super) fn request(&mut self, now: Tick) {
        self.throttle.request(now);
    }

    /// The next regular round comes at `due` at the latest.
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
    /// The message that introduces this node. It lists no links, because the other end is still unknown.
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

    /// The next version of our own list of links, as a message for neighbours. If the list did not fit into a message,
    /// it would be sent empty and reported, but [`Mesh::excess_bytes`] prevents this.
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

    /// A node that was unknown has to hear of us (docs/protocol.md#flooding), unless a meshd neighbour of it has sent
    /// it everything already. This is likely if we heard of it through a meshd node. Then the answer waits, and serves
    /// other newcomers as well: otherwise the nodes of a large starting mesh would announce themselves again and again.
    pub(super) fn answer_newcomer(&mut self, session: SessionId, now: Tick) {
        let kind = self.sessions.established(session).map(|established| established.liveness.kind());
        if kind == Some(PeerKind::Other) {
            self.own_update.request(now);
        } else {
            // Due later with each newcomer, because a node that joins knows few others when it hears of the first.
            let since = self.own_update.newcomers.map_or(now, |(since, _)| since);
            let nodes = u32::try_from(self.lsdb.len()).unwrap_or(u32::MAX);
            let due = since + self.options.answer_hold + self.options.answer_per_node * nodes;
            self.own_update.newcomers = Some((since, due));
        }
    }

    /// The size that our update would have with one more neighbour, if this is too much. The bound is below a
    /// message's, because others have to pass our update on under longer names.
    pub(super) fn excess_bytes(&self, peer: &NodeId) -> Option<usize> {
        // The bytes of a name, doubled because JSON may escape each, and some for the cost.
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
