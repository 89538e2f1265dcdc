//! What another node has said last of its links: its version, and how it is passed on.
//!
//! Whether it is believed is decided in `lsdb`, and which links count in the end in `rows`.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::readings::Text;
use super::spf::{Linked, Links};
use crate::wire::{NameHash, NodeId, RoutingUpdate};

/// What another node has said last.
#[derive(Debug, Clone)]
pub(super) struct Saying {
    pub(super) node: NodeId,
    pub(super) hash: NameHash,
    pub(super) epoch: u64,
    pub(super) sequence: u64,
    /// What its update is called; `None` while it is in doubt whose word it is, which is not told any further.
    pub(super) update_id: Option<Box<str>>,
    /// Its links as it told them itself; those that count lack some whose other ends deny them.
    pub(super) links: Arc<Links>,
    /// What meshes with a pool share beyond that.
    pub(super) pooled: Option<Box<Pooled>>,
    /// What it takes in the table, in bytes.
    pub(super) size: usize,
}

/// A saying as meshes of one pool have it.
#[derive(Debug, Clone)]
pub(super) struct Pooled {
    /// Its links with numbers, which stand for ever there.
    pub(super) linked: Arc<Linked>,
    /// Its message, once somebody has passed it on.
    text: OnceLock<Option<Text>>,
}

impl Pooled {
    pub(super) fn new(linked: Arc<Linked>) -> Box<Self> {
        Self { linked, text: OnceLock::new() }.into()
    }
}

impl Saying {
    pub(super) fn version(&self) -> (u64, u64) {
        (self.epoch, self.sequence)
    }

    /// True if it is what the update says.
    pub(super) fn is_of(&self, update: &RoutingUpdate) -> bool {
        self.version() == (update.epoch, update.sequence)
            && self.update_id.as_deref() == Some(&update.update_id)
            && self.links == update.connections
    }

    /// As this node passes it on; `None` if it does not.
    pub(super) fn message(&self, forwarder: &NodeId) -> Option<Bytes> {
        let printed = || self.print(forwarder).and_then(|message| Text::of(&message));
        let text = self.pooled.as_ref().and_then(|pooled| pooled.text.get_or_init(printed).as_ref());
        text.and_then(|text| text.under(forwarder)).or_else(|| self.print(forwarder))
    }

    fn print(&self, forwarder: &NodeId) -> Option<Bytes> {
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
