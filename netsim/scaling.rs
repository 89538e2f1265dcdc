//! What a mesh costs as it grows: messages and bytes of a cold start, of one change and of 20 seconds at rest,
//! the virtual time until all tables are right, and the real time of one computation of the routes.

use std::time::{Duration, Instant};

use meshd_core::mesh::Options;
use meshd_core::wire::{Cost, NodeId, RoutingUpdate};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::link::{Kind, Link, State};
use crate::oracle::Truth;
use crate::topology::{self, Topology};
use crate::world::{Counts, World};

/// One row of the table. Counts are for the whole mesh unless they say otherwise.
#[derive(Debug)]
pub(crate) struct Row {
    pub nodes: usize,
    pub links: usize,
    /// Virtual time from the first start until the last change of a table.
    pub cold_start: Duration,
    pub cold_messages_per_node: f64,
    pub cold_bytes_per_node: f64,
    /// Virtual time from the reset of one link until the last change of a table.
    pub change: Duration,
    pub change_messages: u64,
    pub change_bytes: u64,
    /// Messages and bytes per node and second at rest, probes included.
    pub rest_messages: f64,
    pub rest_bytes: f64,
    pub recompute: Duration,
    /// Real time of making a status after a change, and of printing it.
    pub status: Duration,
    pub printing: Duration,
    /// Real time of the whole simulation.
    pub real: Duration,
}

/// What signed updates would add to a cold start: an Ed25519 signature and a certificate's SHA-256, in base64, under
/// two further keys.
pub(crate) fn signatures(nodes: usize) -> String {
    const ADDED: u64 = r#","Signature":"","Certificate":"""#.len() as u64 + 88 + 44;
    let world = started(nodes);
    let counts = world.counts;
    let updates = counts.control - counts.adverts;
    let meshes = world.nodes.iter().filter_map(|node| node.mesh.as_ref());
    let accepted: u64 = meshes.map(|mesh| mesh.counters().updates_accepted).sum();
    let rest = counts.bytes - counts.probe_bytes;
    format!(
        "{nodes} nodes: {ADDED} bytes more for each of {updates} updates, {:.0} % of {} KiB; each node checks {:.1} \
         signatures of each other one",
        100.0 * (updates * ADDED) as f64 / rest as f64,
        rest >> 10,
        accepted as f64 / (nodes * nodes) as f64,
    )
}

/// A random mesh of `nodes` nodes with twice as many links, ten seconds after all have started.
fn started(nodes: usize) -> World {
    let mut world = World::new(nodes as u64);
    let mut rng = SmallRng::seed_from_u64(nodes as u64);
    for i in 0..nodes {
        let id = topology::name(i, &mut rng);
        world.add_node(id, i % 3 == 0);
    }
    for (a, b) in Topology::Random.edges(nodes, &mut rng) {
        let delay = Duration::from_millis(rng.random_range(1..=20));
        let (cost, kind, state) = (Cost::DEFAULT, Kind::Stream, State::Up);
        world.links.push(Link { nodes: [a, b], cost, delay, kind, state, dials: [true, false] });
    }
    (0..nodes).for_each(|node| world.start(node, 0));
    world.run(Duration::from_secs(10));
    world
}

/// Grows a random mesh.
///
/// # Errors
/// What was wrong with its tables, in words.
pub(crate) fn measure(nodes: usize) -> Result<Row, String> {
    let began = Instant::now();
    let mut world = started(nodes);
    let (cold_start, cold) = world.last_change;
    right(&world)?;
    // For each node all others were newcomers. It answers them, and then it is quiet.
    let options = Options::default();
    world.run(options.answer_hold + options.answer_per_node * nodes as u32);

    let (start, before) = (world.now, world.counts);
    let last = world.links.len() - 1;
    world.set_link(last, State::Down);
    world.run(Duration::from_secs(3));
    let change = world.last_change.0.saturating_sub(start);
    let cost = floods(world.last_change.1, before);
    right(&world)?;

    let before = world.counts;
    let seconds = 20;
    world.run(Duration::from_secs(seconds));
    let rest = |now: u64, before: u64| (now - before) as f64 / nodes as f64 / seconds as f64;
    let recompute = recompute(&mut world);
    let (status, printing) = status(&world);
    let row = Row {
        nodes,
        links: world.links.len(),
        cold_start,
        cold_messages_per_node: (cold.control + cold.probes) as f64 / nodes as f64,
        cold_bytes_per_node: cold.bytes as f64 / nodes as f64,
        change,
        change_messages: cost.0,
        change_bytes: cost.1,
        rest_messages: rest(world.counts.control + world.counts.probes, before.control + before.probes),
        rest_bytes: rest(world.counts.bytes, before.bytes),
        recompute,
        status,
        printing,
        real: began.elapsed(),
    };
    Ok(row)
}

/// Messages and bytes of floods alone.
fn floods(after: Counts, before: Counts) -> (u64, u64) {
    (after.control - before.control, (after.bytes - after.probe_bytes) - (before.bytes - before.probe_bytes))
}

fn right(world: &World) -> Result<(), String> {
    let truth = Truth::of(world);
    truth.routes_are_shortest()?;
    truth.tables_are_true()
}

/// Real time of one computation of the routes, after a far node has lost its links or got them back. The quickest of a
/// few counts, because other tests run at the same time.
fn recompute(world: &mut World) -> Duration {
    let mut now = world.clock();
    let Some(mesh) = world.nodes.iter_mut().find_map(|node| node.mesh.as_mut()) else {
        return Duration::ZERO;
    };
    let status = mesh.status(now);
    let hop = |to: &NodeId| status.routing_table.get(to).cloned();
    let is_far = |of: &NodeId| hop(of).is_some_and(|via| via != *of);
    let far = status.known_connection_costs.iter().find(|(of, _)| is_far(of));
    let Some((far, links)) = far else { return Duration::ZERO };
    let Some((session, forwarder)) = status.neighbours.iter().map(|(peer, n)| (n.session, peer)).next()
    else {
        return Duration::ZERO;
    };
    let time = |sequence: u64| {
        let connections = if sequence.is_multiple_of(2) { links.clone() } else { Default::default() };
        let update = RoutingUpdate {
            node_id: Some(far.clone()),
            update_id: format!("{sequence:08}"),
            epoch: u64::MAX >> 1,
            sequence,
            connections,
            forwarding_node: forwarder.clone(),
            suspected_duplicate: 0,
        };
        let message = update.message().expect("it fits");
        let computed = mesh.counters().route_computations;
        mesh.handle_packet(session, message, now);
        let mut took = Duration::ZERO;
        while mesh.counters().route_computations == computed
            && let Some((due, _)) = mesh.poll_timeout()
        {
            now.tick = now.tick.max(due);
            let start = Instant::now();
            mesh.handle_timeout(now);
            took = start.elapsed();
            while mesh.poll_transmit().is_some() {}
        }
        took
    };
    (1..11).map(time).min().unwrap_or_default()
}

/// Real time of taking a status and of printing its large parts, both for the first time.
fn status(world: &World) -> (Duration, Duration) {
    let now = world.clock();
    let Some(mesh) = world.nodes.iter().find_map(|node| node.mesh.as_ref()) else {
        return Default::default();
    };
    let start = Instant::now();
    let status = mesh.status(now);
    let taken = start.elapsed();
    let (start, mut text) = (Instant::now(), Vec::new());
    let parts = (&status.routing_table, &status.advertisements, &status.known_connection_costs);
    serde_json::to_writer(&mut text, &parts).expect("memory takes it");
    assert!(!text.is_empty());
    (taken, start.elapsed())
}

/// The rows as a Markdown table.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| nodes | links | cold start s | messages/node | KiB/node | change s | messages | KiB | rest msg/s/node \
         | rest B/s/node | recompute ms | status ms | printed ms | real s |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for r in rows {
        text += &format!(
            "| {} | {} | {:.2} | {:.0} | {:.0} | {:.2} | {} | {:.0} | {:.1} | {:.0} | {:.2} | {:.3} | {:.2} | {:.1} |\n",
            r.nodes,
            r.links,
            r.cold_start.as_secs_f64(),
            r.cold_messages_per_node,
            r.cold_bytes_per_node / 1024.0,
            r.change.as_secs_f64(),
            r.change_messages,
            r.change_bytes as f64 / 1024.0,
            r.rest_messages,
            r.rest_bytes,
            r.recompute.as_secs_f64() * 1e3,
            r.status.as_secs_f64() * 1e3,
            r.printing.as_secs_f64() * 1e3,
            r.real.as_secs_f64(),
        );
    }
    text
}
