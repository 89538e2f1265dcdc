//! The task of one attempt. It sends the attempt's unit until the unit's node has it, follows the unit to its end,
//! completes the job's output, and releases the unit. `dispatch` knows how to send, `following` knows how to follow,
//! and the core decides what the end means for the job.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use super::attempts::Attempts;
use super::base::{STORE_RETRY, UNIT_RETRY};
use super::dispatch::Dispatch;
use super::end::{complete, conclude};
use super::following::{Followed, Following};
use super::request::request;
use crate::controller::core::{
    Attempt, AttemptNo, ChildEnd, Driven, Duty, Ending, Evidence, JobId, JobKind, Known, Progress, Refused,
    Time,
};
use crate::controller::store::{Error, JobRecord};
use crate::work::Leftovers;

/// How long a process goes on asking a node to release a unit.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// What one attempt's task works with.
pub(super) struct AttemptTask {
    pub(super) on: Arc<Attempts>,
    pub(super) id: JobId,
    pub(super) n: AttemptNo,
    pub(super) duty: watch::Receiver<Duty>,
    /// Notified when the attempt is lost but its stream had told the final status, which then decides the job.
    pub(super) decided: Arc<Notify>,
}

impl Attempts {
    /// Tells an attempt's task its duty, and starts the task if there is none.
    pub(super) fn assign(self: &Arc<Self>, job: JobId, n: AttemptNo, duty: Duty) {
        self.tasks.assign((job, n), duty, |duty, decided| {
            let this = self.clone();
            let task = tokio::spawn(async move {
                let task = AttemptTask { on: this.clone(), id: job, n, duty, decided };
                if let Err(error) = task.drive().await {
                    tracing::warn!(%job, attempt = %n, %error, "attempt failed, retrying");
                    sleep(STORE_RETRY).await;
                }
                this.dismiss(job, n);
                this.base.wake.notify_one();
            });
            task.abort_handle()
        });
    }
}

impl AttemptTask {
    /// Drives the attempt to its last duty. After an error another task may drive it again.
    pub(super) async fn drive(mut self) -> Result<(), Error> {
        let (on, id, n) = (self.on.clone(), self.id, self.n);
        let detail = on.base.store.detail(id).await?;
        let Some(attempt) = detail.job.attempt(n).cloned() else { return Ok(()) };
        if detail.job.state.is_final() {
            // An earlier process may have ended before it showed the job's end.
            on.publisher.show_detail(&detail).await?;
        }
        let unit = attempt.unit.to_string();
        let mut followed = None;
        if attempt.is_open() {
            let header = detail.parsed_header()?;
            let is_there = match request(&on, &detail, &header, &attempt).await? {
                Ok(request) => {
                    Dispatch { task: &mut self, detail: &detail, header: &header, attempt: &attempt, request }
                        .ensure()
                        .await?
                }
                // Another control node may have sent the unit, so it may be running.
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
            // A sync handles foreign content, so none of its processes may stay.
            _ if detail.job.kind == JobKind::ProjectSync => Leftovers::End,
            (Some(Followed { status: Some(status), .. }), _) if status.is_orderly() => Leftovers::Stay,
            (None, Some(Ending::Successful)) => Leftovers::Stay,
            // This includes streams whose end nobody knows any more, because a playbook that runs on does more harm.
            (Some(_) | None, _) => Leftovers::End,
        };
        self.release(&unit, leftovers).await;
        if detail.job.kind == JobKind::ProjectSync {
            on.syncs.sweep(id, detail.parsed_header()?).await?;
        }
        let without_payload = on.publisher.without_payload(&detail);
        let swept = on.base.store.sweep(on.lease.fence(), id, n, without_payload).await?;
        // Units may have begun to follow the job after its end was shown.
        if swept.job.state.is_final() { on.publisher.show_detail(&swept).await } else { Ok(()) }
    }

    /// Releases a unit, and repeats the request until it succeeds or `FORGOTTEN_AFTER` has passed.
    async fn release(&self, unit: &str, leftovers: Leftovers) {
        let (children, mut pauses, begun) = (&self.on.base.children, UNIT_RETRY, Instant::now());
        while !children.release(unit.to_owned(), leftovers).await {
            if begun.elapsed() > FORGOTTEN_AFTER {
                tracing::warn!(
                    unit,
                    "giving up on the release of a unit: its node has not released it for too long"
                );
                return children.forget(unit.to_owned()).await;
            }
            sleep(pauses.next()).await;
        }
    }

    /// Waits for work that may take long, and passes a cancel on to the unit meanwhile.
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

    /// Cancels a unit, and repeats the request until it succeeds.
    pub(super) fn cancel(&self, unit: String) {
        let children = self.on.base.children.clone();
        tokio::spawn(async move {
            let mut pauses = UNIT_RETRY;
            while !children.cancel(unit.clone()).await {
                sleep(pauses.next()).await;
            }
        });
    }

    /// Makes the unit of an ended attempt known here, so that this task can release it: an earlier process or a former
    /// owner of the job may have stopped before it released the unit.
    async fn inherit_ended(&self, detail: &JobRecord, attempt: &Attempt) -> Result<(), Error> {
        let on = &self.on;
        if on.base.children.known(&attempt.unit.to_string()) != Known::Unknown {
            return Ok(());
        }
        let Ok(mut request) = request(on, detail, &detail.parsed_header()?, attempt).await? else {
            return Ok(());
        };
        request.far = on.far_unit(&attempt.unit).await?;
        if (request.node != on.base.node || request.is_inherited())
            && let Err(cause) = on.base.children.adopt(request).await
        {
            return Err(Error::Unready(format!("its unit cannot be released from here: {cause}")));
        }
        Ok(())
    }

    /// Ends the attempt because its node does not have the unit and will not run it. Returns false, because there is no
    /// unit.
    pub(super) async fn conclude_absent(&self) -> Result<bool, Error> {
        let (on, n) = (&self.on, self.n);
        let before = on.base.store.job(self.id).await?;
        conclude(on, self.id, n, None, move |job, now| job.on_unknown(n, now)).await?;
        // Notes the child's end, so that later attempts do not wait for it.
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

    /// Ends an attempt that cannot be sent, because something that it needs is missing. Returns false, because there is
    /// no unit.
    pub(super) async fn not_prepared(&self, ending: Ending, why: String) -> Result<bool, Error> {
        let n = self.n;
        let report = move |job: &mut Driven<'_>, now| job.on_not_prepared(n, ending, why.clone(), now);
        conclude(&self.on, self.id, n, None, report).await.map(|_| false)
    }

    /// Ends an attempt that cannot be started. Returns false, because there is no unit.
    pub(super) async fn refuse(&self, detail: String) -> Result<bool, Error> {
        let (n, evidence) = (self.n, Evidence::of_unit(ChildEnd::Failed, detail));
        let report = move |job: &mut Driven<'_>, now| job.on_ended(n, &evidence, now);
        conclude(&self.on, self.id, n, None, report).await.map(|_| false)
    }

    /// Reports an event of the attempt to the store, and shows the result in the job's units.
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

    /// Whether the job is not final and this is its current attempt.
    pub(super) async fn is_current(&self) -> Result<bool, Error> {
        let job = self.on.base.store.job(self.id).await?;
        Ok(!job.state.is_final() && job.is_current(self.n))
    }
}
