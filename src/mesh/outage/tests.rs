//! Outages of small meshes, and how long a large one takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::broken_links::BrokenLinks;
use super::super::status::Links;
use super::super::{Now, Tick};
use super::*;
use crate::wire::Cost;

fn node(name: impl AsRef<str>) -> NodeId {
    NodeId::new(name).unwrap()
}

fn second(second: u64) -> Now {
    let wall = Timestamp::from_second(second as i64).unwrap();
    Now { tick: Tick::at(Duration::from_secs(second)), wall }
}

/// A mesh as `own` knows it: links that count, and those that broke, with the second of the break.
fn seen(own: &str, links: &[(&str, &str)], broken: &[(&str, &str, u64)]) -> Vec<NodeOutage> {
    let mut costs = BTreeMap::<NodeId, Links>::new();
    costs.entry(node(own)).or_default();
    for (a, b) in links {
        costs.entry(node(a)).or_default().insert(node(b), Cost::DEFAULT);
        costs.entry(node(b)).or_default().insert(node(a), Cost::DEFAULT);
    }
    let mut breaks = BrokenLinks::new();
    for (a, b, when) in broken {
        costs.entry(node(a)).or_default();
        costs.entry(node(b)).or_default();
        breaks.note([&node(a), &node(b)], None, second(*when));
    }
    let costs: LinkCosts = costs.into_iter().map(|(of, links)| (of, Arc::new(links))).collect();
    let mut reached = vec![node(own)];
    let mut hops = Hops::new();
    while let Some(at) = reached.pop() {
        for next in costs[&at].keys().filter(|next| **next != node(own)) {
            if hops.insert(next.clone(), next.clone()).is_none() {
                reached.push(next.clone());
            }
        }
    }
    outages(&node(own), &costs, &hops, breaks.by_end())
}

/// The lost nodes, those behind them, the links, and the second.
fn words(outages: &[NodeOutage]) -> Vec<String> {
    let names = |names: &[NodeId]| names.iter().map(NodeId::as_str).collect::<Vec<_>>().join(" ");
    let of = |one: &NodeOutage| {
        let links: Vec<String> = one.links.iter().map(|[near, far]| format!("{near}-{far}")).collect();
        let since = one.since.map_or(-1, Timestamp::as_second);
        format!("{} | {} | {} | {since}", names(&one.lost), names(&one.behind), links.join(" "))
    };
    outages.iter().map(of).collect()
}

#[test]
fn a_whole_mesh_has_no_outage_even_if_a_link_is_broken() {
    assert_eq!(seen("a", &[("a", "b"), ("b", "c")], &[("a", "c", 5)]), []);
    assert_eq!(seen("a", &[], &[]), []);
}

#[test]
fn of_a_lost_hop_those_that_hang_on_it_are_behind_it() {
    let links = [("a", "far"), ("hop", "e1"), ("hop", "e2"), ("far", "e3")];
    assert_eq!(words(&seen("a", &links, &[("far", "hop", 7)])), ["hop | e1 e2 | far-hop | 7"]);
    // It was out of reach when its last link broke.
    let broken = [("far", "hop", 7), ("a", "hop", 9)];
    assert_eq!(words(&seen("a", &links, &broken)), ["hop | e1 e2 | a-hop far-hop | 9"]);
}

#[test]
fn of_a_chain_of_hops_the_nearest_lost_one_is_the_cause() {
    let links = [("a", "b"), ("h1", "h2"), ("h2", "e1"), ("h2", "e2")];
    assert_eq!(words(&seen("a", &links, &[("b", "h1", 7)])), ["h1 | e1 e2 h2 | b-h1 | 7"]);
    // The farther one was lost before: it is a cause of its own, and what it hid is not put down to the nearer one.
    let links = [("a", "b"), ("h1", "e0"), ("h2", "e1"), ("h2", "e2")];
    let broken = [("h1", "h2", 5), ("b", "h1", 70)];
    assert_eq!(words(&seen("a", &links, &broken)), ["h1 | e0 | b-h1 | 70", "h2 | e1 e2 | h1-h2 | 5"]);
}

#[test]
fn a_hop_that_takes_its_leave_link_by_link_is_one_cause() {
    let links = [("a", "b"), ("e1", "e2")];
    let broken = [("hop", "e0", 5), ("hop", "e1", 6), ("b", "hop", 7)];
    assert_eq!(words(&seen("a", &links, &broken)), ["hop | e0 e1 e2 | b-hop | 7"]);
}

#[test]
fn a_node_with_two_ways_is_behind_neither_hop_and_behind_both_once_both_are_lost() {
    let links = [("a", "h2"), ("h1", "e1"), ("h2", "e2"), ("h2", "e12")];
    let broken = [("a", "h1", 5), ("h1", "e12", 5)];
    assert_eq!(words(&seen("a", &links, &broken)), ["h1 | e1 | a-h1 e12-h1 | 5"]);
    let links = [("h1", "e1"), ("h2", "e2"), ("h1", "e12"), ("h2", "e12")];
    let broken = [("a", "h1", 5), ("a", "h2", 6)];
    assert_eq!(words(&seen("a", &links, &broken)), ["h1 h2 | e1 e12 e2 | a-h1 a-h2 | 6"]);
    // Two that share nothing are two causes.
    let links = [("h1", "e1"), ("h2", "e2")];
    assert_eq!(words(&seen("a", &links, &broken)), ["h1 | e1 | a-h1 | 5", "h2 | e2 | a-h2 | 6"]);
}

#[test]
fn of_a_partition_the_ends_of_the_cut_links_are_named_together() {
    let links = [("a", "b"), ("b", "c"), ("d", "e"), ("e", "f")];
    let broken = [("a", "f", 5), ("c", "d", 6)];
    assert_eq!(words(&seen("a", &links, &broken)), ["d f | e | a-f c-d | 6"]);
}

#[test]
fn of_nodes_that_were_never_linked_here_no_cause_is_invented() {
    assert_eq!(words(&seen("a", &[("a", "b"), ("x", "y")], &[])), [" | x y |  | -1"]);
}

#[test]
fn a_thousand_nodes_take_little_time() {
    let names: Vec<String> = (0..1_000).map(|number| format!("node-{number}")).collect();
    let hop = |number: usize| names[number % 30].as_str();
    let links: Vec<_> = names[30..].iter().enumerate().map(|(n, name)| (hop(n), name.as_str())).collect();
    let broken: Vec<_> = names[..30].iter().map(|name| ("own", name.as_str(), 1)).collect();
    let start = Instant::now();
    let outages = seen("own", &links, &broken);
    // Generous, because machines that test are busy; it takes some 2 ms, with the making of the tables.
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    println!("{:?}", start.elapsed());
    assert_eq!(outages.len(), 30);
    assert_eq!(outages.iter().map(|one| one.nodes().count()).sum::<usize>(), 1_000);
}
