//! Which end counts as success.

use super::*;

/// How a unit ends whose `worker` ended like this.
fn end_of(worker: Container, pod: impl FnOnce(PodSeen) -> PodSeen) -> (State, String) {
    let (mut rig, follow) = Rig::following();
    rig.logs(follow, LINE);
    let seen = pod(rig.pod(worker));
    rig.unit.handle_watched(rig.now, seen);
    let rest = rig.opened_log(false);
    rig.logs(rest, LINE);
    rig.unit.handle_log_ended(rig.now, rest, StreamEnd::InOrder);
    rig.asks();
    assert_eq!(rig.unit.stdout_size(), 3, "true at any end");
    let (state, detail) = rig.last_said();
    (state, detail.to_owned())
}

#[test]
fn the_exit_code_and_its_reason_decide() {
    let same = |pod| pod;
    for (code, reason) in [(0, "Completed"), (0, ""), (3, "Error"), (3, "Completed")] {
        assert_eq!(
            end_of(ended(code, reason), same),
            (State::Succeeded, "Finished".into()),
            "{code} {reason}"
        );
    }
    let cases = [
        (137, "OOMKilled", "container worker ended with exit code 137 (OOMKilled) on node node-1"),
        (
            137,
            "ContainerStatusUnknown",
            "container worker ended with exit code 137 (ContainerStatusUnknown) on node node-1",
        ),
        (128, "StartError", "container worker ended with exit code 128 (StartError) on node node-1"),
        (
            0,
            "ContainerCannotRun",
            "container worker ended with exit code 0 (ContainerCannotRun) on node node-1",
        ),
    ];
    for (code, reason, told) in cases {
        let expected = (State::Failed, format!("Error with pod's stdout: {told}"));
        assert_eq!(end_of(ended(code, reason), same), expected);
    }
    let (state, detail) = end_of(ended(0, "OOMKilled"), same);
    assert!(
        state == State::Succeeded && detail.starts_with("Finished: ") && detail.contains("OOMKilled"),
        "{detail}"
    );
}

#[test]
fn a_container_killed_by_kubernetes_has_failed() {
    let evicted = |pod| PodSeen {
        phase: PodPhase::Failed,
        reason: "Evicted".into(),
        message: "The node was low on resource: memory.".into(),
        ..pod
    };
    let detail = "Error with pod's stdout: container worker ended with exit code 137 (Error) on node node-1: Evicted: \
                  The node was low on resource: memory.";
    assert_eq!(end_of(ended(137, "Error"), evicted), (State::Failed, detail.into()));
    let deleted = |pod| PodSeen { is_deleting: true, ..pod };
    let detail = "Error with pod's stdout: container worker ended with exit code 143 (Error) on node node-1, as the pod \
                  was being deleted";
    assert_eq!(end_of(ended(143, "Error"), deleted), (State::Failed, detail.into()));
}

#[test]
fn the_log_of_a_vanished_pod_is_read_as_far_as_possible() {
    let (mut rig, follow) = Rig::following();
    rig.logs(follow, LINE);
    let last = rig.pod(Container::Running);
    rig.unit.handle_watched_gone(rig.now, last);
    assert!(!rig.is_final());
    assert_eq!(rig.logs(follow, "2026-01-02T03:04:06Z last words\n"), "last words\n");
    rig.unit.handle_log_ended(rig.now, follow, StreamEnd::InOrder);
    assert_eq!(rig.asks(), [], "there is nothing to delete");
    let name = &rig.unit.record.pod_name;
    let detail = format!(
        "Error getting pod ns/{name}. Error: pods \"{name}\" not found: it was deleted while container worker ran on node \
         node-1"
    );
    assert_eq!(rig.last_said(), (State::Failed, detail.as_str()));
    assert_eq!(rig.unit.stdout_size(), 14);
}

#[test]
fn a_failed_pod_without_worker_status_is_reported() {
    let (mut rig, follow) = Rig::following();
    let evicted =
        PodSeen { phase: PodPhase::Failed, reason: "NodeLost".into(), ..rig.pod(Container::Unknown) };
    rig.unit.handle_watched(rig.now, evicted);
    assert_eq!(rig.logs(follow, LINE), "hi\n");
    assert_eq!(rig.wake(), Timer::Gone);
    rig.asks();
    let detail = "Error with pod's stdout: container worker has ended with its pod on node node-1: NodeLost";
    assert_eq!(rig.last_said(), (State::Failed, detail));
}

#[test]
fn a_pod_that_vanishes_after_its_end_may_have_said_everything() {
    let (mut rig, follow) = Rig::following();
    // There is no line at which another stream could join, so this stream is awaited.
    let last = rig.pod(ended(0, "Completed"));
    rig.unit.handle_watched_gone(rig.now, last);
    assert_eq!(rig.asks(), []);
    rig.unit.handle_log_ended(rig.now, follow, StreamEnd::InOrder);
    rig.asks();
    assert_eq!(rig.last_said(), (State::Succeeded, "Finished"));
}

#[test]
fn the_last_event_is_reported_if_it_is_readable_and_arrives_soon() {
    for event in [Some("FailedMount: MountVolume.SetUp failed"), None] {
        let mut rig = Rig::created(UnitSettings { may_read_events: true, ..settings() });
        rig.watched(waiting("InvalidImageName", "bad"));
        assert_eq!(rig.asks(), [ApiRequest::GetEvents]);
        assert!(!rig.is_final());
        if event.is_some() {
            rig.unit.handle_event(rig.now, event);
        } else {
            assert_eq!(rig.wake(), Timer::Events);
        }
        rig.asks();
        let detail = "Error creating pod: container failed to start, InvalidImageName: bad";
        let detail = event.map_or(detail.to_owned(), |event| format!("{detail}; last event: {event}"));
        assert_eq!(rig.last_said(), (State::Failed, detail.as_str()));
    }
}
