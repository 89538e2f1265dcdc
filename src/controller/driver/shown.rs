//! What the units of jobs show: the job's row, in the form of a unit's status.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{sleep, timeout};

use super::output::{held, writer};
use super::request::parsed;
use super::{JobDriver, STORE_RETRY};
use crate::controller::core::{Attempt, AttemptNo, InstanceName, JobId, JobState, Time};
use crate::controller::store::{Error, JobDetail, JobFilter, Kept, PAGE_MAX};
use crate::rpc::UnitState;
use crate::work::jobs::{JobExtra, JobReport, JobUnit};

/// How long the end of a job is waited for whose output has to be closed first.
const CLOSED_WITHIN: Duration = Duration::from_millis(50);

impl JobDriver {
    /// A unit follows the job that was just made of its payload: nobody else has anything of it.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn attach_first(self: &Arc<Self>, job: JobId, unit: JobUnit) -> Result<(), Error> {
        self.published.add(job, unit, true);
        self.show(job).await?;
        self.wake.notify_one();
        Ok(())
    }

    /// A unit that the store knows as the job's follows it from now on. If the job has ended, it shows that at once.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn attach(self: &Arc<Self>, job: JobId, unit: JobUnit) -> Result<(), Error> {
        let detail = self.store.detail(job).await?;
        let held = |wanted| {
            let held = detail.holders.iter().filter(move |(_, _, kept)| *kept == wanted);
            held.map(|(node, unit, _)| (node.clone(), unit.clone()))
        };
        let is_elsewhere =
            held(Kept::Payload).count() > 0 && held(Kept::Payload).all(|(node, _)| node != self.node);
        let holders: Vec<_> = held(Kept::Payload).chain(held(Kept::Output)).collect();
        let first = self.leading(&holders).filter(|first| first.id() != unit.id());
        if let Some(first) = &first {
            unit.share_output(first).await;
        }
        self.published.add(job, unit, first.is_none());
        let owner = detail.row.controller_node.as_ref();
        if owner.map_or(is_elsewhere, |owner| *owner != self.node) {
            self.follow_elsewhere(job);
            return Ok(());
        }
        // Only now does it get what changes.
        self.show(job).await?;
        self.wake.notify_one();
        Ok(())
    }

    /// Of these units of a job, the one here that knows of its latest attempt. Others share its output.
    pub(in crate::controller) fn leading(&self, holders: &[(InstanceName, String)]) -> Option<JobUnit> {
        let own = holders.iter().filter(|(node, _)| *node == self.node);
        let units = own.filter_map(|(_, unit)| self.children.job_unit(unit));
        units.min_by_key(|unit| Reverse(unit.extra().output_attempt))
    }

    /// The unit that has the job's output.
    pub(in crate::controller) fn first_unit(&self, job: JobId) -> Option<JobUnit> {
        self.published.first(job)
    }

    /// The units here that show jobs and no end so far.
    pub(in crate::controller) fn shown_units(&self) -> BTreeMap<String, JobId> {
        let units = |job| self.published.units(job).into_iter().map(move |unit| (unit.id().to_string(), job));
        self.published.jobs().into_iter().flat_map(units).collect()
    }

    /// The job of a unit, if it has not shown its end.
    pub fn job_of(&self, unit: &str) -> Option<JobId> {
        self.published.job_of(unit)
    }

    /// A unit that is deleted follows no job any more.
    pub fn detach(&self, unit: &str) {
        self.published.remove(unit);
    }

    /// Has the units of a job show its row as it is now, but its end only once all of its output is here: if it is not,
    /// it is fetched.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn show(self: &Arc<Self>, job: JobId) -> Result<(), Error> {
        if self.first_unit(job).is_none() {
            return Ok(());
        }
        match self.store.detail(job).await {
            Err(Error::NoJob(_)) => self.end_deleted(job).await,
            found => self.show_detail(&found?).await,
        }
    }

    /// As [`Self::show`] with a row that was just read or written.
    pub(super) async fn show_detail(self: &Arc<Self>, detail: &JobDetail) -> Result<(), Error> {
        let job = detail.row.id;
        let units = self.units_of(detail);
        let Some(first) = units.first() else { return Ok(()) };
        if !detail.row.state.is_final() {
            self.report_to(detail, &units).await?;
            self.published.note_shown(detail.job.clone());
            return Ok(());
        }
        if self.is_followed(job) || self.attempts.is_deciding(job) {
            // Its output comes first.
            return Ok(());
        }
        if detail.is_whole(&self.node, first.id().as_str(), first.output_size()) {
            return self.report_to(detail, &units).await;
        }
        let is_own = detail.row.controller_node.as_ref() == Some(&self.node);
        match detail.output_end() {
            None if is_own => self.end_output(detail.clone(), units).await,
            Some(_) | None => self.follow_elsewhere(job),
        }
        Ok(())
    }

    /// Has the output of a job end where it is, if the job's end was not that of an attempt, but a loss. A full disk makes
    /// that wait, and the loop that shows jobs must not.
    async fn end_output(self: &Arc<Self>, detail: JobDetail, units: Vec<JobUnit>) {
        let job = detail.row.id;
        // What is not read to its end is read first.
        if detail.job.attempts.last().is_none_or(Attempt::has_unread_output)
            || !self.published.begin_closing(job)
        {
            return;
        }
        let this = self.clone();
        let ending = tokio::spawn(async move {
            while let Err(error) = this.measure_output(&detail, &units).await {
                match error {
                    // Somebody else's affair by now.
                    Error::Fenced(_) => break,
                    Error::NoJob(_) if this.end_deleted(job).await.is_ok() => break,
                    error => tracing::warn!(%job, %error, "the end of a job is shown later"),
                }
                sleep(STORE_RETRY).await;
            }
            this.published.end_closing(job);
        });
        let _full = timeout(CLOSED_WITHIN, ending).await;
    }

    /// Waits until the output of a job ends where it is, if it has to: what made it may be released then.
    pub(super) async fn output_ended(self: &Arc<Self>, job: JobId) -> Result<(), Error> {
        self.show(job).await?;
        self.published.closed(job).await;
        Ok(())
    }

    async fn measure_output(self: &Arc<Self>, detail: &JobDetail, units: &[JobUnit]) -> Result<(), Error> {
        let Some(n) = detail.job.attempts.last().map(|last| last.n) else { return Ok(()) };
        let row = &detail.row;
        let closes = detail.job.closes_output();
        // No attempt writes behind its end.
        let held = match writer(&self.store, &units[0], &detail.job, AttemptNo(u32::MAX)).await? {
            Some(output) => Some(held(&output, Some(row.explanation.as_str()).filter(|_| closes)).await?),
            None => None,
        };
        let detail = self.store.drive_to_end(self.fence(), (row.id, n), None, held, |_, _| Ok(())).await?;
        match detail.is_whole(&self.node, units[0].id().as_str(), units[0].output_size()) {
            true => self.report_to(&detail, units).await,
            false => {
                self.follow_elsewhere(detail.row.id);
                Ok(())
            }
        }
    }

    /// Has the units of a job that has ended show that they run on, as they have not got its output yet.
    pub(super) async fn show_running(&self, detail: &JobDetail, why: &str) -> Result<(), Error> {
        let child_type = self.child_type_of(detail).await?;
        for unit in self.units_of(detail) {
            let JobReport { extra, .. } = report(detail, &child_type, unit.extra());
            unit.report(JobReport { state: UnitState::Running, detail: why.to_owned(), extra }).await;
        }
        Ok(())
    }

    /// The units here that show a job.
    fn units_of(&self, detail: &JobDetail) -> Vec<JobUnit> {
        let mut units = self.published.units(detail.row.id);
        units.retain(|unit| detail.is_shown_by(&self.node, unit.id().as_str()));
        units
    }

    /// The work type of its latest attempt.
    async fn child_type_of(&self, detail: &JobDetail) -> Result<String, Error> {
        match detail.job.attempts.last() {
            Some(attempt) => self.child_type(attempt).await,
            None => Ok(String::new()),
        }
    }

    /// Has units show a row as it is.
    async fn report_to(&self, detail: &JobDetail, units: &[JobUnit]) -> Result<(), Error> {
        let (job, child_type) = (detail.row.id, self.child_type_of(detail).await?);
        if detail.row.state.is_final() {
            // Each may be the one that is left of them.
            for unit in units.iter().skip(1) {
                unit.share_output(&units[0]).await;
            }
            let held = |unit: &JobUnit| (self.node.clone(), unit.id().to_string());
            let is_noted = units.iter().all(|unit| detail.complete.contains(&held(unit)));
            if let (Some(last), false) = (detail.job.attempts.last(), is_noted) {
                let all = units.iter().map(|unit| unit.id().to_string()).collect();
                self.store.hold_complete((job, last.n), self.node.clone(), all).await?;
            }
        }
        for unit in units {
            unit.report(report(detail, &child_type, unit.extra())).await;
        }
        if detail.row.state.is_final() {
            if self.published.on_end_shown(job, units) {
                self.figures.note_end(&detail.row);
            }
            let is_own = detail.row.controller_node.as_ref() == Some(&self.node);
            let is_noted_later = is_own && detail.job.attempts.iter().any(|attempt| !attempt.swept);
            for unit in units.iter().filter(|_| parsed(detail).is_ok_and(|header| !header.rerun)) {
                match is_noted_later {
                    true => drop(self.drop_payload_file(job, unit).await),
                    false => self.drop_payload(job, unit).await?,
                }
            }
        }
        Ok(())
    }

    /// The units here of a job that had its payload, and have it no more.
    pub(super) fn without_payload(&self, detail: &JobDetail) -> Vec<String> {
        let has_none = |unit: &String| self.children.job_unit(unit).is_none_or(|unit| !unit.has_payload());
        let held =
            detail.holders.iter().filter(|(node, _, kept)| *node == self.node && *kept == Kept::Payload);
        held.map(|(_, unit, _)| unit.clone()).filter(has_none).collect()
    }

    /// Deletes the payload in a unit of a job, and the store's note of it.
    ///
    /// # Errors
    /// Those of the store. A disk that refuses is asked again by housekeeping.
    pub async fn drop_payload(&self, job: JobId, unit: &JobUnit) -> Result<(), Error> {
        if !self.drop_payload_file(job, unit).await {
            return Ok(());
        }
        let id = unit.id().to_string();
        self.store.let_go_unit(self.node.clone(), id, &[Kept::Payload]).await.map(drop)
    }

    /// Deletes the payload in a unit of a job, and says whether the disk did.
    async fn drop_payload_file(&self, job: JobId, unit: &JobUnit) -> bool {
        let dropped = unit.drop_payload().await;
        if let Err(error) = &dropped {
            tracing::warn!(%job, unit = %unit.id(), %error, "a payload is not deleted yet");
        }
        dropped.is_ok()
    }

    /// Has the units of all jobs show their rows: an operator changed many.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn show_open(self: &Arc<Self>) -> Result<(), Error> {
        for job in self.published.jobs() {
            self.show(job).await?;
        }
        Ok(())
    }

    /// Has the units of jobs show an end that another control node decided: of a pending job, any of them may. If that one
    /// drove the job, its output comes first.
    pub(super) async fn show_ended(
        self: &Arc<Self>,
        ended: Vec<(JobId, Option<InstanceName>)>,
    ) -> Result<(), Error> {
        for (job, owner) in ended {
            match owner {
                Some(owner) if owner != self.node => self.follow_elsewhere(job),
                Some(_) | None => self.show(job).await?,
            }
        }
        Ok(())
    }

    /// Has the units of pending jobs show what they wait for.
    pub(super) async fn show_pending(self: &Arc<Self>) -> Result<(), Error> {
        let mut filter = JobFilter { states: vec![JobState::Pending], ..JobFilter::default() };
        loop {
            let page = self.store.list(filter.clone(), PAGE_MAX).await?;
            for row in page.jobs {
                let unit = self.first_unit(row.id);
                if unit.is_some_and(|unit| unit.extra().explanation != row.explanation) {
                    self.show(row.id).await?;
                }
            }
            match page.next {
                Some(next) => filter.before = Some(next),
                None => return Ok(()),
            }
        }
    }
}

fn report(detail: &JobDetail, child_type: &str, former: JobExtra) -> JobReport {
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
    // A unit's state never goes back, so one whose job waits for another attempt goes on running.
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
    JobReport { state, detail, extra }
}

/// The state of a unit whose job is in this one.
pub(super) const fn unit_state(state: JobState) -> UnitState {
    match state {
        JobState::Pending | JobState::Waiting => UnitState::Pending,
        JobState::Running => UnitState::Running,
        JobState::Successful => UnitState::Succeeded,
        JobState::Failed | JobState::Error => UnitState::Failed,
        JobState::Canceled => UnitState::Canceled,
    }
}

/// A time of the store for clients.
pub fn rfc3339(time: Time) -> String {
    Timestamp::from_millisecond(time.0).unwrap_or_default().to_string()
}
