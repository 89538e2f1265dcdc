//! Shortest path first: from the links that count to the first hop towards every node.
//!
//! A computation is a value with all that it needs, so it can run on another thread. Each one starts from nothing; the
//! throttle decides how often. Ties between equally short paths go to the path with fewer hops, then to the
//! neighbour whose name sorts first, so the same links always give the same routes. Knows nothing of sessions.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use petgraph::algo::dijkstra;
use petgraph::csr::Csr;
use petgraph::visit::EdgeRef;

use super::status::{Hops, LinkCosts, Links};
use crate::wire::{Cost, NodeId};

/// A computation, ready to run.
#[derive(Debug, Clone)]
pub struct RouteComputation {
    pub(super) origin: NodeId,
    pub(super) links: Arc<LinkCosts>,
    pub(super) before: Arc<Hops>,
}

/// What a computation found, compared with the one before.
#[derive(Debug)]
pub struct ComputedRoutes {
    pub(super) hops: Arc<Hops>,
    /// Some node has gained, lost or changed its first hop.
    pub(super) changed: bool,
    /// Nodes that have become reachable.
    pub(super) gained: Vec<NodeId>,
    /// Nodes that are no longer reachable.
    pub(super) lost: Vec<NodeId>,
}

impl RouteComputation {
    /// Nodes in the graph.
    pub(super) fn nodes(&self) -> usize {
        self.links.len()
    }

    /// Computes the routes.
    pub fn run(self) -> ComputedRoutes {
        let hops = Graph::of(&self.links).hops(&self.origin);
        if hops == *self.before {
            return ComputedRoutes {
                hops: self.before,
                changed: false,
                gained: Vec::new(),
                lost: Vec::new(),
            };
        }
        let missing = |from: &Hops, there: &Hops| {
            from.keys().filter(|node| !there.contains_key(*node)).cloned().collect::<Vec<_>>()
        };
        let (gained, lost) = (missing(&hops, &self.before), missing(&self.before, &hops));
        ComputedRoutes { hops: hops.into(), changed: true, gained, lost }
    }
}

/// What the shortest path from `origin` to each reachable node costs, `origin` included. Only nodes that list links
/// themselves can be reached.
pub(super) fn costs(origin: &NodeId, links: &LinkCosts) -> BTreeMap<NodeId, f64> {
    let graph = Graph::of(links);
    let Some(origin) = graph.index(origin) else { return BTreeMap::new() };
    let reached = graph.names.iter().zip(graph.costs(origin)).filter(|(_, cost)| cost.is_finite());
    reached.map(|(&name, cost)| (name.clone(), cost)).collect()
}

/// The links between nodes that list links themselves. A node's index is its place in the order of names.
struct Graph<'a> {
    names: Vec<&'a NodeId>,
    edges: Csr<(), f64>,
}

impl<'a> Graph<'a> {
    fn of(links: &'a LinkCosts) -> Self {
        let names: Vec<&NodeId> = links.keys().collect();
        let index: HashMap<&NodeId, u32> = names.iter().copied().zip(0..).collect();
        let listed = |(to, cost): (&NodeId, &Cost)| Some((*index.get(to)?, cost.get()));
        let of = |(from, to): (u32, &'a Arc<Links>)| {
            to.iter().filter_map(listed).map(move |(to, cost)| (from, to, cost)).collect::<Vec<_>>()
        };
        let sorted: Vec<(u32, u32, f64)> = (0..).zip(links.values()).flat_map(of).collect();
        let mut edges = Csr::from_sorted_edges(&sorted).expect("indexes follow the order of the maps' names");
        while edges.node_count() < names.len() {
            edges.add_node(());
        }
        Self { names, edges }
    }

    fn index(&self, node: &NodeId) -> Option<u32> {
        self.names.binary_search(&node).ok().map(|index| index as u32)
    }

    /// What the shortest path to each node costs; infinite if there is none.
    fn costs(&self, origin: u32) -> Vec<f64> {
        let found = dijkstra(&self.edges, origin, None, |edge| *edge.weight());
        (0..self.names.len() as u32).map(|node| found.get(&node).copied().unwrap_or(f64::INFINITY)).collect()
    }

    /// The first hop towards each reachable node. An edge is tight if a shortest path may use it. One pass over the
    /// tight edges, outward from the origin, visits every reachable node once, so it ends even where rounding makes a
    /// cost vanish in a sum.
    fn hops(&self, origin: &NodeId) -> Hops {
        let Some(origin) = self.index(origin) else { return Hops::new() };
        let costs = self.costs(origin);
        let mut hops: Vec<Option<u32>> = vec![None; self.names.len()];
        let mut frontier = VecDeque::from([origin]);
        while let Some(node) = frontier.pop_front() {
            for edge in self.edges.edges(node) {
                let to = edge.target();
                let tight = costs[node as usize] + *edge.weight() == costs[to as usize];
                if tight && to != origin && hops[to as usize].is_none() {
                    hops[to as usize] = Some(hops[node as usize].unwrap_or(to));
                    frontier.push_back(to);
                }
            }
        }
        let name = |index: u32| self.names[index as usize].clone();
        self.names.iter().zip(hops).filter_map(|(&to, hop)| Some((to.clone(), name(hop?)))).collect()
    }
}

#[cfg(test)]
mod tests;
