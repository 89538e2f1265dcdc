//! The units of jobs show what becomes of these: the job's row, and its end only once all of its output is here. Where that is
//! on another control node, `followers` copies it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::STORE_RETRY;
use super::base::Base;
use super::followers::Copier;
use super::forgotten::{Forgotten, left_behind};
use super::lease::LeaseKeeper;
use super::output::{held, writer};
use super::published::Published;
use super::request::parsed;
use super::shown::report;
use crate::controller::core::{Attempt, AttemptNo, InstanceName, Job, JobId, JobKind, JobState};
use crate::controller::store::{Error, JobDetail, JobFilter, Kept, PAGE_MAX};
use crate::rpc::UnitState;
use crate::work::jobs::{JobReport, JobUnit};

/// How long the end of a job is waited for whose output has to be closed first.
const CLOSED_WITHIN: Duration = Duration::from_millis(50);

pub(in crate::controller) struct Publisher {
    pub(super) base: Arc<Base>,
    lease: Arc<LeaseKeeper>,
    pub(super) published: Published,
}

/// Whether a job has a unit here that takes its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnitHere {
    /// It has what it had: a unit, or no need of one.
    AsBefore,
    /// It has got one.
    Made,
    /// It needs one, and cannot have it yet.
    Impossible,
}

impl Publisher {
    pub(super) fn new(base: Arc<Base>, lease: Arc<LeaseKeeper>) -> Arc<Self> {
        Arc::new(Self { base, lease, published: Published::default() })
    }

    /// A unit follows the job that was just made of its payload: nobody else has anything of it.
    ///
    /// # Errors
    /// Those of the store.
    pub(in crate::controller) async fn attach_first(
        self: &Arc<Self>,
        job: JobId,
        unit: JobUnit,
    ) -> Result<(), Error> {
        self.published.add(job, unit, true);
        self.show(job).await?;
        self.base.wake.notify_one();
        Ok(())
    }

    /// A unit that the store knows as the job's follows it from now on. If the job has ended, it shows that at once.
    ///
    /// # Errors
    /// Those of the store.
    pub(in crate::controller) async fn attach(
        self: &Arc<Self>,
        job: JobId,
        unit: JobUnit,
    ) -> Result<(), Error> {
        let detail = self.base.store.detail(job).await?;
        let held = |wanted| {
            let held = detail.holders.iter().filter(move |(_, _, kept)| *kept == wanted);
            held.map(|(node, unit, _)| (node.clone(), unit.clone()))
        };
        let is_elsewhere =
            held(Kept::Payload).count() > 0 && held(Kept::Payload).all(|(node, _)| node != self.base.node);
        let holders: Vec<_> = held(Kept::Payload).chain(held(Kept::Output)).collect();
        let first = self.leading(&holders).filter(|first| first.id() != unit.id());
        if let Some(first) = &first {
            unit.share_output(first).await;
        }
        self.published.add(job, unit, first.is_none());
        let owner = detail.row.controller_node.as_ref();
        if owner.map_or(is_elsewhere, |owner| *owner != self.base.node) {
            self.follow_elsewhere(job);
            return Ok(());
        }
        // Only now does it get what changes.
        self.show(job).await?;
        self.base.wake.notify_one();
        Ok(())
    }

    /// Of these units of a job, the one here that knows of its latest attempt. Others share its output.
    pub(in crate::controller) fn leading(&self, holders: &[(InstanceName, String)]) -> Option<JobUnit> {
        let own = holders.iter().filter(|(node, _)| *node == self.base.node);
        let units = own.filter_map(|(_, unit)| self.base.children.job_unit(unit));
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
    pub(in crate::controller) fn job_of(&self, unit: &str) -> Option<JobId> {
        self.published.job_of(unit)
    }

    /// A unit that is deleted follows no job any more.
    pub(in crate::controller) fn detach(&self, unit: &str) {
        self.published.remove(unit);
    }

    /// Has the units of a job show its row as it is now, but its end only once all of its output is here: if it is not,
    /// it is fetched.
    ///
    /// # Errors
    /// Those of the store.
    pub(in crate::controller) async fn show(self: &Arc<Self>, job: JobId) -> Result<(), Error> {
        if self.first_unit(job).is_none() {
            return Ok(());
        }
        match self.base.store.detail(job).await {
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
        if self.is_followed(job) || self.published.awaits(job) {
            // Its output comes first.
            return Ok(());
        }
        if self.ends_left_behind(detail, first) {
            return Ok(());
        }
        if detail.is_whole(&self.base.node, first.id().as_str(), first.output_size()) {
            return self.report_to(detail, &units).await;
        }
        let is_own = detail.row.controller_node.as_ref() == Some(&self.base.node);
        match detail.output_end() {
            None if is_own => self.end_output(detail.clone(), units).await,
            Some(_) | None => self.follow_elsewhere(job),
        }
        Ok(())
    }

    /// Has what runs of a job end that the store has forgotten, before the job's end is shown: nobody else knows of it. Says
    /// whether there is any.
    fn ends_left_behind(self: &Arc<Self>, detail: &JobDetail, first: &JobUnit) -> bool {
        let left = left_behind(&first.extra(), &detail.job);
        if left.is_empty() {
            return false;
        }
        let (job, words) = (detail.row.id, detail.row.explanation.clone());
        if self.published.begin_ending(job) {
            let children: Vec<String> = left.iter().map(|sent| sent.child.to_string()).collect();
            let unit = first.clone();
            let ended = Forgotten::new(self.base.clone()).end_each(first.clone(), words, left);
            // Their nodes may be away for long, and nobody's store stays open for that.
            let this = Arc::downgrade(self);
            tokio::spawn(async move {
                let has_ended = ended.await;
                if has_ended {
                    unit.forget_children(&children).await;
                }
                let Some(this) = this.upgrade() else { return };
                this.published.end_ending(job);
                if has_ended && let Err(error) = this.show(job).await {
                    tracing::warn!(%job, %error, "a unit does not show the end of its job");
                }
            });
        }
        true
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
        let held = match writer(&self.base.store, &units[0], &detail.job, AttemptNo(u32::MAX)).await? {
            Some(output) => Some(held(&output, Some(row.explanation.as_str()).filter(|_| closes)).await?),
            None => None,
        };
        let detail =
            self.base.store.drive_to_end(self.lease.fence(), (row.id, n), None, held, |_, _| Ok(())).await?;
        match detail.is_whole(&self.base.node, units[0].id().as_str(), units[0].output_size()) {
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
        units.retain(|unit| detail.is_shown_by(&self.base.node, unit.id().as_str()));
        units
    }

    /// The work type of its latest attempt.
    async fn child_type_of(&self, detail: &JobDetail) -> Result<String, Error> {
        match detail.job.attempts.last() {
            Some(attempt) => self.base.child_type(attempt).await,
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
            let held = |unit: &JobUnit| (self.base.node.clone(), unit.id().to_string());
            let is_noted = units.iter().all(|unit| detail.complete.contains(&held(unit)));
            if let (Some(last), false) = (detail.job.attempts.last(), is_noted) {
                let all = units.iter().map(|unit| unit.id().to_string()).collect();
                self.base.store.hold_complete((job, last.n), self.base.node.clone(), all).await?;
            }
        }
        for unit in units {
            unit.report(report(detail, &child_type, unit.extra())).await;
        }
        if detail.row.state.is_final() {
            if self.published.on_end_shown(job, units) {
                self.base.figures.note_end(&detail.row);
            }
            let is_own = detail.row.controller_node.as_ref() == Some(&self.base.node);
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
        let has_none =
            |unit: &String| self.base.children.job_unit(unit).is_none_or(|unit| !unit.has_payload());
        let held =
            detail.holders.iter().filter(|(node, _, kept)| *node == self.base.node && *kept == Kept::Payload);
        held.map(|(_, unit, _)| unit.clone()).filter(has_none).collect()
    }

    /// Deletes the payload in a unit of a job, and the store's note of it.
    ///
    /// # Errors
    /// Those of the store. A disk that refuses is asked again by housekeeping.
    pub(in crate::controller) async fn drop_payload(&self, job: JobId, unit: &JobUnit) -> Result<(), Error> {
        if !self.drop_payload_file(job, unit).await {
            return Ok(());
        }
        let id = unit.id().to_string();
        self.base.store.let_go_unit(self.base.node.clone(), id, &[Kept::Payload]).await.map(drop)
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
    pub(in crate::controller) async fn show_open(self: &Arc<Self>) -> Result<(), Error> {
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
                Some(owner) if owner != self.base.node => self.follow_elsewhere(job),
                Some(_) | None => self.show(job).await?,
            }
        }
        Ok(())
    }

    /// Has the units of pending jobs show what they wait for.
    pub(super) async fn show_pending(self: &Arc<Self>) -> Result<(), Error> {
        let mut filter = JobFilter { states: vec![JobState::Pending], ..JobFilter::default() };
        loop {
            let page = self.base.store.list(filter.clone(), PAGE_MAX).await?;
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

    /// A job that was submitted elsewhere gets a unit here, which has its output from the first byte on, unless nothing is
    /// expected of it any more.
    pub(super) async fn ensure_unit(&self, job: &Job) -> Result<UnitHere, Error> {
        let was_submitted = job.kind != JobKind::ProjectSync;
        // Also one that is lost, as what is read of it once there is news needs a place, and one that had ended when it
        // was taken over, before its output was read to the end.
        let has_output = job.current().is_some_and(|current| {
            if job.state.is_final() { current.has_unread_output() } else { current.is_open() }
        });
        if !has_output || !was_submitted || self.first_unit(job.id).is_some() {
            return Ok(UnitHere::AsBefore);
        }
        let mut holders = self.base.store.holders(job.id, Kept::Payload).await?;
        holders.extend(self.base.store.holders(job.id, Kept::Output).await?);
        // Its unit is here, and was released by force or has shown its end; or it was here, and nobody wants it any more.
        if holders.iter().any(|(node, _)| *node == self.base.node)
            || (job.state.is_final() && holders.is_empty())
        {
            return Ok(UnitHere::AsBefore);
        }
        let Some(unit) = self.base.children.adopt_job(job.id).await else {
            return Ok(UnitHere::Impossible);
        };
        self.base.store.hold(job.id, self.base.node.clone(), unit.id().to_string(), Kept::Output).await?;
        self.published.add(job.id, unit, false);
        Ok(UnitHere::Made)
    }

    /// Has the units of a job here copy its output, and show the job's end once they have all of it.
    pub(super) fn follow_elsewhere(self: &Arc<Self>, job: JobId) {
        self.published.follow(job, || {
            let this = self.clone();
            let task = tokio::spawn(async move {
                Copier::new(this.clone(), job).copy().await;
                this.published.on_followed(job);
                if let Err(error) = this.show(job).await {
                    tracing::warn!(%job, %error, "a unit does not show the end of its job");
                }
            });
            task.abort_handle()
        });
    }

    /// Whether a follower shows the end of the job once its output is here.
    pub(in crate::controller) fn is_followed(&self, job: JobId) -> bool {
        self.published.is_followed(job)
    }

    /// Ends the units of a job that is not in the store, if it was deleted. If the store has lost it with its last commits
    /// instead, the next poll notices that, and looks after its units.
    pub(super) async fn end_deleted(&self, job: JobId) -> Result<(), Error> {
        if self.base.store.lost(vec![job]).await?.is_empty() {
            self.fail_units(job, &format!("job {job} was deleted")).await;
        }
        Ok(())
    }

    /// Ends the units of a job that has no end to show.
    async fn fail_units(&self, job: JobId, why: &str) {
        for unit in self.published.take(job) {
            unit.fail(why).await;
        }
    }

    /// Ends the units of a job whose output nobody has any more. The store says so too, so that all that is said of the job
    /// is the same.
    pub(super) async fn lose_output(&self, detail: &JobDetail, why: &str) {
        let job = detail.row.id;
        if let Err(error) = self.base.store.give_up_output(job, self.base.node.clone()).await {
            tracing::warn!(%job, %error, "that an output is lost is not stored");
        }
        self.fail_units(job, why).await;
    }

    /// A client cancels or releases a unit. If all that it waits for is the output of a job that has ended, it ends.
    /// Returns whether it does.
    pub(in crate::controller) async fn give_up_fetching(&self, unit: &JobUnit) -> bool {
        let is_fetched = unit.extra().finished.is_some() && !unit.is_final();
        if is_fetched {
            self.detach(unit.id().as_str());
            unit.fail("the output of its job was not waited for").await;
        }
        is_fetched
    }
}
