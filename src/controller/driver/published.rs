//! The units of this node that show jobs, until they have shown the end; what they have shown last; and the tasks that
//! have to finish before they can show the end. Decides nothing, and does not ask the store.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::controller::core::{AttemptNo, Job, JobId};
use crate::work::jobs::JobUnit;

/// Locks are held only to read or change entries.
#[derive(Default)]
pub(super) struct Published {
    /// The units of each job; the one that has the output comes first.
    units: Mutex<BTreeMap<JobId, Vec<JobUnit>>>,
    /// The jobs, as they were shown last.
    shown: Mutex<BTreeMap<JobId, Job>>,
    /// Jobs whose output is being closed.
    closing: watch::Sender<BTreeSet<JobId>>,
    /// Jobs with running children that the store has forgotten and that are being ended.
    ending: Mutex<BTreeSet<JobId>>,
    /// Attempts whose tasks still add to their jobs' outputs. The ends of these jobs are shown only after that.
    awaited: Mutex<BTreeSet<(JobId, AttemptNo)>>,
    /// The tasks that copy outputs from other control nodes.
    followers: Mutex<BTreeMap<JobId, AbortHandle>>,
}

impl Published {
    /// The unit that has the job's output.
    pub(super) fn first(&self, job: JobId) -> Option<JobUnit> {
        self.units.lock().get(&job)?.first().cloned()
    }

    pub(super) fn units(&self, job: JobId) -> Vec<JobUnit> {
        self.units.lock().get(&job).cloned().unwrap_or_default()
    }

    /// The jobs whose end was not shown yet.
    pub(super) fn jobs(&self) -> Vec<JobId> {
        self.units.lock().keys().copied().collect()
    }

    pub(super) fn job_of(&self, unit: &str) -> Option<JobId> {
        let units = self.units.lock();
        let has = |list: &Vec<JobUnit>| list.iter().any(|one| one.id().as_str() == unit);
        units.iter().find(|(_, list)| has(list)).map(|(job, _)| *job)
    }

    /// Lets a unit show a job from now on. After a restart the units come in any order. If `leads` is set, the unit's
    /// payload and its position in the output are used.
    pub(super) fn add(&self, job: JobId, unit: JobUnit, leads: bool) {
        let mut units = self.units.lock();
        let list = units.entry(job).or_default();
        list.retain(|one| one.id() != unit.id());
        list.insert(if leads { 0 } else { list.len() }, unit);
    }

    /// Stops a unit from showing its job.
    pub(super) fn remove(&self, unit: &str) {
        self.units.lock().retain(|_, list| {
            list.retain(|one| one.id().as_str() != unit);
            !list.is_empty()
        });
    }

    /// Notes that these units of a job have shown its end. Returns whether all units of the job have shown it by now;
    /// one that was added meanwhile has not.
    pub(super) fn on_end_shown(&self, job: JobId, units: &[JobUnit]) -> bool {
        let mut all = self.units.lock();
        let Entry::Occupied(mut list) = all.entry(job) else { return false };
        list.get_mut().retain(|one| !units.iter().any(|shown| shown.id() == one.id()));
        let is_over = list.get().is_empty();
        if is_over {
            list.remove();
        }
        is_over
    }

    /// Takes out the units of a job that has no end to show.
    pub(super) fn take(&self, job: JobId) -> Vec<JobUnit> {
        self.units.lock().remove(&job).unwrap_or_default()
    }

    /// Takes out all units, and ends the tasks that copy outputs for them.
    pub(super) fn take_all(&self) -> Vec<JobUnit> {
        for (_, task) in std::mem::take(&mut *self.followers.lock()) {
            task.abort();
        }
        self.shown.lock().clear();
        std::mem::take(&mut *self.units.lock()).into_values().flatten().collect()
    }

    /// Notes that units have shown a job in this form.
    pub(super) fn note_shown(&self, job: Job) {
        self.shown.lock().insert(job.id, job);
    }

    /// Whether the job has changed since it was shown.
    pub(super) fn is_news(&self, job: &Job) -> bool {
        self.shown.lock().get(&job.id) != Some(job)
    }

    /// Forgets what was shown of all jobs but these.
    pub(super) fn keep_shown(&self, jobs: &BTreeSet<JobId>) {
        self.shown.lock().retain(|id, _| jobs.contains(id));
    }

    /// Notes that the output of a job is being closed. Returns false if it already was.
    pub(super) fn begin_closing(&self, job: JobId) -> bool {
        self.closing.send_if_modified(|closing| closing.insert(job))
    }

    pub(super) fn end_closing(&self, job: JobId) {
        self.closing.send_if_modified(|closing| closing.remove(&job));
    }

    /// Waits until the output of a job is no longer being closed.
    pub(super) async fn closed(&self, job: JobId) {
        // The sender is here, so this cannot fail.
        drop(self.closing.subscribe().wait_for(|closing| !closing.contains(&job)).await);
    }

    /// Notes that the children of a job that the store has forgotten are being ended. Returns false if they already
    /// were.
    pub(super) fn begin_ending(&self, job: JobId) -> bool {
        self.ending.lock().insert(job)
    }

    pub(super) fn end_ending(&self, job: JobId) {
        self.ending.lock().remove(&job);
    }

    /// Holds back the end of a job until [`Self::await_no_more`].
    pub(super) fn await_output(&self, of: (JobId, AttemptNo)) {
        self.awaited.lock().insert(of);
    }

    pub(super) fn await_no_more(&self, of: (JobId, AttemptNo)) {
        self.awaited.lock().remove(&of);
    }

    /// Whether the end of a job waits for an attempt's output.
    pub(super) fn awaits(&self, id: JobId) -> bool {
        self.awaited.lock().iter().any(|(job, _)| *job == id)
    }

    /// Starts a task that copies the output of a job, unless there is one.
    pub(super) fn follow(&self, job: JobId, start: impl FnOnce() -> AbortHandle) {
        self.followers.lock().entry(job).or_insert_with(start);
    }

    pub(super) fn on_followed(&self, job: JobId) {
        self.followers.lock().remove(&job);
    }

    pub(super) fn stop_following(&self, job: JobId) {
        if let Some(task) = self.followers.lock().remove(&job) {
            task.abort();
        }
    }

    pub(super) fn is_followed(&self, job: JobId) -> bool {
        self.followers.lock().contains_key(&job)
    }
}
