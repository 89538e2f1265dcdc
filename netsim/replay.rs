//! Which runs there are, how one of them is run again, and how many run at once. Runs share nothing, so
//! they may run side by side; inside a run there is one thread.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::scenario::{Case, Report, Scenario};

/// How many seeds each scenario is played with, unless `NETSIM_SEEDS` says otherwise.
const SEEDS: u64 = 40;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// How large the largest meshes are to be, if the environment says it.
pub fn nodes() -> Option<usize> {
    number("NETSIM_NODES").map(|nodes| nodes as usize)
}

/// The run that the environment names.
pub fn asked_for() -> Option<Case> {
    let seed = number("NETSIM_SEED")?;
    let name = std::env::var("NETSIM_SCENARIO").ok()?;
    let scenario = Scenario::ALL.into_iter().find(|s| format!("{s:?}") == name);
    Some(Case::of(scenario.unwrap_or_else(|| panic!("no scenario {name}: {:?}", Scenario::ALL)), seed))
}

/// What to type to see a run again.
pub fn command(case: &Case) -> String {
    format!(
        "NETSIM_SEED={} NETSIM_SCENARIO={:?} cargo test --test netsim -- replay --nocapture",
        case.seed, case.scenario
    )
}

/// Plays every scenario with every seed; reports and failures in the order of the runs.
pub fn play_all() -> (Vec<(Case, Report)>, Vec<String>) {
    let seeds = number("NETSIM_SEEDS").unwrap_or(SEEDS);
    let runs = Scenario::ALL.len() as u64 * seeds;
    let (next, results) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(16);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let run = next.fetch_add(1, Ordering::Relaxed);
                    if run >= runs {
                        break;
                    }
                    let scenario = Scenario::ALL[(run % Scenario::ALL.len() as u64) as usize];
                    let case = Case::of(scenario, run);
                    let result = case.run();
                    results.lock().expect("no run panics while it holds this").push((run, case, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("as above");
    results.sort_by_key(|(run, ..)| *run);
    let (mut reports, mut failures) = (Vec::new(), Vec::new());
    for (_, case, result) in results {
        match result {
            Ok(report) => reports.push((case, report)),
            Err(error) => failures.push(format!("{case:?}: {error}\n    {}", command(&case))),
        }
    }
    (reports, failures)
}
