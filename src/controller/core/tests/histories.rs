//! Random histories: the rules hold whatever clients, nodes, operators and control nodes do.

use proptest::prelude::*;

use super::world::{Submission, World};
use super::*;

#[derive(Debug, Clone)]
enum Op {
    Submit {
        kind: JobKind,
        impact: u32,
        priority: i8,
        groups: u8,
        holders: u8,
        need: Option<u8>,
        word: Option<u8>,
        retry: Retry,
    },
    Pass,
    Contact(u8),
    ContactAll,
    Finish(u8, FinalStatus),
    Cancel(u8),
    Lose(u8, bool),
    BringBack(u8),
    DeclareDead(u8),
    Toggle(u8),
    Shrink(u8),
    TakeOver(bool),
    Wait(u16),
}

fn any_retry() -> impl Strategy<Value = Retry> {
    (0u32..3, any::<[bool; 4]>()).prop_map(|(max, [on_lost, on_error, on_failed, unconfirmed])| Retry {
        max,
        on_lost,
        on_error,
        on_failed,
        unconfirmed,
    })
}

fn any_submit() -> impl Strategy<Value = Op> {
    let kind = prop_oneof![6 => Just(JobKind::Job), 1 => Just(JobKind::InventoryUpdate), 1 => Just(JobKind::ProjectUpdate)];
    let rest =
        (any::<u8>(), 1u8..8, prop::option::weighted(0.2, any::<u8>()), prop::option::weighted(0.3, 0u8..2));
    (kind, 0u32..9, -1i8..2, rest, any_retry()).prop_map(
        |(kind, impact, priority, (groups, holders, need, word), retry)| Op::Submit {
            kind,
            impact,
            priority,
            groups,
            holders,
            need,
            word,
            retry,
        },
    )
}

fn any_op() -> impl Strategy<Value = Op> {
    use FinalStatus::{Canceled, Error, Failed, Successful, Timeout};
    let status = prop_oneof![5 => Just(Successful), 1 => Just(Failed), 1 => Just(Timeout), 1 => Just(Error), 1 => Just(Canceled)];
    prop_oneof![
        8 => any_submit(),
        6 => Just(Op::Pass),
        4 => any::<u8>().prop_map(Op::Contact),
        5 => Just(Op::ContactAll),
        5 => (any::<u8>(), status).prop_map(|(job, status)| Op::Finish(job, status)),
        1 => any::<u8>().prop_map(Op::Cancel),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(node, crashed)| Op::Lose(node, crashed)),
        2 => any::<u8>().prop_map(Op::BringBack),
        1 => any::<u8>().prop_map(Op::DeclareDead),
        1 => any::<u8>().prop_map(Op::Toggle),
        1 => any::<u8>().prop_map(Op::Shrink),
        1 => any::<bool>().prop_map(Op::TakeOver),
        1 => any::<u16>().prop_map(Op::Wait),
    ]
}

fn small_cluster() -> World {
    let mut instances = vec![control("c1", 12), control("c2", 9), hybrid("h1", 12)];
    instances
        .extend([3, 7, 7, 12].iter().enumerate().map(|(at, cap)| execution(&format!("e{}", at + 1), *cap)));
    for instance in &mut instances {
        instance.seen.insert("h1".into(), Sighting { routed: true, arrived: START, beat: 0 });
    }
    instances[4].seen.remove("c2");
    let mut limited = group("b", &["e3", "h1"]);
    limited.max_concurrent_jobs = 3;
    let mut pods = Group::containers("pods".into());
    pods.max_forks = 14;
    let groups = vec![
        group("controlplane", &["c1", "c2", "h1"]),
        group("default", &["h1", "e1", "e2", "e3", "e4"]),
        group("a", &["e1", "e2"]),
        limited,
        pods,
    ];
    World::new(instances, groups)
}

fn pick<T>(names: &[T], mask: u8) -> impl Iterator<Item = &T> {
    names.iter().enumerate().filter(move |(at, _)| mask >> at & 1 == 1).map(|(_, name)| name)
}

fn submit(world: &mut World, op: &Op) {
    let Op::Submit { kind, impact, priority, groups, holders, need, word, retry } = op else { return };
    let id = JobId(world.jobs.len() as i64 + 1);
    let mut job = Job::new(id, *kind, *impact, world.now);
    job.retry = *retry;
    job.exclusive = word.iter().map(|word| Word::from(["x", "y"][usize::from(*word)])).collect();
    let template =
        pick(&["a", "b", "default", "pods", "gone"], *groups).map(|name| GroupName::from(*name)).collect();
    let walk = LaunchGroups { template, ..LaunchGroups::default() }.walk();
    let submission = Submission {
        priority: *priority,
        groups: walk,
        needs: need.iter().filter(|_| id.0 > 1).map(|n| JobId(1 + i64::from(*n) % (id.0 - 1))).collect(),
        holders: pick(&["c1", "c2", "h1"], *holders).map(|name| named(name)).collect(),
        pending_timeout: (id.0 % 7 == 0).then_some(secs(60)),
    };
    world.jobs.push(job);
    world.submissions.push(submission);
}

fn apply(world: &mut World, op: &Op) {
    let job = |world: &World, at: u8| (!world.jobs.is_empty()).then(|| usize::from(at) % world.jobs.len());
    let node = |at: u8| 3 + usize::from(at) % 4;
    match op {
        Op::Submit { .. } => submit(world, op),
        Op::Pass => world.pass(),
        Op::Contact(at) => job(world, *at).into_iter().for_each(|at| world.contact(at)),
        Op::ContactAll => (0..world.jobs.len()).for_each(|at| world.contact(at)),
        Op::Finish(at, status) => job(world, *at).into_iter().for_each(|at| world.finish(at, *status)),
        Op::Cancel(at) => {
            let now = world.now;
            job(world, *at).into_iter().for_each(|at| _ = world.jobs[at].request_cancel(now));
        }
        Op::Lose(at, crashed) => world.lose(node(*at), *crashed),
        Op::BringBack(at) => world.bring_back(node(*at)),
        Op::DeclareDead(at) => world.declare_dead(node(*at)),
        Op::Toggle(at) => world.instances[node(*at)].enabled ^= true,
        Op::Shrink(at) => world.instances[node(*at)].capacities = Capacities { cpu: 2, mem: 2 },
        Op::TakeOver(back) => {
            let (from, to) = if *back { ("c2", "c1") } else { ("c1", "c2") };
            world.take_over(&from.into(), &to.into());
        }
        Op::Wait(millis) => world.now = world.now + Duration::from_millis(u64::from(*millis) * 4),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// The oracle judges each pass, the world checks each state, and in the end nothing is left.
    #[test]
    fn the_rules_hold_whatever_happens(ops in prop::collection::vec(any_op(), 1..120)) {
        let mut world = small_cluster();
        for op in &ops {
            apply(&mut world, op);
            world.check();
        }
        world.wind_up();
    }
}
