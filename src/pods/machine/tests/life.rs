//! From submission until `worker` runs.

use super::*;
use crate::pods::api_error::{AnswerPatience, ApiUnreachable};

#[test]
fn a_job_from_its_submission_to_its_release() {
    let mut rig = Rig::new(settings());
    let requests = rig.asks();
    let [ApiRequest::Watch, ApiRequest::Create(name)] = &requests[..] else { panic!("{requests:?}") };
    assert!(name.starts_with("w-") && name.len() == 7);
    let pod = rig.pod(Container::Unknown);
    rig.unit.handle_created(rig.now, Ok(pod));
    rig.watched(waiting("ContainerCreating", ""));
    assert_eq!(rig.asks(), []);
    rig.watched(Container::Running);
    // The two requests do not wait for each other.
    let requests = rig.asks();
    let [ApiRequest::OpenLog { stream: follow, since: None, follow: true }, ApiRequest::Attach] =
        requests[..]
    else {
        panic!("{requests:?}")
    };
    rig.unit.handle_attach(rig.now, AttachNews::Opened);
    assert_eq!(rig.asks_one(), ApiRequest::SendStdin);
    rig.unit.handle_log_opened(rig.now, follow, Ok(()));
    rig.unit.handle_attach(rig.now, AttachNews::Sent);
    assert_eq!(rig.asks(), []);
    assert_eq!(rig.last_said(), (State::Pending, "Sending stdin to pod"));
    rig.unit.handle_attach(rig.now, AttachNews::Succeeded);
    assert_eq!(rig.logs(follow, LINE), "hi\n");
    rig.watched(ended(0, "Completed"));
    let rest = rig.opened_log(false);
    assert_eq!(rig.logs(rest, LINE), "", "it was written before");
    rig.unit.handle_log_ended(rig.now, rest, StreamEnd::InOrder);
    let closed = rig.asks();
    assert!(closed.contains(&ApiRequest::CloseLog(follow)), "{closed:?}");
    assert_eq!(
        rig.said,
        [
            (State::Pending, "Connecting to Kubernetes"),
            (State::Pending, "Pod created"),
            (State::Pending, "Sending stdin to pod"),
            (State::Running, "Pod Running"),
            (State::Succeeded, "Finished"),
        ]
        .map(|(state, detail)| (state, detail.to_owned()))
    );
    assert_eq!(rig.unit.stdout_size(), 3);
    rig.unit.handle_release(rig.now, rig.now + Duration::from_secs(9), false);
    assert_eq!(rig.asks_one(), ApiRequest::Delete("u1".into()));
    rig.unit.handle_deleted(rig.now, Ok(()));
    assert_eq!(rig.unit.poll_output(), Some(MachineOutput::Released { is_gone: true }));
    assert_eq!((rig.unit.poll_output(), rig.unit.poll_timeout()), (None, None));
    // An undisturbed unit needs few requests.
    assert!(rig.requests <= 6, "{}", rig.requests);
}

#[test]
fn the_detail_says_what_a_pod_waits_or_waited_for() {
    let mut rig = Rig::new(UnitSettings {
        pending_until: Some(Instant::now() + Duration::from_secs(60)),
        ..settings()
    });
    rig.asks();
    let pod = rig.pod(Container::Unknown);
    rig.unit.handle_created(rig.now, Ok(pod));
    let unschedulable = PodSeen {
        unschedulable: Some("0/3 nodes are available: 3 Insufficient cpu.".into()),
        ..rig.pod(Container::Unknown)
    };
    rig.unit.handle_watched(rig.now, unschedulable);
    assert_eq!(rig.asks(), []);
    assert_eq!(
        rig.last_said(),
        (State::Pending, "Pod created: 0/3 nodes are available: 3 Insufficient cpu.")
    );
    assert_eq!(rig.wake(), Timer::Pending);
    assert_eq!(
        rig.asks(),
        [ApiRequest::Delete("u1".into())],
        "it would run later, and nobody would follow it"
    );
    let detail = "Error creating pod: timed out waiting for the condition: 0/3 nodes are available: 3 Insufficient cpu.";
    assert_eq!(rig.last_said(), (State::Failed, detail));
}

#[test]
fn each_reason_has_its_own_time_limit() {
    let fails_after = |reason: &str| {
        let mut rig = Rig::created(settings());
        rig.watched(waiting(reason, "message"));
        let begun = rig.now;
        rig.pass(Duration::from_secs(600));
        rig.asks();
        let detail = format!("Error creating pod: container failed to start, {reason}: message");
        let expected = if rig.is_final() {
            (State::Failed, detail.as_str())
        } else {
            (State::Pending, rig.last_said().1)
        };
        assert_eq!(rig.last_said(), expected);
        rig.is_final().then(|| rig.now - begun)
    };
    for reason in ["InvalidImageName", "ErrImageNeverPull"] {
        let mut rig = Rig::created(settings());
        rig.watched(waiting(reason, "message"));
        assert!(rig.is_final(), "{reason} fails at once");
    }
    for reason in ["CreateContainerConfigError", "RunContainerError", "CreateContainerError"] {
        assert!(fails_after(reason).is_some(), "{reason}");
        // The container recovers in time.
        let mut rig = Rig::created(settings());
        rig.watched(waiting(reason, "message"));
        rig.pass(Duration::from_secs(29));
        assert!(!rig.is_final());
        rig.watched(Container::Running);
        rig.asks();
        rig.pass(Duration::from_secs(29));
        assert!(!rig.is_final());
    }
    for reason in ["ErrImagePull", "ImagePullBackOff", "ContainerCreating", "RegistryUnavailable"] {
        assert_eq!(fails_after(reason), None, "{reason}");
    }
}

#[test]
fn the_fourth_back_off_of_a_pull_is_the_last() {
    let mut rig = Rig::created(settings());
    for round in 1..=4 {
        assert!(!rig.is_final(), "round {round}");
        rig.watched(waiting("ErrImagePull", "no such image"));
        for _again in 0..3 {
            rig.watched(waiting("ImagePullBackOff", "Back-off pulling image"));
        }
    }
    rig.asks();
    assert_eq!(
        rig.last_said(),
        (
            State::Failed,
            "Error creating pod: container failed to start, ImagePullBackOff: Back-off pulling image"
        )
    );
}

#[test]
fn a_rejected_pod_fails_at_once() {
    let mut rig = Rig::created(settings());
    let admission = PodSeen {
        phase: PodPhase::Failed,
        reason: "UnexpectedAdmissionError".into(),
        message: "no device".into(),
        ..rig.pod(Container::Unknown)
    };
    rig.unit.handle_watched(rig.now, admission);
    rig.asks();
    assert_eq!(
        rig.last_said(),
        (State::Failed, "Error creating pod: pod failed to start, UnexpectedAdmissionError: no device")
    );
}

#[test]
fn a_quota_refusal_fails_the_unit_or_is_retried() {
    let message =
        "pods \"w-x\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1";
    let quota = || Err(ApiError::from_status(403, message.into(), None));
    let mut rig = Rig::new(settings());
    rig.asks();
    rig.unit.handle_created(rig.now, quota());
    assert_eq!(rig.asks(), [], "there is no pod to delete");
    assert_eq!(rig.last_said(), (State::Failed, format!("Error creating pod: {message}").as_str()));

    let until = Instant::now() + Duration::from_secs(60);
    let mut rig = Rig::new(UnitSettings { quota_retry: true, pending_until: Some(until), ..settings() });
    while !rig.is_final() {
        if rig.asks().iter().any(|request| matches!(request, ApiRequest::Create(_))) {
            rig.unit.handle_created(rig.now, quota());
            rig.asks();
            assert_eq!(
                rig.last_said(),
                (State::Pending, format!("Connecting to Kubernetes: {message}").as_str())
            );
        }
        rig.wake();
    }
    rig.asks();
    let detail = format!("Error creating pod: timed out waiting for the condition: {message}");
    assert_eq!(rig.last_said(), (State::Failed, detail.as_str()));
}

#[test]
fn a_create_whose_answer_was_lost_is_repeated_under_its_name() {
    let mut rig = Rig::new(settings());
    let requests = rig.asks();
    rig.unit.handle_created(rig.now, Err(ApiError::Unreachable("connection reset".into())));
    assert_eq!(rig.wake(), Timer::Create);
    assert_eq!(rig.asks_one(), requests[1]);
    rig.unit.handle_created(rig.now, Err(ApiError::Conflict("pods \"w-x\" already exists".into())));
    assert_eq!(rig.asks_one(), ApiRequest::GetPod);
    let pod = rig.pod(Container::Running);
    rig.unit.handle_pod(rig.now, Ok(pod));
    assert!(rig.asks().contains(&ApiRequest::Attach), "it is ours");
}

#[test]
fn a_name_in_use_is_left_alone() {
    let mut rig = Rig::new(settings());
    let requests = rig.asks();
    rig.unit.handle_created(rig.now, Err(ApiError::Conflict("pods \"w-x\" already exists".into())));
    assert_eq!(rig.asks_one(), ApiRequest::GetPod);
    let foreign = PodSeen { owner: None, uid: "foreign".into(), ..rig.pod(Container::Running) };
    rig.unit.handle_pod(rig.now, Ok(foreign));
    let another = rig.asks_one();
    assert!(matches!(another, ApiRequest::Create(_)) && another != requests[1]);
}

#[test]
fn the_pod_of_a_unit_that_is_unique_has_one_name_wherever_it_is_made_from() {
    let named = |seed| UnitSettings { name: Some(7), seed, ..settings() };
    let mut rig = Rig::new(named(1));
    let requests = rig.asks();
    assert_eq!(Rig::new(named(2)).asks(), requests);
    rig.unit.handle_created(rig.now, Err(ApiError::Conflict("pods \"w-x\" already exists".into())));
    assert_eq!(rig.asks_one(), ApiRequest::GetPod);
    let elsewhere = Owner::new("n1", "abcd1234", "another store");
    let pod = PodSeen { owner: Some(elsewhere), ..rig.pod(Container::Running) };
    rig.unit.handle_pod(rig.now, Ok(pod));
    assert!(rig.asks().contains(&ApiRequest::Attach), "it is the unit's, made before its disk was lost");

    let mut rig = Rig::new(named(1));
    rig.asks();
    rig.unit.handle_created(rig.now, Err(ApiError::Conflict("pods \"w-x\" already exists".into())));
    rig.asks();
    let foreign =
        PodSeen { owner: Some(Owner::new("n1", "other123", "store")), ..rig.pod(Container::Running) };
    rig.unit.handle_pod(rig.now, Ok(foreign));
    let another = rig.asks_one();
    assert!(matches!(another, ApiRequest::Create(_)) && another != requests[1]);
}

#[test]
fn the_watch_may_be_faster_than_the_create() {
    let mut rig = Rig::new(settings());
    rig.asks();
    rig.watched(Container::Running);
    assert_eq!(rig.asks(), [], "the answer may still make another");
    let late = rig.pod(Container::Unknown);
    rig.unit.handle_created(rig.now, Ok(late));
    assert!(rig.asks().contains(&ApiRequest::Attach));
    assert_eq!(rig.last_said(), (State::Pending, "Sending stdin to pod"));
    // The answer is lost.
    let mut rig = Rig::new(settings());
    rig.asks();
    rig.unit.handle_created(rig.now, Err(ApiError::Unreachable("timeout".into())));
    rig.watched(Container::Running);
    assert!(rig.asks().contains(&ApiRequest::Attach));
    rig.pass(Duration::from_secs(60));
    assert!(!rig.asks().iter().any(|request| matches!(request, ApiRequest::Create(_))));
}

#[test]
fn another_pod_of_the_same_name_is_not_ours() {
    let mut rig = Rig::created(settings());
    let other = PodSeen { uid: "u2".into(), ..rig.pod(Container::Running) };
    rig.unit.handle_watched(rig.now, other);
    assert_eq!(rig.asks(), []);
    let name = &rig.unit.record.pod_name;
    let detail = format!(
        "Error creating pod: pods \"{name}\" not found: it was deleted before container worker ran on node node-1"
    );
    assert_eq!(rig.last_said(), (State::Failed, detail.as_str()));
}

#[test]
fn only_the_worker_counts() {
    let mut rig = Rig::created(UnitSettings { has_stdin: false, ..settings() });
    // A sidecar that never becomes ready, next to a running worker.
    let running = PodSeen { phase: PodPhase::Pending, ..rig.pod(Container::Running) };
    rig.unit.handle_watched(rig.now, running);
    let follow = rig.opened_log(true);
    rig.logs(follow, LINE);
    let stays = PodSeen { phase: PodPhase::Running, ..rig.pod(ended(0, "Completed")) };
    rig.unit.handle_watched(rig.now, stays);
    let rest = rig.opened_log(false);
    rig.logs(rest, LINE);
    rig.unit.handle_log_ended(rig.now, rest, StreamEnd::InOrder);
    rig.asks();
    assert_eq!(rig.last_said(), (State::Succeeded, "Finished"));
}

/// A restart from every state that a daemon may leave.
#[test]
fn a_restart_resumes_the_unit() {
    let recorded = |state, record: PodRecord| Recorded {
        state,
        detail: "x".into(),
        record,
        cursor: Cursor::default(),
        stdout_size: 0,
    };
    let known = PodRecord { pod_name: "w-known".into(), pod_uid: "u1".into(), ..record() };
    let restart = |state, record: PodRecord, settings: UnitSettings| {
        let now = Instant::now();
        Rig { now, ..Rig::with(Machine::restart(settings, recorded(state, record), now)) }
    };
    // Nothing was requested yet.
    let mut rig = restart(State::Pending, record(), settings());
    assert!(matches!(&rig.asks()[..], [ApiRequest::Watch, ApiRequest::Create(_)]));
    // The name was recorded, but the pod never created.
    let named = PodRecord { pod_uid: String::new(), ..known.clone() };
    let mut rig = restart(State::Pending, named.clone(), settings());
    assert_eq!(rig.asks(), [ApiRequest::Watch, ApiRequest::GetPod]);
    rig.unit.handle_pod(rig.now, Err(ApiError::NotFound("not found".into())));
    assert_eq!(rig.asks_one(), ApiRequest::Create("w-known".into()));
    // The pod was created and runs, but got no stdin.
    let mut rig = restart(State::Pending, named, settings());
    rig.asks();
    let pod = rig.pod(Container::Running);
    rig.unit.handle_pod(rig.now, Ok(pod));
    assert!(rig.asks().contains(&ApiRequest::Attach));
    // The pod has not started.
    for delete_pod_on_restart in [false, true] {
        let mut rig =
            restart(State::Pending, known.clone(), UnitSettings { delete_pod_on_restart, ..settings() });
        rig.asks();
        let pod = rig.pod(waiting("ContainerCreating", ""));
        rig.unit.handle_pod(rig.now, Ok(pod));
        assert_eq!(rig.is_final(), delete_pod_on_restart);
        let deletes = rig.asks().contains(&ApiRequest::Delete("u1".into()));
        assert_eq!(deletes, delete_pod_on_restart);
    }
    // Stdin was being sent.
    let begun = PodRecord { stdin_begun: true, ..known.clone() };
    let mut rig = restart(State::Pending, begun, settings());
    rig.asks();
    let pod = rig.pod(Container::Running);
    rig.unit.handle_pod(rig.now, Ok(pod));
    rig.asks();
    let detail = "Error streaming stdin to pod ns/w-known. Error: the daemon ended while it was being sent";
    assert_eq!(rig.last_said(), (State::Failed, detail));
    // The pod was running.
    let mut rig = restart(State::Running, known.clone(), settings());
    rig.asks();
    let pod = rig.pod(Container::Running);
    rig.unit.handle_pod(rig.now, Ok(pod));
    assert!(matches!(rig.asks_one(), ApiRequest::OpenLog { follow: true, .. }));
    // The pod has ended since.
    let mut rig = restart(State::Running, known.clone(), settings());
    rig.asks();
    let pod = rig.pod(ended(0, "Completed"));
    rig.unit.handle_pod(rig.now, Ok(pod));
    let rest = rig.opened_log(false);
    assert_eq!(rig.logs(rest, LINE), "hi\n");
    rig.unit.handle_log_ended(rig.now, rest, StreamEnd::InOrder);
    rig.asks();
    assert_eq!(rig.last_said(), (State::Succeeded, "Finished"));
    // The pod is gone.
    let mut rig = restart(State::Running, known.clone(), settings());
    rig.asks();
    rig.unit.handle_pod(rig.now, Err(ApiError::NotFound("not found".into())));
    rig.asks();
    let detail = "Error getting pod ns/w-known. Error: pods \"w-known\" not found: it was deleted while container worker ran";
    assert_eq!(rig.last_said(), (State::Failed, detail));
    // The unit was cancelled: it stays cancelled, and its pod is deleted.
    let mut rig = restart(State::Canceled, known.clone(), settings());
    assert_eq!(rig.asks(), [ApiRequest::Delete("u1".into())]);
    let mut rig = restart(State::Succeeded, known, settings());
    assert_eq!(rig.asks(), []);
}

#[test]
fn a_pod_that_runs_already_is_followed_from_its_logs_beginning() {
    let record = PodRecord { pod_name: "theirs".into(), adopted: true, ..record() };
    let adopt = || {
        let mut rig = Rig::with(Machine::start(settings(), record.clone()));
        assert_eq!(rig.asks(), [ApiRequest::Watch, ApiRequest::GetPod]);
        rig
    };
    let mut rig = adopt();
    let theirs = PodSeen { owner: None, ..rig.pod(Container::Running) };
    rig.unit.handle_pod(rig.now, Ok(theirs.clone()));
    let requests = rig.asks();
    assert!(
        matches!(requests[..], [ApiRequest::OpenLog { since: None, follow: true, .. }]),
        "no stdin: {requests:?}"
    );
    assert_eq!(rig.last_said(), (State::Running, "Pod Running"));
    rig.unit.handle_release(rig.now, rig.now + Duration::from_secs(9), false);
    assert!(rig.asks().contains(&ApiRequest::Delete("u1".into())));

    let refused = [
        (PodSeen { has_worker: false, ..theirs.clone() }, "at least one container must be named worker"),
        (PodSeen { namespace: "other".into(), ..theirs }, "the pod is in namespace other"),
    ];
    for (pod, why) in refused {
        let mut rig = adopt();
        rig.unit.handle_pod(rig.now, Ok(pod));
        assert_eq!(rig.asks(), [], "what is not ours is left alone");
        let detail = format!("Error getting pod ns/theirs. Error: {why}");
        assert_eq!(rig.last_said(), (State::Failed, detail.as_str()));
    }
    let mut rig = adopt();
    rig.unit.handle_pod(rig.now, Err(ApiError::NotFound("pods \"theirs\" not found".into())));
    rig.asks();
    assert_eq!(
        rig.last_said(),
        (State::Failed, "Error getting pod ns/theirs. Error: pods \"theirs\" not found")
    );
}

/// No connection to a server that may be the wrong one.
fn unconnected(patience: AnswerPatience) -> ApiError {
    let text = "API server 10.0.0.1:6443: Connection refused".to_owned();
    ApiError::Unreachable(ApiUnreachable { text, was_connected: false, patience })
}

#[test]
fn a_server_that_never_answered_fails_a_new_unit_at_once_and_another_ones_pod_after_a_minute() {
    let cause = "API server 10.0.0.1:6443: Connection refused";
    for patience in [AnswerPatience::None, AnswerPatience::Short] {
        let mut rig = Rig::new(settings());
        rig.asks();
        rig.unit.handle_not_sent(rig.now, unconnected(patience));
        assert_eq!(rig.asks(), [], "there is no pod");
        assert!(rig.unit.is_idle() && rig.unit.record.pod_name.is_empty());
        assert_eq!(rig.last_said(), (State::Failed, &*format!("Error creating pod: {cause}")));
    }

    let theirs = PodRecord { pod_name: "theirs".into(), adopted: true, ..record() };
    let mut rig = Rig::with(Machine::start(settings(), theirs));
    rig.asks();
    let begun = rig.now;
    while rig.unit.state() == State::Pending {
        rig.unit.handle_pod(rig.now, Err(unconnected(AnswerPatience::Short)));
        if rig.unit.state() == State::Pending {
            assert_eq!(rig.wake(), Timer::Get);
            assert_eq!(rig.asks_one(), ApiRequest::GetPod);
        }
    }
    assert_eq!(rig.now - begun, Duration::from_secs(60));
    rig.asks();
    let detail = format!("Error getting pod ns/theirs. Error: {cause} (for 1m0s now)");
    assert_eq!(rig.last_said(), (State::Failed, detail.as_str()));
}

#[test]
fn a_refused_watch_waits_for_the_answer_to_the_create() {
    let forbidden = |verb: &str| ApiError::Forbidden(format!("pods is forbidden: u cannot {verb}"));
    let mut rig = Rig::new(settings());
    rig.asks();
    rig.unit.handle_unwatched(rig.now, Err(forbidden("list")));
    assert_eq!(rig.unit.state(), State::Pending);
    rig.unit.handle_created(rig.now, Err(forbidden("create")));
    assert_eq!(rig.asks(), []);
    assert_eq!(rig.last_said(), (State::Failed, "Error creating pod: pods is forbidden: u cannot create"));

    let mut rig = Rig::new(settings());
    rig.asks();
    rig.unit.handle_unwatched(rig.now, Err(forbidden("list")));
    let pod = rig.pod(Container::Unknown);
    rig.unit.handle_created(rig.now, Ok(pod.clone()));
    assert_eq!(rig.asks_one(), ApiRequest::Delete(pod.uid));
    let (state, detail) = rig.last_said();
    assert!(state == State::Failed && detail.ends_with("cannot list"), "{detail}");
}

#[test]
fn an_outage_of_a_server_that_has_answered_is_waited_for() {
    let mut rig = Rig::new(settings());
    rig.asks();
    for _ in 0..20 {
        rig.unit.handle_not_sent(rig.now, unconnected(AnswerPatience::Outage));
        assert_eq!(rig.wake(), Timer::Create);
        rig.asks_one();
    }
    assert_eq!(rig.unit.state(), State::Pending);
}

#[test]
fn what_a_unit_waits_for_is_told_once_when_the_waiting_begins() {
    let mut rig = Rig::new(settings());
    rig.asks();
    let mut told = Vec::new();
    for _ in 0..3 {
        rig.unit.handle_not_sent(rig.now, unconnected(AnswerPatience::Outage));
        told.extend(std::iter::from_fn(|| rig.unit.poll_output()));
        rig.wake();
    }
    told.retain(|output| matches!(output, MachineOutput::Waits(_)));
    assert_eq!(told, [MachineOutput::Waits("API server 10.0.0.1:6443: Connection refused".into())]);
}
