//! Measures a pass: `cargo test --release --lib controller::core::tests::measure -- --ignored --nocapture`.

use std::time::Instant;

use super::*;

const NODES: usize = 500;
const JOBS: i64 = 10_000;

/// A cluster of five groups with overlapping lists, each node in two of them, and a queue of mixed jobs.
fn cluster() -> (Vec<Instance>, Vec<Group>, Vec<PendingJob>) {
    let mut instances = vec![control("c1", 20_000), control("c2", 20_000)];
    let names: Vec<String> = (0..NODES).map(|at| format!("e{at:03}")).collect();
    instances.extend(names.iter().enumerate().map(|(at, name)| execution(name, 8 + at as u32 % 33)));
    let every = |step: usize, from: usize| {
        names.iter().skip(from).step_by(step).map(String::as_str).collect::<Vec<_>>()
    };
    let all = every(1, 0);
    let mut groups = vec![group("controlplane", &["c1", "c2"]), group("default", &all)];
    groups.extend((0..4).map(|at| group(&format!("g{at}"), &every(4, at))));
    let walks =
        [vec!["default"], vec!["g0", "g1"], vec!["g2", "default"], vec!["g3"], vec!["g1", "g2", "g3"]];
    let jobs = (1..=JOBS).map(|id| {
        let mut job = pending(id, 1 + (id as u32 * 7) % 6, &walks[id as usize % walks.len()]);
        job.holders = vec![named(if id % 2 == 0 { "c1" } else { "c2" })];
        job.priority = (id % 5) as i8;
        job
    });
    (instances, groups, jobs.collect())
}

fn placed(decisions: &[Decision]) -> usize {
    decisions.iter().filter(|decision| matches!(decision, Decision::Place(_))).count()
}

#[test]
#[ignore = "a measurement"]
fn a_pass_over_10_000_jobs_and_500_nodes() {
    let (instances, groups, jobs) = cluster();
    let empty = scene(&instances, &groups, &[]);
    let claims: Vec<Claim> = (0..NODES as i64)
        .flat_map(|at| {
            let node = format!("e{at:03}");
            (0..8 + at % 33)
                .map(move |n| claim(100_000 + at * 100 + n, "c1", &node, "default", 1))
                .collect::<Vec<_>>()
        })
        .collect();
    let full = scene(&instances, &groups, &claims);
    for (what, scene) in [("empty", empty), ("full", full)] {
        let mut times: Vec<_> = (0..11)
            .map(|_| {
                let started = Instant::now();
                let decisions = pass(&scene, &jobs);
                (started.elapsed(), placed(&decisions))
            })
            .collect();
        times.sort();
        println!("{what} cluster: median {:?}, longest {:?}, {} placed", times[5].0, times[10].0, times[0].1);
    }
}
