//! Follows the unit of an attempt to its end: adds its output to the job's, tells the store what happens, and passes a
//! cancel on.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::attempt::AttemptTask;
use super::checks::note_unanswering;
use super::end::{conclude, words_before};
use super::output::AttemptOutput;
use super::world::{ChildNews, ChildStream};
use crate::controller::core::{Attempt, ChildEnd, Driven, Duty, FinalStatus, Job, Progress};
use crate::controller::store::{Error, JobRecord};

/// How far the store's counters may lag behind the output.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// How long to wait before telling the store that a unit was accepted: if the unit ends sooner, both are saved at once.
const TELL_AFTER: Duration = Duration::from_millis(100);

/// An attempt whose unit was followed to its end.
pub(super) struct Followed {
    /// The last status of its stream.
    pub(super) status: Option<FinalStatus>,
    /// The job after the end.
    pub(super) now: JobRecord,
}

/// A unit while it is followed.
pub(super) struct Following<'a> {
    task: &'a mut AttemptTask,
    attempt: &'a Attempt,
    unit: String,
    output: AttemptOutput,
    stream: Box<dyn ChildStream>,
    /// The store knows that it was accepted.
    is_running: bool,
    /// Since when it has been accepted, if the store does not know yet.
    accepted: Option<Instant>,
    is_cancelled: bool,
    /// The last news was that its node does not have the unit but may still run it.
    is_missing: bool,
    /// Since when there has been output that the store has not counted.
    uncounted: Option<Instant>,
}

/// What is next.
enum FollowStep {
    /// Check again what to do.
    Look,
    /// The unit has ended: how it ended, and its Detail.
    End(ChildEnd, String),
    /// There is nothing to follow any more.
    Over,
}

impl<'a> Following<'a> {
    /// Goes on with an attempt's output where an earlier process stopped.
    ///
    /// # Errors
    /// The output that is already here cannot be read or cut.
    pub(super) async fn begin(
        task: &'a mut AttemptTask,
        job: &Job,
        attempt: &'a Attempt,
    ) -> Result<Self, Error> {
        let (on, unit) = (task.on.clone(), attempt.unit.to_string());
        let words = words_before(job, task.n);
        // Lets `obeying` see a cancel that has already come, because on a full disk the output may wait for long.
        task.duty.mark_changed();
        let begun =
            AttemptOutput::begin(&on.base.store, on.publisher.first_unit(job.id), job, task.n, &words);
        let output = task.obeying(&unit, begun).await?;
        let stream = on.base.children.follow(unit.clone(), output.position()).await;
        Ok(Self {
            is_running: attempt.progress == Progress::Running,
            uncounted: (output.position() > 0).then(Instant::now),
            accepted: None,
            is_cancelled: false,
            is_missing: false,
            task,
            attempt,
            unit,
            output,
            stream,
        })
    }

    /// Follows the unit to its end and reports the end. Returns `None` if there is nothing to follow any more.
    pub(super) async fn follow(mut self) -> Result<Option<Followed>, Error> {
        self.note_status();
        loop {
            match self.next().await? {
                FollowStep::Look => {}
                FollowStep::End(end, detail) => return self.end(end, detail).await,
                FollowStep::Over => return Ok(None),
            }
        }
    }

    /// Waits for what is next, and does what is due meanwhile.
    async fn next(&mut self) -> Result<FollowStep, Error> {
        let duty = *self.task.duty.borrow_and_update();
        match duty {
            // The unit may still start on its node, but nobody waits for that.
            Duty::Cancel if self.is_missing => {
                return self.task.conclude_absent().await.map(|_| FollowStep::Over);
            }
            Duty::Cancel if !std::mem::replace(&mut self.is_cancelled, true) => {
                self.task.cancel(self.unit.clone());
            }
            // The attempt counts as lost until there is news of it.
            Duty::Ask => self.is_running = false,
            // An operator declared its node dead.
            Duty::Release | Duty::Nothing => return Ok(FollowStep::Over),
            Duty::Send | Duty::Follow | Duty::Cancel => {}
        }
        tokio::select! {
            news = self.stream.next() => return self.hear(news).await,
            () = until_due(self.accepted, TELL_AFTER) => self.is_running = self.tell_accepted().await?,
            () = until_due(self.uncounted, COUNT_EVERY) => self.count().await,
            () = self.task.decided.notified() => self.show_decided().await?,
            changed = self.task.duty.changed() => if changed.is_err() {
                return Ok(FollowStep::Over);
            },
        }
        Ok(FollowStep::Look)
    }

    async fn hear(&mut self, news: ChildNews) -> Result<FollowStep, Error> {
        self.is_missing = matches!(news, ChildNews::Missing);
        if !self.is_running && !self.is_missing && !matches!(news, ChildNews::Ended { .. }) {
            self.accepted.get_or_insert_with(Instant::now);
        }
        match news {
            ChildNews::Accepted => {}
            ChildNews::Missing => {
                let (store, id, n) = (&self.task.on.base.store, self.task.id, self.task.n);
                // Nobody can send the unit any more, and its node says that it does not have it.
                if !store.may_have_been_sent(id, n).await? {
                    return self.task.conclude_absent().await.map(|_| FollowStep::Over);
                }
                self.tell_accepted().await?;
                self.is_running = false;
                self.task.report(move |job, now| job.on_missing(n, now)).await?;
            }
            ChildNews::Output(bytes) => {
                // The output of an attempt that no longer counts is read and discarded.
                if !matches!(*self.task.duty.borrow(), Duty::Cancel) || self.task.is_current().await? {
                    self.task.obeying(&self.unit, self.output.push(bytes)).await?;
                    self.note_status();
                }
                self.uncounted.get_or_insert_with(Instant::now);
            }
            ChildNews::Ended { end, detail } => return Ok(FollowStep::End(end, detail)),
        }
        Ok(FollowStep::Look)
    }

    /// Handles the end of the unit.
    async fn end(mut self, end: ChildEnd, detail: String) -> Result<Option<Followed>, Error> {
        let (on, id, n) = (self.task.on.clone(), self.task.id, self.task.n);
        if on.publisher.published.awaits(id) {
            // The loss of the attempt has decided the job, and the unit ended before this task was notified.
            self.show_decided().await?;
        }
        let was_asked_for = self.attempt.progress == Progress::Lost || self.attempt.sender != on.base.node;
        let is_not_there = end == ChildEnd::Refused || (end == ChildEnd::Unknown && was_asked_for);
        if is_not_there && !self.is_running && self.accepted.is_none() {
            // The node does not have the unit, so the unit does not run.
            return self.task.conclude_absent().await.map(|_| None);
        }
        if let (ChildEnd::Unsent, Some(node)) = (end, &self.attempt.node) {
            note_unanswering(&on.base, node.clone(), detail.clone()).await?;
        }
        self.output.parser.finish();
        if end.is_gone() && self.output.parser.final_status().is_none() && self.task.is_lost().await? {
            // The attempt is over, so another one may follow.
            return self.task.conclude_absent().await.map(|_| None);
        }
        let parser = &self.output.parser;
        let (status, evidence) = (parser.final_status(), parser.evidence(end, detail));
        let accepted = self.accepted.map(|since| since.elapsed());
        let report = move |job: &mut Driven<'_>, now| {
            accepted.map_or(Ok(()), |before| job.on_accepted(n, now - before))?;
            job.on_ended(n, &evidence, now)
        };
        // If the unit is gone before its end line was read, others may have more of its output than this node.
        let is_read = !end.is_gone() || parser.has_ended();
        let written = is_read.then_some(&mut self.output);
        let now = conclude(&on, id, n, written, report).await?;
        Ok(Some(Followed { status, now }))
    }

    /// Tells the store that the attempt was accepted, if it was. Returns whether it was.
    async fn tell_accepted(&mut self) -> Result<bool, Error> {
        let Some(since) = self.accepted else { return Ok(false) };
        let (before, n) = (since.elapsed(), self.task.n);
        self.task.report(move |job, now| job.on_accepted(n, now - before)).await?;
        self.accepted = None;
        Ok(true)
    }

    /// Updates the store's counters.
    async fn count(&mut self) {
        let (on, id) = (&self.task.on, self.task.id);
        let figures = self.output.figures(false).await;
        let has_recap = figures.recap.is_some();
        let saved = on.base.store.count(on.lease.fence(), id, figures).await;
        if has_recap && saved.is_ok() {
            self.output.parser.forget_recap();
        }
        // Other errors are final, because the counters of a job that has ended do not change any more.
        self.uncounted = matches!(saved, Err(Error::Away(_))).then(Instant::now);
    }

    /// Notes a final status: it decides the job even if the node is lost before the unit ends.
    fn note_status(&self) {
        if self.output.parser.final_status().is_some() {
            let evidence = self.output.parser.evidence(ChildEnd::Failed, "its node was lost".to_owned());
            self.task.on.note_said((self.task.id, self.task.n), evidence);
        }
    }

    /// Shows the end of a job that a lost attempt has decided. The output that was held back for a retry is written
    /// first.
    async fn show_decided(&mut self) -> Result<(), Error> {
        let (on, id, n) = (&self.task.on, self.task.id, self.task.n);
        let detail = on.base.store.detail(id).await?;
        if detail.job.state.is_final() && detail.job.is_current(n) {
            self.output.write_held(true).await?;
            self.output.write_end().await;
        }
        on.publisher.published.await_no_more((id, n));
        on.publisher.show_detail(&detail).await
    }
}

/// Waits until `after` has passed from `since` on; forever if `since` is `None`.
async fn until_due(since: Option<Instant>, after: Duration) {
    match since {
        Some(since) => sleep_until(since + after).await,
        None => std::future::pending().await,
    }
}
