//! The task of one attempt: its unit is sent until its node has it, followed to its end, completed in the job's output, and
//! released. How it is sent is `dispatch`'s business, how it is followed `following`'s, what its end means for the job the
//! core's.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use super::attempts::Attempts;
use super::dispatch::Dispatch;
use super::end::{complete, conclude};
use super::following::{Followed, Following};
use super::request::{parsed, request};
use crate::controller::core::{
    Attempt, AttemptNo, ChildEnd, Driven, Duty, Ending, Evidence, JobId, JobKind, Known, Progress, Refused,
    Time,
};
use crate::controller::store::{Error, JobDetail};
use crate::os::back_off::BackOff;
use crate::work::Leftovers;

/// Between two tries to cancel or release a unit.
pub(super) const UNIT_RETRY: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(300));
/// How long a process asks a node to release a unit.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// What one attempt's task works with.
pub(super) struct AttemptTask {
    pub(super) on: Arc<Attempts>,
    pub(super) id: JobId,
    pub(super) n: AttemptNo,
    pub(super) duty: watch::Receiver<Duty>,
    /// A loss has decided the attempt, and what its stream had said counts.
    pub(super) decided: Arc<Notify>,
}

impl AttemptTask {
    /// Drives the attempt to its last duty. Another task may do so again after an error.
    pub(super) async fn drive(mut self) -> Result<(), Error> {
        let (on, id, n) = (self.on.clone(), self.id, self.n);
        let detail = on.base.store.detail(id).await?;
        let Some(attempt) = detail.job.attempt(n).cloned() else { return Ok(()) };
        if detail.job.state.is_final() {
            // The process before may have ended before it was shown.
            on.publisher.show_detail(&detail).await?;
        }
        let unit = attempt.unit.to_string();
        let mut followed = None;
        if attempt.is_open() {
            let header = parsed(&detail)?;
            let is_there = match request(&on, &detail, &header, &attempt).await? {
                Ok(request) => {
                    Dispatch { task: &mut self, detail: &detail, header: &header, attempt: &attempt, request }
                        .ensure()
                        .await?
                }
                // Another control node may have sent it, and it may run.
                Err(cause) if attempt.sender != on.base.node => return Err(Error::Unready(cause)),
                Err(cause) => self.refuse(cause).await?,
            };
            if is_there {
                followed = Following::begin(&mut self, &detail.job, &attempt).await?.follow().await?;
            }
        } else {
            self.inherit_ended(&detail, &attempt).await?;
        }
        let now = match &followed {
            Some(followed) => followed.now.clone(),
            None => on.base.store.detail(id).await?,
        };
        // Nothing more is added to the output.
        on.publisher.published.await_no_more((id, n));
        complete(&on, now, n).await?;
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
            on.syncs.sweep(id, parsed(&detail)?).await?;
        }
        let without_payload = on.publisher.without_payload(&detail);
        let swept = on.base.store.sweep(on.lease.fence(), id, n, without_payload).await?;
        // Units that began to follow the job after its end was shown.
        if swept.job.state.is_final() { on.publisher.show_detail(&swept).await } else { Ok(()) }
    }

    /// Has a unit released, however often that has to be asked, unless its node has not answered for very long.
    async fn release(&self, unit: &str, leftovers: Leftovers) {
        let (children, mut pauses, begun) = (&self.on.base.children, UNIT_RETRY, Instant::now());
        while !children.release(unit.to_owned(), leftovers).await {
            if begun.elapsed() > FORGOTTEN_AFTER {
                tracing::warn!(unit, "its node is asked no more to release a unit");
                return children.forget(unit.to_owned()).await;
            }
            sleep(pauses.next()).await;
        }
    }

    /// Waits for what may take long, and passes a cancel on meanwhile.
    pub(super) async fn obeying<T>(&mut self, unit: &str, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                Ok(()) = self.duty.changed() => {
                    let now = *self.duty.borrow_and_update();
                    match now {
                        Duty::Cancel | Duty::Release | Duty::Nothing => self.cancel(unit.to_owned()),
                        Duty::Send | Duty::Follow | Duty::Ask => {}
                    }
                }
            }
        }
    }

    /// Has a unit cancelled, however often that has to be asked.
    pub(super) fn cancel(&self, unit: String) {
        let children = self.on.base.children.clone();
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
        let on = &self.on;
        if on.base.children.known(&attempt.unit.to_string()) != Known::Unknown {
            return Ok(());
        }
        let Ok(mut request) = request(on, detail, &parsed(detail)?, attempt).await? else { return Ok(()) };
        request.far = on.far_unit(&attempt.unit).await?;
        if (request.node != on.base.node || request.is_inherited())
            && let Err(cause) = on.base.children.adopt(request).await
        {
            return Err(Error::Unready(format!("its unit cannot be released from here: {cause}")));
        }
        Ok(())
    }

    /// The node of the attempt does not have it, and will not run it: there is no unit.
    pub(super) async fn conclude_absent(&self) -> Result<bool, Error> {
        let (on, n) = (&self.on, self.n);
        let before = on.base.store.job(self.id).await?;
        conclude(on, self.id, n, None, move |job, now| job.on_unknown(n, now)).await?;
        // No later attempt waits for the end of this one.
        let child = before.attempt(n).map(|attempt| attempt.unit.to_string());
        if let (Some(unit), Some(child)) = (on.publisher.first_unit(self.id), child)
            && unit.extra().output_children.get(&n.0) == Some(&child)
            && (unit.extra().output_attempt, unit.extra().output_from) == (n.0, unit.output_size())
        {
            let cleared = unit.lock_output().await.clear(n.0).await;
            cleared.map_err(|source| Error::File { path: unit.output(), source })?;
            unit.note_ended(&child).await;
        }
        Ok(false)
    }

    /// The attempt cannot be sent, since something that it needs is missing: there is no unit.
    pub(super) async fn not_prepared(&self, ending: Ending, why: String) -> Result<bool, Error> {
        let n = self.n;
        let report = move |job: &mut Driven<'_>, now| job.on_not_prepared(n, ending, why.clone(), now);
        conclude(&self.on, self.id, n, None, report).await.map(|_| false)
    }

    /// The attempt cannot be started: there is no unit.
    pub(super) async fn refuse(&self, detail: String) -> Result<bool, Error> {
        let (n, evidence) = (self.n, Evidence::of_unit(ChildEnd::Failed, detail));
        let report = move |job: &mut Driven<'_>, now| job.on_ended(n, &evidence, now);
        conclude(&self.on, self.id, n, None, report).await.map(|_| false)
    }

    /// Reports on the attempt, and has its job's units show what became of that.
    pub(super) async fn report(
        &self,
        report: impl Fn(&mut Driven<'_>, Time) -> Result<(), Refused> + Send + 'static,
    ) -> Result<(), Error> {
        let detail = self.on.base.store.drive(self.on.lease.fence(), self.id, report).await?;
        self.on.publisher.show_detail(&detail).await
    }

    pub(super) async fn is_lost(&self) -> Result<bool, Error> {
        let job = self.on.base.store.job(self.id).await?;
        Ok(job.attempt(self.n).is_some_and(|attempt| attempt.progress == Progress::Lost))
    }

    /// Whether the job goes on with this attempt.
    pub(super) async fn is_current(&self) -> Result<bool, Error> {
        let job = self.on.base.store.job(self.id).await?;
        Ok(!job.state.is_final() && job.is_current(self.n))
    }
}
