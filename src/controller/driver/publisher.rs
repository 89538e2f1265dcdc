//! Shows the state of jobs in their units. A unit shows its job's row, but the end only once the whole output is here.
//! If the output is on another control node, `followers` copies it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::base::{Base, STORE_RETRY};
use super::followers::Copier;
use super::forgotten::{Forgotten, left_behind};
use super::lease::LeaseKeeper;
use super::output::{held, writer};
use super::published::Published;
use super::shown::report;
use crate::controller::core::{Attempt, AttemptNo, InstanceName, Job, JobId, JobKind, JobState};
use crate::controller::store::{Error, JobRecord, JobSelection, Kept, PAGE_MAX};
use crate::rpc::UnitState;
use crate::work::jobs::{JobUnit, ShownJob};

/// How long to wait for the end of a job whose output has to be closed first.
const CLOSED_WITHIN: Duration = Duration::from_millis(50);

pub(in crate::controller) struct Publisher {
    pub(super) base: Arc<Base>,
    lease: Arc<LeaseKeeper>,
    pub(super) published: Published,
}

/// Whether a job has a unit here that takes its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnitHere {
    /// As before: it has a unit, or needs none.
    AsBefore,
    /// A unit was made.
    Made,
    /// It needs a unit but cannot have one yet.
    Impossible,
}

impl Publisher {
    pub(super) fn new(base: Arc<Base>, lease: Arc<LeaseKeeper>) -> Arc<Self> {
        Arc::new(Self { base, lease, published: Published::default() })
    }

    /// Lets a unit follow the job that was just made from its payload. Nobody else has any part of that job yet.
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

    /// Lets a unit follow a job from now on; the store knows of this already. If the job has ended, the unit shows its
    /// end at once.
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
        // The unit gets changes only from here on, so it first shows the present state.
        self.show(job).await?;
        self.base.wake.notify_one();
        Ok(())
    }

    /// Among these units of a job, the one on this node that knows the latest attempt. The others share its output.
    pub(in crate::controller) fn leading(&self, holders: &[(InstanceName, String)]) -> Option<JobUnit> {
        let own = holders.iter().filter(|(node, _)| *node == self.base.node);
        let units = own.filter_map(|(_, unit)| self.base.children.job_unit(unit));
        units.min_by_key(|unit| Reverse(unit.extra().output_attempt))
    }

    /// The unit that has the job's output.
    pub(in crate::controller) fn first_unit(&self, job: JobId) -> Option<JobUnit> {
        self.published.first(job)
    }

    /// The units here that show jobs and have not shown the end yet.
    pub(in crate::controller) fn shown_units(&self) -> BTreeMap<String, JobId> {
        let units = |job| self.published.units(job).into_iter().map(move |unit| (unit.id().to_string(), job));
        self.published.jobs().into_iter().flat_map(units).collect()
    }

    /// The job of a unit, if the unit has not shown the job's end yet.
    pub(in crate::controller) fn job_of(&self, unit: &str) -> Option<JobId> {
        self.published.job_of(unit)
    }

    /// Stops a deleted unit from following its job.
    pub(in crate::controller) fn detach(&self, unit: &str) {
        self.published.remove(unit);
    }

    /// Shows a job's row in its units as it is now, but the end only once the whole output is here. Otherwise the
    /// output is fetched.
    pub(in crate::controller) async fn show(self: &Arc<Self>, job: JobId) -> Result<(), Error> {
        if self.first_unit(job).is_none() {
            return Ok(());
        }
        match self.base.store.detail(job).await {
            Err(Error::NoJob(_)) => self.end_deleted(job).await,
            found => self.show_detail(&found?).await,
        }
    }

    /// Like [`Self::show`], with a row that was just read or written.
    pub(super) async fn show_detail(self: &Arc<Self>, detail: &JobRecord) -> Result<(), Error> {
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

    /// Ends the children of a job that the store has forgotten, before the job's end is shown, because nobody else
    /// knows them. Returns whether there are any.
    fn ends_left_behind(self: &Arc<Self>, detail: &JobRecord, first: &JobUnit) -> bool {
        let left = left_behind(&first.extra(), &detail.job);
        if left.is_empty() {
            return false;
        }
        let (job, words) = (detail.row.id, detail.row.explanation.clone());
        if self.published.begin_ending(job) {
            let children: Vec<String> = left.iter().map(|sent| sent.child.to_string()).collect();
            let unit = first.clone();
            let ended = Forgotten::new(self.base.clone()).end_each(first.clone(), words, left);
            // A weak reference, because the children's nodes may be away for long, and this task must not keep the
            // store open meanwhile.
            let this = Arc::downgrade(self);
            tokio::spawn(async move {
                let has_ended = ended.await;
                if has_ended {
                    unit.forget_children(&children).await;
                }
                let Some(this) = this.upgrade() else { return };
                this.published.end_ending(job);
                if has_ended && let Err(error) = this.show(job).await {
                    tracing::warn!(%job, %error, "cannot show in a unit that its job has ended");
                }
            });
        }
        true
    }

    /// Closes and measures the output of a job that ended by a loss and not by the end of an attempt. A task does this,
    /// because a full disk must not delay the loop that shows jobs.
    async fn end_output(self: &Arc<Self>, detail: JobRecord, units: Vec<JobUnit>) {
        let job = detail.row.id;
        // An output that was not read to its end is read first.
        if detail.job.attempts.last().is_none_or(Attempt::has_unread_output)
            || !self.published.begin_closing(job)
        {
            return;
        }
        let this = self.clone();
        let ending = tokio::spawn(async move {
            while let Err(error) = this.measure_output(&detail, &units).await {
                match error {
                    // Another control node is responsible by now.
                    Error::Fenced(_) => break,
                    Error::NoJob(_) if this.end_deleted(job).await.is_ok() => break,
                    error => tracing::warn!(%job, %error, "cannot show the end of a job yet, trying again"),
                }
                sleep(STORE_RETRY).await;
            }
            this.published.end_closing(job);
        });
        let _full = timeout(CLOSED_WITHIN, ending).await;
    }

    /// Waits until the output of a job is closed and measured, if that is due. After that the unit that printed it may
    /// be released.
    pub(super) async fn output_ended(self: &Arc<Self>, job: JobId) -> Result<(), Error> {
        self.show(job).await?;
        self.published.closed(job).await;
        Ok(())
    }

    async fn measure_output(self: &Arc<Self>, detail: &JobRecord, units: &[JobUnit]) -> Result<(), Error> {
        let Some(n) = detail.job.attempts.last().map(|last| last.n) else { return Ok(()) };
        let row = &detail.row;
        let closes = detail.job.closes_output();
        // No attempt may write after the end.
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

    /// Shows the units of an ended job as running, because they do not have the whole output yet.
    pub(super) async fn show_running(&self, detail: &JobRecord, why: &str) -> Result<(), Error> {
        let child_type = self.child_type_of(detail).await?;
        for unit in self.units_of(detail) {
            let ShownJob { extra, .. } = report(detail, &child_type, unit.extra());
            unit.report(ShownJob { state: UnitState::Running, detail: why.to_owned(), extra }).await;
        }
        Ok(())
    }

    /// The units here that show a job.
    fn units_of(&self, detail: &JobRecord) -> Vec<JobUnit> {
        let mut units = self.published.units(detail.row.id);
        units.retain(|unit| detail.is_shown_by(&self.base.node, unit.id().as_str()));
        units
    }

    /// The work type of a job's latest attempt.
    async fn child_type_of(&self, detail: &JobRecord) -> Result<String, Error> {
        match detail.job.attempts.last() {
            Some(attempt) => self.base.child_type(attempt).await,
            None => Ok(String::new()),
        }
    }

    /// Shows a row in units as it is.
    async fn report_to(&self, detail: &JobRecord, units: &[JobUnit]) -> Result<(), Error> {
        let (job, child_type) = (detail.row.id, self.child_type_of(detail).await?);
        if detail.row.state.is_final() {
            // Each unit gets the output, because any of them may be the only one left later.
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
            for unit in units.iter().filter(|_| detail.parsed_header().is_ok_and(|header| !header.rerun)) {
                match is_noted_later {
                    true => drop(self.drop_payload_file(job, unit).await),
                    false => self.drop_payload(job, unit).await?,
                }
            }
        }
        Ok(())
    }

    /// The units here that no longer have the job's payload, although the store notes it for them.
    pub(super) fn without_payload(&self, detail: &JobRecord) -> Vec<String> {
        let has_none =
            |unit: &String| self.base.children.job_unit(unit).is_none_or(|unit| !unit.has_payload());
        let held =
            detail.holders.iter().filter(|(node, _, kept)| *node == self.base.node && *kept == Kept::Payload);
        held.map(|(_, unit, _)| unit.clone()).filter(has_none).collect()
    }

    /// Deletes the payload in a unit of a job, and the store's note of it.
    ///
    /// # Errors
    /// Those of the store. If the disk refuses, housekeeping tries again.
    pub(in crate::controller) async fn drop_payload(&self, job: JobId, unit: &JobUnit) -> Result<(), Error> {
        if !self.drop_payload_file(job, unit).await {
            return Ok(());
        }
        let id = unit.id().to_string();
        self.base.store.let_go_unit(self.base.node.clone(), id, &[Kept::Payload]).await.map(drop)
    }

    /// Deletes the payload in a unit of a job. Returns whether that succeeded.
    async fn drop_payload_file(&self, job: JobId, unit: &JobUnit) -> bool {
        let dropped = unit.drop_payload().await;
        if let Err(error) = &dropped {
            tracing::warn!(%job, unit = %unit.id(), %error, "cannot delete a payload yet");
        }
        dropped.is_ok()
    }

    /// Shows the rows of all jobs in their units, because an operator has changed many of them.
    pub(in crate::controller) async fn show_open(self: &Arc<Self>) -> Result<(), Error> {
        for job in self.published.jobs() {
            self.show(job).await?;
        }
        Ok(())
    }

    /// Shows the ends of jobs that another control node has decided. Any control node may end a pending job. If another
    /// control node drove the job, the job's output is copied first.
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

    /// Shows in the units of pending jobs what they wait for.
    pub(super) async fn show_pending(self: &Arc<Self>) -> Result<(), Error> {
        let mut filter = JobSelection { states: vec![JobState::Pending], ..JobSelection::default() };
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

    /// Makes a unit here for a job that was submitted elsewhere, unless nothing is expected from the job any more. The
    /// unit takes the job's output from the first byte on.
    pub(super) async fn ensure_unit(&self, job: &Job) -> Result<UnitHere, Error> {
        let was_submitted = job.kind != JobKind::ProjectSync;
        // This includes a lost attempt, whose output needs a place once there is news of it. It also includes an
        // attempt that ended before the job was taken over and whose output was not read to its end.
        let has_output = job.current().is_some_and(|current| {
            if job.state.is_final() { current.has_unread_output() } else { current.is_open() }
        });
        if !has_output || !was_submitted || self.first_unit(job.id).is_some() {
            return Ok(UnitHere::AsBefore);
        }
        let mut holders = self.base.store.holders(job.id, Kept::Payload).await?;
        holders.extend(self.base.store.holders(job.id, Kept::Output).await?);
        // Either the job had a unit here, which was released by force or has shown the end, or the job has ended and
        // nobody wants a unit of it any more.
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

    /// Starts copying the output of a job to its units here, which show the job's end once they have all of it.
    pub(super) fn follow_elsewhere(self: &Arc<Self>, job: JobId) {
        self.published.follow(job, || {
            let this = self.clone();
            let task = tokio::spawn(async move {
                Copier::new(this.clone(), job).copy().await;
                this.published.on_followed(job);
                if let Err(error) = this.show(job).await {
                    tracing::warn!(%job, %error, "cannot show in a unit that its job has ended");
                }
            });
            task.abort_handle()
        });
    }

    /// Whether a follower will show the end of the job once the output is here.
    pub(in crate::controller) fn is_followed(&self, job: JobId) -> bool {
        self.published.is_followed(job)
    }

    /// Ends the units of a job that is not in the store, if the job was deleted. If the store has lost it with its last
    /// commits instead, the next poll notices that and handles its units.
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

    /// Ends the units of a job whose output nobody has any more. Stores that too, so that every answer about the job
    /// agrees.
    pub(super) async fn lose_output(&self, detail: &JobRecord, why: &str) {
        let job = detail.row.id;
        if let Err(error) = self.base.store.give_up_output(job, self.base.node.clone()).await {
            tracing::warn!(%job, %error, "cannot store that an output was lost");
        }
        self.fail_units(job, why).await;
    }

    /// Ends a unit that a client cancels or releases, if the job has ended and the unit only waits for its output.
    /// Returns whether the unit was ended.
    pub(in crate::controller) async fn give_up_fetching(&self, unit: &JobUnit) -> bool {
        let is_fetched = unit.extra().finished.is_some() && !unit.is_final();
        if is_fetched {
            self.detach(unit.id().as_str());
            unit.fail("the output of its job was not waited for").await;
        }
        is_fetched
    }
}
