//! Shortest paths: from a table of links to the first hop towards every node.
//!
//! Owns the table as a graph that is kept between computations, and what was computed last. A change that no
//! shortest path can notice asks for no computation. Ties between equally short paths are broken by name, so
//! that the same table gives the same routes whatever came before it. Knows nothing of sessions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use super::roster::{Roster, Slot};
use crate::wire::{Cost, NameHash, NodeId};

/// Known links: from, to, cost. Only nodes that are keys of the outer map can be reached.
pub type LinkCosts = BTreeMap<NodeId, Arc<BTreeMap<NodeId, Cost>>>;

/// What the shortest path from `origin` to each reachable node costs.
pub(super) fn costs(origin: &NodeId, links: &LinkCosts) -> BTreeMap<NodeId, f64> {
    let mut paths = Paths::new(origin);
    for (node, to) in links {
        paths.set_links(node, Some(to));
    }
    paths.recompute();
    paths.distances()
}

/// No node.
const NONE: Slot = Slot::MAX;

/// A link: to whom, and its cost.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Edge {
    to: Slot,
    cost: f64,
}

/// A name that the table holds. Its links follow the names' order.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// Where its links are.
    start: u32,
    len: u32,
    /// It is a key of the table.
    listed: bool,
    /// The first hop towards it, and what the shortest path costs, as they were computed last.
    hop: Slot,
    distance: f64,
}

const VACANT: Node = Node { start: 0, len: 0, listed: false, hop: NONE, distance: f64::INFINITY };

/// A node whose first hop is another one now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rerouted {
    pub(super) node: NodeId,
    pub(super) hash: NameHash,
    pub(super) was_reachable: bool,
    /// `None` if it cannot be reached any more.
    pub(super) hop: Option<NodeId>,
}

/// The paths from one node.
#[derive(Debug)]
pub(super) struct Paths {
    origin: Slot,
    roster: Roster,
    /// By slot.
    nodes: Vec<Node>,
    /// The links of all nodes, with those in between that are no longer anybody's.
    edges: Vec<Edge>,
    unused: usize,
    /// Nodes that can be reached, the origin aside.
    reachable: usize,
    /// Something has changed that a shortest path may notice.
    stale: bool,
}

impl Paths {
    pub(super) fn new(origin: &NodeId) -> Self {
        let mut roster = Roster::default();
        let origin = roster.take(origin);
        let start = Node { distance: 0.0, ..VACANT };
        Self { origin, roster, nodes: vec![start], edges: Vec::new(), unused: 0, reachable: 0, stale: false }
    }

    /// The links of a node are these from now on; with `None` it is no longer in the table. Its number, which
    /// it has as long as it is there.
    pub(super) fn set_links(&mut self, node: &NodeId, links: Option<&BTreeMap<NodeId, Cost>>) -> Slot {
        // Held until the end, so that the node stays while its links come and go.
        let slot = self.take(node);
        let new: Vec<Edge> = links
            .into_iter()
            .flatten()
            .map(|(to, cost)| Edge { to: self.take(to), cost: cost.get() })
            .collect();
        let old = self.edges_of(slot).to_vec();
        let listed = links.is_some();
        if self.nodes[slot as usize].listed != listed {
            self.nodes[slot as usize].listed = listed;
            self.stale = true;
            if listed {
                self.take(node);
            } else {
                self.release(slot);
            }
        }
        if !self.stale {
            // A link by which nobody is reached, and would not be now, may come and go.
            let matters = |edge: &&Edge| self.is_short(slot, edge);
            self.stale = !old.iter().filter(matters).eq(new.iter().filter(matters));
        }
        if old != new {
            self.store(slot, &new);
        }
        old.iter().for_each(|edge| self.release(edge.to));
        self.release(slot);
        slot
    }

    /// The number of a name, and the name behind a number.
    pub(super) fn slot(&self, node: &str) -> Option<Slot> {
        self.roster.find(node)
    }

    pub(super) fn name(&self, slot: Slot) -> Option<&NodeId> {
        self.roster.name(slot)
    }

    /// The first hop towards a node, as it was computed last.
    pub(super) fn next_hop(&self, node: &str) -> Option<&NodeId> {
        self.roster.name(self.nodes[self.roster.find(node)? as usize].hop)
    }

    /// True if there is one.
    pub(super) fn reaches(&self, node: &str) -> bool {
        self.roster.find(node).is_some_and(|slot| self.reaches_slot(slot))
    }

    pub(super) fn reaches_slot(&self, slot: Slot) -> bool {
        self.nodes[slot as usize].hop != NONE
    }

    /// How many nodes can be reached.
    pub(super) fn reachable(&self) -> usize {
        self.reachable
    }

    /// The reachable nodes with the first hops towards them, in no order that means anything.
    pub(super) fn hops(&self) -> impl Iterator<Item = (NameHash, &NodeId)> {
        let hop = |(slot, node): (Slot, &Node)| Some((self.roster.hash(slot)?, self.roster.name(node.hop)?));
        (0..).zip(&self.nodes).filter_map(hop)
    }

    fn distances(&self) -> BTreeMap<NodeId, f64> {
        let finite = |(slot, node): (Slot, &Node)| {
            let listed = node.listed && node.distance.is_finite();
            listed.then(|| Some((self.roster.name(slot)?.clone(), node.distance)))?
        };
        (0..).zip(&self.nodes).filter_map(finite).collect()
    }

    /// Computes the paths, if that can change anything; says where they lead elsewhere now.
    pub(super) fn recompute(&mut self) -> Vec<Rerouted> {
        if !std::mem::take(&mut self.stale) {
            return Vec::new();
        }
        self.find_distances();
        let hops = self.find_hops();
        let mut moved = Vec::new();
        for (slot, hop) in (0..).zip(hops) {
            let before = std::mem::replace(&mut self.nodes[slot as usize].hop, hop);
            if before == hop {
                continue;
            }
            self.reachable = self.reachable + usize::from(before == NONE) - usize::from(hop == NONE);
            if let (Some(node), Some(hash)) = (self.roster.name(slot), self.roster.hash(slot)) {
                let (was_reachable, hop) = (before != NONE, self.roster.name(hop).cloned());
                moved.push(Rerouted { node: node.clone(), hash, was_reachable, hop });
            }
            // Whoever is reached keeps the number by which others may go.
            match (before, hop) {
                (NONE, _) => drop(self.roster.name(slot).cloned().map(|name| self.roster.take(&name))),
                (_, NONE) => self.release(slot),
                _ => {}
            }
        }
        moved
    }

    /// What the shortest path to each node costs; infinite if there is none.
    fn find_distances(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.distance = f64::INFINITY);
        self.nodes[self.origin as usize].distance = 0.0;
        // Bits of floats that are not negative sort as the floats do.
        let mut heap = BinaryHeap::from([Reverse((0_u64, self.origin))]);
        while let Some(Reverse((bits, slot))) = heap.pop() {
            let (so_far, node) = (f64::from_bits(bits), self.nodes[slot as usize]);
            if so_far > node.distance {
                continue;
            }
            for edge in &self.edges[node.span()] {
                let (cost, next) = (so_far + edge.cost, &mut self.nodes[edge.to as usize]);
                if cost < next.distance && next.listed {
                    next.distance = cost;
                    heap.push(Reverse((cost.to_bits(), edge.to)));
                }
            }
        }
    }

    /// An edge is tight if a shortest path may use it. Walking tight edges outward from the origin reaches
    /// every reachable node and never runs in a circle, even where a cost drowns in rounding.
    fn find_hops(&self) -> Vec<Slot> {
        let mut hops = vec![NONE; self.nodes.len()];
        let mut frontier = VecDeque::from([self.origin]);
        while let Some(slot) = frontier.pop_front() {
            let (node, hop) = (self.nodes[slot as usize], hops[slot as usize]);
            for edge in &self.edges[node.span()] {
                let next = self.nodes[edge.to as usize];
                let tight = node.distance + edge.cost == next.distance && next.listed;
                if tight && edge.to != self.origin && hops[edge.to as usize] == NONE {
                    hops[edge.to as usize] = if hop == NONE { edge.to } else { hop };
                    frontier.push_back(edge.to);
                }
            }
        }
        hops
    }

    /// True if a node is reached by this edge as cheaply as by any other one, by what was computed last.
    fn is_short(&self, from: Slot, edge: &Edge) -> bool {
        let (node, next) = (self.nodes[from as usize], self.nodes[edge.to as usize]);
        (node.hop != NONE || from == self.origin) && next.listed && node.distance + edge.cost <= next.distance
    }

    fn take(&mut self, name: &NodeId) -> Slot {
        let slot = self.roster.take(name);
        if self.nodes.len() < self.roster.len() {
            self.nodes.push(VACANT);
        }
        slot
    }

    fn release(&mut self, slot: Slot) {
        if self.roster.release(slot) {
            self.nodes[slot as usize] = VACANT;
        }
    }

    fn edges_of(&self, slot: Slot) -> &[Edge] {
        &self.edges[self.nodes[slot as usize].span()]
    }

    /// In place if there is room, else at the end; once half of the room is nobody's, the rest moves together.
    fn store(&mut self, slot: Slot, new: &[Edge]) {
        let (node, len) = (&mut self.nodes[slot as usize], new.len() as u32);
        self.unused += node.len as usize;
        if len > node.len {
            node.start = self.edges.len() as u32;
            self.edges.extend_from_slice(new);
        } else {
            self.unused -= new.len();
            self.edges[node.start as usize..][..new.len()].copy_from_slice(new);
        }
        node.len = len;
        if self.unused > self.edges.len() / 2 {
            let mut together = Vec::with_capacity((self.edges.len() - self.unused) * 5 / 4);
            for node in &mut self.nodes {
                let span = node.span();
                node.start = together.len() as u32;
                together.extend_from_slice(&self.edges[span]);
            }
            (self.edges, self.unused) = (together, 0);
        }
    }
}

impl Node {
    fn span(&self) -> std::ops::Range<usize> {
        self.start as usize..(self.start + self.len) as usize
    }
}

#[cfg(test)]
mod tests;
