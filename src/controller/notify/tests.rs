//! What targets are told, and delivery to endpoints that fail.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde_json::json;
use tokio::net::TcpStream;

use super::cursor::NoticeCursor;
use super::{JobNotice, NoticeEvent, NoticeWay, NotifyTarget, Receipt, WebTls, event, wanted_word};
use crate::controller::core::{JobId, JobKind, JobState, Time};
use crate::controller::header::NOTIFY;
use crate::controller::store::{EndedJob, JobRow, Terms};
use crate::rpc::Duplex;
use crate::work::jobs::Act;

/// There is no TLS in tests of other modules.
pub(in crate::controller) struct NoTls;

impl WebTls for NoTls {
    fn secure(&self, _: TcpStream, _: String, _: Option<String>) -> Act<'_, io::Result<Box<dyn Duplex>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

/// A job that has ended.
fn ended(state: JobState, is_lost: bool, notify: &str) -> EndedJob {
    let labels = BTreeMap::from([(NOTIFY.to_owned(), notify.to_owned())]);
    let row = JobRow {
        id: JobId(7),
        key: None,
        kind: JobKind::Job,
        name: "deploy".into(),
        state,
        priority: 0,
        controller_node: None,
        execution_node: Some("e1".into()),
        instance_group: None,
        attempt: 1,
        impact: 1,
        hosts: None,
        forks: 1,
        created: Time(0),
        started: None,
        finished: Some(Time(1000)),
        cancel_requested: false,
        explanation: "why".into(),
        events: 0,
        rc: Some(2),
        labels,
        launched_by: "unix:0".into(),
        terms: Terms::default(),
    };
    EndedJob { number: 9, is_lost, row }
}

fn target(events: &[NoticeEvent], only_named: bool) -> NotifyTarget {
    let way = NoticeWay::Command("true".into(), Vec::new());
    NotifyTarget { way, events: events.to_vec(), only_named, timeout: Duration::from_secs(1) }
}

#[test]
fn a_target_gets_the_most_telling_event_that_it_asks_for() {
    use JobState::{Canceled, Error, Failed, Successful};
    use NoticeEvent as Event;
    let all: Vec<Event> = Event::ALL.to_vec();
    for (wanted, state, is_lost, before, expected) in [
        (&all[..], Failed, false, None, Some(Event::FirstFailure)),
        (&all, Failed, false, Some(Successful), Some(Event::FirstFailure)),
        (&all, Failed, false, Some(Failed), Some(Event::Failed)),
        (&all, Failed, true, Some(Failed), Some(Event::Lost)),
        (&all, Error, false, Some(Failed), Some(Event::Error)),
        (&all, Successful, false, Some(Error), Some(Event::Recovered)),
        (&all, Successful, false, Some(Successful), Some(Event::Successful)),
        (&all, Canceled, false, Some(Failed), Some(Event::Canceled)),
        (&all, Canceled, true, None, Some(Event::Canceled)),
        (&[Event::Failed], Failed, true, None, Some(Event::Failed)),
        (&[Event::Lost], Failed, false, None, None),
        (&[Event::Recovered], Successful, false, None, None),
        (&[Event::Successful], Failed, false, None, None),
        (&[], Failed, true, None, None),
    ] {
        let job = ended(state, is_lost, "");
        assert_eq!(
            event::event_of(wanted, &job, before),
            expected,
            "{wanted:?} {state} {is_lost} {before:?}"
        );
    }
}

#[test]
fn a_saved_job_names_targets_and_may_choose_their_events() {
    use NoticeEvent::{Canceled, Failed, Lost};
    let wanted = |label: &str, only_named| {
        event::wanted("ops", &target(&[Failed], only_named), &ended(JobState::Failed, false, label))
    };
    let chosen = [("chat", vec![]), ("ops", vec![Canceled, Lost])];
    let label = chosen.map(|(name, events)| wanted_word(name, &events)).join(",");
    assert_eq!(label, "chat,ops:canceled+lost");
    for (label, only_named, expected) in [
        ("", false, vec![Failed]),
        ("", true, vec![]),
        ("chat", true, vec![]),
        ("chat,ops", true, vec![Failed]),
        (&label, false, vec![Canceled, Lost]),
        ("ops2:lost", true, vec![]),
    ] {
        assert_eq!(wanted(label, only_named), expected, "{label} {only_named}");
    }
    let mut sync = ended(JobState::Failed, false, "");
    sync.row.kind = JobKind::ProjectSync;
    assert_eq!(event::wanted("ops", &target(&[Failed], false), &sync), [], "the controller made it");
}

#[test]
fn a_notice_has_the_documented_keys() {
    let mut job = ended(JobState::Failed, false, "ops");
    job.row.labels.insert("meshd/saved".into(), "deploy".into());
    let notice = JobNotice::of(&job, NoticeEvent::Failed, 0xab, "ops", "c1");
    let expected = json!({
        "version": 1, "id": "000000ab-ops-9-failed", "event": "failed", "at": "1970-01-01T00:00:01Z",
        "control_node": "c1",
        "job": {
            "id": 7, "name": "deploy", "kind": "job", "state": "failed", "saved": "deploy",
            "labels": {"meshd/notify": "ops", "meshd/saved": "deploy"}, "node": "e1", "group": null,
            "launched_by": "unix:0", "created": "1970-01-01T00:00:00Z", "started": null,
            "finished": "1970-01-01T00:00:01Z", "rc": 2, "explanation": "why",
        },
    });
    assert_eq!(json!(notice), expected);
}

#[test]
fn a_claim_keeps_others_away_until_it_ends() {
    let mut at = NoticeCursor::default();
    at.claim("c1", 1000, Duration::from_secs(60));
    assert_eq!((at.wait("c1", 2000), at.wait("c2", 2000)), (None, Some(Duration::from_secs(59))));
    assert_eq!(at.wait("c2", 61_000), None);
    assert!(!at.note(5, Receipt::Failed("x".into()), 2000));
    at.release();
    assert_eq!(
        (at.wait("c2", 2000), at.failing_since, at.cursor),
        (Some(Duration::from_secs(1)), Some(2000), 0)
    );
    assert!(at.note(5, Receipt::Delivered("x".into()), 3000));
    assert_eq!((at.wait("c2", 3000), at.failing_since, at.error, at.cursor), (None, None, None, 5));
}
