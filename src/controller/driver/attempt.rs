//! One attempt of a job: sent until its node has it, followed to its end, completed in the job's output, and released. How it
//! is sent is `sending`'s business, what its end means for the job the core's.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::JobDriver;
use super::end::words_before;
use super::output::AttemptOutput;
use super::request::parsed;
use super::world::{ChildNews, Known};
use crate::controller::core::{
    Attempt, AttemptNo, ChildEnd, Driven, Duty, Ending, Evidence, FinalStatus, Job, JobId, JobKind, Progress,
    Refused, Time,
};
use crate::controller::store::{Error, JobDetail};
use crate::os::back_off::BackOff;
use crate::work::Leftovers;

/// Between two tries to cancel or release a unit.
pub(super) const UNIT_RETRY: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(300));
/// How long a process asks a node to release a unit.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long the store's counters may lag behind what came.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// How long the store need not know that a unit was accepted: that of one that ends sooner is saved with its end.
const TELL_AFTER: Duration = Duration::from_millis(100);

/// An attempt whose unit was followed to its end.
struct Followed {
    /// The last status of its stream.
    status: Option<FinalStatus>,
    /// What its end made of the job.
    now: JobDetail,
}

impl JobDriver {
    /// Drives one attempt to its last duty. May be called again after an error.
    pub(super) async fn drive_attempt(
        self: &Arc<Self>,
        id: JobId,
        n: AttemptNo,
        mut duty: watch::Receiver<Duty>,
        decided: &Notify,
    ) -> Result<(), Error> {
        let detail = self.store.detail(id).await?;
        let Some(attempt) = detail.job.attempt(n).cloned() else { return Ok(()) };
        if detail.job.state.is_final() {
            // What was about to show that may not have come to it.
            self.show_detail(&detail).await?;
        }
        let unit = attempt.unit.to_string();
        let mut followed = None;
        if attempt.is_open() {
            let request = self.request(&detail, &attempt).await?;
            let is_there = match request {
                Ok(request) => self.ensure_sent(&detail, &attempt, request, &mut duty).await?,
                // Another control node may have sent it, and it may run.
                Err(cause) if attempt.sender != self.node => return Err(Error::Unready(cause)),
                Err(cause) => self.refuse(id, n, cause).await?,
            };
            if is_there {
                followed = self.follow(&detail.job, &attempt, &mut duty, decided).await?;
            }
        } else {
            self.inherit_ended(&detail, &attempt).await?;
        }
        let now = match &followed {
            Some(followed) => followed.now.clone(),
            None => self.store.detail(id).await?,
        };
        self.complete(now, n).await?;
        let leftovers = match (followed, attempt.ending()) {
            // It had foreign content in its hands: nothing of it goes on.
            _ if detail.job.kind == JobKind::ProjectSync => Leftovers::End,
            (Some(Followed { status: Some(status), .. }), _) if status.is_orderly() => Leftovers::Stay,
            (None, Some(Ending::Successful)) => Leftovers::Stay,
            // Also where it is not known any more how the stream ended: a playbook that goes on does more harm.
            (Some(_) | None, _) => Leftovers::End,
        };
        self.release(&unit, leftovers).await;
        if detail.job.kind == JobKind::ProjectSync {
            self.sweep_sync(id, parsed(&detail)?).await?;
        }
        let swept = self.store.sweep(self.fence(), id, n, self.without_payload(&detail)).await?;
        // Units that began to follow the job after its end was shown.
        if swept.job.state.is_final() { self.show_detail(&swept).await } else { Ok(()) }
    }

    /// Has a unit released, however often that has to be asked, unless its node has not answered for very long.
    async fn release(&self, unit: &str, leftovers: Leftovers) {
        let (mut pauses, begun) = (UNIT_RETRY, Instant::now());
        while !self.children.release(unit.to_owned(), leftovers).await {
            if begun.elapsed() > FORGOTTEN_AFTER {
                tracing::warn!(unit, "its node is asked no more to release a unit");
                return self.children.forget(unit.to_owned()).await;
            }
            sleep(pauses.next()).await;
        }
    }

    /// Waits for what may take long, and passes a cancel on meanwhile.
    pub(super) async fn obeying<T>(
        &self,
        duty: &mut watch::Receiver<Duty>,
        unit: &str,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                Ok(()) = duty.changed() => {
                    let now = *duty.borrow_and_update();
                    match now {
                        Duty::Cancel | Duty::Release | Duty::Nothing => self.cancel(unit.to_owned()),
                        Duty::Send | Duty::Follow | Duty::Ask => {}
                    }
                }
            }
        }
    }

    /// Has a unit cancelled, however often that has to be asked.
    fn cancel(&self, unit: String) {
        let children = self.children.clone();
        tokio::spawn(async move {
            let mut pauses = UNIT_RETRY;
            while !children.cancel(unit.clone()).await {
                sleep(pauses.next()).await;
            }
        });
    }

    /// An earlier process, or the control node that an ended attempt was taken over from, may not have released its unit: that
    /// is done from here.
    async fn inherit_ended(&self, detail: &JobDetail, attempt: &Attempt) -> Result<(), Error> {
        if self.children.known(&attempt.unit.to_string()) != Known::Unknown {
            return Ok(());
        }
        let Ok(mut request) = self.request(detail, attempt).await? else { return Ok(()) };
        request.far = self.far_unit(&attempt.unit).await?;
        if (request.node != self.node || request.is_inherited())
            && let Err(cause) = self.children.adopt(request).await
        {
            return Err(Error::Unready(format!("its unit cannot be released from here: {cause}")));
        }
        Ok(())
    }

    /// The node of an attempt does not have it, and will not run it.
    pub(super) async fn unknown(self: &Arc<Self>, id: JobId, n: AttemptNo) -> Result<bool, Error> {
        let before = self.store.job(id).await?;
        self.conclude(id, n, None, move |job, now| job.on_unknown(n, now)).await?;
        // No later attempt waits for the end of this one.
        let child = before.attempt(n).map(|attempt| attempt.unit.to_string());
        if let (Some(unit), Some(child)) = (self.first_unit(id), child)
            && unit.extra().output_children.get(&n.0) == Some(&child)
            && (unit.extra().output_attempt, unit.extra().output_from) == (n.0, unit.output_size())
        {
            let cleared = unit.lock_output().await.clear(n.0).await;
            cleared.map_err(|source| Error::File { path: unit.output(), source })?;
            unit.note_ended(&child).await;
        }
        Ok(false)
    }

    /// An attempt cannot be sent, since something that it needs is missing.
    pub(super) async fn not_prepared(
        self: &Arc<Self>,
        id: JobId,
        n: AttemptNo,
        ending: Ending,
        why: String,
    ) -> Result<bool, Error> {
        let report = move |job: &mut Driven<'_>, now| job.on_not_prepared(n, ending, why.clone(), now);
        self.conclude(id, n, None, report).await.map(|_| false)
    }

    /// An attempt cannot be started.
    pub(super) async fn refuse(
        self: &Arc<Self>,
        id: JobId,
        n: AttemptNo,
        detail: String,
    ) -> Result<bool, Error> {
        let evidence = Evidence::of_unit(ChildEnd::Failed, detail);
        self.conclude(id, n, None, move |job, now| job.on_ended(n, &evidence, now)).await.map(|_| false)
    }

    /// Follows the unit to its end, and reports it. Returns nothing if there is nothing to follow any more.
    async fn follow(
        self: &Arc<Self>,
        job: &Job,
        attempt: &Attempt,
        duty: &mut watch::Receiver<Duty>,
        decided: &Notify,
    ) -> Result<Option<Followed>, Error> {
        let (id, n, unit) = (job.id, attempt.n, attempt.unit.to_string());
        let words = words_before(job, n);
        // A full disk makes the output wait, and a cancel may have come before.
        duty.mark_changed();
        let begun = AttemptOutput::begin(&self.store, self.first_unit(id), job, n, &words);
        let mut output = self.obeying(duty, &unit, begun).await?;
        let mut stream = self.children.follow(unit.clone(), output.position()).await;
        // Whether the store knows that it was accepted, and since when it was if the store does not.
        let (mut is_running, mut accepted) = (attempt.progress == Progress::Running, None);
        let (mut is_cancelled, mut is_missing) = (false, false);
        // Since when there is something that the store does not count yet.
        let mut uncounted = (output.position() > 0).then(Instant::now);
        self.note_status(id, n, &output);
        let (end, detail) = loop {
            let now = *duty.borrow_and_update();
            match now {
                // It may yet start there, and nobody waits for that.
                Duty::Cancel if is_missing => return self.unknown(id, n).await.map(|_| None),
                Duty::Cancel if !std::mem::replace(&mut is_cancelled, true) => {
                    self.cancel(unit.clone());
                }
                // It is lost, until there is news of it.
                Duty::Ask => is_running = false,
                // An operator declared its node dead.
                Duty::Release | Duty::Nothing => return Ok(None),
                Duty::Send | Duty::Follow | Duty::Cancel => {}
            }
            let news = tokio::select! {
                news = stream.next() => news,
                () = until_due(accepted, TELL_AFTER) => {
                    (is_running, accepted) = (self.tell_accepted(id, n, accepted).await?, None);
                    continue;
                }
                () = until_due(uncounted, COUNT_EVERY) => {
                    // A job that has ended counts no more.
                    let figures = output.figures(false).await;
                    let has_recap = figures.recap.is_some();
                    let saved = self.store.count(self.fence(), id, figures).await;
                    if has_recap && saved.is_ok() {
                        output.parser.forget_recap();
                    }
                    uncounted = matches!(saved, Err(Error::Away(_))).then(Instant::now);
                    continue;
                }
                () = decided.notified() => {
                    self.show_decided(id, n, &mut output).await?;
                    continue;
                }
                changed = duty.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return Ok(None),
                },
            };
            is_missing = matches!(news, ChildNews::Missing);
            if !is_running && !is_missing && !matches!(news, ChildNews::Ended { .. }) {
                accepted.get_or_insert_with(Instant::now);
            }
            match news {
                ChildNews::Accepted => {}
                ChildNews::Missing => {
                    // Nobody can send it any more, and its node says that it has not got it.
                    if !self.store.may_have_been_sent(id, n).await? {
                        return self.unknown(id, n).await.map(|_| None);
                    }
                    self.tell_accepted(id, n, accepted.take()).await?;
                    is_running = false;
                    let missing = move |job: &mut Driven<'_>, now| job.on_missing(n, now);
                    self.report(id, missing).await?;
                }
                ChildNews::Output(bytes) => {
                    // What an attempt that counts no longer writes is read, and thrown away.
                    if !matches!(*duty.borrow(), Duty::Cancel) || self.is_current(id, n).await? {
                        self.obeying(duty, &unit, output.push(bytes)).await?;
                        self.note_status(id, n, &output);
                    }
                    uncounted.get_or_insert_with(Instant::now);
                }
                ChildNews::Ended { end, detail } => break (end, detail),
            }
        };
        let was_asked_for = attempt.progress == Progress::Lost || attempt.sender != self.node;
        let is_not_there = end == ChildEnd::Refused || (end == ChildEnd::Unknown && was_asked_for);
        if is_not_there && !is_running && accepted.is_none() {
            // Its node does not have it, so it does not run.
            return self.unknown(id, n).await.map(|_| None);
        }
        if let (ChildEnd::Unsent, Some(node)) = (end, &attempt.node) {
            self.note_unanswering(node.clone(), detail.clone()).await?;
        }
        output.parser.finish();
        if end.is_gone() && output.parser.final_status().is_none() && self.is_lost(id, n).await? {
            // It is over, so another one may follow.
            return self.unknown(id, n).await.map(|_| None);
        }
        let (status, evidence) = (output.parser.final_status(), output.parser.evidence(end, detail));
        let accepted = accepted.map(|since: Instant| since.elapsed());
        let report = move |job: &mut Driven<'_>, now| {
            accepted.map_or(Ok(()), |before| job.on_accepted(n, now - before))?;
            job.on_ended(n, &evidence, now)
        };
        // Of a unit that is gone others may have more than could be read here, unless it was read to its end line.
        let is_read = !end.is_gone() || output.parser.has_ended();
        let written = is_read.then_some(&mut output);
        let now = self.conclude(id, n, written, report).await?;
        Ok(Some(Followed { status, now }))
    }

    /// Has the store know that an attempt was accepted, if it was. Returns whether it was.
    async fn tell_accepted(
        self: &Arc<Self>,
        id: JobId,
        n: AttemptNo,
        since: Option<Instant>,
    ) -> Result<bool, Error> {
        let Some(since) = since else { return Ok(false) };
        let before = since.elapsed();
        self.report(id, move |job, now| job.on_accepted(n, now - before)).await?;
        Ok(true)
    }

    /// Reports on an attempt, and has its job's units show what became of that.
    async fn report(
        self: &Arc<Self>,
        id: JobId,
        report: impl Fn(&mut Driven<'_>, Time) -> Result<(), Refused> + Send + 'static,
    ) -> Result<(), Error> {
        let detail = self.store.drive(self.fence(), id, report).await?;
        self.show_detail(&detail).await
    }

    /// A final status decides, also if its node is lost before the unit ends.
    fn note_status(&self, id: JobId, n: AttemptNo, output: &AttemptOutput) {
        if output.parser.final_status().is_some() {
            let evidence = output.parser.evidence(ChildEnd::Failed, "its node was lost".to_owned());
            self.attempts.note_said((id, n), evidence);
        }
    }

    /// A lost attempt has decided its job: what of its output was held back for a retry comes before the end is shown.
    async fn show_decided(
        self: &Arc<Self>,
        id: JobId,
        n: AttemptNo,
        output: &mut AttemptOutput,
    ) -> Result<(), Error> {
        let detail = self.store.detail(id).await?;
        if detail.job.state.is_final() && detail.job.is_current(n) {
            output.write_held(true).await?;
            output.write_end().await;
        }
        self.attempts.on_decided((id, n));
        self.show_detail(&detail).await
    }

    async fn is_lost(&self, id: JobId, n: AttemptNo) -> Result<bool, Error> {
        let job = self.store.job(id).await?;
        Ok(job.attempt(n).is_some_and(|attempt| attempt.progress == Progress::Lost))
    }

    async fn is_current(&self, id: JobId, n: AttemptNo) -> Result<bool, Error> {
        let job = self.store.job(id).await?;
        Ok(!job.state.is_final() && job.is_current(n))
    }
}

/// So long after that; never, if there is no such time.
async fn until_due(since: Option<Instant>, after: Duration) {
    match since {
        Some(since) => sleep_until(since + after).await,
        None => std::future::pending().await,
    }
}
