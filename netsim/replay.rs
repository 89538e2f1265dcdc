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
pub(crate) fn nodes() -> Option<usize> {
    number("NETSIM_NODES").map(|nodes| nodes as usize)
}

/// The run that the environment names.
pub(crate) fn asked_for() -> Option<Case> {
    Some(Case::of(scenario()?, number("NETSIM_SEED")?))
}

/// The scenario that the environment names.
pub(crate) fn scenario() -> Option<Scenario> {
    let name = std::env::var("NETSIM_SCENARIO").ok()?;
    let named = Scenario::ALL.into_iter().find(|s| format!("{s:?}") == name);
    Some(named.unwrap_or_else(|| panic!("no scenario {name}: {:?}", Scenario::ALL)))
}

/// Runs whose traces are known.
pub(crate) fn recorded() -> impl Iterator<Item = (Case, u64)> {
    let recorded = [
        (Scenario::ColdStart, 1, 0xc016_ac13_2374_3651),
        (Scenario::Crossing, 1, 0xbed0_69a4_658f_d8eb),
        (Scenario::LinkReset, 1, 0xf236_4faa_caa6_d1d9),
        (Scenario::LinkSilent, 1, 0xd721_d4b3_5007_f3c5),
        (Scenario::LinkRestored, 1, 0x4a25_a542_278c_72cf),
        (Scenario::NodeKilled, 1, 0xf393_30f1_124a_e7ec),
        (Scenario::NodeVanishes, 1, 0xb2f8_9771_f1f3_75bb),
        (Scenario::NodeRestarts, 1, 0x31a2_b66f_8dd0_a845),
        (Scenario::ClockSetBack, 1, 0x84a2_15f5_f4c4_e72e),
        (Scenario::Flapping, 1, 0x572e_b26b_9ff3_7ddc),
        (Scenario::Partition, 1, 0x2a1a_d0eb_a275_f061),
        (Scenario::Lossy, 1, 0xdc53_f619_8244_2f3c),
        (Scenario::Twin, 1, 0x498e_3d91_188d_8ef5),
        (Scenario::ColdStart, 2, 0xf4ea_025e_0090_af3a),
        (Scenario::Crossing, 2, 0x044d_34e0_9a53_92de),
        (Scenario::LinkReset, 2, 0x5f28_c00a_5f64_b9a7),
        (Scenario::LinkSilent, 2, 0xd722_b7bf_c08e_919c),
        (Scenario::LinkRestored, 2, 0x1cc2_bb61_823a_8d71),
        (Scenario::NodeKilled, 2, 0xc2d6_3add_abad_98f2),
        (Scenario::NodeVanishes, 2, 0xcb93_ecf1_1ce7_9ff8),
        (Scenario::NodeRestarts, 2, 0xe685_100a_d549_a36d),
        (Scenario::ClockSetBack, 2, 0xcb7c_b881_bbb2_f021),
        (Scenario::Flapping, 2, 0x02da_d3b4_1e73_dbcd),
        (Scenario::Partition, 2, 0x6fae_1fc0_348a_a7f4),
        (Scenario::Lossy, 2, 0xa269_a872_2619_8207),
        (Scenario::Twin, 2, 0xdf12_2902_f766_966b),
        (Scenario::Partition, 49, 0xc73f_1d66_2ffd_5eb1),
    ];
    recorded.into_iter().map(|(scenario, seed, trace)| (Case::of(scenario, seed), trace))
}

/// What to type to see a run again.
pub(crate) fn command(case: &Case) -> String {
    format!(
        "NETSIM_SEED={} NETSIM_SCENARIO={:?} cargo test -p meshd-core --test netsim -- replay --nocapture",
        case.seed, case.scenario
    )
}

/// Plays every scenario, or the one that `NETSIM_SCENARIO` names, with every seed; reports and failures in the order of the runs.
pub(crate) fn play_all() -> (Vec<(Case, Report)>, Vec<String>) {
    let seeds = number("NETSIM_SEEDS").unwrap_or(SEEDS);
    let named = scenario();
    let scenarios = named.as_ref().map_or(&Scenario::ALL[..], std::slice::from_ref);
    let runs = scenarios.len() as u64 * seeds;
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
                    let scenario = scenarios[(run % scenarios.len() as u64) as usize];
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
