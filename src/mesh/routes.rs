//! The forwarding table: an immutable snapshot that says what becomes of a data message.
//!
//! It looks at two fields of the header and nothing else, so a link's reader can forward a frame without
//! asking the core. Whatever needs names or an answer is handed to the core, which is also told here when to make
//! another snapshot: what did not move is taken over as it is.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::core::{Event, Mesh};
use super::paths::Rerouted;
use super::{SessionId, Tick};
use crate::wire::{DataHeader, NameHash, NodeId};

/// What becomes of a data message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It is for this node.
    Local,
    /// It goes to this session, with one hop fewer.
    Forward(SessionId),
    /// The core must see it: a firewall stands before it, its hops ran out, or there is no route.
    Core,
}

/// Node hashes are uniform already: they are their own hash.
#[derive(Debug, Default, Clone)]
pub(super) struct HashIsKey(u64);

impl Hasher for HashIsKey {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// Next hops, by the hash that stands in a header.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Routes {
    own: Option<NameHash>,
    firewall: bool,
    next: HashMap<NameHash, SessionId, BuildHasherDefault<HashIsKey>>,
}

impl Routes {
    /// A table for the node with hash `own`: each destination with the neighbour towards it, and the
    /// sessions to the neighbours. With `firewall`, every message is the core's.
    pub(super) fn new<'a>(
        own: NameHash,
        firewall: bool,
        hops: impl Iterator<Item = (NameHash, &'a NodeId)>,
        sessions: &BTreeMap<NodeId, SessionId>,
    ) -> Self {
        let next = hops.filter_map(|(dest, hop)| Some((dest, *sessions.get(hop)?))).collect();
        Self { own: Some(own), firewall, next }
    }

    /// The same table where nothing but that has moved.
    fn after(&self, moved: &[Rerouted], sessions: &BTreeMap<NodeId, SessionId>) -> Self {
        let mut routes = self.clone();
        for Rerouted { hash, hop, .. } in moved {
            match hop.as_ref().and_then(|hop| sessions.get(hop)) {
                Some(session) => routes.next.insert(*hash, *session),
                None => routes.next.remove(hash),
            };
        }
        routes
    }

    /// What becomes of a message with this header.
    pub fn decide(&self, header: &DataHeader) -> Decision {
        if self.firewall {
            return Decision::Core;
        }
        if self.own == Some(header.to_node) {
            return Decision::Local;
        }
        if header.hops == 0 {
            return Decision::Core;
        }
        self.next_hop(header.to_node).map_or(Decision::Core, Decision::Forward)
    }

    /// The session towards a node.
    pub fn next_hop(&self, to: NameHash) -> Option<SessionId> {
        self.next.get(&to).copied()
    }
}

impl Mesh {
    /// Brings the forwarding table up to date with the links and the sessions.
    pub(super) fn recompute_routes(&mut self, now: Tick) {
        let moved = self.links.recompute_paths();
        let nodes = u32::try_from(self.links.paths().reachable()).unwrap_or(u32::MAX);
        self.route_pace.set_long(self.options.route_hold_long + self.options.route_hold_per_node * nodes);
        self.counters.route_computations += 1;
        let firewall = !self.firewall.is_empty();
        let same_sessions = self.routed_by == self.by_peer && self.routes.firewall == firewall;
        if moved.is_empty() && same_sessions {
            return;
        }
        let routes = if same_sessions {
            self.routes.after(&moved, &self.by_peer)
        } else {
            self.routed_by = self.by_peer.clone();
            Routes::new(self.own, firewall, self.links.paths().hops(), &self.by_peer)
        };
        if !moved.is_empty() || routes != *self.routes {
            self.counters.route_changes += 1;
            self.routes = Arc::new(routes);
            self.events.push_back(Event::RoutesChanged(self.routes.clone()));
        }
        if !moved.is_empty() {
            self.routing_table.take();
        }
        if moved.iter().any(|moved| moved.was_reachable != moved.hop.is_some()) {
            self.digest = None;
        }
        self.note_absences(&moved, now);
    }

    /// The forwarding table by names, for people: each reachable node with the neighbour towards it.
    pub fn routing_table(&self) -> &Arc<BTreeMap<NodeId, NodeId>> {
        let paths = self.links.paths();
        let hop = |node: &NodeId| Some((node.clone(), paths.next_hop(node.as_str())?.clone()));
        let table = || Arc::new(self.links.costs().keys().filter_map(hop).collect());
        self.routing_table.get_or_init(table)
    }
}
