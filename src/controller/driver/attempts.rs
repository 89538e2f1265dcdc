//! The attempts of this node's jobs: each has a task that does its duty, and this is what the tasks work with. What a task
//! does is `attempt`'s; which duty an attempt has, the core's.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::sleep;

use super::STORE_RETRY;
use super::attempt::AttemptTask;
use super::base::Base;
use super::forgotten::Forgotten;
use super::lease::LeaseKeeper;
use super::pods::Pods;
use super::publisher::Publisher;
use super::sync::Syncs;
use super::tasks::Tasks;
use crate::controller::core::{Attempt, AttemptNo, ChildId, Duty, Evidence, Job, JobId, Progress};
use crate::controller::store::Error;
use crate::work::FarUnit;

pub(in crate::controller) struct Attempts {
    pub(super) base: Arc<Base>,
    pub(super) lease: Arc<LeaseKeeper>,
    pub(super) publisher: Arc<Publisher>,
    pub(in crate::controller) pods: Pods,
    pub(super) syncs: Syncs,
    pub(in crate::controller) forgotten: Forgotten,
    tasks: Tasks,
}

impl Attempts {
    pub(super) fn new(base: Arc<Base>, lease: Arc<LeaseKeeper>, publisher: Arc<Publisher>) -> Arc<Self> {
        let (pods, forgotten) = (Pods::new(base.clone()), Forgotten::new(base.clone()));
        let (syncs, tasks) = (Syncs::new(base.clone(), lease.clone()), Tasks::default());
        Arc::new(Self { base, lease, publisher, pods, syncs, forgotten, tasks })
    }

    /// Tells an attempt's task its duty; one that has none gets one.
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

    /// An attempt has no duty any more, or its task has ended.
    pub(super) fn dismiss(&self, job: JobId, n: AttemptNo) {
        self.tasks.remove((job, n), || self.publisher.published.await_no_more((job, n)));
    }

    /// Ends all tasks where they are. The units of attempts stay.
    pub(super) fn abort_all(&self) {
        for (job, n) in self.tasks.abort_all() {
            self.publisher.published.await_no_more((job, n));
        }
    }

    /// The stream of an attempt has told the final status.
    pub(super) fn note_said(&self, of: (JobId, AttemptNo), evidence: Evidence) {
        self.tasks.note_said(of, evidence);
    }

    /// What the streams have told of which that is known.
    pub(super) fn said(&self) -> BTreeMap<(JobId, AttemptNo), Evidence> {
        self.tasks.said()
    }

    /// Has the task of a lost attempt show the end of its job, if what its stream had said decided that.
    pub(super) fn decide(&self, of: (JobId, AttemptNo)) -> bool {
        // Nobody shows the end before the task does.
        self.tasks.decide(of, || self.publisher.published.await_output(of))
    }

    /// What the unit of an attempt does at the moment, if it is not over and this node drives it.
    pub(in crate::controller) fn detail(&self, attempt: &Attempt) -> Option<String> {
        attempt.is_open().then(|| self.base.children.detail(&attempt.unit.to_string())).flatten()
    }

    /// What a job waits for that is placed and does not run.
    pub(in crate::controller) fn start_waits_for(&self, job: &Job) -> Option<String> {
        let is_placed = |attempt: &&Attempt| attempt.progress == Progress::Placed;
        job.current().filter(is_placed).and_then(|attempt| self.detail(attempt))
    }

    /// What the node of an attempt that was sent before has of it under another ID.
    pub(super) async fn far_unit(&self, child: &ChildId) -> Result<Option<FarUnit>, Error> {
        let id = self.base.store.far_unit(child.clone()).await?;
        if let Some(id) = &id {
            self.note_far_unit(child, id).await;
        }
        Ok(id.map(|id| FarUnit { id, may_be_released: true }))
    }

    /// The node of an attempt has given its unit this ID.
    ///
    /// # Errors
    /// Those of the store.
    pub(in crate::controller) async fn keep_far_unit(&self, child: ChildId, id: String) -> Result<(), Error> {
        self.base.store.keep_far_unit(self.lease.fence(), child.clone(), id.clone()).await?;
        self.note_far_unit(&child, &id).await;
        Ok(())
    }

    /// The job's unit knows it too: the store may lose it with its last commits.
    async fn note_far_unit(&self, child: &ChildId, id: &str) {
        if let Some(unit) = self.publisher.first_unit(child.job) {
            unit.note_far_unit(&child.to_string(), id).await;
        }
    }
}
