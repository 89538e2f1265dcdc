//! Meshes of the real protocol core in virtual time, over links that delay, lose, repeat, reorder and break. Every
//! choice comes from a seed, so every failure can be run again.
//!
//! - `topology`, `link`: the shape of the mesh; `peer`: its nodes; `wires`: its connections.
//! - `world`: what happens; `agenda`: in which order; `liar`: a node that lies; `scenario`: the stories.
//! - `ledger`: the end of each datagram; `oracle`: what must be true; `replay`: which runs there are.
//! - `scaling`: what a mesh costs as it grows; `growth`: a mesh of thousands of nodes; `newcomers`: nodes that join
//!   through a receptor node; `outages`: what nodes say of those that they have lost.

#![allow(missing_docs, reason = "a test target: its items are explained where the name does not")]

mod agenda;
mod growth;
mod ledger;
mod liar;
mod link;
mod newcomers;
mod oracle;
mod outages;
mod peer;
mod replay;
mod scaling;
mod scenario;
mod topology;
mod wires;
mod world;

use scenario::{Case, Scenario};
use topology::Topology;

#[test]
fn every_scenario_comes_to_rest() {
    let (reports, failures) = replay::play_all();
    println!("scenario        runs   convergence s (median, max)   messages per node (median, max)");
    for scenario in Scenario::ALL {
        let of = || reports.iter().filter(|(case, _)| case.scenario == scenario).map(|(_, report)| report);
        let mut times: Vec<f64> = of().map(|report| report.convergence.as_secs_f64()).collect();
        let mut messages: Vec<f64> = of().map(|report| report.messages_per_node).collect();
        times.sort_by(f64::total_cmp);
        messages.sort_by(f64::total_cmp);
        let (Some(slowest), Some(most)) = (times.last(), messages.last()) else { continue };
        let middle = times.len() / 2;
        println!(
            "{:14} {:5} {:18.2} {slowest:10.2} {:20.1} {most:12.1}",
            format!("{scenario:?}"),
            times.len(),
            times[middle],
            messages[middle]
        );
    }
    assert!(failures.is_empty(), "{} runs failed:\n{}", failures.len(), failures.join("\n"));
    assert!(reports.len() >= replay::scenario().map_or(Scenario::ALL.len(), |_| 1));
}

/// Up to `NETSIM_NODES` nodes, or 300, because memory and time grow with the square.
#[test]
fn a_growing_mesh_stays_cheap() {
    let largest = replay::nodes().unwrap_or(300);
    let sizes = [10, 30, 100, 300, 1_000, 3_000, 10_000].into_iter().filter(|&size| size <= largest);
    let rows: Vec<scaling::Row> =
        sizes.map(|size| scaling::measure(size).unwrap_or_else(|e| panic!("{size} nodes: {e}"))).collect();
    println!("{}", scaling::table(&rows));
    for row in &rows {
        let ends = 2 * row.links as u64;
        assert!(row.change_messages <= 2 * 2 * ends, "{row:?}");
        assert!(row.change.as_secs_f64() < 1.0 && row.cold_start.as_secs_f64() < 6.0, "{row:?}");
    }
}

/// The figures of docs/adr/0037-unsigned-updates.md: 1,000 nodes, or `NETSIM_NODES`.
#[test]
#[ignore = "a measurement: it finds nothing wrong"]
fn what_signed_updates_would_add() {
    println!("{}", scaling::signatures(replay::nodes().unwrap_or(1_000)));
}

/// 500 nodes, or `NETSIM_NODES`.
#[test]
fn a_large_mesh_survives_everything_at_once() {
    let nodes = replay::nodes().unwrap_or(500);
    let case = Case { scenario: Scenario::Everything, topology: Topology::Sparse, nodes, seed: 1 };
    let start = std::time::Instant::now();
    let report = case.run().unwrap_or_else(|error| panic!("{nodes} nodes: {error}"));
    println!("{nodes} nodes in {:.1} s of real time: {report:?}", start.elapsed().as_secs_f64());
    assert!(report.convergence.as_secs() < 60);
}

fn grow(nodes: usize) {
    let mut growth = growth::Growth::new(nodes);
    let played = growth.play();
    let memory = growth.memory_per_pair();
    println!("{nodes} nodes, {memory:.0} bytes of memory for each pair of them\n{}", growth.table());
    played.unwrap_or_else(|error| panic!("{nodes} nodes:\n{error}"));
    // 3,000 nodes fit into 12 GB. Small meshes are not checked, because the process's own memory is much of theirs.
    assert!(nodes < 1_000 || memory < 1_330.0, "{memory:.0} bytes for each pair of nodes");
}

/// The story of the next test, with few nodes.
#[test]
fn a_mesh_grows_in_stages() {
    grow(300);
}

/// 3,000 nodes, or `NETSIM_NODES`; compiled for speed:
///
/// ```sh
/// GLIBC_TUNABLES=glibc.malloc.hugetlb=1 cargo test -p meshd-core --test netsim -- --ignored --nocapture
/// ```
#[test]
#[ignore = "a measurement: takes long"]
fn three_thousand_nodes_grow_in_stages() {
    grow(replay::nodes().unwrap_or(3_000));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for scenario in Scenario::ALL {
        let trace = |seed| Case::of(scenario, seed).run().unwrap_or_else(|error| panic!("{error}")).trace;
        assert_eq!(trace(7), trace(7), "{scenario:?}");
        assert_ne!(trace(7), trace(8), "{scenario:?}");
    }
}

/// Checks that the recorded runs still send exactly the same messages. A change that is not meant to change the
/// protocol leaves these numbers alone.
#[test]
fn runs_are_the_recorded_ones() {
    let play = |(case, trace): (Case, u64)| {
        let report = case.run().unwrap_or_else(|error| panic!("{case:?}: {error}"));
        (report.trace != trace).then(|| format!("{:?}, {}: {:#x}", case.scenario, case.seed, report.trace))
    };
    let others: Vec<String> = replay::recorded().filter_map(play).collect();
    assert!(others.is_empty(), "{}", others.join("\n"));
}

/// Runs the case that the environment names, if it names one.
#[test]
fn replay() {
    let Some(case) = replay::asked_for() else { return };
    println!("{case:?}");
    match case.run() {
        Ok(report) => println!("{report:?}"),
        Err(error) => panic!("{error}\n    {}", replay::command(&case)),
    }
}
