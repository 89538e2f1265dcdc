//! Shortest paths: from a table of links to the first hop towards every node.
//!
//! A pure function of its table. Ties between equally short paths are broken by name, so that the same
//! table gives the same routes on every run.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use petgraph::algo::dijkstra;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

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
    let Some((graph, names, origin)) = graph_of(origin, links) else {
        return BTreeMap::new();
    };
    let distance = dijkstra(&graph, origin, None, |edge| *edge.weight());
    // An edge is tight if a shortest path may use it. Walking tight edges outward from the origin reaches
    // every reachable node and never runs in a circle, even where a cost drowns in rounding.
    let mut first_hop = BTreeMap::<NodeIndex, NodeIndex>::new();
    let mut frontier = VecDeque::from([origin]);
    while let Some(node) = frontier.pop_front() {
        let mut tight: Vec<NodeIndex> = graph
            .edges(node)
            .filter(|edge| distance[&node] + edge.weight() == distance[&edge.target()])
            .map(|edge| edge.target())
            .filter(|&next| next != origin && !first_hop.contains_key(&next))
            .collect();
        tight.sort_unstable();
        for next in tight {
            let hop = first_hop.get(&node).copied().unwrap_or(next);
            first_hop.insert(next, hop);
            frontier.push_back(next);
        }
    }
    first_hop
        .into_iter()
        .map(|(node, hop)| (names[node.index()].clone(), names[hop.index()].clone()))
        .collect()
}

/// What the shortest path from `origin` to each reachable node costs.
pub(super) fn costs(origin: &NodeId, links: &LinkCosts) -> BTreeMap<NodeId, f64> {
    let Some((graph, names, origin)) = graph_of(origin, links) else {
        return BTreeMap::new();
    };
    let distance = dijkstra(&graph, origin, None, |edge| *edge.weight());
    let named = |(node, cost): (NodeIndex, f64)| (names[node.index()].clone(), cost);
    distance.into_iter().map(named).collect()
}

/// The table as a graph whose indices follow the names' order; `None` if `origin` has no links at all.
fn graph_of<'a>(
    origin: &NodeId,
    links: &'a LinkCosts,
) -> Option<(DiGraph<(), f64>, Vec<&'a NodeId>, NodeIndex)> {
    let names: Vec<&NodeId> = links.keys().collect();
    let index = |name: &NodeId| names.binary_search(&name).ok().map(NodeIndex::new);
    let edges = links.iter().flat_map(|(from, to)| to.iter().map(move |(to, cost)| (from, to, cost)));
    let mut graph = DiGraph::with_capacity(names.len(), links.values().map(|to| to.len()).sum());
    for _ in &names {
        graph.add_node(());
    }
    for (from, to, cost) in edges {
        if let (Some(from), Some(to)) = (index(from), index(to)) {
            graph.add_edge(from, to, cost.get());
        }
    }
    let origin = index(origin)?;
    Some((graph, names, origin))
}

#[cfg(test)]
mod tests {
    use super::*;
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
            for origin in links.keys() {
                let (graph, names, from) = graph_of(origin, &links).unwrap();
                let best = petgraph::algo::bellman_ford(&graph, from).unwrap().distances;
                let hops = next_hops(origin, &links);
                for (i, dest) in names.iter().enumerate().filter(|(i, _)| *i != from.index()) {
                    let hop = hops.get(*dest);
                    prop_assert_eq!(hop.is_some(), best[i].is_finite());
                    let Some(hop) = hop else { continue };
                    let onward = graph_of(hop, &links).unwrap();
                    let rest = petgraph::algo::bellman_ford(&onward.0, onward.2).unwrap().distances[i];
                    prop_assert_eq!(links[origin][hop].get() + rest, best[i]);
                }
            }
        }
    }
}
