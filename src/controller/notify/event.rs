//! What a target is told of a job that has ended, and the notice itself, whose keys docs/saved-jobs.md specifies. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::NotifyTarget;
use crate::controller::core::{JobKind, JobState};
use crate::controller::driver::rfc3339;
use crate::controller::header::{NOTIFY, SAVED};
use crate::controller::store::EndedJob;
use crate::rpc::report::names::names;

names! {
    /// What happened.
    enum NoticeEvent {
        /// The job failed, or could not run, and the one before had not.
        FirstFailure = "first-failure",
        /// The job succeeded, and the one before had not.
        Recovered = "recovered",
        /// Its node or its control node was lost.
        Lost = "lost",
        /// It succeeded.
        Successful = "successful",
        /// It failed.
        Failed = "failed",
        /// It could not be run.
        Error = "error",
        /// It was cancelled.
        Canceled = "canceled",
    }
}

/// The version of the notice's keys.
const VERSION: u32 = 1;
/// What stands for the event if somebody tries a target.
const TEST: &str = "test";

/// One notice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct JobNotice {
    version: u32,
    /// The same each time that it is delivered.
    pub id: String,
    event: &'static str,
    /// When the job ended.
    at: String,
    control_node: String,
    /// None in a test.
    job: Option<NoticeJob>,
}

/// The job of a notice.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct NoticeJob {
    id: i64,
    name: String,
    kind: JobKind,
    state: JobState,
    /// The saved job that it was started of.
    saved: Option<String>,
    labels: BTreeMap<String, String>,
    node: Option<String>,
    group: Option<String>,
    launched_by: String,
    created: String,
    started: Option<String>,
    finished: Option<String>,
    rc: Option<i32>,
    explanation: String,
}

impl JobNotice {
    /// A notice about a job; `install` tells the jobs of one store from those of another.
    pub(super) fn of(ended: &EndedJob, event: NoticeEvent, install: u32, target: &str, node: &str) -> Self {
        let row = &ended.row;
        let job = NoticeJob {
            id: row.id.0,
            name: row.name.clone(),
            kind: row.kind,
            state: row.state,
            saved: row.labels.get(SAVED).cloned(),
            labels: row.labels.clone(),
            node: row.execution_node.as_ref().map(ToString::to_string),
            group: row.instance_group.as_ref().map(ToString::to_string),
            launched_by: row.launched_by.clone(),
            created: rfc3339(row.created),
            started: row.started.map(rfc3339),
            finished: row.finished.map(rfc3339),
            rc: row.rc,
            explanation: row.explanation.clone(),
        };
        Self {
            version: VERSION,
            id: format!("{install:08x}-{target}-{}-{event}", ended.number),
            event: event.name(),
            at: rfc3339(row.finished.unwrap_or(row.created)),
            control_node: node.to_owned(),
            job: Some(job),
        }
    }

    /// A notice with which somebody tries a target.
    pub(crate) fn test(target: &str, node: &str) -> Self {
        let (id, at) = (rand::random::<u64>(), jiff::Timestamp::now().to_string());
        let id = format!("{TEST}-{target}-{id:016x}");
        Self { version: VERSION, id, event: TEST, at, control_node: node.to_owned(), job: None }
    }
}

/// The word for a target in the label of a job whose saved job names it, with the events if it says which.
pub(crate) fn wanted_word(target: &str, events: &[NoticeEvent]) -> String {
    let events: Vec<&str> = events.iter().map(|event| event.name()).collect();
    if events.is_empty() { target.to_owned() } else { format!("{target}:{}", events.join("+")) }
}

/// The events of which a target is told about this job: none if the job is none of its business.
pub(super) fn wanted(target: &str, settings: &NotifyTarget, ended: &EndedJob) -> Vec<NoticeEvent> {
    if !ended.row.kind.is_submitted() {
        return Vec::new();
    }
    let label = ended.row.labels.get(NOTIFY).map(String::as_str).unwrap_or_default();
    let mut words = label.split(',').map(|word| word.split_once(':').unwrap_or((word, "")));
    match words.find(|(name, _)| *name == target) {
        None if settings.only_named => Vec::new(),
        None | Some((_, "")) => settings.events.clone(),
        Some((_, events)) => events.split('+').filter_map(|event| event.parse().ok()).collect(),
    }
}

/// Whether some of these events depend on how the job before ended.
pub(super) fn compare(events: &[NoticeEvent]) -> bool {
    events.iter().any(|event| matches!(event, NoticeEvent::FirstFailure | NoticeEvent::Recovered))
}

/// The most telling of the wanted events that this end is. A target gets one notice about a job.
pub(super) fn event_of(
    wanted: &[NoticeEvent],
    ended: &EndedJob,
    before: Option<JobState>,
) -> Option<NoticeEvent> {
    let is_failure = |state| matches!(state, JobState::Failed | JobState::Error);
    let state = ended.row.state;
    let is = |event: &NoticeEvent| match event {
        NoticeEvent::FirstFailure => is_failure(state) && !before.is_some_and(is_failure),
        NoticeEvent::Recovered => state == JobState::Successful && before.is_some_and(is_failure),
        NoticeEvent::Lost => ended.is_lost && is_failure(state),
        NoticeEvent::Successful => state == JobState::Successful,
        NoticeEvent::Failed => state == JobState::Failed,
        NoticeEvent::Error => state == JobState::Error,
        NoticeEvent::Canceled => state == JobState::Canceled,
    };
    wanted.iter().copied().filter(is).min()
}
