//! Explanations of why a pending job does not run.

use super::*;
use crate::rpc::report::controller::{CheckReport, Explained, ExplainedInstance, PlaceHolder, QueuePlace};

/// The explanation of the only pending job.
fn alone(scene: &Scene<'_>, job: &PendingJob) -> Explained {
    explain(scene, std::slice::from_ref(job), job)
}

#[test]
fn the_documented_example() {
    let instances = [control("c1", 50), execution("e1", 30)];
    let groups = [group("controlplane", &["c1"]), group("east", &["e1"])];
    let claims = [claim(1, "c1", "e1", "east", 21)];
    let told = alone(&scene(&instances, &groups, &claims), &pending(42, 21, &["east"]));
    assert_eq!(told.summary, "waiting for capacity in east");
    assert!(told.checks.iter().all(|check| check.ok && check.detail.is_empty()), "{:?}", told.checks);
    let [east] = &told.groups[..] else { panic!("{:?}", told.groups) };
    assert_eq!(
        (east.name.as_str(), east.level.as_str(), east.why.as_deref()),
        ("east", "template", Some("capacity"))
    );
    let e1 = ExplainedInstance {
        name: "e1".into(),
        ok: false,
        why: Some("capacity".into()),
        needs: 21,
        remaining: 9,
        capacity: 30,
        jobs_running: 1,
    };
    assert_eq!(east.instances, [e1]);
    assert_eq!(east.held_by, [PlaceHolder { job: 1, node: Some("e1".into()), impact: 21 }]);
    assert_eq!(told.queue, Some(QueuePlace { place: 1, of: 1 }));
}

#[test]
fn every_failed_check_is_named_with_its_reason() {
    let instances = [control("c1", 50), execution("e1", 30)];
    let groups = [group("controlplane", &["c1"]), group("g", &["e1"])];
    let claims = [Claim { words: vec!["site".into()], ..claim(7, "c1", "e1", "g", 2) }];
    let mut all = scene(&instances, &groups, &claims);
    all.paused = true;
    let job = PendingJob {
        needs: vec![Need { job: JobId(3), state: Some(JobState::Running) }],
        exclusive: vec!["site".into()],
        holders: Vec::new(),
        hold: Some(Hold::Attempt { attempt: AttemptNo(1), node: Some("e9".into()) }),
        ..pending(42, 2, &["g"])
    };
    let told = alone(&all, &job);
    let failed: Vec<_> =
        told.checks.iter().filter(|check| !check.ok).map(|check| (&*check.check, &*check.detail)).collect();
    let lost = "attempt 1 on e9 is lost and may still run: waiting until it is known to have ended; if it does not run: \
                meshctl job confirm-lost 42 --attempt 1";
    let expected = [
        ("dependencies", "waiting for job 3"),
        ("exclusive", "waiting for job 7, which holds \"site\""),
        ("attempt", lost),
        ("payload", "waiting for a control node that holds its payload"),
        ("paused", "the controller is paused"),
    ];
    assert_eq!(failed, expected);
    assert_eq!(told.summary, "the controller is paused");
}

#[test]
fn each_member_is_explained() {
    let mut instances = [control("c1", 50), hybrid("h1", 9), execution("e1", 30), execution("e2", 30)];
    instances[2].enabled = false;
    instances[3].seen.clear();
    let groups = [group("controlplane", &["c1", "h1"]), group("g", &["h1", "e1", "e2"])];
    let claims = [claim(1, "h1", "h1", "g", 4)];
    let job = PendingJob { holders: vec![named("h1"), named("c1")], ..pending(42, 5, &["g"]) };
    let told = alone(&scene(&instances, &groups, &claims), &job);
    let rows: Vec<_> = told.groups[0]
        .instances
        .iter()
        .map(|i| (i.name.as_str(), i.why.as_deref(), i.needs, i.remaining))
        .collect();
    let expected =
        [("h1", Some("capacity"), 6, 4), ("e1", Some("disabled"), 5, 0), ("e2", Some("unreachable"), 5, 30)];
    assert_eq!(rows, expected);
}

#[test]
fn a_job_of_class_control_needs_its_owner_s_capacity() {
    let (instances, groups) = ([control("c1", 5)], [group("controlplane", &["c1"])]);
    let job = PendingJob { kind: JobKind::System, ..pending(42, 5, &[]) };
    let told = alone(&scene(&instances, &groups, &[]), &job);
    let failed: Vec<_> = told.checks.iter().filter(|check| !check.ok).collect();
    let full = "waiting for capacity of a control node";
    assert_eq!(failed, [&CheckReport { check: "owner".into(), ok: false, detail: full.into() }]);
    assert_eq!(told.summary, full);
}

#[test]
fn no_group_takes_a_job_that_no_control_node_can_own() {
    let groups = [group("controlplane", &["c1"]), group("g", &["e1"])];
    let lost = |mut one: Instance| {
        one.on_lost();
        one
    };
    let disabled = Instance { enabled: false, ..control("c1", 50) };
    let draining = Instance { draining: true, ..control("c1", 50) };
    let unchecked = Instance { node_state: NodeState::Installed, ..control("c1", 50) };
    let held = "a control node that holds its payload";
    let rows = [
        (control("c1", 0), "capacity", "owner", "waiting for capacity of a control node".to_owned()),
        (disabled, "disabled", "owner", format!("waiting for {held} and is enabled")),
        (draining, "draining", "owner", format!("waiting for {held} and is not being removed")),
        (unchecked, "not_ready", "owner", format!("waiting for {held} and is ready")),
        (lost(control("c1", 50)), "not_ready", "payload", format!("waiting for {held}")),
    ];
    for (owner, why, check, words) in rows {
        let instances = [owner, execution("e1", 30)];
        let told = alone(&scene(&instances, &groups, &[]), &pending(42, 5, &["g"]));
        let failed: Vec<_> = told
            .checks
            .iter()
            .filter(|check| !check.ok)
            .map(|check| (&*check.check, &*check.detail))
            .collect();
        assert_eq!((&*told.summary, &failed[..]), (&*words, &[(check, &*words)][..]));
        assert_eq!(told.groups[0].why.as_deref(), Some(why), "{words}");
    }
}

#[test]
fn a_job_that_fits_says_where_it_starts() {
    let instances = [control("c1", 50), execution("e1", 30)];
    let groups = [group("controlplane", &["c1"]), group("g", &["e1"])];
    let told = alone(&scene(&instances, &groups, &[]), &pending(42, 5, &["g"]));
    assert_eq!(told.summary, "starts in the next pass on e1, unless another job comes first");
    assert_eq!(told.groups[0].why, None);
}

#[test]
fn a_full_group_names_who_holds_its_places() {
    let instances = [control("c1", 50), execution("e1", 30), execution("e2", 30)];
    let all = |name| group(name, &["e1", "e2"]);
    let patch = Group { max_concurrent_jobs: 2, max_forks: 40, ..all("patch") };
    let groups = [group("controlplane", &["c1"]), all("east"), patch];
    let claims =
        [claim(1, "c1", "e1", "patch", 5), claim(2, "c1", "e1", "east", 5), claim(3, "c1", "e2", "patch", 7)];
    let held = |job, node: &str, impact| PlaceHolder { job, node: Some(node.into()), impact };
    let told = alone(&scene(&instances, &groups, &claims), &pending(42, 2, &["patch"]));
    let patch = &told.groups[0];
    assert_eq!(patch.why.as_deref(), Some("group_jobs"));
    assert_eq!(patch.held_by, [held(1, "e1", 5), held(3, "e2", 7)], "job 2 came by another group");
    assert_eq!((patch.jobs_running, patch.max_concurrent_jobs), (2, 2));
    assert_eq!((patch.forks_running, patch.max_forks), (12, 40));
    let told = alone(&scene(&instances, &groups, &claims), &pending(42, 26, &["east"]));
    let all = [held(1, "e1", 5), held(2, "e1", 5), held(3, "e2", 7)];
    assert_eq!((told.groups[0].why.as_deref(), &told.groups[0].held_by[..]), (Some("capacity"), &all[..]));
    let told = alone(&scene(&instances, &groups, &claims), &pending(42, 2, &["east"]));
    assert_eq!((&told.groups[0].why, &told.groups[0].held_by[..]), (&None, &[][..]), "it has room");
}

#[test]
fn the_place_in_the_queue_counts_those_that_wait_for_the_same_room() {
    let instances = [control("c1", 50), execution("e1", 30), execution("e2", 30)];
    let groups = [group("controlplane", &["c1"]), group("east", &["e1"]), group("west", &["e2"])];
    let claims = [claim(1, "c1", "e1", "east", 30), claim(2, "c1", "e2", "west", 30)];
    let need = Need { job: JobId(1), state: Some(JobState::Running) };
    let queue = [
        pending(10, 5, &["west", "east"]),
        pending(11, 5, &["west"]),
        PendingJob { needs: vec![need], ..pending(12, 5, &["east"]) },
        pending(13, 5, &["east"]),
        PendingJob { priority: -1, ..pending(14, 5, &["east"]) },
        PendingJob { priority: 1, ..pending(15, 5, &["east"]) },
        PendingJob { kind: JobKind::System, ..pending(16, 5, &[]) },
    ];
    let place = |at: usize| explain(&scene(&instances, &groups, &claims), &queue, &queue[at]).queue;
    let of = |place, of| Some(QueuePlace { place, of });
    assert_eq!(place(3), of(3, 4), "behind 15 and 10; 12 waits for a job");
    assert_eq!((place(4), place(5), place(1)), (of(4, 4), of(1, 4), of(2, 2)));
    assert_eq!(place(2), None, "no room would let it start");
    let paused = Scene { paused: true, ..scene(&instances, &groups, &claims) };
    assert_eq!(explain(&paused, &queue, &queue[3]).queue, None);
}
