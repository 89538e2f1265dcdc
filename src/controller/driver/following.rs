//! The unit of an attempt, followed to its end: its output goes to the job's, the store learns what comes of it, and a cancel
//! is passed on.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::attempt::AttemptTask;
use super::checks::note_unanswering;
use super::end::{conclude, words_before};
use super::output::AttemptOutput;
use super::world::{ChildNews, ChildStream};
use crate::controller::core::{Attempt, ChildEnd, Driven, Duty, FinalStatus, Job, Progress};
use crate::controller::store::{Error, JobDetail};

/// How long the store's counters may lag behind what came.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// How long the store need not know that a unit was accepted: that of one that ends sooner is saved with its end.
const TELL_AFTER: Duration = Duration::from_millis(100);

/// An attempt whose unit was followed to its end.
pub(super) struct Followed {
    /// The last status of its stream.
    pub(super) status: Option<FinalStatus>,
    /// What its end made of the job.
    pub(super) now: JobDetail,
}

/// How far a unit was followed.
pub(super) struct Following<'a> {
    task: &'a mut AttemptTask,
    attempt: &'a Attempt,
    unit: String,
    output: AttemptOutput,
    stream: Box<dyn ChildStream>,
    /// The store knows that it was accepted.
    is_running: bool,
    /// Since when it was, if the store does not know.
    accepted: Option<Instant>,
    is_cancelled: bool,
    /// Its node said last that it does not have it, and may yet run it.
    is_missing: bool,
    /// Since when there is something that the store does not count yet.
    uncounted: Option<Instant>,
}

/// What is next.
enum FollowStep {
    /// To look what has come since.
    Look,
    /// The unit has ended: how, and its Detail.
    End(ChildEnd, String),
    /// There is nothing to follow any more.
    Over,
}

impl<'a> Following<'a> {
    /// Goes on with an attempt's output where an earlier process stopped.
    ///
    /// # Errors
    /// What is there of it cannot be read or cut.
    pub(super) async fn begin(
        task: &'a mut AttemptTask,
        job: &Job,
        attempt: &'a Attempt,
    ) -> Result<Self, Error> {
        let (on, unit) = (task.on.clone(), attempt.unit.to_string());
        let words = words_before(job, task.n);
        // A full disk makes the output wait, and a cancel may have come before.
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

    /// Follows the unit to its end, and reports it. Returns nothing if there is nothing to follow any more.
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
            // It may yet start there, and nobody waits for that.
            Duty::Cancel if self.is_missing => {
                return self.task.conclude_absent().await.map(|_| FollowStep::Over);
            }
            Duty::Cancel if !std::mem::replace(&mut self.is_cancelled, true) => {
                self.task.cancel(self.unit.clone());
            }
            // It is lost, until there is news of it.
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
                // Nobody can send it any more, and its node says that it has not got it.
                if !store.may_have_been_sent(id, n).await? {
                    return self.task.conclude_absent().await.map(|_| FollowStep::Over);
                }
                self.tell_accepted().await?;
                self.is_running = false;
                self.task.report(move |job, now| job.on_missing(n, now)).await?;
            }
            ChildNews::Output(bytes) => {
                // What an attempt that counts no longer writes is read, and thrown away.
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

    /// The unit has ended like that.
    async fn end(mut self, end: ChildEnd, detail: String) -> Result<Option<Followed>, Error> {
        let (on, id, n) = (self.task.on.clone(), self.task.id, self.task.n);
        if on.publisher.published.awaits(id) {
            // Its loss has decided the job, and the unit ended before this was heard.
            self.show_decided().await?;
        }
        let was_asked_for = self.attempt.progress == Progress::Lost || self.attempt.sender != on.base.node;
        let is_not_there = end == ChildEnd::Refused || (end == ChildEnd::Unknown && was_asked_for);
        if is_not_there && !self.is_running && self.accepted.is_none() {
            // Its node does not have it, so it does not run.
            return self.task.conclude_absent().await.map(|_| None);
        }
        if let (ChildEnd::Unsent, Some(node)) = (end, &self.attempt.node) {
            note_unanswering(&on.base, node.clone(), detail.clone()).await?;
        }
        self.output.parser.finish();
        if end.is_gone() && self.output.parser.final_status().is_none() && self.task.is_lost().await? {
            // It is over, so another one may follow.
            return self.task.conclude_absent().await.map(|_| None);
        }
        let parser = &self.output.parser;
        let (status, evidence) = (parser.final_status(), parser.evidence(end, detail));
        let accepted = self.accepted.map(|since| since.elapsed());
        let report = move |job: &mut Driven<'_>, now| {
            accepted.map_or(Ok(()), |before| job.on_accepted(n, now - before))?;
            job.on_ended(n, &evidence, now)
        };
        // Of a unit that is gone others may have more than could be read here, unless it was read to its end line.
        let is_read = !end.is_gone() || parser.has_ended();
        let written = is_read.then_some(&mut self.output);
        let now = conclude(&on, id, n, written, report).await?;
        Ok(Some(Followed { status, now }))
    }

    /// Has the store know that the attempt was accepted, if it was. Returns whether it was.
    async fn tell_accepted(&mut self) -> Result<bool, Error> {
        let Some(since) = self.accepted else { return Ok(false) };
        let (before, n) = (since.elapsed(), self.task.n);
        self.task.report(move |job, now| job.on_accepted(n, now - before)).await?;
        self.accepted = None;
        Ok(true)
    }

    /// Has the store count what came.
    async fn count(&mut self) {
        let (on, id) = (&self.task.on, self.task.id);
        let figures = self.output.figures(false).await;
        let has_recap = figures.recap.is_some();
        let saved = on.base.store.count(on.lease.fence(), id, figures).await;
        if has_recap && saved.is_ok() {
            self.output.parser.forget_recap();
        }
        // A job that has ended counts no more.
        self.uncounted = matches!(saved, Err(Error::Away(_))).then(Instant::now);
    }

    /// A final status decides, also if its node is lost before the unit ends.
    fn note_status(&self) {
        if self.output.parser.final_status().is_some() {
            let evidence = self.output.parser.evidence(ChildEnd::Failed, "its node was lost".to_owned());
            self.task.on.note_said((self.task.id, self.task.n), evidence);
        }
    }

    /// The attempt is lost, and has decided its job: what of its output was held back for a retry comes before the end is
    /// shown.
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

/// So long after that; never, if there is no such time.
async fn until_due(since: Option<Instant>, after: Duration) {
    match since {
        Some(since) => sleep_until(since + after).await,
        None => std::future::pending().await,
    }
}
