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
    let seed = number("NETSIM_SEED")?;
    let name = std::env::var("NETSIM_SCENARIO").ok()?;
    let scenario = Scenario::ALL.into_iter().find(|s| format!("{s:?}") == name);
    Some(Case::of(scenario.unwrap_or_else(|| panic!("no scenario {name}: {:?}", Scenario::ALL)), seed))
}

/// Runs whose traces are known.
pub(crate) fn recorded() -> impl Iterator<Item = (Case, u64)> {
    let recorded = [
        (Scenario::ColdStart, 1, 0xe367_00b9_d5cb_c802),
        (Scenario::Crossing, 1, 0xa3e1_cd62_836c_54ee),
        (Scenario::LinkReset, 1, 0xe271_c888_4296_6c17),
        (Scenario::LinkSilent, 1, 0x6ff0_9dab_1f11_7444),
        (Scenario::LinkRestored, 1, 0x7139_a529_c3d4_1040),
        (Scenario::NodeKilled, 1, 0x4e75_9197_5eea_57ef),
        (Scenario::NodeVanishes, 1, 0x1602_25ae_6867_151b),
        (Scenario::NodeRestarts, 1, 0xd572_4c9e_b82e_2217),
        (Scenario::ClockSetBack, 1, 0x4b6a_e1ea_858b_1cf8),
        (Scenario::Flapping, 1, 0x6727_8f32_86b8_ac3e),
        (Scenario::Partition, 1, 0x59a8_864e_905e_7670),
        (Scenario::Lossy, 1, 0xc538_9187_82e9_1536),
        (Scenario::Twin, 1, 0xafda_7f54_de6d_5f94),
        (Scenario::ColdStart, 2, 0x8d95_736f_516f_75f5),
        (Scenario::Crossing, 2, 0x9d82_deb8_429e_8cf7),
        (Scenario::LinkReset, 2, 0xaf00_90dc_7ad9_9f84),
        (Scenario::LinkSilent, 2, 0x3371_898c_818d_ce3e),
        (Scenario::LinkRestored, 2, 0xab1e_e2ba_3d7a_0811),
        (Scenario::NodeKilled, 2, 0x1c51_2ea1_b715_dbd9),
        (Scenario::NodeVanishes, 2, 0xa543_e20e_f719_2c16),
        (Scenario::NodeRestarts, 2, 0xaa4a_d598_ee12_c219),
        (Scenario::ClockSetBack, 2, 0x5c6f_28bf_f047_5945),
        (Scenario::Flapping, 2, 0xe1c4_6ddb_52a6_dd01),
        (Scenario::Partition, 2, 0xa5f6_aa76_78b8_90b2),
        (Scenario::Lossy, 2, 0x87a8_02da_5e72_7bc8),
        (Scenario::Twin, 2, 0x9de6_0641_88ca_7dd4),
        (Scenario::Partition, 49, 0x9fae_a40a_75ee_67ad),
    ];
    recorded.into_iter().map(|(scenario, seed, trace)| (Case::of(scenario, seed), trace))
}

/// What to type to see a run again.
pub(crate) fn command(case: &Case) -> String {
    format!(
        "NETSIM_SEED={} NETSIM_SCENARIO={:?} cargo test --test netsim -- replay --nocapture",
        case.seed, case.scenario
    )
}

/// Plays every scenario with every seed; reports and failures in the order of the runs.
pub(crate) fn play_all() -> (Vec<(Case, Report)>, Vec<String>) {
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
