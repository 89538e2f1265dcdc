//! Stdin and stdout.

use super::*;

#[test]
fn the_end_of_a_stream_is_not_the_end_of_a_job() {
    let (mut rig, mut stream) = Rig::following();
    for end in [StreamEnd::InOrder, StreamEnd::Broken].into_iter().cycle().take(100) {
        rig.unit.handle_log_ended(rig.now, stream, end);
        rig.asks();
        loop {
            rig.wake();
            let requests = rig.asks();
            if requests.contains(&ApiRequest::GetPod) {
                let pod = rig.pod(Container::Running);
                rig.unit.handle_pod(rig.now, Ok(pod));
            }
            let open = requests.iter().find_map(|request| match request {
                ApiRequest::OpenLog { stream, follow: true, .. } => Some(*stream),
                _ => None,
            });
            if let Some(opened) = open {
                stream = opened;
                break;
            }
        }
        rig.unit.handle_log_opened(rig.now, stream, Ok(()));
    }
    assert_eq!(rig.last_said(), (State::Running, "Pod Running"));
    assert_eq!(rig.logs(stream, LINE), "hi\n");
}

#[test]
fn a_pod_that_prints_more_than_it_may_fails_and_is_deleted() {
    let bound = OutputBound { bytes: 7, setting: "joboutput".into() };
    let mut rig =
        Rig::created(UnitSettings { has_stdin: false, max_stdout: Some(bound.clone()), ..settings() });
    rig.watched(Container::Running);
    let stream = rig.opened_log(true);
    assert_eq!(rig.logs(stream, LINE), "hi\n");
    assert_eq!(rig.logs(stream, &LINE.replace('4', "6").repeat(2)), "hi\nh");
    let requests = rig.asks();
    assert_eq!(rig.last_said(), (State::Failed, "Killed: it wrote more than 7 bytes (joboutput)"));
    assert_eq!(rig.unit.stdout_size(), 7);
    assert!(requests.iter().any(|request| matches!(request, ApiRequest::Delete(_))), "{requests:?}");
    // The output of a pod that connects to this node is written without a log.
    let mut rig =
        Rig::created(UnitSettings { method: StreamMethod::Tcp, max_stdout: Some(bound), ..settings() });
    let mut piece = b"0123456789".to_vec();
    rig.unit.handle_output(rig.now, 3, &mut piece);
    assert_eq!(piece, b"0123");
    rig.asks();
    assert_eq!(rig.last_said().0, State::Failed);
}

#[test]
fn an_outage_is_survived_up_to_the_limit() {
    for (minutes, fails) in [(29, false), (31, true)] {
        let (mut rig, stream) = Rig::following();
        rig.logs(stream, LINE);
        rig.unit.handle_log_ended(rig.now, stream, StreamEnd::Broken);
        let begun = rig.now;
        while rig.now < begun + Duration::from_secs(minutes * 60) && !rig.is_final() {
            for request in rig.asks() {
                match request {
                    ApiRequest::OpenLog { stream, .. } => {
                        rig.unit.handle_log_opened(rig.now, stream, Err(busy()))
                    }
                    ApiRequest::GetPod => rig.unit.handle_pod(rig.now, Err(busy())),
                    other => panic!("{other:?}"),
                }
            }
            rig.wake();
        }
        rig.asks();
        assert_eq!(rig.is_final(), fails);
        if fails {
            let name = &rig.unit.record.pod_name;
            let detail = format!(
                "Error opening log stream for pod ns/{name}. Error: the server is currently unable to handle the request \
                 (for 30m0s now)"
            );
            assert_eq!(rig.last_said(), (State::Failed, detail.as_str()));
        }
    }
}

#[test]
fn retries_run_soon_after_the_server_is_back() {
    let (mut rig, stream) = Rig::following();
    rig.unit.handle_log_ended(rig.now, stream, StreamEnd::Broken);
    for _ in 0..10 {
        rig.wake();
        let ApiRequest::OpenLog { stream, .. } = rig.asks_one() else { panic!() };
        rig.unit.handle_log_opened(rig.now, stream, Err(busy()));
    }
    assert!(rig.unit.poll_timeout().unwrap().0 - rig.now > Duration::from_secs(20));
    rig.unit.handle_server_is_back(rig.now);
    assert!(rig.unit.poll_timeout().unwrap().0 - rig.now < Duration::from_millis(500));
}

#[test]
fn retry_after_is_respected() {
    let (mut rig, stream) = Rig::following();
    rig.unit.handle_log_ended(rig.now, stream, StreamEnd::Broken);
    rig.wake();
    let ApiRequest::OpenLog { stream, .. } = rig.asks_one() else { panic!() };
    let error = ApiError::from_status(429, "too many requests".into(), Some(Duration::from_secs(17)));
    rig.unit.handle_log_opened(rig.now, stream, Err(error));
    let before = rig.now;
    assert_eq!(rig.wake(), Timer::Log);
    assert!(rig.now - before >= Duration::from_secs(17));
}

#[test]
fn success_waits_for_the_whole_log() {
    let (mut rig, follow) = Rig::following();
    rig.logs(follow, LINE);
    rig.unit.handle_log_ended(rig.now, follow, StreamEnd::InOrder);
    rig.watched(ended(0, "Completed"));
    // The rest breaks off repeatedly.
    for _ in 0..3 {
        let rest = rig.opened_log(false);
        rig.logs(rest, LINE);
        rig.unit.handle_log_ended(rig.now, rest, StreamEnd::Broken);
        assert!(!rig.is_final());
        assert_eq!(rig.wake(), Timer::Log);
    }
    let rest = rig.opened_log(false);
    assert_eq!(rig.logs(rest, &format!("{LINE}2026-01-02T03:04:06Z late\n")), "late\n");
    rig.unit.handle_log_ended(rig.now, rest, StreamEnd::InOrder);
    rig.asks();
    assert_eq!(rig.last_said(), (State::Succeeded, "Finished"));
    assert_eq!(rig.unit.stdout_size(), 8);
}

#[test]
fn a_follow_that_lags_behind_a_rotation_is_read_to_its_end() {
    let (mut rig, follow) = Rig::following();
    rig.logs(follow, LINE);
    rig.watched(ended(0, "Completed"));
    let probe = rig.opened_log(false);
    assert!(rig.unit.wants_log(probe) && !rig.unit.wants_log(follow));
    // The new file lacks the last line.
    assert_eq!(rig.logs(probe, "2026-01-02T03:04:09Z third\n"), "");
    assert!(rig.asks().contains(&ApiRequest::CloseLog(probe)));
    assert!(rig.unit.wants_log(follow));
    assert_eq!(rig.logs(follow, "2026-01-02T03:04:07Z second\n"), "second\n");
    rig.unit.handle_log_ended(rig.now, follow, StreamEnd::InOrder);
    let rest = rig.opened_log(false);
    assert_eq!(rig.logs(rest, "2026-01-02T03:04:09Z third\n"), "third\n");
    rig.unit.handle_log_ended(rig.now, rest, StreamEnd::InOrder);
    rig.asks();
    assert_eq!(rig.last_said(), (State::Succeeded, "Finished"));
}

#[test]
fn a_log_may_end_in_what_could_be_the_rest_of_a_line() {
    let (mut rig, follow) = Rig::following();
    rig.logs(follow, &format!("2026-01-02T03:04:05Z {}\n", "x".repeat(5_000)));
    rig.unit.handle_log_ended(rig.now, follow, StreamEnd::InOrder);
    rig.watched(ended(0, "Completed"));
    let rest = rig.opened_log(false);
    assert_eq!(rig.logs(rest, "2026-01-02T03:04:09Z without an end"), "");
    let mut held = Vec::new();
    rig.unit.handle_log_held(rig.now, rest, &mut held);
    assert_eq!(held, b"without an end");
    rig.unit.handle_log_ended(rig.now, rest, StreamEnd::InOrder);
    rig.asks();
    assert_eq!(rig.last_said(), (State::Succeeded, "Finished"));
}

#[test]
fn lines_that_were_rotated_away_fail_the_unit() {
    let (mut rig, follow) = Rig::following();
    rig.logs(follow, LINE);
    rig.unit.handle_log_ended(rig.now, follow, StreamEnd::Broken);
    rig.wake();
    let next = rig.opened_log(true);
    assert_eq!(rig.logs(next, "2026-01-02T03:04:09Z third\n"), "");
    rig.asks();
    let detail = "Error with pod's stdout: the log was rotated while it could not be followed: lines after \
                  2026-01-02T03:04:05.5Z may be missing";
    assert_eq!(rig.last_said(), (State::Failed, detail));
}

#[test]
fn a_log_that_could_not_be_opened_for_a_while_may_have_been_rotated_again() {
    let (mut rig, follow) = Rig::following();
    rig.logs(follow, LINE);
    rig.unit.handle_log_ended(rig.now, follow, StreamEnd::InOrder);
    rig.wake();
    let ApiRequest::OpenLog { stream, .. } = rig.asks_one() else { panic!() };
    rig.unit.handle_log_opened(rig.now, stream, Err(busy()));
    rig.wake();
    let next = rig.opened_log(true);
    assert_eq!(rig.logs(next, "2026-01-02T03:04:09Z third\n"), "");
    assert!(rig.is_final());
}

#[test]
fn kubelet_messages_are_reported_but_are_no_output() {
    let (mut rig, mut stream) = Rig::following();
    let said = "failed to create fsnotify watcher: too many open files";
    for _ in 0..5 {
        rig.logs(stream, &format!("{LINE}{said}\n"));
        rig.unit.handle_log_ended(rig.now, stream, StreamEnd::InOrder);
        assert_eq!(rig.asks(), []);
        assert_eq!(rig.last_said(), (State::Running, format!("Pod Running: {said}").as_str()));
        rig.wake();
        stream = rig.opened_log(true);
    }
    assert_eq!(rig.unit.stdout_size(), 3);
}

#[test]
fn a_log_that_its_kubelet_has_removed_does_not_come_back() {
    let (mut rig, stream) = Rig::following();
    rig.logs(stream, LINE);
    rig.watched(ended(0, "Completed"));
    let (begun, mut stream) = (rig.now, rig.opened_log(false));
    let said = "unable to retrieve container logs for containerd://abc";
    while !rig.is_final() {
        assert!(rig.now < begun + Duration::from_secs(120));
        rig.logs(stream, said);
        rig.unit.handle_log_ended(rig.now, stream, StreamEnd::InOrder);
        let requests = rig.asks();
        if rig.is_final() {
            break;
        }
        assert!(!requests.iter().any(|request| matches!(request, ApiRequest::Delete(_))));
        rig.wake();
        stream = rig.opened_log(rig.now == begun);
    }
    assert!(rig.now >= begun + Duration::from_secs(30));
    let (state, detail) = rig.last_said();
    assert_eq!(state, State::Failed);
    assert!(detail.starts_with(&format!("Error with pod's stdout: {said} on node")), "{detail}");
}

#[test]
fn an_attach_that_never_reached_the_container_is_repeated() {
    let mut rig = Rig::created(settings());
    rig.watched(Container::Running);
    rig.opened_log(true);
    let begun = rig.now;
    let dialing = || {
        ApiError::from_status(500, "error dialing backend: remote error: tls: internal error".into(), None)
    };
    while rig.now < begun + Duration::from_secs(300) {
        rig.unit.handle_attach(rig.now, AttachNews::Refused(dialing()));
        assert_eq!(rig.asks(), []);
        assert_eq!(rig.wake(), Timer::Attach);
        assert_eq!(rig.asks_one(), ApiRequest::Attach);
    }
    // The same applies to a stream that the API server had opened before it reached the kubelet.
    rig.unit.handle_attach(rig.now, AttachNews::Opened);
    assert_eq!(rig.asks_one(), ApiRequest::SendStdin);
    rig.unit.handle_attach(rig.now, AttachNews::Refused(dialing()));
    rig.wake();
    assert_eq!(rig.asks_one(), ApiRequest::Attach);
    rig.unit.handle_attach(rig.now, AttachNews::Opened);
    rig.unit.handle_attach(rig.now, AttachNews::Sent);
    rig.unit.handle_attach(rig.now, AttachNews::Succeeded);
    rig.asks();
    assert_eq!(rig.last_said(), (State::Running, "Pod Running"));
}

#[test]
fn a_stdin_that_broke_off_is_not_repeated() {
    let mut rig = Rig::created(settings());
    rig.watched(Container::Running);
    rig.opened_log(true);
    rig.unit.handle_attach(rig.now, AttachNews::Opened);
    rig.asks();
    rig.unit.handle_attach(rig.now, AttachNews::Failed("broken pipe".into()));
    assert_eq!(rig.asks_one(), ApiRequest::GetPod, "it may have ended");
    let pod = rig.pod(Container::Running);
    rig.unit.handle_pod(rig.now, Ok(pod));
    assert_eq!(rig.wake(), Timer::Verdict);
    let requests = rig.asks();
    assert!(
        !requests.contains(&ApiRequest::Attach) && requests.contains(&ApiRequest::Delete("u1".into())),
        "{requests:?}"
    );
    let name = &rig.unit.record.pod_name;
    let detail = format!("Error streaming stdin to pod ns/{name}. Error: broken pipe");
    assert_eq!(rig.last_said(), (State::Failed, detail.as_str()));
}

#[test]
fn a_pod_that_ends_before_it_got_its_stdin_may_have_ended_well() {
    for (code, expected) in [(0, State::Succeeded), (3, State::Failed)] {
        let mut rig = Rig::created(settings());
        rig.watched(ended(code, "Completed"));
        let rest = rig.opened_log(false);
        assert_eq!(rig.logs(rest, LINE), "hi\n");
        rig.unit.handle_log_ended(rig.now, rest, StreamEnd::InOrder);
        rig.asks();
        let name = &rig.unit.record.pod_name;
        let detail = match code {
            0 => "Finished".to_owned(),
            code => format!(
                "Error streaming stdin to pod ns/{name}. Error: container worker ended with exit code {code} before it \
                 had read its input on node node-1"
            ),
        };
        assert_eq!(rig.last_said(), (expected, detail.as_str()));
        assert_eq!(rig.unit.stdout_size(), 3);
    }
}

#[test]
fn output_or_a_minute_ends_the_wait_for_the_servers_status() {
    for prints in [true, false] {
        let mut rig = Rig::created(settings());
        rig.watched(Container::Running);
        let stream = rig.opened_log(true);
        rig.unit.handle_attach(rig.now, AttachNews::Opened);
        rig.unit.handle_attach(rig.now, AttachNews::Sent);
        rig.asks();
        assert_eq!(rig.last_said(), (State::Pending, "Sending stdin to pod"));
        let before = rig.now;
        if prints {
            rig.logs(stream, LINE);
        } else {
            assert_eq!(rig.wake(), Timer::StdinStatus);
            assert_eq!(rig.now - before, Duration::from_secs(60));
        }
        rig.asks();
        assert_eq!(rig.last_said(), (State::Running, "Pod Running"));
    }
}

#[test]
fn the_first_error_stays_whatever_the_other_stream_says() {
    let mut rig = Rig::created(settings());
    rig.watched(Container::Running);
    let requests = rig.asks();
    let [ApiRequest::OpenLog { stream, .. }, ApiRequest::Attach] = requests[..] else {
        panic!("{requests:?}")
    };
    rig.unit.handle_attach(rig.now, AttachNews::Opened);
    rig.unit.handle_attach(rig.now, AttachNews::Sent);
    rig.unit.handle_log_opened(rig.now, stream, Err(ApiError::Forbidden("pods/log is forbidden".into())));
    rig.unit.handle_attach(rig.now, AttachNews::Succeeded);
    rig.watched(ended(0, "Completed"));
    rig.asks();
    let name = &rig.unit.record.pod_name;
    let detail = format!("Error opening log stream for pod ns/{name}. Error: pods/log is forbidden");
    assert_eq!(rig.last_said(), (State::Failed, detail.as_str()));
}

#[test]
fn with_tcp_the_pod_connects_and_nothing_is_attached_to() {
    let tcp = || UnitSettings { method: StreamMethod::Tcp, ..settings() };
    let mut rig = Rig::created(tcp());
    rig.watched(Container::Running);
    assert_eq!(rig.asks(), []);
    for (news, said) in [
        (TcpNews::Connected, (State::Pending, "Sending stdin to pod")),
        (TcpNews::Sent, (State::Running, "Pod Running")),
        (TcpNews::Ended, (State::Succeeded, "Finished")),
    ] {
        rig.unit.handle_tcp(rig.now, news);
        assert_eq!(rig.asks(), []);
        assert_eq!(rig.last_said(), said);
    }
    let mut rig = Rig::created(tcp());
    rig.watched(ended(2, "Error"));
    assert_eq!(rig.wake(), Timer::Linger);
    rig.asks();
    assert_eq!(
        rig.last_said(),
        (
            State::Failed,
            "Error reading stdout from pod: container worker ended with exit code 2 (Error), and its connection has not"
        )
    );
}
