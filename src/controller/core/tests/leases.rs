//! Leases, epochs and takeover.

use super::*;

const TIMES: LeaseTimes = LeaseTimes { heartbeat: secs(10), owner_lost_after: secs(30) };

#[test]
fn a_lease_that_was_taken_over_cannot_be_renewed() {
    let mut lease = Lease::start(None, "c1".into(), START, &TIMES);
    let mine = lease.fence();
    assert_eq!(lease.renew(&mine, START + secs(25), &TIMES), Ok(()));
    assert!(!lease.take_over(START + secs(55)), "not while it holds");
    assert!(lease.take_over(START + secs(56)));
    assert_eq!(lease.renew(&mine, START + secs(57), &TIMES), Err(Fenced(mine.clone())));
    let again = Lease::start(Some(&lease), "c1".into(), START + secs(60), &TIMES);
    assert!(again.epoch > lease.epoch && lease.epoch > mine.epoch);
}

#[test]
fn a_late_renewal_counts_while_nobody_took_over() {
    let mut lease = Lease::start(None, "c1".into(), START, &TIMES);
    let mine = lease.fence();
    assert!(lease.is_expired(START + secs(40)));
    assert_eq!(lease.renew(&mine, START + secs(40), &TIMES), Ok(()));
    assert!(!lease.take_over(START + secs(41)));
}

#[test]
fn of_two_processes_with_one_name_the_later_one_wins() {
    let first = Lease::start(None, "c1".into(), START, &TIMES);
    let mut second = Lease::start(Some(&first), "c1".into(), START + secs(1), &TIMES);
    assert!(second.renew(&first.fence(), START + secs(2), &TIMES).is_err());
    let mut job = Job::new(JobId(1), JobKind::Job, 2, START);
    place(&mut job, "c1", "e1");
    job.fence = Some(second.fence());
    assert!(job.driven_by(&first.fence()).is_err() && job.driven_by(&second.fence()).is_ok());
}

#[test]
fn a_node_stops_acting_before_others_may_take_over() {
    let tenure = Tenure { renewed: START };
    let lease = Lease::start(None, "c1".into(), START, &TIMES);
    assert!(tenure.may_act(START + secs(19), &TIMES));
    assert!(!tenure.may_act(START + secs(20), &TIMES));
    assert!(!lease.is_expired(START + secs(20)));
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
        heir(job, &holders, instances, &loads, live, START).map(|fence| fence.owner.to_string())
    };
    assert_eq!(chosen(&job, &instances, &["c3"], &live).as_deref(), Some("c2"), "only c2 sees e1");
    let unplaced = Job::new(JobId(2), JobKind::Job, 2, START);
    assert_eq!(chosen(&unplaced, &instances, &["c2"], &live).as_deref(), Some("c2"), "it holds the payload");
    assert_eq!(chosen(&unplaced, &instances, &[], &live).as_deref(), Some("c3"), "it has more room");
    assert_eq!(chosen(&job, &instances, &[], &[]), None);
    instances[1].enabled = false;
    assert_eq!(chosen(&job, &instances, &[], &live).as_deref(), Some("c3"), "better than nobody");
}
