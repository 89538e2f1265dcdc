//! Cancel and release leave no pod behind.

use super::*;
use crate::pods::api_error::{AnswerPatience, ApiUnreachable};

fn released(rig: &mut Rig) -> Vec<MachineOutput> {
    std::iter::from_fn(|| rig.unit.poll_output())
        .filter(|output| !matches!(output, MachineOutput::Status(_) | MachineOutput::Waits(_)))
        .collect()
}

fn week() -> Duration {
    Duration::from_secs(7 * 24 * 3600)
}

#[test]
fn a_cancelled_unit_stays_cancelled_and_its_pod_goes() {
    let (mut rig, follow) = Rig::following();
    rig.logs(follow, LINE);
    rig.unit.handle_cancel(rig.now);
    assert_eq!(rig.asks(), [ApiRequest::CloseLog(follow), ApiRequest::Delete("u1".into())]);
    assert_eq!(rig.last_said(), (State::Canceled, "Canceled"));
    rig.watched(ended(143, "Error"));
    for _ in 0..5 {
        rig.unit.handle_deleted(rig.now, Err(busy()));
        assert_eq!(rig.wake(), Timer::Delete);
        assert_eq!(rig.asks(), [ApiRequest::Delete("u1".into())], "whatever it takes");
    }
    rig.unit.handle_deleted(rig.now, Err(ApiError::NotFound("not found".into())));
    assert!(rig.unit.is_idle() && rig.unit.poll_timeout().is_none());
    assert_eq!(rig.unit.stdout_size(), 3);
}

#[test]
fn a_finished_unit_stays_as_it_is_when_it_is_cancelled() {
    let mut rig = Rig::created(settings());
    rig.watched(ended(0, "Completed"));
    let rest = rig.opened_log(false);
    rig.unit.handle_log_ended(rig.now, rest, StreamEnd::InOrder);
    assert_eq!(rig.asks(), [], "a finished pod stays until somebody says so");
    rig.unit.handle_cancel(rig.now);
    assert_eq!(rig.asks(), [ApiRequest::Delete("u1".into())]);
    assert_eq!(rig.last_said(), (State::Succeeded, "Finished"));
}

#[test]
fn a_pod_that_is_created_after_its_cancel_is_deleted() {
    let mut rig = Rig::new(settings());
    rig.asks();
    rig.unit.handle_cancel(rig.now);
    assert_eq!(rig.asks(), []);
    let pod = rig.pod(Container::Unknown);
    rig.unit.handle_created(rig.now, Ok(pod));
    assert_eq!(rig.asks(), [ApiRequest::Delete("u1".into())]);
    rig.unit.handle_deleted(rig.now, Ok(()));
    assert!(rig.unit.is_idle());
}

#[test]
fn a_create_in_doubt_is_watched() {
    let mut rig = Rig::new(settings());
    rig.asks();
    rig.unit.handle_created(rig.now, Err(ApiError::Unreachable("timeout".into())));
    rig.unit.handle_release(rig.now, rig.now + week(), false);
    assert_eq!(released(&mut rig), [MachineOutput::Request(ApiRequest::GetPod)]);
    rig.unit.handle_pod(rig.now, Err(ApiError::NotFound("not found".into())));
    assert_eq!(
        released(&mut rig),
        [MachineOutput::ReleasePending("a create whose answer was lost may still be carried out".into())]
    );
    // The pod appears after all.
    rig.wake();
    assert_eq!(released(&mut rig), [MachineOutput::Request(ApiRequest::GetPod)]);
    let pod = rig.pod(Container::Running);
    rig.unit.handle_pod(rig.now, Ok(pod));
    assert_eq!(released(&mut rig), [MachineOutput::Request(ApiRequest::Delete("u1".into()))]);
    rig.unit.handle_deleted(rig.now, Ok(()));
    assert_eq!(released(&mut rig), [MachineOutput::Released { is_gone: true }]);
}

#[test]
fn a_unit_that_sent_no_create_is_released_at_once() {
    let refused = || {
        ApiError::Unreachable(ApiUnreachable {
            text: "refused".into(),
            was_connected: false,
            patience: AnswerPatience::Outage,
        })
    };
    // Before the check of the server is answered, and after it.
    for is_answered in [false, true] {
        let mut rig = Rig::new(settings());
        rig.asks();
        if is_answered {
            rig.unit.handle_not_sent(rig.now, refused());
            rig.asks();
        }
        rig.unit.handle_release(rig.now, rig.now + week(), false);
        if !is_answered {
            assert_eq!(released(&mut rig), []);
            rig.unit.handle_not_sent(rig.now, ApiError::Rejected("the unit was cancelled before".into()));
        }
        assert_eq!(released(&mut rig), [MachineOutput::Released { is_gone: true }]);
    }
    // A busy server has executed no create either, if it refused the check before the create.
    let mut rig = Rig::new(settings());
    rig.asks();
    rig.unit.handle_not_sent(rig.now, busy());
    rig.asks();
    rig.unit.handle_release(rig.now, rig.now + week(), false);
    assert_eq!(released(&mut rig), [MachineOutput::Released { is_gone: true }]);
}

#[test]
fn a_create_of_an_earlier_daemon_is_watched() {
    let record = PodRecord { pod_name: "w-known".into(), ..record() };
    let recorded = Recorded {
        state: State::Canceled,
        detail: "Canceled".into(),
        record,
        cursor: Cursor::default(),
        stdout_size: 0,
    };
    let now = Instant::now();
    let mut rig = Rig { now, ..Rig::with(Machine::restart(settings(), recorded, now)) };
    while !rig.unit.is_idle() {
        assert_eq!(rig.asks_one(), ApiRequest::GetPod);
        rig.unit.handle_pod(rig.now, Err(ApiError::NotFound("not found".into())));
        if rig.unit.poll_timeout().is_some() {
            rig.wake();
        }
    }
    assert_eq!(rig.now - now, Duration::from_secs(60));
}

#[test]
fn somebody_elses_pod_of_the_same_name_is_never_deleted() {
    let mut rig = Rig::new(settings());
    rig.asks();
    rig.unit.handle_created(rig.now, Err(ApiError::Unreachable("timeout".into())));
    rig.unit.handle_cancel(rig.now);
    assert_eq!(rig.asks(), [ApiRequest::GetPod]);
    let foreign = PodSeen { owner: None, uid: "foreign".into(), ..rig.pod(Container::Running) };
    rig.unit.handle_pod(rig.now, Ok(foreign.clone()));
    assert_eq!(rig.asks(), []);
    // Our pod may still appear when theirs is gone.
    rig.wake();
    assert_eq!(rig.asks_one(), ApiRequest::GetPod);
    rig.unit.handle_pod(rig.now, Ok(foreign));
    assert_eq!(rig.asks(), []);
    assert!(rig.unit.is_idle());
}

#[test]
fn another_pod_of_the_name_is_deleted_only_if_it_is_ours() {
    for is_ours in [true, false] {
        let (mut rig, _) = Rig::following();
        rig.unit.handle_cancel(rig.now);
        rig.asks();
        rig.unit.handle_deleted(rig.now, Err(ApiError::Conflict("the UID in the precondition is u1".into())));
        assert_eq!(rig.asks_one(), ApiRequest::GetPod);
        let owner = is_ours.then(|| rig.unit.settings.owner.clone());
        let other = PodSeen { uid: "u2".into(), owner, ..rig.pod(Container::Running) };
        rig.unit.handle_pod(rig.now, Ok(other));
        let expected = if is_ours { vec![ApiRequest::Delete("u2".into())] } else { Vec::new() };
        assert_eq!(rig.asks(), expected);
        assert_eq!(rig.unit.is_idle(), !is_ours);
    }
}

#[test]
fn a_release_is_pending_until_the_server_confirms_it_a_week_at_most() {
    let (mut rig, _) = Rig::following();
    rig.unit.handle_release(rig.now, rig.now + week(), false);
    released(&mut rig);
    rig.unit.handle_deleted(rig.now, Err(ApiError::Unreachable("no route to host".into())));
    assert_eq!(released(&mut rig), [MachineOutput::ReleasePending("no route to host".into())]);
    let begun = rig.now;
    let over = loop {
        rig.wake();
        match &released(&mut rig)[..] {
            [MachineOutput::Request(ApiRequest::Delete(_))] => rig.unit.handle_deleted(rig.now, Err(busy())),
            [] => {}
            [over] => break over.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(over, MachineOutput::Released { is_gone: false });
    assert!(rig.now - begun >= week() && rig.unit.poll_timeout().is_none() && rig.unit.is_idle());
}

#[test]
fn a_forced_release_makes_one_attempt() {
    for answer in [Err(busy()), Ok(())] {
        let (mut rig, _) = Rig::following();
        rig.unit.handle_release(rig.now, rig.now + week(), true);
        assert!(released(&mut rig).contains(&MachineOutput::Request(ApiRequest::Delete("u1".into()))));
        let is_gone = answer.is_ok();
        rig.unit.handle_deleted(rig.now, answer);
        assert_eq!(released(&mut rig), [MachineOutput::Released { is_gone }]);
        assert!(rig.unit.is_idle() && rig.unit.poll_timeout().is_none());
    }
}

#[test]
fn a_release_that_was_pending_may_be_forced() {
    let (mut rig, _) = Rig::following();
    rig.unit.handle_release(rig.now, rig.now + week(), false);
    released(&mut rig);
    rig.unit.handle_deleted(rig.now, Err(busy()));
    released(&mut rig);
    rig.unit.handle_release(rig.now, rig.now + week(), true);
    assert_eq!(released(&mut rig), [MachineOutput::Request(ApiRequest::Delete("u1".into()))]);
    rig.unit.handle_deleted(rig.now, Err(busy()));
    assert_eq!(released(&mut rig), [MachineOutput::Released { is_gone: false }]);
}
