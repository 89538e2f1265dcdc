//! The computed paths compared with those of the Bellman-Ford algorithm.

use super::*;
use proptest::prelude::*;

fn node(name: impl AsRef<str>) -> NodeId {
    NodeId::new(name).unwrap()
}

/// One node's links, for a change.
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

/// Each reachable node of the table with the first hop towards it.
fn next_hops(origin: &NodeId, links: &LinkCosts) -> Hops {
    let (links, before) = (Arc::new(links.clone()), Arc::default());
    let computed = RouteComputation { origin: origin.clone(), links, before }.run();
    assert_eq!(computed.changed, !computed.hops.is_empty());
    assert!(computed.gained.iter().eq(computed.hops.keys()) && computed.lost.is_empty());
    Arc::unwrap_or_clone(computed.hops)
}

fn hops(origin: &str, links: &LinkCosts) -> Vec<(String, String)> {
    let hops = next_hops(&node(origin), links);
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
fn a_computation_says_what_has_changed_since_the_one_before() {
    let before = hops_of(&[("a", "b", 1.0), ("b", "c", 1.0), ("b", "gone", 1.0)], Arc::default()).hops;
    let after = hops_of(&[("a", "b", 1.0), ("a", "c", 1.0), ("b", "new", 1.0)], before.clone());
    assert!(after.changed);
    assert_eq!((after.gained, after.lost), (vec![node("new")], vec![node("gone")]));
    assert!(!hops_of(&[("a", "b", 2.0), ("b", "c", 1.0), ("b", "gone", 1.0)], before).changed);
}

fn hops_of(edges: &[(&str, &str, f64)], before: Arc<Hops>) -> ComputedRoutes {
    RouteComputation { origin: node("a"), links: Arc::new(table(edges)), before }.run()
}

/// The costs of the shortest paths from a node, by relaxing each link as often as there are nodes.
fn bellman_ford(origin: &NodeId, links: &LinkCosts) -> BTreeMap<NodeId, f64> {
    let mut best = BTreeMap::from([(origin.clone(), 0.0)]);
    for _ in links {
        for (from, to) in links.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to))) {
            let Some(cost) = best.get(from).map(|cost| cost + to.1.get()) else { continue };
            if links.contains_key(to.0) && best.get(to.0).is_none_or(|best| cost < *best) {
                best.insert(to.0.clone(), cost);
            }
        }
    }
    best
}

/// Times 1,000 and 10,000 nodes with four links each; takes the quickest of ten runs. Only meaningful if optimised:
/// `CARGO_PROFILE_DEV_OPT_LEVEL=3 cargo test --lib spf -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn time_of_a_computation() {
    use rand::{RngExt, SeedableRng};
    for (nodes, most) in [(1_000_usize, 5.0), (10_000, 50.0)] {
        let mut rng = rand::rngs::SmallRng::seed_from_u64(1);
        let name = |i: usize| node(format!("node-{i:05}.example.org"));
        let mut links = LinkCosts::new();
        for i in 0..2 * nodes {
            let (a, b) = (i % nodes, rng.random_range(0..nodes));
            links_of(&mut links, &name(a)).insert(name(b), Cost::DEFAULT);
            links_of(&mut links, &name(b)).insert(name(a), Cost::DEFAULT);
        }
        let computation =
            RouteComputation { origin: name(0), links: Arc::new(links), before: Arc::default() };
        let time = |_| {
            let (computation, start) = (computation.clone(), std::time::Instant::now());
            assert!(computation.run().hops.len() > nodes / 2);
            start.elapsed().as_secs_f64() * 1e3
        };
        let best = (0..10).map(time).fold(f64::INFINITY, f64::min);
        println!("{nodes} nodes: {best:.2} ms");
        assert!(cfg!(debug_assertions) || best < most, "{best} ms for {nodes} nodes");
    }
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
            let best = bellman_ford(origin, &links);
            prop_assert_eq!(&costs(origin, &links), &best);
            let hops = next_hops(origin, &links);
            prop_assert_eq!(hops.len(), best.len() - 1);
            for (dest, hop) in &hops {
                let rest = bellman_ford(hop, &links)[dest];
                prop_assert_eq!(links[origin][hop].get() + rest, best[dest]);
            }
        }
    }
}
