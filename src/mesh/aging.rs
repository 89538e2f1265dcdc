//! Forgetting: nodes that have been unreachable for long, and services of lives that have ended.
//!
//! A node that is briefly absent stays listed, with its services: AWX tells absence from removal by that.
//! Whoever has been away for half of the time until it is forgotten is no longer told to new neighbours,
//! so that nodes whose clocks differ do not remind each other for ever.

use std::time::Duration;

use super::core::{Event, Mesh};
use super::spf::Rerouted;
use super::{Now, Tick};
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
    #[error("nothing is known of a node {0}")]
    Unknown(NodeId),
}

impl Mesh {
    /// Forgets an unreachable node at once: its links, its services, its name. Other nodes do so on their
    /// own, after [`super::Options::forget_time`].
    ///
    /// # Errors
    /// [`ForgetError`] if it is this node, or reachable, or unknown.
    pub fn forget(&mut self, node: &NodeId, now: Now) -> Result<(), ForgetError> {
        if *node == self.id {
            return Err(ForgetError::Own(node.clone()));
        }
        if let Some(via) = self.links.paths().next_hop(node.as_str()) {
            return Err(ForgetError::Reachable { node: node.clone(), via });
        }
        if let Some(via) = self.by_peer.contains_key(node).then_some(node) {
            return Err(ForgetError::Reachable { node: node.clone(), via: via.clone() });
        }
        if !self.absent.contains_key(node) {
            return Err(ForgetError::Unknown(node.clone()));
        }
        self.drop_node(node, now.tick);
        Ok(())
    }

    /// How long unreachable nodes stay listed from now on, those that are unreachable already included.
    pub fn set_forget_time(&mut self, time: Duration, now: Now) {
        self.options.forget_time = time;
        self.sweep_by(Some(now.tick));
    }

    /// Notes which nodes can no longer be reached, and which can be again, after a change of the routes.
    pub(super) fn note_absences(&mut self, moved: &[Rerouted], now: Tick) {
        for Rerouted { node, hop, .. } in moved {
            if hop.is_some() {
                self.absent.remove(node);
            } else if self.links.knows(node) || self.adverts.knows(node) {
                self.note_if_absent(node, now);
            }
        }
        // A node that joins hears of everybody before it can reach anybody.
        if self.absent.capacity() > 64 + 4 * self.absent.len() {
            self.absent.shrink_to_fit();
        }
    }

    /// Something was heard of a node that cannot be reached, at least not yet.
    pub(super) fn note_if_absent(&mut self, node: &NodeId, now: Tick) {
        if !self.links.paths().reaches(node.as_str()) && *node != self.id && !self.absent.contains_key(node) {
            self.absent.insert(node.clone(), now);
            self.sweep_by(Some(now + self.options.forget_time));
        }
    }

    /// True if new neighbours are still told of the node.
    pub(super) fn is_worth_telling(&self, node: &NodeId, now: Tick) -> bool {
        self.absent.get(node).is_none_or(|since| now.since(*since) < self.options.forget_time / 2)
    }

    /// Asks for a sweep at that time at the latest.
    pub(super) fn sweep_by(&mut self, due: Option<Tick>) {
        self.next_sweep = [self.next_sweep, due].into_iter().flatten().min();
    }

    /// Forgets everything whose time has come.
    pub(super) fn sweep(&mut self, now: Tick) {
        self.next_sweep = None;
        let (expired, next) = self.adverts.expire(now);
        if expired {
            self.digest = None;
            self.events.push_back(Event::OffersChanged);
        }
        self.sweep_by(next);
        let forget_time = self.options.forget_time;
        let mut gone: Vec<NodeId> = self
            .absent
            .iter()
            .filter(|(node, since)| now.since(**since) >= forget_time && !self.by_peer.contains_key(*node))
            .map(|(node, _)| node.clone())
            .collect();
        gone.sort();
        gone.iter().for_each(|node| self.drop_node(node, now));
        let next =
            self.absent.values().min().map(|since| (*since + forget_time).max(now + forget_time / 100));
        self.sweep_by(next);
    }

    fn drop_node(&mut self, node: &NodeId, now: Tick) {
        self.counters.forgotten += 1;
        self.absent.remove(node);
        self.links.forget(node, now);
        self.adverts.forget_node(node, now);
        self.digest = None;
    }
}
