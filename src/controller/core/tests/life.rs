//! The life of a job: its states, its attempts, its end.

use super::*;

const ME: &str = "c1";

fn job() -> Job {
    Job::new(JobId(42), JobKind::Job, 4, START)
}

fn with_retries(max: u32) -> Job {
    Job { retry: Retry { max, ..Retry::default() }, ..job() }
}

fn start(job: &mut Job, node: &str) -> AttemptNo {
    let placement = Placement {
        job: job.id,
        owner: ME.into(),
        execution_node: Some(node.into()),
        group: "g".into(),
        child: ChildType::Runner,
    };
    let n = job.place(&placement, child_id(job.id, job.next_attempt()), fence(ME, 1), START).unwrap();
    assert_eq!((job.state, job.explanation.clone()), (JobState::Waiting, format!("Starting on {node}")));
    n
}

fn run(job: &mut Job, node: &str) -> AttemptNo {
    let n = start(job, node);
    mine(job).on_accepted(n, START).unwrap();
    assert_eq!(job.state, JobState::Running);
    n
}

fn mine(job: &mut Job) -> Driven<'_> {
    job.driven_by(&fence(ME, 1)).unwrap()
}

fn end(job: &mut Job, n: AttemptNo, status: FinalStatus) {
    mine(job).on_ended(n, &evidence(Some(status)), START).unwrap();
}

#[test]
fn a_child_s_id_names_its_job_and_is_read_back() {
    let id = child_id(JobId(42), AttemptNo(3));
    assert_eq!(id.to_string(), "c1234abcdn42a3r00000007");
    assert_eq!(ChildId::parse("c1234abcdn42a3r00000007"), Some(id));
    for other in [
        "",
        "c",
        "aB3dE5gH",
        "c1234abcdn42a3r7",
        "c1234ABCDn42a3r00000007",
        "c1234abcdn042a3r00000007",
        "c1234abcdn42a+3r00000007",
    ] {
        assert_eq!(ChildId::parse(other), None, "{other:?}");
    }
}

#[test]
fn a_job_runs_and_ends_by_its_stream() {
    let rows = [
        (FinalStatus::Successful, JobState::Successful, "Finished"),
        (FinalStatus::Failed, JobState::Failed, "the playbook failed on e1"),
        (FinalStatus::Timeout, JobState::Failed, "timed out on e1"),
        (FinalStatus::Error, JobState::Error, "the runner reported an error on e1: exit status 2"),
        (
            FinalStatus::Canceled,
            JobState::Failed,
            "the runner was interrupted on e1, and nobody cancelled the job",
        ),
    ];
    for (status, state, explanation) in rows {
        let mut job = job();
        let n = run(&mut job, "e1");
        assert_eq!(job.explanation, "Running on e1, unit c1234abcdn42a1r00000007");
        end(&mut job, n, status);
        assert_eq!((job.state, job.explanation.as_str()), (state, explanation));
        assert_eq!(job.duties().collect::<Vec<_>>(), [(n, Duty::Release)]);
        mine(&mut job).on_swept(n).unwrap();
        assert_eq!(job.duties().collect::<Vec<_>>(), [(n, Duty::Nothing)]);
        assert_eq!(job.claims(), []);
    }
}

#[test]
fn the_first_rule_that_applies_decides() {
    let node = named("e1");
    let seen = |status, child, detail: &str, tail: &str| Evidence {
        status,
        tail: tail.into(),
        ..Evidence::of_unit(child, detail.into())
    };
    let told_of = |kind, cancel, evidence: &Evidence| {
        let verdict = judge(kind, cancel, evidence, Some(&node));
        (verdict.ending, verdict.explanation)
    };
    let told = |cancel, evidence: &Evidence| told_of(JobKind::Job, cancel, evidence);
    let success = seen(Some(FinalStatus::Successful), ChildEnd::Failed, "pod exceeded quota", "");
    assert_eq!(told(true, &success).0, Ending::Canceled, "a saved cancel comes first");
    let cut = (Ending::Successful, "Finished; the end of its output is missing".to_owned());
    assert_eq!(told(false, &success), cut, "then the stream, whatever the unit says");
    assert_eq!(
        told(false, &Evidence { has_end: true, ..success }),
        (Ending::Successful, "Finished".to_owned())
    );
    let failed = seen(Some(FinalStatus::Failed), ChildEnd::Succeeded, "", "");
    assert_eq!(told(false, &failed), (Ending::Failed, "the playbook failed on e1".to_owned()));
    assert_eq!(told_of(JobKind::AdHoc, false, &failed).1, "the module failed on e1");
    let never = Evidence { before_playbook: Some("no podman".to_owned()), ..failed };
    let text = "the playbook never began on e1: no podman";
    assert_eq!(told(false, &never), (Ending::Failed, text.to_owned()));
    let told_by_events = Evidence { failure: Some("web2: Install: no space left".into()), ..never.clone() };
    assert_eq!(told(false, &told_by_events).1, "web2: Install: no space left");
    let quota = seen(None, ChildEnd::Failed, "pods \"x\" is forbidden: exceeded quota: q", "");
    assert_eq!(told(false, &quota).0, Ending::Quota);
    let silent = seen(None, ChildEnd::Failed, "exit status 1", "Traceback");
    let text = "the runner on e1 ended without a final status: exit status 1; its output ends: Traceback";
    assert_eq!(told(false, &silent), (Ending::Error, text.into()));
    let stranger = seen(None, ChildEnd::Canceled, "Canceled", "");
    assert_eq!(told(false, &stranger), (Ending::Error, "its unit was cancelled on e1".into()));
    let released = seen(None, ChildEnd::Released, "", "");
    assert_eq!(told(false, &released), (Ending::Error, "its unit was released on e1".into()));
    let unknown = seen(None, ChildEnd::Unknown, "", "");
    let text = "its unit on e1 is gone: it was released there, or the node was installed again";
    assert_eq!(told(false, &unknown), (Ending::Error, text.into()));
}

#[test]
fn only_final_names_of_the_stream_end_anything() {
    for name in ["starting", "running", "unstarted", "", "Successful"] {
        assert_eq!(FinalStatus::from_name(name), None, "{name:?}");
    }
    for name in ["successful", "failed", "canceled", "timeout", "error"] {
        assert!(FinalStatus::from_name(name).is_some(), "{name:?}");
    }
}

#[test]
fn four_states_are_final() {
    use JobState::{Canceled, Error, Failed, Pending, Running, Successful, Waiting};
    let all = [Pending, Waiting, Running, Successful, Failed, Error, Canceled];
    assert_eq!(all.map(JobState::is_final), [false, false, false, true, true, true, true]);
}

#[test]
fn a_cancel_is_saved_before_it_is_passed_on() {
    let mut job = job();
    assert!(job.request_cancel(START));
    assert_eq!(job.state, JobState::Canceled, "a pending job ends at once");

    for accepted in [false, true] {
        let mut job = self::job();
        let n = if accepted { run(&mut job, "e1") } else { start(&mut job, "e1") };
        assert!(job.request_cancel(START) && !job.request_cancel(START));
        assert!(!job.state.is_final() && job.cancel_requested);
        assert_eq!(job.duties().collect::<Vec<_>>(), [(n, Duty::Cancel)]);
        end(&mut job, n, FinalStatus::Successful);
        assert_eq!(job.state, JobState::Canceled, "the cancel was saved first");
    }

    let mut unsent = self::job();
    let n = start(&mut unsent, "e1");
    unsent.request_cancel(START);
    mine(&mut unsent).on_unknown(n, START).unwrap();
    assert_eq!((unsent.state, unsent.claims()), (JobState::Canceled, vec![]));
}

#[test]
fn a_cancel_ends_a_job_that_waits_for_its_lost_attempt() {
    let mut job = with_retries(3);
    let n = run(&mut job, "e1");
    mine(&mut job).on_lost(n, START);
    job.request_cancel(START);
    assert_eq!(job.state, JobState::Canceled);
    assert_eq!(job.duties().collect::<Vec<_>>(), [(n, Duty::Cancel)], "at first contact");
    let mut running = with_retries(3);
    let n = run(&mut running, "e1");
    running.request_cancel(START);
    mine(&mut running).on_lost(n, START);
    assert_eq!(running.state, JobState::Canceled, "no retry after a saved cancel");
}

#[test]
fn a_final_state_stays() {
    let mut job = with_retries(5);
    let n = run(&mut job, "e1");
    end(&mut job, n, FinalStatus::Failed);
    let last = job.clone();
    assert!(!job.request_cancel(START));
    end(&mut job, n, FinalStatus::Successful);
    mine(&mut job).on_accepted(n, START).unwrap();
    mine(&mut job).on_lost(n, START);
    job.fail_pending(PendingEnd::TimedOut(secs(1)), START);
    job.on_payload_lost(&ME.into(), START);
    job.on_declared_dead(&"e9".into(), START);
    assert_eq!(job, last);
}

#[test]
fn jobs_of_a_lost_instance_fail_and_are_cleaned_up_when_it_returns() {
    let mut job = job();
    let n = run(&mut job, "e1");
    mine(&mut job).on_lost(n, START);
    assert_eq!(
        (job.state, job.explanation.as_str()),
        (JobState::Failed, "e1 was lost while it ran attempt 1")
    );
    assert_eq!(job.claims().len(), 1, "it may still run there");
    assert_eq!(job.claims()[0].owner, None, "and costs no control node any more");
    mine(&mut job).on_accepted(n, START).unwrap();
    assert_eq!(job.duties().collect::<Vec<_>>(), [(n, Duty::Cancel)]);
    end(&mut job, n, FinalStatus::Successful);
    assert_eq!((job.state, job.claims()), (JobState::Failed, vec![]), "no terminal state ever changes");
    assert_eq!(job.duties().collect::<Vec<_>>(), [(n, Duty::Release)]);
}

#[test]
fn a_retry_waits_until_the_lost_attempt_is_known_to_have_ended() {
    let lost = || {
        let mut job = with_retries(1);
        let n = run(&mut job, "e1");
        mine(&mut job).on_lost(n, START);
        assert_eq!((job.state, job.duties().collect::<Vec<_>>()), (JobState::Pending, vec![(n, Duty::Ask)]));
        assert!(matches!(job.hold(), Some(Hold::Attempt { .. })));
        (job, n)
    };
    let (mut alive, n) = lost();
    mine(&mut alive).on_accepted(n, START).unwrap();
    assert_eq!((alive.state, alive.attempts.len()), (JobState::Running, 1), "it is followed where it was");

    let (mut ended, n) = lost();
    end(&mut ended, n, FinalStatus::Successful);
    assert_eq!(ended.state, JobState::Successful, "never again after success");

    let (mut gone, n) = lost();
    mine(&mut gone).on_unknown(n, START).unwrap();
    assert_eq!((gone.state, gone.hold()), (JobState::Pending, None));
    assert_eq!(run(&mut gone, "e2"), AttemptNo(2));

    let (mut dead, _) = lost();
    dead.on_declared_dead(&"e1".into(), START);
    assert_eq!((dead.hold(), dead.claims()), (None, vec![]));
    let n = run(&mut dead, "e2");
    mine(&mut dead).on_lost(n, START);
    assert_eq!(dead.state, JobState::Failed, "one retry, no more");
}

#[test]
fn a_job_on_a_node_declared_dead_goes_through_loss() {
    let mut job = with_retries(1);
    run(&mut job, "e1");
    job.on_declared_dead(&"e1".into(), START);
    assert_eq!((job.state, job.hold(), job.claims()), (JobState::Pending, None, vec![]));
    let mut single = self::job();
    run(&mut single, "e1");
    single.on_declared_dead(&"e1".into(), START);
    assert_eq!(
        (single.state, single.duties().collect::<Vec<_>>()),
        (JobState::Failed, vec![(AttemptNo(1), Duty::Release)]),
        "or its unit would be started at the node's return"
    );
}

#[test]
fn an_unconfirmed_retry_starts_at_loss_and_the_older_attempt_is_cancelled_at_contact() {
    let mut job = Job { retry: Retry { max: 1, unconfirmed: true, ..Retry::default() }, ..job() };
    let first = run(&mut job, "e1");
    mine(&mut job).on_lost(first, START);
    assert_eq!(job.hold(), None);
    let second = run(&mut job, "e2");
    assert_eq!(job.duties().collect::<Vec<_>>(), [(first, Duty::Cancel), (second, Duty::Follow)]);
    assert_eq!(job.claims().len(), 2, "both may run");
    mine(&mut job).on_accepted(first, START).unwrap();
    end(&mut job, first, FinalStatus::Failed);
    assert_eq!(job.state, JobState::Running, "the older one does not count");
    end(&mut job, second, FinalStatus::Successful);
    assert_eq!((job.state, job.claims()), (JobState::Successful, vec![]));
}

#[test]
fn retry_follows_only_the_ends_it_names() {
    let after = |retry: Retry, status| {
        let mut job = Job { retry, ..job() };
        let n = run(&mut job, "e1");
        mine(&mut job).on_ended(n, &evidence(status), START).unwrap();
        job.state
    };
    let only =
        |on_error, on_failed| Retry { max: 1, on_lost: false, on_error, on_failed, unconfirmed: false };
    assert_eq!(after(only(true, false), None), JobState::Pending);
    assert_eq!(after(only(true, false), Some(FinalStatus::Failed)), JobState::Failed);
    assert_eq!(after(only(false, true), Some(FinalStatus::Timeout)), JobState::Pending);
    assert_eq!(after(only(false, true), Some(FinalStatus::Error)), JobState::Error);
    assert_eq!(after(only(true, true), Some(FinalStatus::Successful)), JobState::Successful);
}

#[test]
fn a_quota_refusal_backs_off_and_costs_no_retry() {
    let mut job = job();
    let refused = Evidence { detail: "exceeded quota: pods".into(), ..evidence(None) };
    let mut now = START;
    let mut delays = Vec::new();
    for _ in 0..8 {
        let placement = Placement {
            job: job.id,
            owner: ME.into(),
            execution_node: None,
            group: "pods".into(),
            child: ChildType::Container,
        };
        let n = job.place(&placement, child_id(job.id, job.next_attempt()), fence(ME, 1), now).unwrap();
        mine(&mut job).on_accepted(n, now).unwrap();
        mine(&mut job).on_ended(n, &refused, now).unwrap();
        let Some(Hold::Quota { until, words }) = job.hold() else { panic!("{job:?}") };
        assert_eq!((job.state, words.as_str()), (JobState::Pending, "exceeded quota: pods"));
        let quota = job.quota.as_ref().unwrap();
        let left = quota.left(secs(10)).as_millis();
        assert_eq!(left, (until.since(now) - secs(10)).as_millis());
        delays.push(until.since(now).as_secs());
        now = until;
    }
    assert_eq!(delays, [30, 45, 67, 101, 151, 227, 300, 300]);
}

#[test]
fn an_attempt_that_its_node_does_not_have_and_may_yet_run_holds_the_job() {
    let mut job = self::job();
    let n = start(&mut job, "e1");
    mine(&mut job).on_missing(n, START).unwrap();
    let held = Hold::Attempt { attempt: n, node: Some("e1".into()) };
    assert_eq!((job.state, job.hold()), (JobState::Pending, Some(held)), "though it has no retry");
    assert_eq!(job.duties().collect::<Vec<_>>(), [(n, Duty::Ask)]);
    assert!(job.explanation.starts_with("e1 does not know attempt 1"), "{}", job.explanation);

    let mut came = job.clone();
    mine(&mut came).on_accepted(n, START).unwrap();
    assert_eq!((came.state, came.attempts.len()), (JobState::Running, 1));
    assert_eq!(came.confirm_lost(n), Err(Refused::NotLost(job.id, n)));

    let mut promised = job.clone();
    mine(&mut promised).on_unknown(n, START).unwrap();
    assert_eq!((promised.state, promised.hold()), (JobState::Pending, None));

    let mut confirmed = job.clone();
    confirmed.confirm_lost(n).unwrap();
    assert_eq!((confirmed.state, confirmed.hold()), (JobState::Pending, None));
    assert_eq!(confirmed.duties().collect::<Vec<_>>(), [(n, Duty::Release)]);
    assert_eq!(confirmed.confirm_lost(AttemptNo(7)), Err(Refused::NoAttempt(job.id, AttemptNo(7))));

    // An accepted attempt that is missing is lost, as with its node.
    for (max, state) in [(0, JobState::Failed), (1, JobState::Pending)] {
        let mut job = with_retries(max);
        let n = run(&mut job, "e1");
        mine(&mut job).on_missing(n, START).unwrap();
        assert_eq!((job.state, job.attempts[0].progress), (state, Progress::Lost));
    }
}

#[test]
fn only_a_retry_after_a_run_begins_a_new_wait() {
    let later = START + secs(60);
    let refused = Evidence { detail: "exceeded quota: pods".into(), ..evidence(None) };
    let mut job = Job { retry: Retry { max: 1, on_error: true, ..Retry::default() }, ..job() };
    let n = run(&mut job, "e1");
    mine(&mut job).on_ended(n, &refused, later).unwrap();
    assert_eq!((job.state, job.pending_since), (JobState::Pending, START), "a quota");
    job.quota = None;
    let n = start(&mut job, "e1");
    mine(&mut job).on_unknown(n, later).unwrap();
    assert_eq!((job.state, job.pending_since), (JobState::Pending, START), "it was not accepted");
    let n = run(&mut job, "e1");
    mine(&mut job).on_ended(n, &evidence(None), later).unwrap();
    assert_eq!((job.state, job.pending_since), (JobState::Pending, later));
}

#[test]
fn no_job_is_placed_twice() {
    let mut job = with_retries(3);
    let place = |job: &mut Job| {
        let placement = Placement {
            job: job.id,
            owner: ME.into(),
            execution_node: Some("e1".into()),
            group: "g".into(),
            child: ChildType::Runner,
        };
        job.place(&placement, child_id(job.id, job.next_attempt()), fence(ME, 1), START)
    };
    let n = place(&mut job).unwrap();
    assert_eq!(place(&mut job), Err(Refused::NotPlaceable(JobId(42), JobState::Waiting)));
    mine(&mut job).on_accepted(n, START).unwrap();
    assert!(place(&mut job).is_err());
    mine(&mut job).on_lost(n, START);
    assert!(place(&mut job).is_err(), "while its former attempt may run");
    assert_eq!(mine(&mut job).on_swept(AttemptNo(7)), Err(Refused::NoAttempt(JobId(42), AttemptNo(7))));
}

#[test]
fn attempts_are_told_in_their_order_also_if_the_pass_began_before_the_former_one_ended() {
    let mut job = Job { retry: Retry { max: 1, on_error: true, ..Retry::default() }, ..job() };
    let (first, end) = (run(&mut job, "e1"), START + secs(1));
    mine(&mut job).on_ended(first, &evidence(None), end).unwrap();
    let second = start(&mut job, "e2");
    let ended = job.attempt(first).and_then(|attempt| attempt.ended);
    assert_eq!((ended, job.attempt(second).map(|attempt| attempt.placed)), (Some(end), Some(end)));
}

#[test]
fn a_lost_attempt_is_found_by_the_silence_of_its_node() {
    let mut job = job();
    run(&mut job, "e1");
    let instances = [execution("e1", 9)];
    let patience =
        |after| Patience { sightings: watched(&instances), now: START + secs(after), lost_after: secs(180) };
    let at = |job: &Job, after| lost_attempts(job, &instances, &patience(after));
    assert_eq!(at(&job, 180), []);
    assert_eq!(at(&job, 181), [AttemptNo(1)]);
    job.lost_after = Some(secs(20));
    assert_eq!(at(&job, 21), [AttemptNo(1)]);
    assert_eq!(lost_attempts(&job, &[], &patience(0)), [AttemptNo(1)], "its node is not registered any more");
}

#[test]
fn the_silence_of_its_node_is_told_before_and_after_it_is_lost() {
    let mut job = Job { retry: Retry { max: 1, ..Retry::default() }, ..job() };
    let first = run(&mut job, "e1");
    let mut e1 = execution("e1", 9);
    let at = |job: &Job, e1: &Instance, after| {
        let e1 = std::slice::from_ref(e1);
        let now = START + secs(after);
        silence(job, e1, &Patience { sightings: watched(e1), now, lost_after: secs(180) }, now)
    };
    assert_eq!(at(&job, &e1, 60), None);
    e1.seen.values_mut().for_each(|sighting| sighting.routed = false);
    let (node, since, lost_at) = (named("e1"), Some(START), START + secs(180));
    let silent = Silence { node, attempt: first, since, lost_at, is_lost: false };
    assert_eq!(at(&job, &e1, 60), Some(silent.clone()));
    job.lost_after = Some(secs(90));
    assert_eq!(at(&job, &e1, 60), Some(Silence { lost_at: START + secs(90), ..silent.clone() }));
    mine(&mut job).on_lost(first, START + secs(91));
    let lost = Silence { lost_at: START + secs(91), is_lost: true, ..silent };
    assert_eq!((job.state, at(&job, &e1, 120)), (JobState::Pending, Some(lost)));
    e1.seen.values_mut().for_each(|sighting| sighting.routed = true);
    assert_eq!(at(&job, &e1, 120), None, "it is asked now");
}

#[test]
fn a_payload_lost_with_its_last_holder_fails_a_pending_job() {
    let mut job = job();
    job.on_payload_lost(&"c3".into(), START);
    assert_eq!((job.state, job.explanation.as_str()), (JobState::Failed, "its payload was lost with c3"));
}
