//! The forwarding table: an immutable snapshot that says what becomes of a data message.
//!
//! It looks at two fields of the header and nothing else, so a link's reader can forward a frame without
//! asking the core. Whatever needs names or an answer is handed to the core, which is also told here when to make
//! another snapshot: what did not move is taken over as it is.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::core::{Event, Mesh};
use super::pool::Pool;
use super::spf::{Paths, Rerouted};
use super::status::Hops;
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
    next: Next,
}

/// Where the next hops stand.
#[derive(Debug, Clone)]
enum Next {
    ByHash(HashMap<NameHash, SessionId, BuildHasherDefault<HashIsKey>>),
    /// By the numbers that all meshes of a pool give to names: two bytes for each, where a map takes thirty.
    ByNumber {
        pool: Pool,
        sessions: Vec<SessionId>,
        next: Vec<u16>,
    },
}

/// No session.
const NOWHERE: u16 = u16::MAX;

impl Routes {
    /// A table for the node with hash `own`: where the paths lead, and the sessions to the neighbours. With
    /// `firewall`, every message is the core's.
    pub(super) fn new(
        own: NameHash,
        firewall: bool,
        paths: &Paths,
        sessions: &BTreeMap<NodeId, SessionId>,
        pool: Option<&Pool>,
    ) -> Self {
        let next = match pool {
            Some(pool) => by_number(paths, sessions, pool),
            None => {
                let hop = |(dest, hop): (_, NodeId)| Some((dest, *sessions.get(&hop)?));
                Next::ByHash(paths.hops().filter_map(hop).collect())
            }
        };
        Self { own: Some(own), firewall, next }
    }

    /// The same table where nothing but that has moved; `None` if that is not worth the trouble.
    fn after(&self, moved: &[Rerouted], sessions: &BTreeMap<NodeId, SessionId>) -> Option<Self> {
        let Next::ByHash(next) = &self.next else { return None };
        let mut next = next.clone();
        for Rerouted { hash, hop, .. } in moved {
            match hop.as_ref().and_then(|hop| sessions.get(hop)) {
                Some(session) => next.insert(*hash, *session),
                None => next.remove(hash),
            };
        }
        Some(Self { next: Next::ByHash(next), ..*self })
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
        match &self.next {
            Next::ByHash(next) => next.get(&to).copied(),
            Next::ByNumber { pool, sessions, next } => {
                let slot = pool.roster(|names| names.find_hash(to))?;
                sessions.get(usize::from(*next.get(slot as usize)?)).copied()
            }
        }
    }
}

fn by_number(paths: &Paths, sessions: &BTreeMap<NodeId, SessionId>, pool: &Pool) -> Next {
    let slots = sessions.keys().map(|peer| paths.slot(peer.as_str()));
    // A simulated node has few neighbours.
    let places: HashMap<_, u16> = slots.zip(0..NOWHERE).filter_map(|(slot, at)| Some((slot?, at))).collect();
    let place = |hop: Option<_>| hop.and_then(|hop| places.get(&hop)).copied().unwrap_or(NOWHERE);
    let next = paths.numbered_hops().map(place).collect();
    Next::ByNumber { pool: pool.clone(), sessions: sessions.values().copied().collect(), next }
}

impl Default for Next {
    fn default() -> Self {
        Self::ByHash(HashMap::default())
    }
}

impl PartialEq for Next {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::ByHash(one), Self::ByHash(other)) => one == other,
            (Self::ByNumber { pool: p, sessions: s, next: n }, Self::ByNumber { pool, sessions, next }) => {
                p.is(pool) && s == sessions && n == next
            }
            (Self::ByHash(_), Self::ByNumber { .. }) | (Self::ByNumber { .. }, Self::ByHash(_)) => false,
        }
    }
}

impl Mesh {
    /// Brings the forwarding table up to date with the links and the sessions.
    pub(super) fn recompute_routes(&mut self, now: Tick) {
        let moved = self.links.recompute_paths();
        let nodes = self.reachable();
        self.route_pace.set_long(self.options.route_hold_long + self.options.route_hold_per_node * nodes);
        self.counters.route_computations += 1;
        let firewall = !self.firewall.is_empty();
        let same_sessions = self.routed_by == self.by_peer && self.routes.firewall == firewall;
        if moved.is_empty() && same_sessions {
            return;
        }
        let kept = same_sessions.then(|| self.routes.after(&moved, &self.by_peer)).flatten();
        let routes = kept.unwrap_or_else(|| {
            self.routed_by = self.by_peer.clone();
            Routes::new(self.own, firewall, self.links.paths(), &self.by_peer, self.options.pool.as_ref())
        });
        if !moved.is_empty() || routes != *self.routes {
            self.counters.route_changes += 1;
            self.routes = Arc::new(routes);
            self.events.push_back(Event::RoutesChanged(self.routes.clone()));
        }
        if let Some(table) = self.routing_table.get_mut() {
            for Rerouted { node, hop, .. } in &moved {
                match hop {
                    Some(hop) => table.set(node.clone(), hop.clone()),
                    None => table.remove(node),
                }
            }
        }
        if moved.iter().any(|moved| moved.was_reachable != moved.hop.is_some()) {
            self.digest = None;
        }
        self.note_absences(&moved, now);
    }

    /// The forwarding table by names, for people: each reachable node with the neighbour towards it.
    pub fn routing_table(&self) -> &Hops {
        self.routing_table.get_or_init(|| self.links.paths().named_hops().collect())
    }
}
