//! Shortest paths: from a table of links to the first hop towards every node.
//!
//! Owns the table as a graph that is kept between computations, and what was computed last. A change that no
//! shortest path can notice asks for no computation. Ties between equally short paths are broken by name, so
//! that the same table gives the same routes whatever came before it. Knows nothing of sessions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use super::pool::Pool;
use super::roster::{Roster, Slot};
use crate::wire::{Cost, NameHash, NodeId};

/// One node's links: to whom, and the cost.
pub(super) type Links = BTreeMap<NodeId, Cost>;

/// What the shortest path from `origin` to each reachable node costs. Only nodes whose links are given can be reached.
pub(super) fn costs<'a>(
    origin: &NodeId,
    links: impl IntoIterator<Item = (&'a NodeId, &'a Arc<Links>)>,
) -> BTreeMap<NodeId, f64> {
    let mut paths = Paths::new(origin, None);
    for (node, to) in links {
        let linked = paths.number(to);
        paths.set_links(node, Some(linked));
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

/// A node's links: by name, and by number in the names' order. Meshes that share their numbers share this, too.
#[derive(Debug)]
pub(super) struct Linked {
    pub(super) names: Arc<Links>,
    edges: Box<[Edge]>,
}

impl Linked {
    pub(super) fn new(names: &Arc<Links>, mut number: impl FnMut(&NodeId) -> Slot) -> Arc<Self> {
        let edges = names.iter().map(|(to, cost)| Edge { to: number(to), cost: cost.get() }).collect();
        Arc::new(Self { names: names.clone(), edges })
    }

    /// False if whoever comes from there can only go back: most nodes of a large mesh hang on a single link.
    fn leads_beyond(&self, from: Slot) -> bool {
        self.edges.iter().any(|edge| edge.to != from)
    }
}

/// A node whose first hop is another one now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rerouted {
    pub(super) node: NodeId,
    pub(super) hash: NameHash,
    pub(super) was_reachable: bool,
    /// `None` if it cannot be reached any more.
    pub(super) hop: Option<NodeId>,
}

/// The paths from one node. What is known of the nodes stands by their numbers.
#[derive(Debug)]
pub(super) struct Paths {
    origin: Slot,
    roster: Roster,
    /// The links of those that are keys of the table.
    links: Vec<Option<Arc<Linked>>>,
    /// The first hops, and what the shortest paths cost, as they were computed last.
    hops: Vec<Slot>,
    distances: Vec<f64>,
    /// Nodes in the table, and those of them that can be reached, the origin aside.
    listed: usize,
    reachable: usize,
    /// Something has changed that a shortest path may notice.
    stale: bool,
}

impl Paths {
    pub(super) fn new(origin: &NodeId, pool: Option<Pool>) -> Self {
        let mut roster = Roster::new(pool);
        let origin = roster.take(origin);
        let (links, hops, distances) = (Vec::new(), Vec::new(), Vec::new());
        let mut paths =
            Self { origin, roster, links, hops, distances, listed: 0, reachable: 0, stale: false };
        paths.make_room();
        paths.distances[origin as usize] = 0.0;
        paths
    }

    /// Links with the numbers of their ends, which these have until [`Paths::set_links`] replaces the links.
    pub(super) fn number(&mut self, links: &Arc<Links>) -> Arc<Linked> {
        Linked::new(links, |to| self.roster.take(to))
    }

    /// The links of a node are these from now on; with `None` it is no longer in the table. Its number, which
    /// it has as long as it is there.
    pub(super) fn set_links(&mut self, node: &NodeId, links: Option<Arc<Linked>>) -> Slot {
        // Held until the end, so that the node stays while its links come and go.
        let slot = self.roster.take(node);
        self.make_room();
        let old = self.links[slot as usize].take();
        if old.is_some() != links.is_some() {
            self.stale = true;
            if links.is_some() {
                self.listed += 1;
                self.roster.take(node);
            } else {
                self.listed -= 1;
                self.release(slot);
            }
        }
        let edges =
            |linked: &Option<Arc<Linked>>| linked.clone().map(|l| l.edges.to_vec()).unwrap_or_default();
        let old = edges(&old);
        if !self.stale {
            // A link by which nobody is reached, and would not be now, may come and go.
            let new = edges(&links);
            let matters = |edge: &&Edge| self.is_short(slot, edge);
            self.stale = !old.iter().filter(matters).eq(new.iter().filter(matters));
        }
        self.links[slot as usize] = links;
        old.iter().for_each(|edge| self.release(edge.to));
        self.release(slot);
        slot
    }

    /// The links of a node stand in this list from now on, which says the same with numbers that stand for ever.
    pub(super) fn replace_alike(&mut self, node: &str, alike: &Arc<Linked>) {
        if let Some(Some(linked)) = self.slot(node).and_then(|slot| self.links.get_mut(slot as usize)) {
            *linked = alike.clone();
        }
    }

    /// The links of a node that is in the table.
    pub(super) fn links(&self, slot: Slot) -> Option<&Arc<Linked>> {
        self.links.get(slot as usize)?.as_ref()
    }

    /// The nodes in the table, in no order that means anything.
    pub(super) fn listed(&self) -> impl Iterator<Item = (NodeId, &Arc<Linked>)> {
        let listed = (0..).zip(&self.links).filter_map(|(slot, links)| Some((slot, links.as_ref()?)));
        listed.filter_map(|(slot, links)| Some((self.roster.name(slot)?, links)))
    }

    /// How many these are, and the origin if it is none of them.
    pub(super) fn names(&self) -> usize {
        self.listed + usize::from(self.links(self.origin).is_none())
    }

    /// The node behind a hash, if it is in the table.
    pub(super) fn name_of(&self, hash: NameHash) -> Option<NodeId> {
        let slot = self.roster.find_hash(hash)?;
        self.links(slot).and_then(|_| self.roster.name(slot))
    }

    /// The number of a name, and the name behind a number.
    pub(super) fn slot(&self, node: &str) -> Option<Slot> {
        self.roster.find(node)
    }

    pub(super) fn name(&self, slot: Slot) -> Option<NodeId> {
        self.roster.name(slot)
    }

    /// The first hop towards a node, as it was computed last.
    pub(super) fn next_hop(&self, node: &str) -> Option<NodeId> {
        self.roster.name(*self.hops.get(self.roster.find(node)? as usize)?)
    }

    /// True if there is one.
    pub(super) fn reaches(&self, node: &str) -> bool {
        self.roster.find(node).is_some_and(|slot| self.reaches_slot(slot))
    }

    pub(super) fn reaches_slot(&self, slot: Slot) -> bool {
        self.hops.get(slot as usize).is_some_and(|hop| *hop != NONE)
    }

    /// How many nodes can be reached.
    pub(super) fn reachable(&self) -> usize {
        self.reachable
    }

    /// The reachable nodes with the first hops towards them, in no order that means anything.
    pub(super) fn hops(&self) -> impl Iterator<Item = (NameHash, NodeId)> {
        self.reached().filter_map(|(slot, hop)| Some((self.roster.hash(slot)?, self.roster.name(hop)?)))
    }

    /// The same by names.
    pub(super) fn named_hops(&self) -> impl Iterator<Item = (NodeId, NodeId)> {
        self.reached().filter_map(|(slot, hop)| Some((self.roster.name(slot)?, self.roster.name(hop)?)))
    }

    fn reached(&self) -> impl Iterator<Item = (Slot, Slot)> {
        (0..).zip(self.hops.iter().copied()).filter(|(_, hop)| *hop != NONE)
    }

    /// The same by numbers: the first hop towards each node, if there is one.
    pub(super) fn numbered_hops(&self) -> impl Iterator<Item = Option<Slot>> {
        self.hops.iter().map(|&hop| (hop != NONE).then_some(hop))
    }

    fn distances(&self) -> BTreeMap<NodeId, f64> {
        let finite = |(slot, distance): (Slot, &f64)| {
            let listed = self.links(slot).is_some() && distance.is_finite();
            listed.then(|| Some((self.roster.name(slot)?, *distance)))?
        };
        (0..).zip(&self.distances).filter_map(finite).collect()
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
            let before = std::mem::replace(&mut self.hops[slot as usize], hop);
            if before == hop {
                continue;
            }
            self.reachable = self.reachable + usize::from(before == NONE) - usize::from(hop == NONE);
            if let (Some(node), Some(hash)) = (self.roster.name(slot), self.roster.hash(slot)) {
                let (was_reachable, hop) = (before != NONE, self.roster.name(hop));
                moved.push(Rerouted { node, hash, was_reachable, hop });
            }
            // Whoever is reached keeps the number by which others may go.
            match (before, hop) {
                (NONE, _) => drop(self.roster.name(slot).map(|name| self.roster.take(&name))),
                (_, NONE) => self.release(slot),
                _ => {}
            }
        }
        moved
    }

    /// What the shortest path to each node costs; infinite if there is none.
    fn find_distances(&mut self) {
        let (links, distances) = (&self.links, &mut self.distances);
        distances.fill(f64::INFINITY);
        distances[self.origin as usize] = 0.0;
        // Bits of floats that are not negative sort as the floats do.
        let mut heap = BinaryHeap::from([Reverse((0_u64, self.origin))]);
        while let Some(Reverse((bits, slot))) = heap.pop() {
            let so_far = f64::from_bits(bits);
            if so_far > distances[slot as usize] {
                continue;
            }
            for edge in links[slot as usize].iter().flat_map(|linked| &linked.edges) {
                let (cost, next) = (so_far + edge.cost, &mut distances[edge.to as usize]);
                if cost < *next
                    && let Some(linked) = &links[edge.to as usize]
                {
                    *next = cost;
                    if linked.leads_beyond(slot) {
                        heap.push(Reverse((cost.to_bits(), edge.to)));
                    }
                }
            }
        }
    }

    /// An edge is tight if a shortest path may use it. Walking tight edges outward from the origin reaches
    /// every reachable node and never runs in a circle, even where a cost drowns in rounding.
    fn find_hops(&self) -> Vec<Slot> {
        let mut hops = vec![NONE; self.hops.len()];
        let mut frontier = VecDeque::from([self.origin]);
        while let Some(slot) = frontier.pop_front() {
            let (distance, hop) = (self.distances[slot as usize], hops[slot as usize]);
            for edge in self.links[slot as usize].iter().flat_map(|linked| &linked.edges) {
                let to = edge.to as usize;
                let Some(linked) = &self.links[to] else { continue };
                let tight = distance + edge.cost == self.distances[to];
                if tight && edge.to != self.origin && hops[to] == NONE {
                    hops[to] = if hop == NONE { edge.to } else { hop };
                    if linked.leads_beyond(slot) {
                        frontier.push_back(edge.to);
                    }
                }
            }
        }
        hops
    }

    /// True if a node is reached by this edge as cheaply as by any other one, by what was computed last.
    fn is_short(&self, from: Slot, edge: &Edge) -> bool {
        let cost = self.distances[from as usize] + edge.cost;
        (self.reaches_slot(from) || from == self.origin)
            && self.links[edge.to as usize].is_some()
            && cost <= self.distances[edge.to as usize]
    }

    /// Each name has a place. Little more than is needed: among thousands of meshes it would add up.
    fn make_room(&mut self) {
        let len = self.roster.len();
        grow(&mut self.links, len, None);
        grow(&mut self.hops, len, NONE);
        grow(&mut self.distances, len, f64::INFINITY);
    }

    fn release(&mut self, slot: Slot) {
        if self.roster.release(slot) {
            self.links[slot as usize] = None;
            self.hops[slot as usize] = NONE;
            self.distances[slot as usize] = f64::INFINITY;
        }
    }
}

/// Makes a list so long, with at most an eighth of it to spare.
pub(super) fn grow<T: Clone>(list: &mut Vec<T>, len: usize, with: T) {
    if list.len() < len {
        if list.capacity() < len {
            list.reserve_exact(len + len / 8 - list.len());
        }
        list.resize(len, with);
    }
}

#[cfg(test)]
mod tests;
