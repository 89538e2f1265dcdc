//! Nodes that join through a receptor-like hop: how soon they know of services, and what a thousand newcomers cost.

use std::time::Duration;

use meshd_core::wire::{Cost, NodeId};

use crate::link::{Kind, Link, State};
use crate::world::World;

const OURS: usize = 6;

/// Makes a row of our nodes, a receptor-like hop at its end, and after that a newcomer of ours that is not started.
/// Returns the world and the index of the newcomer.
fn world() -> (World, usize) {
    let mut world = World::new(7);
    for name in ["a", "b", "c", "d", "e", "f"] {
        world.add_node(NodeId::new(name).expect("valid"), true);
    }
    let hop = world.add_node(NodeId::new("hop").expect("valid"), true);
    world.nodes[hop].receptor_like = true;
    let newcomer = world.add_node(NodeId::new("newcomer").expect("valid"), false);
    for (from, to) in (0..newcomer).map(|node| (node + 1, node)) {
        let (cost, delay) = (Cost::DEFAULT, Duration::from_millis(5));
        let (kind, state) = (Kind::Stream, State::Up);
        world.links.push(Link { nodes: [from, to], cost, delay, kind, state, dials: [true, false] });
    }
    (0..newcomer).for_each(|node| world.start(node, 0));
    // Long after their first advertisements, and long before the next regular ones.
    world.run(Duration::from_secs(20));
    (world, newcomer)
}

/// How many services of our other nodes a node knows.
fn known(world: &World, node: usize) -> usize {
    let status = world.nodes[node].mesh.as_ref().expect("it lives").status(world.clock());
    let ours = |name: &str| world.nodes[..OURS].iter().any(|node| node.id.as_str() == name);
    status.advertisements.iter().filter(|ad| ours(ad.node_id.as_str())).count()
}

#[test]
fn who_joins_behind_a_receptor_node_knows_of_services_at_once() {
    let (mut world, newcomer) = world();
    world.start(newcomer, 0);
    world.run(Duration::from_secs(2));
    assert_eq!(known(&world, newcomer), OURS);
    // The newcomer is told again after a restart, but not within five seconds of the last time.
    world.kill(newcomer, false);
    world.run(Duration::from_secs(1));
    world.start(newcomer, 0);
    world.run(Duration::from_secs(7));
    assert_eq!(known(&world, newcomer), OURS);
}

#[test]
fn a_thousand_restarts_cost_an_announcement_every_five_seconds() {
    const RESTARTS: u32 = 1_000;
    let life = Duration::from_millis(200);
    let (mut world, newcomer) = world();
    let before = world.counts.adverts;
    for _ in 0..RESTARTS {
        world.start(newcomer, 0);
        world.run(life);
        world.kill(newcomer, false);
    }
    let rounds = (life * RESTARTS).as_secs() / 5 + 1;
    // Each announcement crosses each link once; the hop's own rounds are few.
    let most = rounds * (OURS as u64 + 1) * world.links.len() as u64;
    let cost = world.counts.adverts - before;
    println!("{cost} advertisements for {RESTARTS} restarts, at most {most}");
    assert!(cost <= most, "{cost} advertisements, of at most {most}");
    assert!(cost > most / 10, "the newcomers did not count: {cost} advertisements");
}
