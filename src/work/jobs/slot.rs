//! Where a node's units find its controller, if it has one. They ask it to cancel and release jobs, and ask it about
//! children. Decides nothing itself.

use std::sync::Arc;
use std::time::Duration;

use super::{CONTROLLER, JobController, JobUnit};
use crate::os::back_off::BackOff;
use crate::work::WorkError;
use crate::work::unit::UnitId;
use crate::work::units::{Entry, IdKeeper, Outcome, Units};

/// How long the answer to a cancel or release waits for the job's end.
const JOB_END_WITHIN: Duration = Duration::from_secs(10);
/// Time between two questions whether a payload may be sent.
const SEND_RETRY: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(30));

/// The controller of a node, if it has one.
#[derive(Clone, Default)]
pub(crate) struct JobsSlot(Arc<arc_swap::ArcSwapOption<Box<dyn JobController>>>);

impl JobsSlot {
    pub(in crate::work) fn set(&self, jobs: Option<Box<dyn JobController>>) {
        self.0.store(jobs.map(Arc::new));
    }

    pub(in crate::work) fn get(&self) -> Option<Arc<Box<dyn JobController>>> {
        self.0.load_full()
    }

    fn required(&self) -> Result<Arc<Box<dyn JobController>>, WorkError> {
        self.get().ok_or_else(|| WorkError::UnknownType(CONTROLLER.to_owned()))
    }

    pub(in crate::work) fn is_child(&self, unit: &UnitId) -> bool {
        self.get().is_some_and(|jobs| jobs.parent(unit).is_some())
    }

    /// Returns once the payload of a child may be sent; never, if another control node drives its job by now.
    pub(in crate::work) async fn may_send(&self, unit: &UnitId) {
        let mut pauses = SEND_RETRY;
        loop {
            if let Some(jobs) = self.get()
                && jobs.may_send(unit.clone()).await
            {
                return;
            }
            tokio::time::sleep(pauses.next()).await;
        }
    }

    /// Lets the controller keep the ID that a child got on its node.
    pub(in crate::work) fn id_keeper(&self) -> IdKeeper {
        let this = self.clone();
        Box::new(move |unit, id| {
            let this = this.clone();
            Box::pin(async move { this.required()?.keep_far_id(unit, id).await.map_err(WorkError::Job) })
        })
    }

    /// Refuses to end a job's child without the controller.
    pub(in crate::work) fn check_child(&self, unit: &UnitId) -> Result<(), WorkError> {
        let parent = self.get().and_then(|jobs| jobs.parent(unit));
        parent.map_or(Ok(()), |job| Err(WorkError::Child { unit: unit.to_string(), job }))
    }

    /// Lets a unit that an earlier daemon left follow its job, if there is a controller.
    pub(in crate::work) async fn resume(&self, units: &Arc<Units>, entry: &Arc<Entry>) {
        if let Some(jobs) = self.get().filter(|_| !entry.status().life.awaits_payload) {
            jobs.resume(JobUnit::new(entry.clone(), units.store().clone())).await;
        }
    }

    pub(in crate::work) async fn cancel(&self, entry: &Arc<Entry>) -> Result<Outcome, WorkError> {
        if entry.status().life.state.is_final() {
            return Ok(Outcome::Done);
        }
        self.required()?.cancel(entry.id.clone()).await.map_err(WorkError::Job)?;
        let in_time = tokio::time::timeout(JOB_END_WITHIN, entry.finished()).await.is_ok();
        Ok(if in_time { Outcome::Done } else { Outcome::Pending })
    }

    /// Cancels a job that has not ended, and deletes its unit once it has, even after a restart. With `force`, deletes
    /// it at once.
    pub(in crate::work) async fn release(
        &self,
        units: &Arc<Units>,
        entry: &Arc<Entry>,
        force: bool,
    ) -> Result<Outcome, WorkError> {
        if self.get().is_some() {
            let ended = self.cancel(entry).await;
            if !force && ended? == Outcome::Pending {
                JobUnit::new(entry.clone(), units.store().clone()).note_release().await;
                self.release_at_end(units, entry);
                return Ok(Outcome::Pending);
            }
        }
        self.delete(units, entry).await.map(|()| Outcome::Done)
    }

    /// Deletes a unit as soon as its job has ended.
    pub(in crate::work) fn release_at_end(&self, units: &Arc<Units>, entry: &Arc<Entry>) {
        let (this, units, entry) = (self.clone(), units.clone(), entry.clone());
        tokio::spawn(async move {
            entry.finished().await;
            if let Err(error) = this.delete(&units, &entry).await {
                tracing::warn!(unit = %entry.id, %error, "cannot release a unit whose job has ended");
            }
        });
    }

    async fn delete(&self, units: &Arc<Units>, entry: &Arc<Entry>) -> Result<(), WorkError> {
        if let Some(jobs) = self.get() {
            jobs.forget(entry.id.clone()).await;
        }
        units.remove(entry, |_| ()).await
    }
}
