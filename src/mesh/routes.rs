//! The forwarding table: an immutable snapshot that says what becomes of a data message.
//!
//! It looks at two fields of the header and nothing else, so a link's reader can forward a frame without
//! asking the core. Whatever needs names or an answer is handed to the core.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::SessionId;
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
    by_name: Arc<BTreeMap<NodeId, NodeId>>,
}

impl Routes {
    /// A table for the node with hash `own`: each destination with the neighbour towards it, and the
    /// sessions to the neighbours. With `firewall`, every message is the core's.
    pub(super) fn new(
        own: NameHash,
        firewall: bool,
        by_name: BTreeMap<NodeId, NodeId>,
        sessions: &BTreeMap<NodeId, SessionId>,
    ) -> Self {
        let next = by_name
            .iter()
            .filter_map(|(dest, hop)| sessions.get(hop).map(|&session| (dest.hash(), session)))
            .collect();
        Self { own: Some(own), firewall, next, by_name: by_name.into() }
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

    /// The same by names, for people: each reachable node with the neighbour towards it.
    pub fn by_name(&self) -> &Arc<BTreeMap<NodeId, NodeId>> {
        &self.by_name
    }
}
