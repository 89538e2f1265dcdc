//! Which job starts where.

use super::*;

/// The instance that the one pending job starts on, as `node` or `node (owner)`, or the reason why it waits.
fn place(instances: &[Instance], groups: &[Group], claims: &[Claim], job: &PendingJob) -> String {
    let decisions = pass(&scene(instances, groups, claims), std::slice::from_ref(job));
    told(&decisions).remove(0)
}

fn told(decisions: &[Decision]) -> Vec<String> {
    let tell = |decision: &Decision| match decision {
        Decision::Place(place) => match &place.execution_node {
            Some(node) => format!("{} on {node} by {}", place.job, place.owner),
            None => format!("{} in {} by {}", place.job, place.group, place.owner),
        },
        Decision::Fail(job, end) => format!("{job} fails: {end}"),
        Decision::Wait(job, waiting) => format!("{job}: {waiting}"),
    };
    decisions.iter().map(tell).collect()
}

fn plane() -> Group {
    group("controlplane", &["c1", "c2", "h1"])
}

/// A claim that leaves that much capacity on an instance.
fn busy(id: i64, node: &str, taken: u32) -> Claim {
    Claim { owner: None, ..claim(id, "", node, "g", taken) }
}

#[test]
fn the_roomiest_instance_wins() {
    let instances = [control("c1", 50), execution("e1", 10), execution("e2", 10)];
    let groups = [plane(), group("g", &["e1", "e2"])];
    let claims = [busy(1, "e1", 5), busy(2, "e2", 2)];
    assert_eq!(place(&instances, &groups, &claims, &pending(9, 4, &["g"])), "9 on e2 by c1");
    let waiting = "9: waiting for capacity in g";
    assert_eq!(place(&instances, &groups, &claims, &pending(9, 9, &["g"])), waiting, "both busy, none idle");
}

#[test]
fn equal_instances_go_by_registration_and_alternate() {
    let instances = [control("c1", 50), execution("e2", 10), execution("e1", 10)];
    let groups = [plane(), group("g", &["e1", "e2"])];
    let jobs: Vec<_> = (1..=4).map(|id| pending(id, 2, &["g"])).collect();
    let placed = told(&pass(&scene(&instances, &groups, &[]), &jobs));
    assert_eq!(placed, ["1 on e2 by c1", "2 on e1 by c1", "3 on e2 by c1", "4 on e1 by c1"]);
}

#[test]
fn an_idle_instance_takes_a_job_too_large_for_it() {
    let instances = [control("c1", 50), execution("e1", 20), execution("e2", 16), execution("e3", 9)];
    let groups = [plane(), group("g", &["e1", "e2", "e3"])];
    let job = pending(9, 51, &["g"]);
    assert_eq!(place(&instances, &groups, &[busy(1, "e2", 3)], &job), "9 on e1 by c1");
    let claims = [busy(1, "e1", 1), busy(2, "e2", 1)];
    assert_eq!(place(&instances, &groups, &claims, &job), "9 on e3 by c1", "the largest that is idle");
}

#[test]
fn a_hybrid_is_charged_for_its_own_control() {
    let instances = [hybrid("h1", 7), execution("e1", 7)];
    let mut groups = [plane(), group("g", &["h1", "e1"])];
    let mut seen = instances.clone();
    seen[1].seen.insert("h1".into(), Sighting { routed: true, arrived: START, beat: 0 });
    let job = PendingJob { holders: vec![named("h1")], ..pending(9, 6, &["g"]) };
    assert_eq!(place(&seen, &groups, &[], &job), "9 on e1 by h1", "1 is left there, 0 on h1");
    groups[1] = group("g", &["h1"]);
    assert_eq!(place(&seen, &groups, &[], &job), "9 on h1 by h1");
}

#[test]
fn a_hybrid_without_the_payload_works_for_the_owner_if_it_offers_the_runner() {
    let mut instances = [control("c1", 9), hybrid("h1", 20)];
    let groups = [plane(), group("g", &["h1"])];
    let job = pending(9, 6, &["g"]);
    assert_eq!(place(&instances, &groups, &[], &job), "9 on h1 by c1");
    instances[1].offer.runner = false;
    assert_eq!(
        place(&instances, &groups, &[], &job),
        "9: waiting for an instance that offers the runner in g"
    );
    let own = PendingJob { holders: vec![named("h1")], ..job };
    assert_eq!(place(&instances, &groups, &[], &own), "9 on h1 by h1", "its own jobs run as local work");
}

#[test]
fn limits_of_a_group_count_jobs_and_forks() {
    let instances = [control("c1", 50)];
    let mut pods = Group::containers("pods".into());
    let mut in_pods = |max_forks, max_concurrent_jobs, running| {
        (pods.max_forks, pods.max_concurrent_jobs) = (max_forks, max_concurrent_jobs);
        let claims: Vec<_> =
            (0..running).map(|id| Claim { execution_node: None, ..claim(id, "c1", "", "pods", 6) }).collect();
        place(&instances, &[plane(), pods.clone()], &claims, &pending(99, 6, &["pods"]))
    };
    let placed = "99 in pods by c1";
    assert_eq!(in_pods(50, 0, 7), placed);
    assert_eq!(in_pods(50, 0, 8), "99: waiting for fewer running forks in pods");
    assert_eq!(in_pods(0, 10, 9), placed);
    assert_eq!(in_pods(0, 10, 10), "99: waiting for fewer running jobs in pods");
}

#[test]
fn groups_are_tried_in_order_with_a_reason_for_each() {
    let mut instances = [control("c1", 50), execution("e1", 10), execution("e2", 10), execution("e3", 10)];
    let groups = [
        plane(),
        group("east", &["e1"]),
        group("shared", &["e2"]),
        group("west", &["e3"]),
        group("none", &[]),
    ];
    let walk = ["east", "shared", "west", "none", "gone"];
    let claims = [busy(1, "e1", 8)];
    assert_eq!(place(&instances, &groups, &claims, &pending(9, 5, &walk)), "9 on e2 by c1");
    instances[3].enabled = false;
    let claims = [busy(1, "e1", 8), busy(2, "e2", 8)];
    let told =
        "9: waiting for capacity in east, shared; an enabled instance in west; an instance in none, gone";
    assert_eq!(place(&instances, &groups, &claims, &pending(9, 5, &walk)), told);
}

#[test]
fn launch_groups_replace_the_others_and_default_stands_alone() {
    let names = |list: &[&str]| list.iter().map(|name| GroupName::from(*name)).collect::<Vec<_>>();
    let all = LaunchGroups {
        launch: Vec::new(),
        template: names(&["t"]),
        inventory: names(&["i", "t"]),
        organization: names(&["o", "default"]),
        prevent_fallback: Vec::new(),
    };
    let walk = |groups: &LaunchGroups| {
        groups
            .walk()
            .iter()
            .map(|(name, level)| format!("{name}/{}", level.name()))
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(walk(&all), "t/template i/inventory o/organization default/organization");
    assert_eq!(walk(&LaunchGroups { launch: names(&["l", "t"]), ..all.clone() }), "l/launch t/launch");
    assert_eq!(walk(&LaunchGroups { prevent_fallback: vec![Level::Template], ..all.clone() }), "t/template");
    let stopped = LaunchGroups { template: Vec::new(), prevent_fallback: vec![Level::Template], ..all };
    assert_eq!(walk(&stopped), "default/default", "the walk ends behind an empty level as well");
    assert_eq!(walk(&LaunchGroups::default()), "default/default");
}

#[test]
fn an_unfit_instance_gives_its_reason() {
    let groups = [plane(), group("g", &["e1"])];
    let why = |change: fn(&mut Instance), require_tls| {
        let mut instances = [control("c1", 50), execution("e1", 10)];
        change(&mut instances[1]);
        let mut all = scene(&instances, &groups, &[]);
        all.require_tls = require_tls;
        let decisions = pass(&all, &[pending(1, 2, &["g"])]);
        match &decisions[..] {
            [Decision::Wait(_, Waiting::Groups(reasons))] => reasons[0].1.code(),
            [Decision::Place(_)] => "placed",
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(why(|_| (), false), "placed");
    assert_eq!(why(|e| e.enabled = false, false), "disabled");
    assert_eq!(why(|e| e.draining = true, false), "draining");
    assert_eq!(why(|e| e.drain(), false), "draining");
    assert_eq!(why(|e| e.node_state = NodeState::Installed, false), "not_ready");
    assert_eq!(why(|e| e.on_lost(), false), "not_ready");
    assert_eq!(why(|e| e.seen.clear(), false), "unreachable");
    assert_eq!(why(|e| _ = e.seen.remove("c1"), false), "unreachable");
    assert_eq!(why(|e| e.seen.values_mut().for_each(|s| s.routed = false), false), "unreachable");
    assert_eq!(why(|e| e.seen.values_mut().for_each(|s| s.arrived = Time(0)), false), "placed");
    assert_eq!(why(|e| e.offer.runner = false, false), "no_type");
    assert_eq!(why(|_| (), true), "needs_tls");
    assert_eq!(why(|e| e.offer.tls = true, true), "placed");
    assert_eq!(why(|e| e.offer.secure = true, false), "needs_signature");
    assert_eq!(why(|e| e.node_type = NodeType::Hop, false), "wrong_class");
    assert_eq!(why(|e| e.node_type = NodeType::Control, false), "wrong_class");
}

#[test]
fn the_owner_is_the_roomiest_holder_in_the_controlplane() {
    let mut instances = [control("c1", 5), control("c2", 9), execution("e1", 90)];
    let groups = [plane(), group("g", &["e1"])];
    let held_by = |holders: &[&str]| PendingJob {
        holders: holders.iter().map(|name| named(name)).collect(),
        ..pending(1, 2, &["g"])
    };
    assert_eq!(place(&instances, &groups, &[], &held_by(&["c1", "c2"])), "1 on e1 by c2");
    assert_eq!(place(&instances, &groups, &[], &held_by(&["c1"])), "1 on e1 by c1");
    instances[2].seen.remove("c2");
    assert_eq!(
        place(&instances, &groups, &[], &held_by(&["c1", "c2"])),
        "1 on e1 by c1",
        "c2 does not reach it"
    );
    let waiting = "1: waiting for a control node that holds its payload";
    assert_eq!(place(&instances, &groups, &[], &held_by(&[])), waiting);
    assert_eq!(place(&instances, &groups, &[], &held_by(&["c9"])), waiting);
    instances[1].on_lost();
    assert_eq!(place(&instances, &groups, &[], &held_by(&["c2"])), waiting);
    instances[1].on_unhealthy(vec!["no such file".to_owned()], START);
    assert_eq!(
        place(&instances, &groups, &[], &held_by(&["c2"])),
        "1: waiting for the runner of c2: no such file"
    );
    instances[1].on_lost();
    assert_eq!(place(&instances, &groups, &[], &held_by(&["c2"])), waiting);
    instances[0].enabled = false;
    assert_eq!(
        place(&instances, &groups, &[], &held_by(&["c1"])),
        "1: waiting for a control node that holds its payload and is enabled"
    );
    instances[0] = control("c1", 0);
    assert_eq!(
        place(&instances, &groups, &[], &held_by(&["c1"])),
        "1: waiting for capacity of a control node"
    );
    let without = [group("controlplane", &["c2"]), group("g", &["e1"])];
    assert_eq!(
        place(&instances, &without, &[], &held_by(&["c1"])),
        "1: waiting for a control node that holds its payload and is in the group controlplane"
    );
}

#[test]
fn priority_goes_before_creation() {
    let instances = [control("c1", 50), execution("e1", 10)];
    let groups = [plane(), group("g", &["e1"])];
    let jobs = [
        pending(1, 6, &["g"]),
        PendingJob { priority: -5, ..pending(2, 2, &["g"]) },
        PendingJob { priority: 7, ..pending(3, 8, &["g"]) },
    ];
    let placed = told(&pass(&scene(&instances, &groups, &[]), &jobs));
    assert_eq!(
        placed,
        ["3 on e1 by c1", "1: waiting for capacity in g", "2 on e1 by c1"],
        "2 is not held up by 1"
    );
}

#[test]
fn a_job_waits_for_its_dependency_and_fails_with_it() {
    let instances = [control("c1", 50), execution("e1", 50)];
    let groups = [plane(), group("g", &["e1"])];
    let after = |id, needs: &[(i64, Option<JobState>)]| PendingJob {
        needs: needs.iter().map(|&(job, state)| Need { job: JobId(job), state }).collect(),
        ..pending(id, 1, &["g"])
    };
    let jobs = [
        after(10, &[(1, Some(JobState::Successful)), (2, Some(JobState::Running))]),
        after(11, &[(1, Some(JobState::Successful))]),
        after(12, &[(3, Some(JobState::Canceled))]),
        PendingJob { priority: 9, ..after(13, &[(12, Some(JobState::Pending))]) },
        after(14, &[(4, None)]),
    ];
    let decisions = told(&pass(&scene(&instances, &groups, &[]), &jobs));
    let failed = |job, needed| {
        format!("{job} fails: job {needed}, which this one depends on, did not succeed, or was deleted")
    };
    let expected = [
        failed(13, 12),
        "10: waiting for job 2".into(),
        "11 on e1 by c1".into(),
        failed(12, 3),
        failed(14, 4),
    ];
    assert_eq!(decisions, expected);
}

#[test]
fn a_word_is_held_by_one_running_job() {
    let instances = [control("c1", 50), execution("e1", 50)];
    let groups = [plane(), group("g", &["e1"])];
    let claims = [Claim { words: vec!["site".into()], ..claim(1, "c1", "e1", "g", 2) }];
    let with = |id, words: &[&str]| PendingJob {
        exclusive: words.iter().map(|word| Word::from(*word)).collect(),
        ..pending(id, 1, &["g"])
    };
    let jobs = [with(2, &["site"]), with(3, &["a", "b"]), with(4, &["b"]), with(5, &["c"])];
    let placed = told(&pass(&scene(&instances, &groups, &claims), &jobs));
    let expected = [
        "2: waiting for job 1, which holds \"site\"",
        "3 on e1 by c1",
        "4: waiting for job 3, which holds \"b\"",
        "5 on e1 by c1",
    ];
    assert_eq!(placed, expected);
}

#[test]
fn a_pass_that_is_paused_places_nothing_and_still_ends_what_is_overdue() {
    let instances = [control("c1", 50), execution("e1", 50)];
    let groups = [plane(), group("g", &["e1"])];
    let overdue = PendingJob { pending_timeout: Some(secs(60)), ..pending(2, 1, &["g"]) };
    let mut all = scene(&instances, &groups, &[]);
    all.paused = true;
    all.now = START + secs(60);
    let jobs = [pending(1, 1, &["g"]), overdue];
    let waiting = "the controller is paused";
    assert_eq!(told(&pass(&all, &jobs)), [format!("1: {waiting}"), format!("2: {waiting}")]);
    all.now = all.now + Duration::from_millis(1);
    let failed = "2 fails: pending for longer than its pending_timeout of 60 s";
    assert_eq!(told(&pass(&all, &jobs)), [format!("1: {waiting}"), failed.into()]);
}

#[test]
fn nothing_at_all_is_a_valid_cluster() {
    let waiting = "1: waiting for a control node that holds its payload";
    assert_eq!(place(&[], &[], &[], &pending(1, 1, &["default"])), waiting);
}
