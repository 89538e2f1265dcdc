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
        (Scenario::ColdStart, 1, 0x124d_05ab_10df_3317),
        (Scenario::Crossing, 1, 0xfe75_99f1_cd6d_c7f1),
        (Scenario::LinkReset, 1, 0xd245_33cd_6764_a0e2),
        (Scenario::LinkSilent, 1, 0x03f7_f0cd_0c94_e50c),
        (Scenario::LinkRestored, 1, 0xd844_3de8_1bd5_91a0),
        (Scenario::NodeKilled, 1, 0x054e_19a4_63e8_70e7),
        (Scenario::NodeVanishes, 1, 0x8ff6_18e3_ee8b_1e67),
        (Scenario::NodeRestarts, 1, 0xce18_87fe_caca_c7ae),
        (Scenario::ClockSetBack, 1, 0x6da4_4848_49fa_e58b),
        (Scenario::Flapping, 1, 0xc862_1e8a_e291_8d5e),
        (Scenario::Partition, 1, 0x398a_c10a_4dff_1439),
        (Scenario::Lossy, 1, 0xfbc0_85fa_ff18_b991),
        (Scenario::Twin, 1, 0x6e7a_f650_13c5_7381),
        (Scenario::ColdStart, 2, 0x6d8a_61a1_f5bc_17fb),
        (Scenario::Crossing, 2, 0xbe55_7325_904e_029c),
        (Scenario::LinkReset, 2, 0x59d2_6d20_cef0_68b7),
        (Scenario::LinkSilent, 2, 0xd1c4_aa18_331e_8b61),
        (Scenario::LinkRestored, 2, 0x0283_35a9_9e26_3acb),
        (Scenario::NodeKilled, 2, 0x0b00_66a0_589b_d753),
        (Scenario::NodeVanishes, 2, 0x1bc2_73c9_268f_277c),
        (Scenario::NodeRestarts, 2, 0x982f_75e2_54c8_83ee),
        (Scenario::ClockSetBack, 2, 0x65c0_1285_afda_3bf7),
        (Scenario::Flapping, 2, 0xf38e_4fae_02d3_6a06),
        (Scenario::Partition, 2, 0x79e8_bdd0_b79e_164a),
        (Scenario::Lossy, 2, 0xf53c_dd91_4ff1_56cb),
        (Scenario::Twin, 2, 0xaf01_5218_8fdb_4f5d),
        (Scenario::Partition, 49, 0x54e2_8552_9092_3f24),
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
