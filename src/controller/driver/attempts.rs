//! What the tasks of attempts share. Each attempt of this node's jobs has a task that does the attempt's duty.
//! `attempt` knows what a task does; the core decides which duty an attempt has.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::base::Base;
use super::forgotten::Forgotten;
use super::lease::LeaseKeeper;
use super::pods::PodNeeds;
use super::publisher::Publisher;
use super::sync::Syncs;
use super::tasks::Tasks;
use crate::controller::core::{Attempt, AttemptNo, ChildId, Evidence, Job, JobId, Progress};
use crate::controller::store::Error;
use crate::work::FarUnit;

pub(in crate::controller) struct Attempts {
    pub(super) base: Arc<Base>,
    pub(super) lease: Arc<LeaseKeeper>,
    pub(super) publisher: Arc<Publisher>,
    pub(in crate::controller) pods: PodNeeds,
    pub(super) syncs: Syncs,
    pub(in crate::controller) forgotten: Forgotten,
    pub(super) tasks: Tasks,
}

impl Attempts {
    pub(super) fn new(base: Arc<Base>, lease: Arc<LeaseKeeper>, publisher: Arc<Publisher>) -> Arc<Self> {
        let (pods, forgotten) = (PodNeeds::new(base.clone()), Forgotten::new(base.clone()));
        let (syncs, tasks) = (Syncs::new(base.clone(), lease.clone()), Tasks::default());
        Arc::new(Self { base, lease, publisher, pods, syncs, forgotten, tasks })
    }

    /// Forgets an attempt's task, because the attempt has no duty any more or the task has ended.
    pub(super) fn dismiss(&self, job: JobId, n: AttemptNo) {
        self.tasks.remove((job, n), || self.publisher.published.await_no_more((job, n)));
    }

    /// Aborts all tasks. The units of their attempts stay.
    pub(super) fn abort_all(&self) {
        for (job, n) in self.tasks.abort_all() {
            self.publisher.published.await_no_more((job, n));
        }
    }

    /// Notes that the stream of an attempt has told the final status.
    pub(super) fn note_said(&self, of: (JobId, AttemptNo), evidence: Evidence) {
        self.tasks.note_said(of, evidence);
    }

    /// The evidence from the streams that have told the final status.
    pub(super) fn said(&self) -> BTreeMap<(JobId, AttemptNo), Evidence> {
        self.tasks.said()
    }

    /// Lets a lost attempt's task show the job's end if the attempt's stream had told the final status, which then
    /// decides the job. Returns whether the task shows the end.
    pub(super) fn decide(&self, of: (JobId, AttemptNo)) -> bool {
        // From here on nobody else shows the end before the task does.
        self.tasks.decide(of, || self.publisher.published.await_output(of))
    }

    /// What an attempt does at the moment, if it is open and this node drives it.
    pub(in crate::controller) fn detail(&self, attempt: &Attempt) -> Option<String> {
        let unit = || self.base.children.detail(&attempt.unit.to_string());
        attempt.is_open().then(|| self.syncs.awaited_by(attempt).or_else(unit)).flatten()
    }

    /// What a job waits for if it is placed but does not run yet.
    pub(in crate::controller) fn start_waits_for(&self, job: &Job) -> Option<String> {
        let is_placed = |attempt: &&Attempt| attempt.progress == Progress::Placed;
        job.current().filter(is_placed).and_then(|attempt| self.detail(attempt))
    }

    /// The ID that the node of an attempt gave the attempt's unit, if the unit was sent before.
    pub(super) async fn far_unit(&self, child: &ChildId) -> Result<Option<FarUnit>, Error> {
        let id = self.base.store.far_unit(child.clone()).await?;
        if let Some(id) = &id {
            self.note_far_unit(child, id).await;
        }
        Ok(id.map(|id| FarUnit { id, may_be_released: true }))
    }

    /// Keeps the ID that the node of an attempt has given the attempt's unit.
    pub(in crate::controller) async fn keep_far_unit(&self, child: ChildId, id: String) -> Result<(), Error> {
        self.base.store.keep_far_unit(self.lease.fence(), child.clone(), id.clone()).await?;
        self.note_far_unit(&child, &id).await;
        Ok(())
    }

    /// Notes the ID in the job's unit as well, because the store may lose it with its last commits.
    async fn note_far_unit(&self, child: &ChildId, id: &str) {
        if let Some(unit) = self.publisher.first_unit(child.job) {
            unit.note_far_unit(&child.to_string(), id).await;
        }
    }
}
