//! The units of this node that show jobs, until they have shown an end; what they have shown last; and the tasks without
//! which they cannot show an end yet. It decides nothing, and asks no store.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::controller::core::{AttemptNo, Job, JobId};
use crate::work::jobs::JobUnit;

/// Locks are held for a look or an entry.
#[derive(Default)]
pub(super) struct Published {
    /// Of each job the one that has its output first.
    units: Mutex<BTreeMap<JobId, Vec<JobUnit>>>,
    /// Jobs as they were shown last.
    shown: Mutex<BTreeMap<JobId, Job>>,
    /// Jobs whose output is being closed.
    closing: watch::Sender<BTreeSet<JobId>>,
    /// Jobs of which something runs that the store has forgotten, and that is being ended.
    ending: Mutex<BTreeSet<JobId>>,
    /// Attempts whose tasks add to the outputs of their jobs before the ends of these are shown.
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

    /// A unit shows a job from now on. After a restart they come in any order, and the payload and the place in the output
    /// are those of the one that leads.
    pub(super) fn add(&self, job: JobId, unit: JobUnit, leads: bool) {
        let mut units = self.units.lock();
        let list = units.entry(job).or_default();
        list.retain(|one| one.id() != unit.id());
        list.insert(if leads { 0 } else { list.len() }, unit);
    }

    /// A unit shows no job any more.
    pub(super) fn remove(&self, unit: &str) {
        self.units.lock().retain(|_, list| {
            list.retain(|one| one.id().as_str() != unit);
            !list.is_empty()
        });
    }

    /// These units of a job have shown its end. One that came meanwhile has not. Says whether all have now.
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

    /// Takes the units of a job that has no end to show.
    pub(super) fn take(&self, job: JobId) -> Vec<JobUnit> {
        self.units.lock().remove(&job).unwrap_or_default()
    }

    /// Takes all units, and ends what copies outputs for them.
    pub(super) fn take_all(&self) -> Vec<JobUnit> {
        for (_, task) in std::mem::take(&mut *self.followers.lock()) {
            task.abort();
        }
        self.shown.lock().clear();
        std::mem::take(&mut *self.units.lock()).into_values().flatten().collect()
    }

    /// Units have shown a job as it is here.
    pub(super) fn note_shown(&self, job: Job) {
        self.shown.lock().insert(job.id, job);
    }

    /// Whether that is news.
    pub(super) fn is_news(&self, job: &Job) -> bool {
        self.shown.lock().get(&job.id) != Some(job)
    }

    /// Forgets what was shown of other jobs than these.
    pub(super) fn keep_shown(&self, jobs: &BTreeSet<JobId>) {
        self.shown.lock().retain(|id, _| jobs.contains(id));
    }

    /// Returns whether the output of a job was not being closed so far.
    pub(super) fn begin_closing(&self, job: JobId) -> bool {
        self.closing.send_if_modified(|closing| closing.insert(job))
    }

    pub(super) fn end_closing(&self, job: JobId) {
        self.closing.send_if_modified(|closing| closing.remove(&job));
    }

    /// Waits until the output of a job is not being closed any more.
    pub(super) async fn closed(&self, job: JobId) {
        // The sender is here, so this cannot fail.
        drop(self.closing.subscribe().wait_for(|closing| !closing.contains(&job)).await);
    }

    /// Returns whether what the store has forgotten of a job was not being ended so far.
    pub(super) fn begin_ending(&self, job: JobId) -> bool {
        self.ending.lock().insert(job)
    }

    pub(super) fn end_ending(&self, job: JobId) {
        self.ending.lock().remove(&job);
    }

    /// The end of a job is not shown before [`Self::await_no_more`].
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

    /// Has a task copy the output of a job, unless there is one.
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
