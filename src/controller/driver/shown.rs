//! What the units of jobs show: the job's row, in the form of a unit's status. Pure; `publisher` decides when it is
//! shown.

use jiff::Timestamp;

use crate::controller::core::{JobState, Time};
use crate::controller::store::JobRecord;
use crate::rpc::UnitState;
use crate::work::jobs::{JobExtra, ShownJob};

/// The row of a job, for a unit that has shown `former` so far.
pub(super) fn report(detail: &JobRecord, child_type: &str, former: JobExtra) -> ShownJob {
    let row = &detail.row;
    let attempt = detail.job.attempts.last();
    let name = |name: Option<String>| name.unwrap_or_default();
    let extra = JobExtra {
        job_id: Some(row.id.0),
        kind: row.kind.name().to_owned(),
        name: row.name.clone(),
        controller_node: name(row.controller_node.as_ref().map(ToString::to_string)),
        execution_node: name(row.execution_node.as_ref().map(ToString::to_string)),
        instance_group: name(row.instance_group.as_ref().map(ToString::to_string)),
        child_unit_id: name(attempt.map(|attempt| attempt.unit.to_string())),
        child_work_type: child_type.to_owned(),
        attempt: row.attempt,
        impact: row.impact,
        event_count: row.events,
        explanation: row.explanation.clone(),
        exit_code: row.rc,
        created: Some(rfc3339(row.created)),
        started: row.started.map(rfc3339),
        finished: row.finished.map(rfc3339),
        cancel_requested: row.cancel_requested,
        ..former
    };
    // A unit's state never goes back, so a unit whose job waits for another attempt stays running.
    let has_run = detail.job.attempts.iter().any(|attempt| attempt.started.is_some());
    let state = match unit_state(row.state) {
        UnitState::Pending if has_run => UnitState::Running,
        state => state,
    };
    let detail = match row.state {
        JobState::Successful => "Finished".to_owned(),
        JobState::Canceled => "Canceled".to_owned(),
        JobState::Pending | JobState::Waiting | JobState::Running | JobState::Failed | JobState::Error => {
            row.explanation.clone()
        }
    };
    ShownJob { state, detail, extra }
}

/// The state of a unit whose job is in this state.
pub(super) const fn unit_state(state: JobState) -> UnitState {
    match state {
        JobState::Pending | JobState::Waiting => UnitState::Pending,
        JobState::Running => UnitState::Running,
        JobState::Successful => UnitState::Succeeded,
        JobState::Failed | JobState::Error => UnitState::Failed,
        JobState::Canceled => UnitState::Canceled,
    }
}

/// A time of the store, as clients see it.
pub fn rfc3339(time: Time) -> String {
    Timestamp::from_millisecond(time.0).unwrap_or_default().to_string()
}
