//! Newcomers: nodes that appear, and the advertisements that they have missed.
//!
//! A receptor node sends a new neighbour no advertisements, so a node that joins the mesh through a receptor node would
//! hear of services only in the next round, up to a minute later. This module owns when our services are announced
//! again for newcomers, once for many of them; `services` knows what is announced.

use std::time::Duration;

use rand::RngExt;

use super::{Mesh, Options, Tick};
use crate::wire::NodeId;

/// When newcomers are told.
#[derive(Debug)]
pub(super) struct Newcomers {
    /// When all our services were last announced.
    announced: Tick,
    due: Option<Tick>,
}

impl Newcomers {
    pub(super) fn new(now: Tick) -> Self {
        Self { announced: now, due: None }
    }

    /// When the newcomers are told, if there are any.
    pub(super) fn due(&self) -> Option<Tick> {
        self.due
    }

    /// All our services have just been announced.
    pub(super) fn note_announced(&mut self, now: Tick) {
        (self.announced, self.due) = (now, None);
    }

    fn request(&mut self, due: Tick, hold: Duration) {
        self.due.get_or_insert(due.max(self.announced + hold));
    }
}

impl Options {
    /// The longest time until newcomers are told, and the shortest between two such announcements. Both grow with the
    /// mesh, because all its nodes announce their services.
    fn newcomer_times(&self, nodes: u32) -> (Duration, Duration) {
        let more = self.newcomer_per_node * nodes;
        (self.newcomer_spread + more, self.newcomer_hold + more)
    }
}

impl Mesh {
    /// A node has appeared, or a known one has restarted. A neighbour needs nothing here: it is sent everything anyway.
    pub(super) fn tell_newcomer(&mut self, node: &NodeId, now: Tick) {
        if self.sessions.by_peer().contains_key(node) {
            return;
        }
        let nodes = u32::try_from(self.lsdb.len()).unwrap_or(u32::MAX);
        let (spread, hold) = self.options.newcomer_times(nodes);
        let due = now + spread.mul_f64(self.rng.random());
        self.services.newcomers.request(due, hold);
    }
}
