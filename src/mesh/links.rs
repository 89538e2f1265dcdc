//! The link-state table: which node has links to which, as routing updates tell it.
//!
//! Decides which update is news; keeps each node's newest update as it is passed on, so that a new
//! neighbour can be told all at once. Knows nothing of sessions or of time.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::paths::LinkCosts;
use crate::wire::{Cost, NodeId, RoutingUpdate};

/// What is known of another node.
#[derive(Debug)]
struct Known {
    epoch: u64,
    sequence: u64,
    /// The epoch of another node with its name; 0 if there is none. What that one said may still be on its
    /// way, and would be believed again.
    distrusted: u64,
    /// Its newest update as this node passes it on; empty until it has been.
    message: Bytes,
}

/// What an update told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Older than, or the same as, what is known.
    Nothing,
    /// Of another node with the same name: for that name's owner to hear, not for us to believe.
    Distrusted,
    /// The table is full and this node is not in it.
    NoRoom,
    /// Accepted.
    Update {
        /// The node was unknown before.
        new_node: bool,
        /// Links were added, removed or changed their cost.
        links_changed: bool,
        /// The node has started anew since it was last heard.
        restarted: bool,
    },
}

/// The table.
#[derive(Debug)]
pub(super) struct LinkTable {
    own: NodeId,
    max_nodes: usize,
    costs: LinkCosts,
    known: BTreeMap<NodeId, Known>,
}

impl LinkTable {
    pub(super) fn new(own: NodeId, max_nodes: usize) -> Self {
        Self { own, max_nodes, costs: LinkCosts::new(), known: BTreeMap::new() }
    }

    /// Known links: from, to, cost.
    pub(super) fn costs(&self) -> &LinkCosts {
        &self.costs
    }

    /// Takes another node's update, by the rules of contract section 3.
    pub(super) fn apply(&mut self, node: &NodeId, update: &RoutingUpdate) -> News {
        let new_node = match self.known.get(node) {
            Some(known) if known.distrusted != 0 && update.epoch == known.distrusted => {
                return News::Distrusted;
            }
            Some(known) if (update.epoch, update.sequence) <= (known.epoch, known.sequence) => {
                return News::Nothing;
            }
            Some(_) => false,
            None if self.known.len() >= self.max_nodes => return News::NoRoom,
            None => true,
        };
        let restarted = self.known.get(node).is_some_and(|known| known.epoch < update.epoch);
        let message = Bytes::new();
        let distrusted = self.known.get(node).map_or(0, |known| known.distrusted);
        let known = Known { epoch: update.epoch, sequence: update.sequence, distrusted, message };
        self.known.insert(node.clone(), known);
        let links_changed = self.costs.get(node) != Some(&update.connections);
        if links_changed {
            let before = self.costs.insert(node.clone(), update.connections.clone()).unwrap_or_default();
            // A link that one end no longer lists is gone, whatever the other end last said. A link that it
            // does not list yet stays: the other end was faster. Links of this node are its own to judge.
            let ended = before.keys().filter(|to| !update.connections.contains_key(*to));
            for end in ended.filter(|end| **end != self.own) {
                if let Some(links) = self.costs.get_mut(end) {
                    links.remove(node);
                }
            }
        }
        News::Update { new_node, links_changed, restarted }
    }

    /// Keeps the message in which `node`'s newest update is passed on.
    pub(super) fn keep_message(&mut self, node: &NodeId, message: &Bytes) {
        if let Some(known) = self.known.get_mut(node) {
            known.message = message.clone();
        }
    }

    /// The newest updates of all nodes, as messages to pass on.
    pub(super) fn messages(&self) -> impl Iterator<Item = &Bytes> {
        self.known.values().map(|known| &known.message).filter(|message| !message.is_empty())
    }

    /// A node says that what is known of it stems from another one with its name: if so, it is believed.
    pub(super) fn correct(&mut self, node: &NodeId, update: &RoutingUpdate) {
        let Some(known) = self.known.get_mut(node) else { return };
        if known.epoch == update.suspected_duplicate {
            known.epoch = update.epoch;
            known.sequence = update.sequence;
        }
        if known.epoch == update.epoch {
            known.distrusted = update.suspected_duplicate;
        }
    }

    /// A session with `peer` stands: links both ways.
    pub(super) fn connect(&mut self, peer: &NodeId, cost: Cost) {
        self.costs.entry(self.own.clone()).or_default().insert(peer.clone(), cost);
        self.costs.entry(peer.clone()).or_default().insert(self.own.clone(), cost);
    }

    /// The session with `peer` is gone: no link either way. False if nothing else is known of the peer,
    /// which is then forgotten: it may have made its name up.
    pub(super) fn disconnect(&mut self, peer: &NodeId) -> bool {
        if let Some(links) = self.costs.get_mut(&self.own) {
            links.remove(peer);
        }
        if let Some(links) = self.costs.get_mut(peer) {
            links.remove(&self.own);
        }
        let known = self.known.contains_key(peer);
        if !known {
            self.costs.remove(peer);
        }
        known
    }
}
