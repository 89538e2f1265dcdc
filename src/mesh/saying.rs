//! What another node has said last of its links: its version, and how it is passed on.
//!
//! Whether it is believed is decided in `links`, and which links count in the end in `rows`.

use std::sync::Arc;

use bytes::Bytes;

use super::rows::Links;
use crate::wire::{NameHash, NodeId, RoutingUpdate};

/// What another node has said last.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Saying {
    pub(super) node: NodeId,
    pub(super) hash: NameHash,
    pub(super) epoch: u64,
    pub(super) sequence: u64,
    /// What its update is called; `None` while it is in doubt whose word it is, which is not told any further.
    pub(super) update_id: Option<Box<str>>,
    /// Its links as it told them itself; those that count lack some whose other ends deny them.
    pub(super) links: Arc<Links>,
    /// What it takes in the table, in bytes.
    pub(super) size: usize,
}

impl Saying {
    pub(super) fn version(&self) -> (u64, u64) {
        (self.epoch, self.sequence)
    }

    pub(super) fn is_older_than(&self, other: &Self) -> bool {
        self.version() < other.version()
    }

    /// True if it is what the update says.
    pub(super) fn is_of(&self, update: &RoutingUpdate) -> bool {
        self.version() == (update.epoch, update.sequence)
            && self.update_id.as_deref() == Some(&update.update_id)
            && *self.links == *update.connections
    }

    /// As this node passes it on; `None` if it does not.
    pub(super) fn message(&self, forwarder: &NodeId) -> Option<Bytes> {
        let update = RoutingUpdate {
            node_id: Some(self.node.clone()),
            update_id: self.update_id.as_deref()?.to_owned(),
            epoch: self.epoch,
            sequence: self.sequence,
            connections: self.links.clone(),
            forwarding_node: forwarder.clone(),
            suspected_duplicate: 0,
        };
        update.message().ok()
    }
}
