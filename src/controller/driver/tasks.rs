//! Which attempts have a task, and the duty of each: one task for an attempt, however often its duty changes. `attempt`
//! knows what a task does.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::controller::core::{AttemptNo, Duty, Evidence, JobId};

/// Locked only to read or change entries, and while callbacks run.
#[derive(Default)]
pub(super) struct Tasks(Mutex<BTreeMap<(JobId, AttemptNo), Task>>);

struct Task {
    duty: watch::Sender<Duty>,
    abort: AbortHandle,
    /// What its stream has told, once that includes the final status.
    said: Option<Evidence>,
    /// Notified when the end that `said` has decided has to be shown.
    decided: Arc<Notify>,
}

impl Tasks {
    /// Tells the task of an attempt its duty. If there is none, `start` makes one, which hears of later duties and of
    /// [`Self::decide`].
    pub(super) fn assign(
        &self,
        of: (JobId, AttemptNo),
        duty: Duty,
        start: impl FnOnce(watch::Receiver<Duty>, Arc<Notify>) -> AbortHandle,
    ) {
        let mut tasks = self.0.lock();
        if let Some(task) = tasks.get(&of) {
            task.duty.send_if_modified(|known| std::mem::replace(known, duty) != duty);
            return;
        }
        let (duty, receiver) = watch::channel(duty);
        let decided = Arc::new(Notify::new());
        let abort = start(receiver, decided.clone());
        tasks.insert(of, Task { duty, abort, said: None, decided });
    }

    /// Removes an attempt's task, because the attempt has no duty any more or the task has ended. No other task begins
    /// before `then` has returned.
    pub(super) fn remove(&self, of: (JobId, AttemptNo), then: impl FnOnce()) {
        let mut tasks = self.0.lock();
        tasks.remove(&of);
        then();
    }

    /// Aborts all tasks, and returns their attempts.
    pub(super) fn abort_all(&self) -> Vec<(JobId, AttemptNo)> {
        let all = std::mem::take(&mut *self.0.lock());
        all.values().for_each(|task| task.abort.abort());
        all.into_keys().collect()
    }

    /// Notes that the stream of an attempt has told the final status.
    pub(super) fn note_said(&self, of: (JobId, AttemptNo), evidence: Evidence) {
        if let Some(task) = self.0.lock().get_mut(&of) {
            task.said = Some(evidence);
        }
    }

    /// The evidence from the streams that have told the final status.
    pub(super) fn said(&self) -> BTreeMap<(JobId, AttemptNo), Evidence> {
        self.0.lock().iter().filter_map(|(of, task)| Some((*of, task.said.clone()?))).collect()
    }

    /// If a lost attempt's stream had told the final status, which then decides the job, calls `first` and then
    /// notifies the attempt's task to show the job's end. Returns whether the task was notified.
    pub(super) fn decide(&self, of: (JobId, AttemptNo), first: impl FnOnce()) -> bool {
        let tasks = self.0.lock();
        let Some(task) = tasks.get(&of).filter(|task| task.said.is_some()) else { return false };
        first();
        task.decided.notify_one();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::core::ChildEnd;

    const ONE: (JobId, AttemptNo) = (JobId(1), AttemptNo(1));

    fn evidence() -> Evidence {
        Evidence::of_unit(ChildEnd::Failed, String::new())
    }

    #[tokio::test]
    async fn an_attempt_has_one_task_which_hears_of_every_duty() {
        let tasks = Tasks::default();
        let (mut duties, mut started) = (None, 0);
        for duty in [Duty::Send, Duty::Send, Duty::Cancel] {
            tasks.assign(ONE, duty, |duty, _| {
                (duties, started) = (Some(duty), started + 1);
                tokio::spawn(std::future::pending::<()>()).abort_handle()
            });
        }
        let mut duties = duties.unwrap();
        assert_eq!((started, *duties.borrow_and_update()), (1, Duty::Cancel));
        tasks.remove(ONE, || ());
        assert!(duties.changed().await.is_err(), "who has no duty any more hears that");
    }

    #[tokio::test]
    async fn an_end_waits_for_a_task_only_if_its_stream_has_said_what_it_is() {
        let tasks = Tasks::default();
        let is_first = std::cell::Cell::new(false);
        let decide = || tasks.decide(ONE, || is_first.set(true));
        assert!(!decide());
        let mut decided = None;
        tasks.assign(ONE, Duty::Follow, |_, notify| {
            decided = Some(notify);
            tokio::spawn(std::future::pending::<()>()).abort_handle()
        });
        assert!(!decide() && !is_first.get());
        tasks.note_said(ONE, evidence());
        assert!(decide() && is_first.get());
        decided.unwrap().notified().await;
    }
}
