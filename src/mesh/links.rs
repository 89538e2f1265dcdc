//! The link-state table: which node has links to which, as routing updates tell it.
//!
//! Decides which update is news; keeps each node's newest update as it is passed on, so that a new
//! neighbour can be told all at once; remembers for a while what it was told to forget, so that a late
//! echo does not bring it back. Knows nothing of sessions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use super::paths::{LinkCosts, links_of};
use super::{Options, Tick};
use crate::wire::{Cost, NameHash, NodeId, RoutingUpdate};

/// Forgotten nodes that are remembered: at most this many.
const MOST_FORGOTTEN: usize = 16_384;

/// What is known of another node.
#[derive(Debug)]
struct Known {
    hash: NameHash,
    epoch: u64,
    sequence: u64,
    /// The epoch of another node with its name; 0 if there is none. What that one said may still be on its
    /// way, and would be believed again.
    distrusted: u64,
    /// Its links as it told them itself; `costs` lacks those whose other ends deny them.
    said: Arc<BTreeMap<NodeId, Cost>>,
    /// Bytes of its newest update as it came.
    size: usize,
    /// Its newest update as this node passes it on; empty until it has been.
    message: Bytes,
}

/// The last that was known of a node before it was forgotten, and when that was.
#[derive(Debug)]
struct Forgotten {
    epoch: u64,
    sequence: u64,
    since: Tick,
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
        /// It has begun a new life, or its first one that we hear of.
        new_life: bool,
        /// Links were added, removed or changed their cost.
        links_changed: bool,
    },
}

/// The table.
#[derive(Debug)]
pub(super) struct LinkTable {
    own: NodeId,
    max_nodes: usize,
    max_bytes: usize,
    remember: Duration,
    costs: Arc<LinkCosts>,
    known: BTreeMap<NodeId, Known>,
    /// Size of all updates in `known`.
    bytes: usize,
    forgotten: BTreeMap<NodeId, Forgotten>,
}

impl LinkTable {
    pub(super) fn new(own: NodeId, options: &Options) -> Self {
        Self {
            own,
            max_nodes: options.max_nodes,
            max_bytes: options.max_table_bytes,
            remember: options.withdrawn_time,
            costs: Arc::default(),
            known: BTreeMap::new(),
            bytes: 0,
            forgotten: BTreeMap::new(),
        }
    }

    /// Known links: from, to, cost.
    pub(super) fn costs(&self) -> &Arc<LinkCosts> {
        &self.costs
    }

    /// Takes another node's update of `size` bytes, by the rules of contract section 3.
    pub(super) fn apply(&mut self, node: &NodeId, update: &RoutingUpdate, size: usize) -> News {
        let before = self.known.get(node);
        let version = (update.epoch, update.sequence);
        let full = self.bytes + size > self.max_bytes;
        match before {
            Some(known) if known.distrusted != 0 && update.epoch == known.distrusted => {
                return News::Distrusted;
            }
            Some(known) if version <= (known.epoch, known.sequence) => return News::Nothing,
            Some(_) => {}
            None if self.is_echo(node, version) => return News::Nothing,
            None if full || self.known.len() >= self.max_nodes => return News::NoRoom,
            None => {}
        }
        let (new_node, new_life) = (before.is_none(), before.is_none_or(|known| known.epoch != update.epoch));
        let distrusted = before.map_or(0, |known| known.distrusted);
        let hash = before.map_or_else(|| node.hash(), |known| known.hash);
        self.bytes = self.bytes + size - before.map_or(0, |known| known.size);
        let (epoch, sequence) = version;
        let said = match before {
            Some(known) if *known.said == update.connections => known.said.clone(),
            Some(_) | None => Arc::new(update.connections.clone()),
        };
        let links_changed = self.set_links(node, &said);
        let known = Known { hash, epoch, sequence, distrusted, said, size, message: Bytes::new() };
        self.known.insert(node.clone(), known);
        self.forgotten.remove(node);
        News::Update { new_node, new_life, links_changed }
    }

    fn set_links(&mut self, node: &NodeId, said: &Arc<BTreeMap<NodeId, Cost>>) -> bool {
        if self.costs.get(node) == Some(said) {
            return false;
        }
        let costs = Arc::make_mut(&mut self.costs);
        let before = costs.insert(node.clone(), said.clone()).unwrap_or_default();
        // A link that one end no longer lists is gone, whatever the other end last said. A link that it
        // does not list yet stays: the other end was faster. Links of this node are its own to judge.
        let ended = before.keys().filter(|to| !said.contains_key(*to));
        for end in ended.filter(|end| **end != self.own) {
            if costs.get(end).is_some_and(|links| links.contains_key(node)) {
                links_of(costs, end).remove(node);
            }
        }
        // One that comes back is what its other end has gone on saying, and need not say again.
        for end in said.keys().filter(|to| !before.contains_key(*to)) {
            if let Some(cost) = self.known.get(end).and_then(|known| known.said.get(node)) {
                links_of(costs, end).entry(node.clone()).or_insert(*cost);
            }
        }
        true
    }

    /// Keeps the message in which `node`'s newest update is passed on.
    pub(super) fn keep_message(&mut self, node: &NodeId, message: &Bytes) {
        if let Some(known) = self.known.get_mut(node) {
            known.message = message.clone();
        }
    }

    /// The newest updates of all nodes, as messages to pass on.
    pub(super) fn messages(&self) -> impl Iterator<Item = (&NodeId, &Bytes)> {
        let told = self.known.iter().filter(|(_, known)| !known.message.is_empty());
        told.map(|(node, known)| (node, &known.message))
    }

    /// Each node with its hash, epoch and sequence.
    pub(super) fn versions(&self) -> impl Iterator<Item = (&NodeId, NameHash, u64, u64)> {
        self.known.iter().map(|(node, known)| (node, known.hash, known.epoch, known.sequence))
    }

    /// When the present life of a node began, by its own clock.
    pub(super) fn born(&self, node: &NodeId) -> Option<Timestamp> {
        let seconds = self.known.get(node)?.epoch >> 24;
        Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
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
        let costs = Arc::make_mut(&mut self.costs);
        links_of(costs, &self.own).insert(peer.clone(), cost);
        links_of(costs, peer).insert(self.own.clone(), cost);
    }

    /// The session with `peer` is gone: no link either way. False if nothing else is known of the peer,
    /// which is then forgotten: it may have made its name up.
    pub(super) fn disconnect(&mut self, peer: &NodeId) -> bool {
        let costs = Arc::make_mut(&mut self.costs);
        for (from, to) in [(&self.own, peer), (peer, &self.own)] {
            if let Some(links) = costs.get_mut(from) {
                Arc::make_mut(links).remove(to);
            }
        }
        let known = self.known.contains_key(peer);
        if !known {
            costs.remove(peer);
        }
        known
    }

    /// Nodes known, bytes of their updates, nodes remembered as forgotten.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.known.len(), self.bytes, self.forgotten.len())
    }

    /// The nodes that are known, this one aside.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        self.known.keys()
    }

    /// Forgets a node; what it has said so far is not believed again when somebody repeats it.
    pub(super) fn forget(&mut self, node: &NodeId, now: Tick) {
        let Some(Known { epoch, sequence, size, .. }) = self.known.remove(node) else { return };
        self.bytes -= size;
        Arc::make_mut(&mut self.costs).remove(node);
        if self.forgotten.len() >= MOST_FORGOTTEN {
            self.forgotten.retain(|_, gone| now.since(gone.since) < self.remember);
            if self.forgotten.len() >= MOST_FORGOTTEN {
                self.forgotten.pop_first();
            }
        }
        self.forgotten.insert(node.clone(), Forgotten { epoch, sequence, since: now });
    }

    /// A node that comes back says something newer, or, with its clock set back, begins another epoch.
    fn is_echo(&self, node: &NodeId, (epoch, sequence): (u64, u64)) -> bool {
        self.forgotten.get(node).is_some_and(|gone| gone.epoch == epoch && sequence <= gone.sequence)
    }
}
