//! Which runs there are, how a run is repeated, and how many run at once. Runs share nothing, so they may run in
//! parallel; each run has one thread.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::scenario::{Case, Report, Scenario};

/// How many seeds each scenario is played with, unless `NETSIM_SEEDS` says otherwise.
const SEEDS: u64 = 40;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The size of the largest meshes, if the environment gives it.
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
        (Scenario::ColdStart, 1, 0x00df_7276_faea_ef5f),
        (Scenario::Crossing, 1, 0x03b2_ef39_2625_6bab),
        (Scenario::LinkReset, 1, 0xdcf6_1ead_ecb0_ed94),
        (Scenario::LinkSilent, 1, 0x07c0_b6fe_c201_3738),
        (Scenario::LinkRestored, 1, 0x916a_30a3_136d_1b40),
        (Scenario::NodeKilled, 1, 0x0429_c2c9_56ce_6784),
        (Scenario::NodeVanishes, 1, 0x1833_5076_2efd_3642),
        (Scenario::NodeRestarts, 1, 0x6fea_72f4_dee2_eea2),
        (Scenario::ClockSetBack, 1, 0x9b43_d796_8fa7_6f10),
        (Scenario::Flapping, 1, 0xaf98_a24d_a01f_4fbc),
        (Scenario::Partition, 1, 0xddca_c595_c8b7_f33f),
        (Scenario::Lossy, 1, 0xeeec_7090_bef7_c261),
        (Scenario::Twin, 1, 0xd637_32fe_a9c4_8966),
        (Scenario::ColdStart, 2, 0x3618_3cef_17dd_4ebb),
        (Scenario::Crossing, 2, 0x044d_34e0_9a53_92de),
        (Scenario::LinkReset, 2, 0x01a2_1a68_cbcb_bb6f),
        (Scenario::LinkSilent, 2, 0xe311_5f5f_39a8_ca95),
        (Scenario::LinkRestored, 2, 0x652d_350a_8bf6_81a2),
        (Scenario::NodeKilled, 2, 0xa37b_1494_6fcf_4754),
        (Scenario::NodeVanishes, 2, 0x6216_6042_1ab9_a8f2),
        (Scenario::NodeRestarts, 2, 0x3e0c_9e6b_c7c4_52fe),
        (Scenario::ClockSetBack, 2, 0x26ab_9660_6749_b062),
        (Scenario::Flapping, 2, 0xab0e_f529_ebb5_88dc),
        (Scenario::Partition, 2, 0x3573_538d_5575_1906),
        (Scenario::Lossy, 2, 0xe62b_ecfd_f997_b1b8),
        (Scenario::Twin, 2, 0xaed6_0118_1f2e_92f7),
        (Scenario::Partition, 49, 0xc73f_1d66_2ffd_5eb1),
    ];
    recorded.into_iter().map(|(scenario, seed, trace)| (Case::of(scenario, seed), trace))
}

/// The command that repeats a run.
pub(crate) fn command(case: &Case) -> String {
    format!(
        "NETSIM_SEED={} NETSIM_SCENARIO={:?} cargo test -p meshd-core --test netsim -- replay --nocapture",
        case.seed, case.scenario
    )
}

/// Plays every scenario, or the one that `NETSIM_SCENARIO` names, with every seed. Returns reports and failures in the
/// order of the runs.
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
