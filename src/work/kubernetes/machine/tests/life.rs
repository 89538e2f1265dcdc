//! From submission until `worker` runs.

use super::*;

#[test]
fn a_job_from_its_submission_to_its_release() {
    let mut rig = Rig::new(settings());
    let requests = rig.asks();
    let [Request::Watch, Request::Create(name)] = &requests[..] else { panic!("{requests:?}") };
    assert!(name.starts_with("w-") && name.len() == 7);
    let pod = rig.pod(Container::Unknown);
    rig.unit.handle_created(rig.now, Ok(pod));
    rig.watched(waiting("ContainerCreating", ""));
    assert_eq!(rig.asks(), []);
    rig.watched(Container::Running);
    // Neither waits for the other.
    let requests = rig.asks();
    let [Request::OpenLog { stream: follow, since: None, follow: true }, Request::Attach] = requests[..]
    else {
        panic!("{requests:?}")
    };
    rig.unit.handle_attach(rig.now, AttachNews::Opened);
    assert_eq!(rig.asks_one(), Request::SendStdin);
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
    assert!(closed.contains(&Request::CloseLog(follow)), "{closed:?}");
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
    assert_eq!(rig.asks_one(), Request::Delete("u1".into()));
    rig.unit.handle_deleted(rig.now, Ok(()));
    assert_eq!(rig.unit.poll_output(), Some(Output::Released { is_gone: true }));
    assert_eq!((rig.unit.poll_output(), rig.unit.poll_timeout()), (None, None));
    // B16: what nobody disturbs.
    assert!(rig.requests <= 6, "{}", rig.requests);
}

/// B8.
#[test]
fn what_a_pod_waits_for_is_told_while_it_waits_and_when_it_has_waited_in_vain() {
    let mut rig =
        Rig::new(Settings { pending_until: Some(Instant::now() + Duration::from_secs(60)), ..settings() });
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
    assert_eq!(rig.asks(), [Request::Delete("u1".into())], "it would run later, and nobody would follow it");
    let detail = "Error creating pod: timed out waiting for the condition: 0/3 nodes are available: 3 Insufficient cpu.";
    assert_eq!(rig.last_said(), (State::Failed, detail));
}

/// B7.
#[test]
fn each_reason_has_the_time_it_is_worth() {
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
        // It heals in time.
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
fn a_pod_that_is_turned_away_fails_at_once() {
    let mut rig = Rig::created(settings());
    let admission = PodSeen {
        phase: Phase::Failed,
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

/// B15.
#[test]
fn quota_is_passed_on_unchanged_or_waited_out() {
    let message =
        "pods \"w-x\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1";
    let quota = || Err(ApiError::from_status(403, message.into(), None));
    let mut rig = Rig::new(settings());
    rig.asks();
    rig.unit.handle_created(rig.now, quota());
    assert_eq!(rig.asks(), [], "there is no pod to delete");
    assert_eq!(rig.last_said(), (State::Failed, format!("Error creating pod: {message}").as_str()));

    let until = Instant::now() + Duration::from_secs(60);
    let mut rig = Rig::new(Settings { quota_retry: true, pending_until: Some(until), ..settings() });
    while !rig.is_final() {
        if rig.asks().iter().any(|request| matches!(request, Request::Create(_))) {
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
    assert_eq!(rig.asks_one(), Request::GetPod);
    let pod = rig.pod(Container::Running);
    rig.unit.handle_pod(rig.now, Ok(pod));
    assert!(rig.asks().contains(&Request::Attach), "it is ours");
}

#[test]
fn a_name_that_somebody_else_has_is_not_taken_from_him() {
    let mut rig = Rig::new(settings());
    let requests = rig.asks();
    rig.unit.handle_created(rig.now, Err(ApiError::Conflict("pods \"w-x\" already exists".into())));
    assert_eq!(rig.asks_one(), Request::GetPod);
    let foreign = PodSeen { owner: None, uid: "foreign".into(), ..rig.pod(Container::Running) };
    rig.unit.handle_pod(rig.now, Ok(foreign));
    let another = rig.asks_one();
    assert!(matches!(another, Request::Create(_)) && another != requests[1]);
}

#[test]
fn the_watch_may_be_faster_than_the_create() {
    let mut rig = Rig::new(settings());
    rig.asks();
    rig.watched(Container::Running);
    assert_eq!(rig.asks(), [], "the answer may still make another");
    let late = rig.pod(Container::Unknown);
    rig.unit.handle_created(rig.now, Ok(late));
    assert!(rig.asks().contains(&Request::Attach));
    assert_eq!(rig.last_said(), (State::Pending, "Sending stdin to pod"));
    // With an answer that was lost.
    let mut rig = Rig::new(settings());
    rig.asks();
    rig.unit.handle_created(rig.now, Err(ApiError::Unreachable("timeout".into())));
    rig.watched(Container::Running);
    assert!(rig.asks().contains(&Request::Attach));
    rig.pass(Duration::from_secs(60));
    assert!(!rig.asks().iter().any(|request| matches!(request, Request::Create(_))));
}

#[test]
fn another_pod_of_the_same_name_is_not_ours() {
    let mut rig = Rig::created(settings());
    let other = PodSeen { uid: "u2".into(), ..rig.pod(Container::Running) };
    rig.unit.handle_watched(rig.now, other);
    assert_eq!(rig.asks(), []);
    let name = &rig.unit.facts.pod_name;
    let detail = format!(
        "Error creating pod: pods \"{name}\" not found: it was deleted before container worker ran on node node-1"
    );
    assert_eq!(rig.last_said(), (State::Failed, detail.as_str()));
}

/// B22.
#[test]
fn nothing_but_the_worker_counts() {
    let mut rig = Rig::created(Settings { has_stdin: false, ..settings() });
    // A sidecar that never gets ready, beside a worker that runs.
    let running = PodSeen { phase: Phase::Pending, ..rig.pod(Container::Running) };
    rig.unit.handle_watched(rig.now, running);
    let follow = rig.opened_log(true);
    rig.logs(follow, LINE);
    let stays = PodSeen { phase: Phase::Running, ..rig.pod(ended(0, "Completed")) };
    rig.unit.handle_watched(rig.now, stays);
    let rest = rig.opened_log(false);
    rig.logs(rest, LINE);
    rig.unit.handle_log_ended(rig.now, rest, StreamEnd::InOrder);
    rig.asks();
    assert_eq!(rig.last_said(), (State::Succeeded, "Finished"));
}

/// B9, B19: whatever state a daemon left.
#[test]
fn a_restart_goes_on_where_the_unit_stood() {
    let recorded = |state, facts: Facts| Recorded {
        state,
        detail: "x".into(),
        facts,
        cursor: Cursor::default(),
        stdout_size: 0,
    };
    let known = Facts { pod_name: "w-known".into(), pod_uid: "u1".into(), ..facts() };
    let restart = |state, facts: Facts, settings: Settings| {
        let now = Instant::now();
        Rig { now, ..Rig::with(Machine::restart(settings, recorded(state, facts), now)) }
    };
    // Nothing was asked for yet.
    let mut rig = restart(State::Pending, facts(), settings());
    assert!(matches!(&rig.asks()[..], [Request::Watch, Request::Create(_)]));
    // The name was written down, the pod never made.
    let named = Facts { pod_uid: String::new(), ..known.clone() };
    let mut rig = restart(State::Pending, named.clone(), settings());
    assert_eq!(rig.asks(), [Request::Watch, Request::GetPod]);
    rig.unit.handle_pod(rig.now, Err(ApiError::NotFound("not found".into())));
    assert_eq!(rig.asks_one(), Request::Create("w-known".into()));
    // It was made, and runs, and got nothing.
    let mut rig = restart(State::Pending, named, settings());
    rig.asks();
    let pod = rig.pod(Container::Running);
    rig.unit.handle_pod(rig.now, Ok(pod));
    assert!(rig.asks().contains(&Request::Attach));
    // It has not started.
    for delete_pod_on_restart in [false, true] {
        let mut rig =
            restart(State::Pending, known.clone(), Settings { delete_pod_on_restart, ..settings() });
        rig.asks();
        let pod = rig.pod(waiting("ContainerCreating", ""));
        rig.unit.handle_pod(rig.now, Ok(pod));
        assert_eq!(rig.is_final(), delete_pod_on_restart);
        let deletes = rig.asks().contains(&Request::Delete("u1".into()));
        assert_eq!(deletes, delete_pod_on_restart);
    }
    // It was being sent its stdin.
    let begun = Facts { stdin_begun: true, ..known.clone() };
    let mut rig = restart(State::Pending, begun, settings());
    rig.asks();
    let pod = rig.pod(Container::Running);
    rig.unit.handle_pod(rig.now, Ok(pod));
    rig.asks();
    let detail = "Error streaming stdin to pod ns/w-known. Error: the daemon ended while it was being sent";
    assert_eq!(rig.last_said(), (State::Failed, detail));
    // It ran.
    let mut rig = restart(State::Running, known.clone(), settings());
    rig.asks();
    let pod = rig.pod(Container::Running);
    rig.unit.handle_pod(rig.now, Ok(pod));
    assert!(matches!(rig.asks_one(), Request::OpenLog { follow: true, .. }));
    // It has ended meanwhile.
    let mut rig = restart(State::Running, known.clone(), settings());
    rig.asks();
    let pod = rig.pod(ended(0, "Completed"));
    rig.unit.handle_pod(rig.now, Ok(pod));
    let rest = rig.opened_log(false);
    assert_eq!(rig.logs(rest, LINE), "hi\n");
    rig.unit.handle_log_ended(rig.now, rest, StreamEnd::InOrder);
    rig.asks();
    assert_eq!(rig.last_said(), (State::Succeeded, "Finished"));
    // It is gone.
    let mut rig = restart(State::Running, known.clone(), settings());
    rig.asks();
    rig.unit.handle_pod(rig.now, Err(ApiError::NotFound("not found".into())));
    rig.asks();
    let detail = "Error getting pod ns/w-known. Error: pods \"w-known\" not found: it was deleted while container worker ran";
    assert_eq!(rig.last_said(), (State::Failed, detail));
    // It was cancelled: that stays, and the pod goes.
    let mut rig = restart(State::Canceled, known.clone(), settings());
    assert_eq!(rig.asks(), [Request::Delete("u1".into())]);
    let mut rig = restart(State::Succeeded, known, settings());
    assert_eq!(rig.asks(), []);
}

#[test]
fn a_pod_that_runs_already_is_followed_from_its_logs_beginning() {
    let facts = Facts { pod_name: "theirs".into(), adopted: true, ..facts() };
    let adopt = || {
        let mut rig = Rig::with(Machine::start(settings(), facts.clone()));
        assert_eq!(rig.asks(), [Request::Watch, Request::GetPod]);
        rig
    };
    let mut rig = adopt();
    let theirs = PodSeen { owner: None, ..rig.pod(Container::Running) };
    rig.unit.handle_pod(rig.now, Ok(theirs.clone()));
    let requests = rig.asks();
    assert!(
        matches!(requests[..], [Request::OpenLog { since: None, follow: true, .. }]),
        "no stdin: {requests:?}"
    );
    assert_eq!(rig.last_said(), (State::Running, "Pod Running"));
    rig.unit.handle_release(rig.now, rig.now + Duration::from_secs(9), false);
    assert!(rig.asks().contains(&Request::Delete("u1".into())));

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
