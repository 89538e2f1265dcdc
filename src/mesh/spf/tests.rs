//! Paths beside those of Bellman and Ford, and a kept graph beside one made anew.

use super::*;
use petgraph::algo::bellman_ford;
use petgraph::graph::{DiGraph, NodeIndex};
use proptest::prelude::*;

/// Links from, to, cost.
type LinkCosts = BTreeMap<NodeId, Arc<Links>>;

fn node(name: impl AsRef<str>) -> NodeId {
    NodeId::new(name).unwrap()
}

/// One node's links, to be changed.
fn links_of<'a>(links: &'a mut LinkCosts, node: &NodeId) -> &'a mut BTreeMap<NodeId, Cost> {
    Arc::make_mut(links.entry(node.clone()).or_default())
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

/// The links of a node in the paths are those of the table.
fn set_links(paths: &mut Paths, node: &NodeId, links: Option<&Arc<Links>>) {
    let linked = links.map(|links| paths.number(links));
    paths.set_links(node, linked);
}

fn paths(origin: &NodeId, links: &LinkCosts) -> Paths {
    let mut paths = Paths::new(origin, None);
    for (node, to) in links {
        set_links(&mut paths, node, Some(to));
    }
    paths.recompute();
    paths
}

/// Each reachable node of the table with the first hop towards it.
fn next_hops(paths: &Paths, links: &LinkCosts) -> BTreeMap<NodeId, NodeId> {
    let hop = |node: &NodeId| Some((node.clone(), paths.next_hop(node.as_str())?));
    let hops: BTreeMap<_, _> = links.keys().filter_map(hop).collect();
    assert_eq!(hops.len(), paths.reachable());
    assert_eq!(hops.len(), paths.hops().count());
    hops
}

fn hops(origin: &str, links: &LinkCosts) -> Vec<(String, String)> {
    let hops = next_hops(&paths(&node(origin), links), links);
    hops.into_iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
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
fn of_two_ways_that_cost_the_same_the_shorter_one_counts_and_then_the_name() {
    let square = [("a", "y", 1.0), ("a", "x", 1.0), ("x", "d", 1.0), ("y", "d", 1.0), ("a", "d", 2.0)];
    assert_eq!(hops("a", &table(&square)), pairs(&[("d", "d"), ("x", "x"), ("y", "y")]));
    assert_eq!(hops("a", &table(&square[..4])), pairs(&[("d", "x"), ("x", "x"), ("y", "y")]));
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

#[test]
fn what_no_shortest_path_can_notice_asks_for_no_computation() {
    let mut links = table(&[("a", "b", 1.0), ("b", "c", 1.0), ("a", "c", 3.0), ("c", "d", 1.0)]);
    let mut paths = paths(&node("a"), &links);
    let mut set = |from: &str, to: &str, cost: Option<f64>| {
        let of = links_of(&mut links, &node(from));
        match cost {
            Some(cost) => of.insert(node(to), Cost::new(cost).unwrap()),
            None => of.remove(&node(to)),
        };
        set_links(&mut paths, &node(from), links.get(&node(from)));
        let asks = paths.stale;
        let moved: Vec<String> = paths.recompute().into_iter().map(|moved| moved.node.to_string()).collect();
        (asks, moved.concat())
    };
    assert_eq!(set("a", "c", Some(2.5)), (false, "".into()), "still the longer way");
    assert_eq!(set("a", "c", None), (false, "".into()));
    assert_eq!(set("c", "a", Some(9.0)), (false, "".into()), "towards here");
    assert_eq!(set("b", "e", Some(1.0)), (false, "".into()), "nobody has heard of e itself");
    assert_eq!(set("a", "c", Some(2.0)), (true, "cd".into()), "as short, and fewer hops");
    assert_eq!(set("b", "c", Some(1.5)), (true, "".into()));
    assert_eq!(set("c", "d", None), (true, "d".into()));
    assert_eq!(set("d", "c", None), (false, "".into()), "d is out of reach");
}

#[test]
fn names_that_come_and_go_leave_nothing_behind() {
    let links = table(&[("a", "b", 1.0)]);
    let mut paths = paths(&node("a"), &links);
    for i in 0..1_000 {
        let (x, y) = (node(format!("x{i}")), node(format!("y{i}")));
        let one = Arc::new([(y.clone(), Cost::DEFAULT)].into());
        let other = Arc::new([(x.clone(), Cost::DEFAULT)].into());
        set_links(&mut paths, &node("b"), Some(&one));
        set_links(&mut paths, &y, Some(&other));
        paths.recompute();
        assert!(paths.reaches(y.as_str()) && !paths.reaches(x.as_str()));
        set_links(&mut paths, &y, None);
        set_links(&mut paths, &node("b"), links.get(&node("b")));
        paths.recompute();
    }
    assert!(paths.links.len() < 10 && paths.roster.len() < 10, "{paths:?}");
}

/// One step of a story: a link, and its cost in either direction, or its end; or the end of a node.
fn step() -> impl Strategy<Value = (usize, usize, [u8; 2], bool)> {
    (0_usize..12, 0_usize..12, [0_u8..9, 0_u8..9], prop::bool::weighted(0.1))
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
        let names: Vec<&NodeId> = links.keys().collect();
        let index = |name: &NodeId| names.binary_search(&name).unwrap();
        let reference = DiGraph::<(), f64>::from_edges(links.iter().flat_map(|(from, to)| {
            to.iter().map(move |(to, cost)| (index(from) as u32, index(to) as u32, cost.get()))
        }));
        let best = |from| bellman_ford(&reference, NodeIndex::new(from)).unwrap().distances;
        for (from, origin) in names.iter().enumerate() {
            let (best_from, costs) = (best(from), costs(origin, &links));
            let hops = next_hops(&paths(origin, &links), &links);
            for (i, dest) in names.iter().enumerate().filter(|(i, _)| *i != from) {
                let hop = hops.get(*dest);
                prop_assert_eq!(hop.is_some(), best_from[i].is_finite());
                prop_assert_eq!(costs.get(*dest).copied().unwrap_or(f64::INFINITY), best_from[i]);
                let Some(hop) = hop else { continue };
                let rest = best(index(hop))[i];
                prop_assert_eq!(links[*origin][hop].get() + rest, best_from[i]);
            }
        }
    }

    /// Whatever has come before, the same table gives the same routes, and what moved is what differs.
    #[test]
    fn a_kept_graph_leads_where_a_new_one_does(
        steps in proptest::collection::vec(step(), 1..60), every in 1_usize..4, shared in any::<bool>()
    ) {
        let name = |i: usize| node(format!("n{i:02}"));
        let mut links = LinkCosts::new();
        let pool = shared.then(Pool::default);
        let mut kept = Paths::new(&name(0), pool);
        let mut told = BTreeMap::new();
        for (i, (a, b, costs, ends)) in steps.into_iter().enumerate() {
            for (from, to, cost) in [(a, b, costs[0]), (b, a, costs[1])] {
                if ends || from == to {
                    links.remove(&name(from));
                } else if let Ok(cost) = Cost::new(f64::from(cost)) {
                    links_of(&mut links, &name(from)).insert(name(to), cost);
                } else {
                    links_of(&mut links, &name(from)).remove(&name(to));
                }
                set_links(&mut kept, &name(from), links.get(&name(from)));
            }
            if i % every == 0 {
                for moved in kept.recompute() {
                    let before = match moved.hop {
                        Some(hop) => told.insert(moved.node, hop),
                        None => told.remove(&moved.node),
                    };
                    prop_assert_eq!(moved.was_reachable, before.is_some());
                }
                let anew = paths(&name(0), &links);
                prop_assert_eq!(&told, &next_hops(&anew, &links));
                prop_assert_eq!(&told, &next_hops(&kept, &links));
                prop_assert_eq!(anew.distances(), kept.distances());
            }
        }
    }
}
