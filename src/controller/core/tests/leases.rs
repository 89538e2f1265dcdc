//! Leases, epochs and takeover.

use super::*;

const TIMES: LeaseTimes = LeaseTimes { heartbeat: secs(10), owner_lost_after: secs(30) };

/// The store, with a clock that is set at will, and the clocks of the control nodes, which are not.
struct Store {
    leases: Vec<Lease>,
    random: u32,
}

impl Store {
    fn new() -> Self {
        Self { leases: Vec::new(), random: 0 }
    }

    fn start(&mut self, node: &str) -> Fence {
        self.random = self.random.wrapping_add(0x9e37_79b9);
        let former = self.leases.iter().find(|lease| lease.node == named(node)).cloned();
        self.leases.retain(|lease| lease.node != named(node));
        let lease = Lease::start(former.as_ref(), node.into(), self.random, &TIMES);
        self.leases.push(lease.clone());
        lease.fence()
    }

    fn lease(&mut self, node: &str) -> &mut Lease {
        self.leases.iter_mut().find(|lease| lease.node == named(node)).expect("it has started")
    }

    fn beat(&mut self, fence: &Fence) -> Result<(), Fenced> {
        self.lease(fence.owner.as_str()).renew(fence, &TIMES)
    }

    fn take_over(&mut self, lost: &Lease) -> bool {
        self.lease(lost.node.as_str()).take_over(lost)
    }
}

/// Looks every ten seconds from `from` to `to`, and returns the leases that are lost at the last look.
fn watch(watch: &mut LeaseWatch, store: &mut Store, from: u64, to: u64, beating: &[&Fence]) -> Vec<Lease> {
    for at in (from..=to).step_by(10) {
        beating.iter().for_each(|fence| store.beat(fence).unwrap());
        assert!(!watch.note(store.leases.clone(), START + secs(at), &TIMES));
    }
    watch.lost(START + secs(to), &TIMES)
}

#[test]
fn a_control_node_that_is_silent_for_long_is_lost_and_no_other() {
    let (mut store, mut seen) = (Store::new(), LeaseWatch::default());
    let (c1, _c2) = (store.start("c1"), store.start("c2"));
    for at in (0..600).step_by(10) {
        let lost = watch(&mut seen, &mut store, at, at, &[&c1]);
        let lost: Vec<_> = lost.into_iter().map(|lease| lease.node).collect();
        assert_eq!(lost, if at > 30 { vec![named("c2")] } else { vec![] }, "after {at} s");
    }
}

#[test]
fn who_has_just_started_to_watch_takes_over_nobody() {
    let (mut store, mut seen) = (Store::new(), LeaseWatch::default());
    store.start("c1");
    assert_eq!(watch(&mut seen, &mut store, 0, 30, &[]), []);
    assert_eq!(watch(&mut seen, &mut store, 40, 40, &[]).len(), 1);
}

#[test]
fn who_could_not_look_has_seen_nobody_be_silent() {
    let (mut store, mut seen) = (Store::new(), LeaseWatch::default());
    store.start("c1");
    watch(&mut seen, &mut store, 0, 20, &[]);
    // Nobody could reach the store for longer than `owner_lost_after`.
    assert_eq!(watch(&mut seen, &mut store, 100, 130, &[]), []);
    assert_eq!(watch(&mut seen, &mut store, 140, 140, &[]).len(), 1);
    seen.interrupt();
    assert_eq!(watch(&mut seen, &mut store, 150, 180, &[]), [], "one look had failed");
    assert_eq!(watch(&mut seen, &mut store, 190, 190, &[]).len(), 1);
}

#[test]
fn a_lease_that_was_taken_over_cannot_be_renewed_and_is_taken_over_once() {
    let (mut store, mut seen) = (Store::new(), LeaseWatch::default());
    let mine = store.start("c1");
    let lost = watch(&mut seen, &mut store, 0, 40, &[]).remove(0);
    store.beat(&mine).unwrap();
    assert!(!store.take_over(&lost), "it has been renewed since");
    assert_eq!(watch(&mut seen, &mut store, 50, 80, &[]), []);
    let lost = watch(&mut seen, &mut store, 90, 90, &[]).remove(0);
    assert!(store.take_over(&lost) && !store.take_over(&lost));
    assert!(!store.lease("c1").is_held());
    assert_eq!(store.beat(&mine), Err(Fenced(mine.clone())));
    assert_eq!(watch(&mut seen, &mut store, 100, 190, &[]), [], "nobody has it");
    let again = store.start("c1");
    assert!(again.epoch > mine.epoch && store.lease("c1").is_held());
}

#[test]
fn of_two_processes_with_one_name_the_later_one_wins() {
    let mut store = Store::new();
    let (first, second) = (store.start("c1"), store.start("c1"));
    assert!(store.beat(&first).is_err() && store.beat(&second).is_ok());
    let mut job = Job::new(JobId(1), JobKind::Job, 2, START);
    place(&mut job, "c1", "e1");
    job.fence = Some(second.clone());
    assert!(job.driven_by(&first).is_err() && job.driven_by(&second).is_ok());
}

#[test]
fn an_epoch_that_is_issued_again_fences_as_well() {
    let mut store = Store::new();
    store.start("c1");
    let before = store.leases.clone();
    let lost = store.start("c1");
    // The database fails over to a copy without the last commit.
    store.leases = before;
    let again = store.start("c1");
    assert_ne!(again, lost);
    assert!(store.beat(&lost).is_err() && store.beat(&again).is_ok());
}

#[test]
fn a_store_that_lost_its_last_commits_is_noticed_and_watched_anew() {
    let (mut store, mut seen) = (Store::new(), LeaseWatch::default());
    let (c1, _silent) = (store.start("c1"), store.start("c2"));
    watch(&mut seen, &mut store, 0, 20, &[&c1]);
    let before = store.leases.clone();
    // The database loses the last write, which was the observer's own heartbeat.
    store.beat(&c1).unwrap();
    seen.renewed(store.lease("c1").clone(), START + secs(20));
    store.leases = before;
    assert!(seen.note(store.leases.clone(), START + secs(30), &TIMES));
    assert_eq!(watch(&mut seen, &mut store, 40, 60, &[&c1]), [], "c2 may have beaten meanwhile");
    assert_eq!(watch(&mut seen, &mut store, 70, 70, &[&c1]).len(), 1);
    // An epoch goes back.
    let before = store.leases.clone();
    store.start("c2");
    assert!(!seen.note(store.leases.clone(), START + secs(80), &TIMES));
    assert!(seen.note(before, START + secs(90), &TIMES));
}

#[test]
fn a_fenced_holder_learns_who_has_its_lease() {
    let mut store = Store::new();
    let mine = store.start("c1");
    let after = |store: &Store, at: u64, seen: &mut LeaseWatch| {
        seen.note(store.leases.clone(), START + secs(at), &TIMES);
        seen.standing(&mine, START + secs(at), &TIMES)
    };
    assert_eq!(after(&store, 0, &mut LeaseWatch::default()), Standing::Held);
    let seen = store.lease("c1").clone();
    assert!(store.take_over(&seen));
    assert_eq!(after(&store, 0, &mut LeaseWatch::default()), Standing::Free);
    let other = store.start("c1");
    let mut watch = LeaseWatch::default();
    assert_eq!(after(&store, 0, &mut watch), Standing::Unclear);
    store.beat(&other).unwrap();
    assert_eq!(after(&store, 1, &mut watch), Standing::Replaced, "it lives");
    for at in (11..=91).step_by(10) {
        assert_eq!(after(&store, at, &mut watch), Standing::Replaced, "it was seen to live");
    }
    assert_eq!(after(&store, 92, &mut watch), Standing::Free, "it has been silent for long");
    store.beat(&other).unwrap();
    assert_eq!(after(&store, 93, &mut watch), Standing::Replaced, "and is back");
    store.leases.clear();
    assert_eq!(after(&store, 2, &mut LeaseWatch::default()), Standing::Free);
    // A lease from before the writer's own start: nobody can have taken it since.
    store.leases.push(Lease { node: "c1".into(), epoch: Epoch(5), beat: 0, lasts: Duration::ZERO });
    assert_eq!(after(&store, 3, &mut LeaseWatch::default()), Standing::Free);
}

#[test]
fn a_node_stops_acting_before_others_may_take_over() {
    let tenure = Tenure { renewed: START };
    assert!(tenure.may_act(START + secs(19), &TIMES));
    assert!(!tenure.may_act(START + secs(20), &TIMES));
}

fn place(job: &mut Job, owner: &str, node: &str) -> AttemptNo {
    let placement = Placement {
        job: job.id,
        owner: owner.into(),
        execution_node: Some(node.into()),
        group: "g".into(),
        child: ChildType::Runner,
    };
    let unit = child_id(job.id, job.next_attempt());
    job.place(&placement, unit, fence(owner, 1), START).unwrap()
}

#[test]
fn a_returning_owner_cannot_undo_what_was_taken_over() {
    let mut job = Job::new(JobId(1), JobKind::Job, 2, START);
    let n = place(&mut job, "c1", "e1");
    let (old, new) = (fence("c1", 1), fence("c2", 1));
    job.driven_by(&old).unwrap().on_accepted(n, START).unwrap();
    job.take_over(new.clone(), OnLoss::TakeOver, START);
    let before = job.clone();
    assert_eq!(
        job.driven_by(&old).map(|_| ()),
        Err(Fenced(old)),
        "the same number of another node is another epoch"
    );
    assert_eq!(job, before);
    job.driven_by(&new).unwrap().on_ended(n, &evidence(Some(FinalStatus::Successful)), START).unwrap();
    assert_eq!(job.state, JobState::Successful);
}

#[test]
fn a_new_owner_places_again_what_was_never_accepted_and_follows_what_was() {
    let mut job = Job::new(JobId(1), JobKind::Job, 2, START);
    let n = place(&mut job, "c1", "e1");
    let me = fence("c2", 4);
    job.take_over(me.clone(), OnLoss::TakeOver, START);
    assert_eq!(job.state, JobState::Waiting);
    let mut unsent = job.clone();
    unsent.driven_by(&me).unwrap().on_unknown(n, START).unwrap();
    assert_eq!(
        (unsent.state, unsent.hold()),
        (JobState::Pending, None),
        "nothing ran, so it is placed again"
    );
    job.driven_by(&me).unwrap().on_accepted(n, START).unwrap();
    assert_eq!((job.state, job.attempts.len()), (JobState::Running, 1));
}

#[test]
fn a_child_on_the_lost_owner_itself_is_lost_with_it() {
    let mut job = Job::new(JobId(1), JobKind::Job, 2, START);
    job.retry.max = 1;
    place(&mut job, "h1", "h1");
    job.take_over(fence("c2", 4), OnLoss::TakeOver, START);
    let held = Hold::Attempt { attempt: AttemptNo(1), node: Some("h1".into()) };
    assert_eq!((job.state, job.hold()), (JobState::Pending, Some(held)));
    let mut restarted = Job::new(JobId(2), JobKind::Job, 2, START);
    place(&mut restarted, "h1", "h1");
    restarted.take_over(fence("h1", 2), OnLoss::TakeOver, START);
    assert_eq!(restarted.state, JobState::Waiting, "its owner restarted, and the child lives on");
}

#[test]
fn onloss_fail_behaves_like_awx() {
    let mut job = Job::new(JobId(1), JobKind::Job, 2, START);
    place(&mut job, "c1", "e1");
    job.take_over(fence("c1", 2), OnLoss::Fail, START);
    assert_eq!((job.state, job.explanation.as_str()), (JobState::Failed, "its control node was lost"));
    assert_eq!(
        job.duties().collect::<Vec<_>>(),
        [(AttemptNo(1), Duty::Cancel)],
        "what is left of it is cancelled"
    );
    let mut waiting = Job::new(JobId(2), JobKind::Job, 2, START);
    waiting.take_over(fence("c1", 2), OnLoss::Fail, START);
    assert_eq!(waiting.state, JobState::Pending, "a pending job has no owner to lose");
}

#[test]
fn the_heir_reaches_the_instance_then_holds_the_payload_then_has_room() {
    let mut instances = [control("c1", 9), control("c2", 9), control("c3", 30), execution("e1", 20)];
    let live = [fence("c2", 1), fence("c3", 1)];
    let mut job = Job::new(JobId(1), JobKind::Job, 2, START);
    place(&mut job, "c1", "e1");
    let chosen = |job: &Job, instances: &[Instance], holders: &[&str], live: &[Fence]| {
        let holders: Vec<_> = holders.iter().map(|name| named(name)).collect();
        let loads = Loads::sum(instances, &[], &[]);
        heir(job, &holders, instances, &loads, live).map(|fence| fence.owner.to_string())
    };
    assert_eq!(chosen(&job, &instances, &["c3"], &live).as_deref(), Some("c2"), "only c2 sees e1");
    let unplaced = Job::new(JobId(2), JobKind::Job, 2, START);
    assert_eq!(chosen(&unplaced, &instances, &["c2"], &live).as_deref(), Some("c2"), "it holds the payload");
    assert_eq!(chosen(&unplaced, &instances, &[], &live).as_deref(), Some("c3"), "it has more room");
    assert_eq!(chosen(&job, &instances, &[], &[]), None);
    instances[1].enabled = false;
    assert_eq!(chosen(&job, &instances, &[], &live).as_deref(), Some("c3"), "better than nobody");
}
