//! The only place that changes a unit's status. The pure state machine judges a change, which is then written as
//! durably as asked, and only then shown. Owns that order, and the task that saves an unsaved status and tries again
//! until that works. Knows nothing of the reasons for a change.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use super::detached;
use super::entry::{Entry, Live};
use crate::work::WorkError;
use crate::work::status::Status;
use crate::work::store::{Durability, UnitStore};
use crate::work::unit::UnitEvent;

/// How long a deferred change waits, so that the next one is written with it: a short job's next change comes sooner.
const SAVE_AFTER: Duration = Duration::from_millis(100);
/// The pause between attempts to write a status: a full disk may have room again.
const WRITE_RETRY: Duration = Duration::from_secs(1);

/// The right to change a unit.
pub(crate) struct UnitWriter {
    entry: Arc<Entry>,
    live: Arc<Live>,
    store: UnitStore,
    /// Absent only during a write, which takes it along. If the caller is dropped in the middle, the change is still
    /// written whole and before the next one.
    lock: Option<OwnedMutexGuard<()>>,
}

impl UnitWriter {
    /// Applies an event and shows the result. Returns whether anything changed. A failed write is retried and not
    /// returned, because the event has happened.
    pub(crate) async fn apply(&mut self, event: UnitEvent, durability: Durability) -> bool {
        let mut status = Status::clone(&self.entry.status());
        let changes = status.life.apply(&event);
        if changes {
            let _ = self.put(status, durability).await;
        }
        changes
    }

    /// Writes a changed status and shows it. A status that cannot be written is shown too, and its write is retried.
    pub(crate) async fn put(&mut self, status: Status, durability: Durability) -> Result<(), WorkError> {
        if let Some(attempt) = self.entry.attempt() {
            let kept = attempt.keep(&self.entry.id, &status).await;
            self.entry.show_saved(status);
            return kept;
        }
        match durability {
            Durability::Volatile => self.entry.show(status),
            Durability::Deferred => show_unsaved(&self.entry, &self.store, status, SAVE_AFTER),
            Durability::Durable => return self.write(status, false).await,
        }
        Ok(())
    }

    /// Writes the final status that a runner has left in its exit record. Followers that write it down themselves do not wait.
    pub(crate) async fn adopt_exit_record(&mut self, status: Status) -> Result<(), WorkError> {
        self.entry.show_ahead(&status);
        self.write(status, true).await
    }

    /// Writes the status if it is unsaved.
    pub(crate) async fn save(&mut self) -> Result<(), WorkError> {
        match self.entry.is_unsaved() {
            true => self.write(Status::clone(&self.status()), false).await,
            false => Ok(()),
        }
    }

    async fn write(&mut self, mut status: Status, from_exit_record: bool) -> Result<(), WorkError> {
        // What a runner or a plugin has written does not decide who submitted the unit.
        let shown = self.entry.status();
        (status.submitter, status.asked) = (shown.submitter, shown.asked);
        if self.entry.is_gone() {
            // The directory of that name, if there is one, is another unit's.
            self.entry.show(status);
            return Ok(());
        }
        let (entry, store) = (self.entry.clone(), self.store.clone());
        let tells_of_payload = !status.life.awaits_payload && !status.life.state.is_final();
        let unit = entry.clone();
        let first = move || if tells_of_payload { unit.flush_payload() } else { Ok(()) };
        // `live` is held as well: without it, another caller would get a new `Live` with a lock of its own.
        let (live, lock) = (self.live.clone(), self.lock.take());
        let (lock, written) = detached(async move {
            let written = match from_exit_record {
                true => store.adopt_exit_record(&entry.dir, &status).await,
                false => store.put_status(&entry.dir, &status, first, live.kept_output.has_all_of(&status)).await,
            };
            match &written {
                Ok(()) => entry.show_saved(status),
                Err(error) => {
                    if !entry.is_unsaved() {
                        tracing::error!(unit = %entry.id, %error, "cannot write a unit's status, trying again");
                    }
                    show_unsaved(&entry, &store, status, WRITE_RETRY);
                }
            }
            drop(live);
            (lock, written)
        })
        .await;
        self.lock = lock;
        written
    }

    /// Shows a status that somebody else has written.
    pub(crate) fn show(&self, status: Status) {
        self.entry.show(status);
    }

    /// The current status, which nobody else changes now.
    pub(crate) fn status(&self) -> Arc<Status> {
        self.entry.status()
    }
}

impl Entry {
    /// Waits for the right to change the unit.
    pub(crate) async fn writer(self: &Arc<Self>, store: &UnitStore) -> UnitWriter {
        let live = self.live();
        let lock = Some(live.write_lock.clone().lock_owned().await);
        UnitWriter { entry: self.clone(), live, store: store.clone(), lock }
    }

    /// Applies an event durably. Returns whether anything changed.
    pub(crate) async fn apply(self: &Arc<Self>, store: &UnitStore, event: UnitEvent) -> bool {
        self.writer(store).await.apply(event, Durability::Durable).await
    }

    /// Makes the status durable if it is unsaved.
    pub(crate) async fn save(self: &Arc<Self>, store: &UnitStore) -> Result<(), WorkError> {
        if !self.is_unsaved() {
            return Ok(());
        }
        self.writer(store).await.save().await
    }
}

/// Shows a status, and makes sure that it is on disk soon.
fn show_unsaved(entry: &Arc<Entry>, store: &UnitStore, status: Status, mut pause: Duration) {
    if !entry.show_unsaved(status) {
        return;
    }
    let (entry, store) = (entry.clone(), store.clone());
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(pause).await;
            let saved = entry.save(&store).await;
            if saved.is_ok() && pause == WRITE_RETRY {
                tracing::info!(unit = %entry.id, "the unit's status can be written again");
            }
            pause = if saved.is_ok() { SAVE_AFTER } else { WRITE_RETRY };
            if entry.end_saving() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::wire::NodeId;
    use crate::work::status::{CommandExtra, Extra};
    use crate::work::store::FlushOnce;
    use crate::work::unit::{State, UnitId};

    #[tokio::test]
    async fn a_status_that_tells_of_the_payload_is_written_after_it_and_an_end_without_it() {
        let temp = tempfile::tempdir().unwrap();
        let store = UnitStore::open(&temp.path().join("d"), &NodeId::new("n1").unwrap()).unwrap();
        let mut status = Status::new("t", Extra::Command(CommandExtra::default()));
        status.life.apply(&UnitEvent::PayloadAwaited);
        let id = UnitId::made_by(&NodeId::new("n1").unwrap());
        store.create(&id, &status, Durability::Durable).await.unwrap();
        let entry = Entry::new(id.clone(), store.unit(&id), status.clone());
        // This file cannot be made durable, and that is tried only once.
        let payload = Arc::new(FlushOnce::new(fs::File::open("/dev/null").unwrap()));
        entry.set_unflushed(Some(payload.clone()));
        let mut writer = entry.writer(&store).await;
        status.life.apply(&UnitEvent::PayloadComplete);
        for _ in 0..2 {
            assert!(writer.put(status.clone(), Durability::Durable).await.is_err());
            assert!(entry.dir.read_status().unwrap().life.awaits_payload);
        }
        assert!(payload.flush().is_err());
        status.life.apply(&UnitEvent::PayloadCut("the disk is broken".into()));
        writer.put(status.clone(), Durability::Durable).await.unwrap();
        assert_eq!(entry.dir.read_status().unwrap(), status);
    }

    #[tokio::test]
    async fn a_node_that_follows_sees_the_end_while_it_is_written_and_nobody_else_does() {
        let temp = tempfile::tempdir().unwrap();
        let store = UnitStore::open(&temp.path().join("d"), &NodeId::new("n1").unwrap()).unwrap();
        let mut status = Status::new("t", Extra::Command(CommandExtra::default()));
        status.life.apply(&UnitEvent::Started(7));
        let id = UnitId::made_by(&NodeId::new("n1").unwrap());
        store.create(&id, &status, Durability::Durable).await.unwrap();
        let entry = Entry::new(id.clone(), store.unit(&id), status.clone());
        let (mut node, client) = (entry.subscribe_ahead(), entry.subscribe());
        status.life.apply(&UnitEvent::Reported(State::Succeeded, "exit status 0".into(), 0));
        entry.dir.leave_exit_record(&status).unwrap();
        let mut writer = entry.writer(&store).await;
        let mut adopting = std::pin::pin!(writer.adopt_exit_record(status.clone()));
        tokio::select! {
            biased;
            seen = node.wait_for(|status| status.life.state.is_final()) => assert_eq!(**seen.unwrap(), status),
            _ = &mut adopting => panic!("it has waited for the disk"),
        }
        assert!(!entry.status().life.state.is_final() && !client.borrow().life.state.is_final());
        adopting.await.unwrap();
        assert!(client.borrow().life.state.is_final());
        assert_eq!(entry.dir.final_status(), Some(status));
    }

    #[tokio::test(start_paused = true)]
    async fn a_runner_s_status_is_not_overwritten_by_one_that_could_not_be_written_before() {
        let temp = tempfile::tempdir().unwrap();
        let store = UnitStore::open(&temp.path().join("d"), &NodeId::new("n1").unwrap()).unwrap();
        let (id, status) = (
            UnitId::made_by(&NodeId::new("n1").unwrap()),
            Status::new("t", Extra::Command(CommandExtra::default())),
        );
        store.create(&id, &status, Durability::Durable).await.unwrap();
        let entry = Entry::new(id.clone(), store.unit(&id), status);
        // While this directory is in the way, the status cannot be written; afterwards it can.
        let in_the_way = entry.dir.file(".status.new");
        fs::create_dir(&in_the_way).unwrap();
        let mut writer = entry.writer(&store).await;
        writer.apply(UnitEvent::Queued(1), Durability::Durable).await;
        fs::remove_dir(&in_the_way).unwrap();
        entry.forget_unsaved();
        fs::write(entry.dir.file("status"), "the runner's").unwrap();
        drop(writer);
        // By now the task that saves has had two chances.
        tokio::time::sleep(3 * WRITE_RETRY).await;
        drop(entry.writer(&store).await);
        assert_eq!(fs::read_to_string(entry.dir.file("status")).unwrap(), "the runner's");
    }
}
