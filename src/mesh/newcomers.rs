//! Newcomers: nodes that appear, and the advertisements that they have missed.
//!
//! A receptor node sends a new neighbour no advertisements, so whoever joins the mesh behind one would hear of services
//! in the next round only, up to a minute later. Owns when the own services are announced once more for such a node,
//! however many of them appear; what is announced is `services`' business.

use std::time::Duration;

use rand::RngExt;

use super::{Mesh, Options, Tick};
use crate::wire::NodeId;

/// When newcomers are told.
#[derive(Debug)]
pub(super) struct Newcomers {
    /// When all own services were announced last.
    announced: Tick,
    due: Option<Tick>,
}

impl Newcomers {
    pub(super) fn new(now: Tick) -> Self {
        Self { announced: now, due: None }
    }

    /// When those that have appeared are told.
    pub(super) fn due(&self) -> Option<Tick> {
        self.due
    }

    /// All own services have just been announced.
    pub(super) fn note_announced(&mut self, now: Tick) {
        (self.announced, self.due) = (now, None);
    }

    fn request(&mut self, due: Tick, hold: Duration) {
        self.due.get_or_insert(due.max(self.announced + hold));
    }
}

impl Options {
    /// Until newcomers are told at the latest, and between two such announcements at least. Both grow with the mesh,
    /// all of whose nodes announce themselves.
    fn newcomer_times(&self, nodes: u32) -> (Duration, Duration) {
        let more = self.newcomer_per_node * nodes;
        (self.newcomer_spread + more, self.newcomer_hold + more)
    }
}

impl Mesh {
    /// A node has appeared, or one that is known has begun a new life. A neighbour is sent everything anyway.
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
