//! One unit in memory: its status as everybody sees it, and the one place through which it is changed.
//! A change is judged by the pure state machine, written to disk, and only then shown.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard, watch};

use crate::work::WorkError;
use crate::work::remote::Link;
use crate::work::status::Status;
use crate::work::store::{Store, UnitDir};
use crate::work::unit::{Event, UnitId};

/// Between attempts to write a status.
const REWRITE: Duration = Duration::from_secs(1);

/// A power loss keeps the status; it may bring an earlier one back; the one on disk lacks a deferred change.
const DURABLE: u8 = 0;
const CACHED: u8 = 1;
const UNSAVED: u8 = 2;

/// A unit that exists.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: UnitId,
    pub(crate) dir: UnitDir,
    status: watch::Sender<Arc<Status>>,
    /// Whoever changes the status or starts the unit holds this: a unit has one writer at a time. Held across
    /// disk writes and the start of a runner, which is why it is an asynchronous lock.
    writer: Arc<Mutex<()>>,
    /// What a remote unit's driver and its callers tell each other.
    link: OnceLock<Box<Link>>,
    /// The status on disk is behind, and a task tries to bring it up.
    behind: AtomicBool,
    /// How sure the status is on disk: one of the three above.
    sureness: AtomicU8,
    /// The number of the furthest state that a power loss would leave.
    reached: AtomicU8,
}

/// The right to change a unit.
pub(crate) struct Writer {
    entry: Arc<Entry>,
    store: Store,
    /// Away only while a write is under way, which takes it along: a caller that is dropped in the middle leaves
    /// neither half a change nor a late one that overtakes the next.
    turn: Option<OwnedMutexGuard<()>>,
}

/// How sure a written change must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Survives a power loss once written.
    Durable,
    /// Survives the daemon's end; a power loss may bring the earlier status back.
    Cached,
    /// Is in memory at once, and on disk with the next write; the unit's driver sees to one.
    Deferred,
    /// Stays in memory.
    Memory,
}

impl Entry {
    pub(crate) fn new(id: UnitId, dir: UnitDir, status: Status) -> Arc<Self> {
        let reached = AtomicU8::new(status.life.state as u8);
        let status = watch::Sender::new(Arc::new(status));
        Arc::new(Self {
            id,
            dir,
            status,
            writer: Arc::default(),
            link: OnceLock::new(),
            behind: AtomicBool::new(false),
            sureness: AtomicU8::new(DURABLE),
            reached,
        })
    }

    /// The link to a remote unit's driver; other units never have one.
    pub(crate) fn link(&self) -> &Link {
        self.link.get_or_init(Box::default)
    }

    /// The status as it stands.
    pub(crate) fn status(&self) -> Arc<Status> {
        self.status.borrow().clone()
    }

    /// Follows the status.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Status>> {
        self.status.subscribe()
    }

    /// Waits for the turn to change the unit.
    pub(crate) async fn writer(self: &Arc<Self>, store: &Store) -> Writer {
        let turn = self.writer.clone().lock_owned().await;
        Writer { entry: self.clone(), store: store.clone(), turn: Some(turn) }
    }

    /// Applies one event, durably. Says whether it changed anything.
    pub(crate) async fn apply(self: &Arc<Self>, store: &Store, event: Event) -> bool {
        self.writer(store).await.apply(event, Durability::Durable).await
    }

    /// Makes the status as sure on disk as asked, if it is not.
    ///
    /// # Errors
    /// The failed write.
    pub(crate) async fn save(self: &Arc<Self>, store: &Store, how: Durability) -> Result<(), WorkError> {
        let enough = match how {
            Durability::Durable => DURABLE,
            Durability::Cached => CACHED,
            Durability::Deferred | Durability::Memory => return Ok(()),
        };
        if self.sureness.load(Ordering::Relaxed) <= enough {
            return Ok(());
        }
        let mut writer = self.writer(store).await;
        match self.sureness.load(Ordering::Relaxed) <= enough {
            true => Ok(()),
            false => writer.put(Status::clone(&writer.status()), how).await,
        }
    }

    /// Whether a restart might find an earlier state than the one that is shown. Of units that run here the runner's
    /// own files tell.
    pub(crate) fn is_ahead(&self) -> bool {
        let status = self.status.borrow();
        status.remote().is_some() && status.life.state as u8 > self.reached.load(Ordering::Relaxed)
    }

    /// The unit is deleted: nothing needs to be written any more.
    pub(crate) fn forget_unsaved(&self) {
        self.sureness.store(DURABLE, Ordering::Relaxed);
    }

    /// Ready when a deferred change has waited for so long.
    pub(crate) async fn unsaved_for(&self, pause: Duration) {
        let mut status = self.subscribe();
        loop {
            if self.sureness.load(Ordering::Relaxed) == UNSAVED {
                tokio::time::sleep(pause).await;
                if self.sureness.load(Ordering::Relaxed) == UNSAVED {
                    return;
                }
            } else {
                // The sender lives in self, so this cannot fail.
                let _ = status.changed().await;
            }
        }
    }

    /// Waits until the unit is final.
    pub(crate) async fn finished(&self) {
        let mut status = self.subscribe();
        // The sender lives in self, so this cannot fail.
        let _ = status.wait_for(|status| status.life.state.is_final()).await;
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
        if writer.write(status, Durability::Durable).await.is_ok() {
            entry.behind.store(false, Ordering::Relaxed);
            tracing::info!(unit = %entry.id, "the status is on disk again");
            return;
        }
    }
}

impl Writer {
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
            Durability::Durable | Durability::Cached => {}
            Durability::Deferred | Durability::Memory => {
                if how == Durability::Deferred {
                    // First, so that whoever sees the change sees that it is not saved.
                    self.entry.sureness.store(UNSAVED, Ordering::Relaxed);
                }
                self.show(status);
                return Ok(());
            }
        }
        let written = self.write(status, how).await;
        let was_behind = self.entry.behind.swap(written.is_err(), Ordering::Relaxed);
        if written.is_err() && !was_behind {
            tokio::spawn(bring_up(self.entry.clone(), self.store.clone()));
        }
        written
    }

    async fn write(&mut self, status: Status, how: Durability) -> Result<(), WorkError> {
        let (entry, turn) = (self.entry.clone(), self.turn.take());
        let write = move || {
            let written = entry.dir.write_status(&status, how == Durability::Durable);
            if written.is_ok() {
                let sure = if how == Durability::Durable { DURABLE } else { CACHED };
                entry.sureness.store(sure, Ordering::Relaxed);
            }
            if written.is_ok() && how == Durability::Durable {
                entry.reached.store(status.life.state as u8, Ordering::Relaxed);
            }
            entry.status.send_replace(Arc::new(status));
            (turn, written)
        };
        let (turn, written) = self.store.blocking(write).await;
        self.turn = turn;
        written
    }

    /// Shows a status that somebody else has written.
    pub(crate) fn show(&self, status: Status) {
        self.entry.status.send_replace(Arc::new(status));
    }

    /// The status as it stands, which nobody changes meanwhile.
    pub(crate) fn status(&self) -> Arc<Status> {
        self.entry.status()
    }
}
