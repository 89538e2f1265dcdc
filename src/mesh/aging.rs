//! Forgetting: nodes that have been unreachable for long, links that broke long ago, and services from before a restart.
//!
//! A node that is briefly absent stays listed, with its services, because AWX takes an unlisted node for removed. Once
//! a node has been away for half of the forget time, new neighbours are not told of it any more. Otherwise nodes that
//! forget it at different times would remind each other of it forever.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Event, Mesh, Now, Tick};
use crate::wire::NodeId;

/// Why a node cannot be forgotten.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForgetError {
    /// It is this node.
    #[error("{0} is this node itself")]
    Own(NodeId),
    /// It is in the mesh, and would be heard of again at once.
    #[error("{node} is reachable through {via}: stop it first")]
    Reachable {
        /// The node.
        node: NodeId,
        /// The neighbour towards it.
        via: NodeId,
    },
    /// Nothing is known of it.
    #[error("there is no node {0} that this node knows")]
    Unknown(NodeId),
}

/// The absent nodes, and when something is to be forgotten.
#[derive(Debug, Default)]
pub(super) struct Aging {
    /// Nodes that are known but cannot be reached, and since when.
    absent: BTreeMap<NodeId, Tick>,
    next_sweep: Option<Tick>,
}

impl Aging {
    /// How many nodes are absent.
    pub(super) fn len(&self) -> usize {
        self.absent.len()
    }

    /// When the next sweep is due.
    pub(super) fn due(&self) -> Option<Tick> {
        self.next_sweep
    }

    /// Asks for a sweep at `due` at the latest.
    pub(super) fn sweep_by(&mut self, due: Option<Tick>) {
        self.next_sweep = [self.next_sweep, due].into_iter().flatten().min();
    }

    /// These nodes can be reached again.
    pub(super) fn remove(&mut self, nodes: &[NodeId]) {
        for node in nodes {
            self.absent.remove(node);
        }
    }
}

impl Mesh {
    /// Forgets an unreachable node at once: its links, its services, its name. Other nodes forget it after
    /// [`super::Options::forget_time`].
    ///
    /// # Errors
    /// [`ForgetError`] if it is this node, or reachable, or unknown.
    pub fn forget(&mut self, node: &NodeId, now: Now) -> Result<(), ForgetError> {
        if *node == self.id {
            return Err(ForgetError::Own(node.clone()));
        }
        if let Some(via) = self.lsdb.hops().get(node) {
            return Err(ForgetError::Reachable { node: node.clone(), via: via.clone() });
        }
        if let Some(via) = self.sessions.by_peer().contains_key(node).then_some(node) {
            return Err(ForgetError::Reachable { node: node.clone(), via: via.clone() });
        }
        if !self.aging.absent.contains_key(node) {
            return Err(ForgetError::Unknown(node.clone()));
        }
        self.drop_node(node, now.tick);
        Ok(())
    }

    /// Sets how long unreachable nodes stay listed, including those that are unreachable already.
    pub fn set_forget_time(&mut self, time: Duration, now: Now) {
        self.options.forget_time = time;
        self.aging.sweep_by(Some(now.tick));
    }

    /// Something was heard of a node: notes it as absent if it cannot be reached, or not yet.
    pub(super) fn note_if_absent(&mut self, node: &NodeId, now: Tick) {
        if !self.lsdb.reaches(node) && !self.aging.absent.contains_key(node) {
            self.aging.absent.insert(node.clone(), now);
            self.aging.sweep_by(Some(now + self.options.forget_time));
        }
    }

    /// True if new neighbours are still sent what is known of the node.
    pub(super) fn is_fresh(&self, node: &NodeId, now: Tick) -> bool {
        self.aging.absent.get(node).is_none_or(|since| now.since(*since) < self.options.forget_time / 2)
    }

    /// Forgets nodes and services that are due.
    pub(super) fn sweep(&mut self, now: Tick) {
        self.aging.next_sweep = None;
        let (expired, next) = self.services.expire(now);
        if expired {
            self.outbox.report(Event::OffersChanged);
        }
        self.aging.sweep_by(next);
        let forget_time = self.options.forget_time;
        let next = self.lsdb.expire_broken(forget_time, now);
        self.aging.sweep_by(next);
        let is_due = |(node, since): &(&NodeId, &Tick)| {
            now.since(**since) >= forget_time && !self.sessions.by_peer().contains_key(*node)
        };
        let gone: Vec<NodeId> =
            self.aging.absent.iter().filter(is_due).map(|(node, _)| node.clone()).collect();
        gone.iter().for_each(|node| self.drop_node(node, now));
        let oldest = self.aging.absent.values().min();
        let next = oldest.map(|since| (*since + forget_time).max(now + forget_time / 100));
        self.aging.sweep_by(next);
    }

    fn drop_node(&mut self, node: &NodeId, now: Tick) {
        self.counters.forgotten += 1;
        self.aging.absent.remove(node);
        self.lsdb.forget(node, now);
        self.services.forget_node(node, now);
    }
}
