//! Shortest paths: from a table of links to the first hop towards every node.
//!
//! A pure function of its table. Ties between equally short paths are broken by name, so that the same
//! table gives the same routes on every run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use crate::wire::{Cost, NodeId};

/// Known links: from, to, cost. Only nodes that are keys of the outer map can be reached.
pub type LinkCosts = BTreeMap<NodeId, Arc<BTreeMap<NodeId, Cost>>>;

/// One node's links, to be changed.
pub(super) fn links_of<'a>(links: &'a mut LinkCosts, node: &NodeId) -> &'a mut BTreeMap<NodeId, Cost> {
    if !links.contains_key(node) {
        links.insert(node.clone(), Arc::default());
    }
    // Just made sure of.
    Arc::make_mut(links.get_mut(node).expect("the node is listed"))
}

/// The neighbour through which each reachable node is reached, by Dijkstra over `links` from `origin`.
pub(super) fn next_hops(origin: &NodeId, links: &LinkCosts) -> BTreeMap<NodeId, NodeId> {
    let graph = Graph::of(links);
    let Some(origin) = graph.index(origin) else { return BTreeMap::new() };
    let distance = graph.distances(origin);
    // An edge is tight if a shortest path may use it. Walking tight edges outward from the origin reaches
    // every reachable node and never runs in a circle, even where a cost drowns in rounding.
    let mut first_hop = vec![NONE; graph.names.len()];
    let mut frontier = VecDeque::from([origin]);
    while let Some(node) = frontier.pop_front() {
        for &(next, cost) in graph.edges_of(node) {
            let tight = distance[node as usize] + cost == distance[next as usize];
            if tight && next != origin && first_hop[next as usize] == NONE {
                let hop = first_hop[node as usize];
                first_hop[next as usize] = if hop == NONE { next } else { hop };
                frontier.push_back(next);
            }
        }
    }
    let name = |node: u32| graph.names[node as usize].clone();
    let hops = (0..).zip(first_hop).filter(|(_, hop)| *hop != NONE);
    hops.map(|(node, hop)| (name(node), name(hop))).collect()
}

/// What the shortest path from `origin` to each reachable node costs.
pub(super) fn costs(origin: &NodeId, links: &LinkCosts) -> BTreeMap<NodeId, f64> {
    let graph = Graph::of(links);
    let Some(origin) = graph.index(origin) else { return BTreeMap::new() };
    let distance = graph.distances(origin);
    let reached = graph.names.iter().zip(distance).filter(|(_, cost)| cost.is_finite());
    reached.map(|(name, cost)| ((*name).clone(), cost)).collect()
}

/// No node.
const NONE: u32 = u32::MAX;

/// The table as a graph whose indices follow the names' order, with its edges in one piece.
struct Graph<'a> {
    names: Vec<&'a NodeId>,
    /// Where each node's edges begin; one more than there are nodes.
    starts: Vec<usize>,
    /// To, and the cost.
    edges: Vec<(u32, f64)>,
}

impl<'a> Graph<'a> {
    fn of(links: &'a LinkCosts) -> Self {
        let names: Vec<&NodeId> = links.keys().collect();
        let index: HashMap<&str, u32> = names.iter().map(|name| name.as_str()).zip(0..).collect();
        let mut edges = Vec::with_capacity(links.values().map(|to| to.len()).sum());
        let mut starts = vec![0];
        for to in links.values() {
            let listed = to.iter().filter_map(|(to, cost)| Some((*index.get(to.as_str())?, cost.get())));
            edges.extend(listed);
            starts.push(edges.len());
        }
        Self { names, starts, edges }
    }

    fn index(&self, name: &NodeId) -> Option<u32> {
        // A table holds far fewer nodes than 32 bits count.
        self.names.binary_search(&name).ok().map(|index| index as u32)
    }

    fn edges_of(&self, node: u32) -> &[(u32, f64)] {
        &self.edges[self.starts[node as usize]..self.starts[node as usize + 1]]
    }

    /// What the shortest path to each node costs; infinite if there is none.
    fn distances(&self, origin: u32) -> Vec<f64> {
        let mut distance = vec![f64::INFINITY; self.names.len()];
        distance[origin as usize] = 0.0;
        // Bits of floats that are not negative sort as the floats do.
        let mut heap = BinaryHeap::from([Reverse((0_u64, origin))]);
        while let Some(Reverse((bits, node))) = heap.pop() {
            let so_far = f64::from_bits(bits);
            if so_far > distance[node as usize] {
                continue;
            }
            for &(next, cost) in self.edges_of(node) {
                let cost = so_far + cost;
                if cost < distance[next as usize] {
                    distance[next as usize] = cost;
                    heap.push(Reverse((cost.to_bits(), next)));
                }
            }
        }
        distance
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use petgraph::algo::bellman_ford;
    use petgraph::graph::{DiGraph, NodeIndex};
    use proptest::prelude::*;

    fn node(name: impl AsRef<str>) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn table(edges: &[(&str, &str, f64)]) -> LinkCosts {
        let mut links = LinkCosts::new();
        for &(a, b, cost) in edges {
            let cost = Cost::new(cost).unwrap();
            links_of(&mut links, &node(a)).insert(node(b), cost);
            links_of(&mut links, &node(b)).insert(node(a), cost);
        }
        links
    }

    fn hops(origin: &str, links: &LinkCosts) -> Vec<(String, String)> {
        next_hops(&node(origin), links).into_iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
    }

    #[test]
    fn a_line_and_a_detour() {
        let line = table(&[("a", "b", 1.0), ("b", "c", 1.0)]);
        assert_eq!(hops("a", &line), pairs(&[("b", "b"), ("c", "b")]));
        let detour = table(&[("a", "b", 5.0), ("a", "c", 1.0), ("c", "b", 1.0)]);
        assert_eq!(hops("a", &detour), pairs(&[("b", "c"), ("c", "c")]));
    }

    #[test]
    fn links_count_in_their_own_direction_only() {
        let mut links = table(&[("a", "b", 1.0)]);
        links_of(&mut links, &node("b")).insert(node("c"), Cost::DEFAULT);
        assert_eq!(hops("a", &links), pairs(&[("b", "b")]), "c itself has told nothing");
        links.insert(node("c"), Arc::default());
        assert_eq!(hops("a", &links), pairs(&[("b", "b"), ("c", "b")]));
        assert_eq!(hops("c", &links), pairs(&[]));
    }

    #[test]
    fn a_node_without_links_reaches_nobody() {
        assert_eq!(hops("z", &table(&[("a", "b", 1.0)])), pairs(&[]));
    }

    proptest! {
        /// Following next hops leads to the destination at the cost that Bellman and Ford find.
        #[test]
        fn next_hops_follow_shortest_paths(
            edges in proptest::collection::vec((0_usize..12, 0_usize..12, 1_u8..9), 1..40)
        ) {
            let mut links = LinkCosts::new();
            for &(a, b, cost) in edges.iter().filter(|(a, b, _)| a != b) {
                let (a, b) = (node(format!("n{a:02}")), node(format!("n{b:02}")));
                let cost = Cost::new(f64::from(cost)).unwrap();
                links_of(&mut links, &a).insert(b.clone(), cost);
                links_of(&mut links, &b).insert(a, cost);
            }
            let graph = Graph::of(&links);
            let edges = (0..graph.names.len() as u32)
                .flat_map(|from| graph.edges_of(from).iter().map(move |(to, cost)| (from, *to, *cost)));
            let reference = DiGraph::<(), f64>::from_edges(edges);
            let best = |from| bellman_ford(&reference, NodeIndex::new(from)).unwrap().distances;
            for (from, origin) in graph.names.iter().enumerate() {
                let (best_from, costs) = (best(from), costs(origin, &links));
                let hops = next_hops(origin, &links);
                for (i, dest) in graph.names.iter().enumerate().filter(|(i, _)| *i != from) {
                    let hop = hops.get(*dest);
                    prop_assert_eq!(hop.is_some(), best_from[i].is_finite());
                    prop_assert_eq!(costs.get(*dest).copied().unwrap_or(f64::INFINITY), best_from[i]);
                    let Some(hop) = hop else { continue };
                    let rest = best(graph.index(hop).unwrap() as usize)[i];
                    prop_assert_eq!(links[*origin][hop].get() + rest, best_from[i]);
                }
            }
        }
    }
}
