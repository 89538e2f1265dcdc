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
        (Scenario::ColdStart, 1, 0x0949_2bf9_aa0d_b875),
        (Scenario::Crossing, 1, 0xc889_7c97_9f52_4162),
        (Scenario::LinkReset, 1, 0x7df0_b405_5d10_293e),
        (Scenario::LinkSilent, 1, 0xb116_32d3_997e_1e60),
        (Scenario::LinkRestored, 1, 0x5ff8_6419_d061_6dae),
        (Scenario::NodeKilled, 1, 0xf74c_2525_98b0_292d),
        (Scenario::NodeVanishes, 1, 0xd5de_9020_add5_bf22),
        (Scenario::NodeRestarts, 1, 0x03e5_e508_7488_515a),
        (Scenario::ClockSetBack, 1, 0x4ce0_213d_73f9_fcfe),
        (Scenario::Flapping, 1, 0xb679_4a70_fcc5_4643),
        (Scenario::Partition, 1, 0x5206_2281_85c6_6afe),
        (Scenario::Lossy, 1, 0xa2c6_be5d_ed73_677c),
        (Scenario::Twin, 1, 0x6832_16b9_795b_10ab),
        (Scenario::ColdStart, 2, 0x0663_6cbd_7c36_6886),
        (Scenario::Crossing, 2, 0x03e6_2bfd_779a_c62d),
        (Scenario::LinkReset, 2, 0xe3a8_dcde_c209_4c98),
        (Scenario::LinkSilent, 2, 0x8d71_2b1c_2947_0eb0),
        (Scenario::LinkRestored, 2, 0x5473_7ebe_6e81_3701),
        (Scenario::NodeKilled, 2, 0x52e2_fc69_02f3_5688),
        (Scenario::NodeVanishes, 2, 0xc082_56a5_48dc_d919),
        (Scenario::NodeRestarts, 2, 0xd5f0_0352_bd9a_54aa),
        (Scenario::ClockSetBack, 2, 0x8fc4_a91f_4df7_04e1),
        (Scenario::Flapping, 2, 0x0fbd_d4e4_d4ed_0aad),
        (Scenario::Partition, 2, 0xd8cc_b1f9_63a8_8e28),
        (Scenario::Lossy, 2, 0x13db_1994_5138_c1b7),
        (Scenario::Twin, 2, 0x02e1_58c0_b52f_fbcc),
        (Scenario::Partition, 49, 0xafcc_9677_e77b_4fb1),
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
