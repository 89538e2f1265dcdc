//! What the nodes of a mesh say of nodes that they have lost: which one is the cause, and who is behind it.

use std::time::Duration;

use meshd_core::mesh::NodeOutage;
use meshd_core::wire::{Cost, NodeId};

use crate::link::{Kind, Link, State};
use crate::world::World;

/// Longer than it takes to notice a silent link.
const NOTICED: Duration = Duration::from_secs(60);

/// A mesh of these links between nodes with one-letter names, after a minute.
fn world(links: &[&str]) -> World {
    let mut world = World::new(7);
    for name in links.join("").chars() {
        if number(&world, name).is_none() {
            world.add_node(NodeId::new(name.to_string()).expect("valid"), false);
        }
    }
    for link in links {
        let ends: Vec<usize> = link.chars().filter_map(|name| number(&world, name)).collect();
        let (cost, delay) = (Cost::DEFAULT, Duration::from_millis(5));
        let (kind, state, nodes) = (Kind::Stream, State::Up, [ends[0], ends[1]]);
        world.links.push(Link { nodes, cost, delay, kind, state, dials: [true, false] });
    }
    (0..world.nodes.len()).for_each(|node| world.start(node, 0));
    world.run(NOTICED);
    world
}

fn number(world: &World, name: char) -> Option<usize> {
    world.nodes.iter().position(|node| node.id.as_str() == name.to_string())
}

fn kill(world: &mut World, name: char) {
    let node = number(world, name).expect("it is there");
    world.kill(node, false);
}

/// What a node says: the lost nodes and, in brackets, those behind them.
fn told(world: &World, by: char) -> Vec<String> {
    let node = &world.nodes[number(world, by).expect("it is there")];
    let status = node.mesh.as_ref().expect("it lives").status(world.clock());
    let names = |names: &[NodeId]| names.iter().map(NodeId::as_str).collect::<String>();
    let of = |one: &NodeOutage| format!("{}({})", names(&one.lost), names(&one.behind));
    status.outages(&node.id).iter().map(of).collect()
}

#[test]
fn a_lost_hop_is_the_cause_for_all_who_hang_on_it_wherever_one_asks() {
    // `h` and `g` are hops of the control nodes `a` and `b`; `z` hangs on both.
    let mut world = world(&["ab", "ah", "bg", "hx", "hy", "hz", "gz", "gw"]);
    assert!(told(&world, 'a').is_empty() && told(&world, 'w').is_empty());
    kill(&mut world, 'h');
    world.run(NOTICED);
    for by in ['a', 'b', 'w', 'z'] {
        assert_eq!(told(&world, by), ["h(xy)"], "{by}");
    }
    let back = number(&world, 'h').expect("it is there");
    world.start(back, 0);
    world.run(NOTICED);
    for by in ['a', 'w', 'x'] {
        assert!(told(&world, by).is_empty(), "{by}: {:?}", told(&world, by));
    }
}

#[test]
fn two_lost_hops_are_two_causes_unless_somebody_hangs_on_both() {
    let mut apart = world(&["ah", "ag", "hx", "gw", "av"]);
    kill(&mut apart, 'h');
    kill(&mut apart, 'g');
    apart.run(NOTICED);
    assert_eq!(told(&apart, 'v'), ["g(w)", "h(x)"]);
    let mut together = world(&["ah", "ag", "hx", "gw", "hz", "gz", "av"]);
    kill(&mut together, 'h');
    kill(&mut together, 'g');
    together.run(NOTICED);
    assert_eq!(told(&together, 'v'), ["gh(wxz)"]);
}

#[test]
fn in_a_chain_the_nearest_lost_hop_is_the_cause_and_one_that_was_lost_before_stays_one() {
    let mut world = world(&["ab", "bh", "hg", "gx", "gy"]);
    kill(&mut world, 'g');
    world.run(NOTICED);
    assert_eq!(told(&world, 'a'), ["g(xy)"]);
    kill(&mut world, 'h');
    world.run(NOTICED);
    assert_eq!(told(&world, 'a'), ["g(xy)", "h()"]);
}

#[test]
fn of_a_partition_either_half_names_the_ends_of_the_cut_links() {
    // A ring, cut between b and c and between a and f.
    let mut world = world(&["ab", "bc", "cd", "de", "ef", "fa"]);
    world.set_link(1, State::Silent);
    world.set_link(5, State::Down);
    world.run(NOTICED);
    for by in ['a', 'b'] {
        assert_eq!(told(&world, by), ["cf(de)"], "{by}");
    }
    for by in ['c', 'e'] {
        assert_eq!(told(&world, by), ["ab()"], "{by}");
    }
    world.run(Duration::from_secs(700));
    assert!(told(&world, 'a').is_empty(), "they are forgotten");
}
