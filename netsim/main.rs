//! Meshes of the real protocol core in virtual time, over links that delay, lose, repeat, reorder and
//! break. Every choice comes from a seed, so every failure can be run again.
//!
//! - `topology`, `link`: what the mesh looks like; `world`: what happens to it; `wires`: its connections; `ledger`: what became of
//!   each datagram; `oracle`: what must be true; `scenario`: the stories; `replay`: which runs there are.

#![allow(missing_docs, reason = "a test target: its items are explained where the name does not")]

mod ledger;
mod link;
mod oracle;
mod replay;
mod scenario;
mod topology;
mod wires;
mod world;

use scenario::{Case, Scenario};

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
    assert!(reports.len() >= Scenario::ALL.len());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for scenario in Scenario::ALL {
        let trace = |seed| Case::of(scenario, seed).run().unwrap_or_else(|error| panic!("{error}")).trace;
        assert_eq!(trace(7), trace(7), "{scenario:?}");
        assert_ne!(trace(7), trace(8), "{scenario:?}");
    }
}

/// Runs the one case that the environment names; without one there is nothing to do.
#[test]
fn replay() {
    let Some(case) = replay::asked_for() else { return };
    println!("{case:?}");
    match case.run() {
        Ok(report) => println!("{report:?}"),
        Err(error) => panic!("{error}\n    {}", replay::command(&case)),
    }
}
