//! The one place through which a unit's status is changed: a change is judged by the pure state machine, written to
//! disk as surely as asked, and only then shown. Owns the order of these, and what becomes of a status that cannot be
//! written. Knows nothing of who asks and why.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, oneshot};

use super::entry::{Entry, Live};
use crate::work::WorkError;
use crate::work::status::Status;
use crate::work::store::{Store, UnitDir};
use crate::work::unit::Event;

/// Between attempts to write a status.
const REWRITE: Duration = Duration::from_secs(1);

/// The right to change a unit.
pub(crate) struct Writer {
    entry: Arc<Entry>,
    live: Arc<Live>,
    store: Store,
    /// Away only while a write is under way, which takes it along: a caller that is dropped in the middle leaves
    /// neither half a change nor a late one that overtakes the next.
    turn: Option<OwnedMutexGuard<()>>,
}

/// Called when a status is durable, or cannot be.
type Done = Box<dyn FnOnce(Result<(), WorkError>) + Send>;
/// A way to make a status durable.
type Put = fn(&Store, &UnitDir, &Status, Done);

/// How sure a written change must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Survives a power loss once written.
    Durable,
    /// Is in memory at once, and on disk with the next write; the unit's driver sees to one.
    Deferred,
    /// Stays in memory.
    Memory,
}

impl Writer {
    /// Waits for the turn.
    pub(super) async fn new(entry: Arc<Entry>, live: Arc<Live>, store: Store) -> Self {
        let turn = Some(live.turn.clone().lock_owned().await);
        Self { entry, live, store, turn }
    }

    /// Applies an event and shows the result. A failed write is logged, not returned: the event has happened.
    pub(crate) async fn apply(&mut self, event: Event, how: Durability) -> bool {
        let mut status = Status::clone(&self.entry.status());
        if !status.life.apply(&event) {
            return false;
        }
        if let Err(error) = self.put(status, how).await {
            tracing::error!(unit = %self.entry.id, %error, "a change of status is known in memory only");
        }
        true
    }

    /// Writes a changed status and shows it; it is shown even when it cannot be written.
    ///
    /// # Errors
    /// The failed write.
    pub(crate) async fn put(&mut self, status: Status, how: Durability) -> Result<(), WorkError> {
        match how {
            Durability::Durable => self.write(status, Store::put_status).await,
            Durability::Deferred => {
                // First, so that whoever sees the change sees that it is not saved.
                self.entry.is_saved.store(false, Ordering::Relaxed);
                self.show(status);
                Ok(())
            }
            Durability::Memory => {
                self.show(status);
                Ok(())
            }
        }
    }

    /// The same for the final status that a runner has left.
    ///
    /// # Errors
    /// The failed write.
    pub(super) async fn adopt_end(&mut self, status: Status) -> Result<(), WorkError> {
        self.write(status, Store::adopt_end).await
    }

    async fn write(&mut self, status: Status, put: Put) -> Result<(), WorkError> {
        let written = self.write_once(status, put).await;
        let was_behind = self.entry.behind.swap(written.is_err(), Ordering::Relaxed);
        if written.is_err() && !was_behind {
            tokio::spawn(bring_up(self.entry.clone(), self.store.clone()));
        }
        written
    }

    async fn write_once(&mut self, mut status: Status, put: Put) -> Result<(), WorkError> {
        // What a runner or a plugin has written does not decide who submitted the unit.
        let shown = self.entry.status();
        (status.submitter, status.asked) = (shown.submitter, shown.asked);
        if self.entry.is_gone() {
            // The directory of that name, if there is one, is another unit's.
            self.entry.forget_unsaved();
            self.show(status);
            return Ok(());
        }
        let (entry, live, turn) = (self.entry.clone(), self.live.clone(), self.turn.take());
        let (answer, answered) = oneshot::channel();
        let copy = status.clone();
        let done = move |written: Result<(), WorkError>| {
            if written.is_ok() {
                entry.is_saved.store(true, Ordering::Relaxed);
                entry.reached.store(status.life.state as u8, Ordering::Relaxed);
            }
            entry.show(status);
            // The turn is nobody else's for as long as what it belongs to is there.
            drop(live);
            drop(answer.send((turn, written)));
        };
        put(&self.store, &self.entry.dir, &copy, Box::new(done));
        let gone =
            || WorkError::io("write", self.entry.dir.file("status"), io::Error::other("nobody answers"));
        let (turn, written) = answered.await.map_err(|_| gone())?;
        self.turn = turn;
        written
    }

    /// The unit's files are a runner's from here on: what could not be written of the status must not overwrite what
    /// that writes.
    pub(super) fn hand_over(&self) {
        self.entry.behind.store(false, Ordering::Relaxed);
    }

    /// Shows a status that somebody else has written.
    pub(crate) fn show(&self, status: Status) {
        self.entry.show(status);
    }

    /// The status as it stands, which nobody changes meanwhile.
    pub(crate) fn status(&self) -> Arc<Status> {
        self.entry.status()
    }
}

/// Writes a status until it is on disk or its unit is gone: a full disk heals.
async fn bring_up(entry: Arc<Entry>, store: Store) {
    loop {
        tokio::time::sleep(REWRITE).await;
        let mut writer = entry.writer(&store).await;
        if !entry.behind.load(Ordering::Relaxed) || !entry.dir.path().exists() {
            return;
        }
        let status = Status::clone(&writer.status());
        if writer.write_once(status, Store::put_status).await.is_ok() {
            entry.behind.store(false, Ordering::Relaxed);
            tracing::info!(unit = %entry.id, "the status is on disk again");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::wire::NodeId;
    use crate::work::status::{CommandExtra, Extra};
    use crate::work::unit::UnitId;

    #[tokio::test(start_paused = true)]
    async fn what_a_runner_writes_is_not_overwritten_by_what_could_not_be_written_before() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::open(&temp.path().join("d"), &NodeId::new("n1").unwrap()).unwrap();
        let (id, status) = (
            UnitId::made_by(&NodeId::new("n1").unwrap()),
            Status::new("t", Extra::Command(CommandExtra::default())),
        );
        store.create(&id, &status).await.unwrap();
        let entry = Entry::new(id.clone(), store.unit(&id), status);
        // A status that cannot be written, as one cannot with that in the way, and then could.
        let in_the_way = entry.dir.file(".status.new");
        fs::create_dir(&in_the_way).unwrap();
        let mut writer = entry.writer(&store).await;
        writer.apply(Event::Queued(1), Durability::Durable).await;
        fs::remove_dir(&in_the_way).unwrap();
        writer.hand_over();
        fs::write(entry.dir.file("status"), "the runner's").unwrap();
        drop(writer);
        // Whoever brings the status up has had its turn, twice.
        tokio::time::sleep(3 * REWRITE).await;
        drop(entry.writer(&store).await);
        assert_eq!(fs::read_to_string(entry.dir.file("status")).unwrap(), "the runner's");
    }
}
