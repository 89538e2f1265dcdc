//! One unit in memory: its status as everybody sees it, and what those share who wait for it or work on it.
//! A unit that is final and that nobody asks about is little more than its status: thousands may be kept. How a status
//! is changed is `writer`'s business.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use super::quota::Charge;
use super::writer::{Durability, Writer};
use crate::work::WorkError;
use crate::work::remote::Link;
use crate::work::status::Status;
use crate::work::store::{Store, UnitDir};
use crate::work::unit::{Event, UnitId};

/// A unit that exists.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: UnitId,
    pub(crate) dir: UnitDir,
    /// A plain lock, for reading and replacing alone.
    shown: Mutex<Shown>,
    /// The status on disk is behind, and a task tries to bring it up.
    pub(super) behind: AtomicBool,
    /// The status is durable, or nobody is to see to that.
    pub(super) is_saved: AtomicBool,
    /// The number of the furthest state that a power loss would leave.
    pub(super) reached: AtomicU8,
    /// What the unit takes of its caller's quota, for as long as it is not deleted.
    charge: Mutex<Option<Charge>>,
    /// It is deleted, and its ID may be another unit's by now.
    gone: AtomicBool,
    /// Its submission was repeated before its payload was complete.
    repeated: AtomicBool,
}

#[derive(Debug)]
struct Shown {
    status: Arc<Status>,
    live: Hold,
}

/// A unit that can still change holds what is needed for it; a final one only lends it.
#[derive(Debug)]
enum Hold {
    Kept(Arc<Live>),
    Lent(Weak<Live>),
}

impl Hold {
    fn get(&self) -> Option<Arc<Live>> {
        match self {
            Self::Kept(live) => Some(live.clone()),
            Self::Lent(live) => live.upgrade(),
        }
    }
}

/// What those share who wait for a unit, or work on it. There is never more than one of a unit.
#[derive(Debug)]
pub(super) struct Live {
    changes: watch::Sender<Arc<Status>>,
    /// Whoever changes the status or starts the unit holds this: a unit has one writer at a time. Held across
    /// disk writes and the start of a runner, which is why it is an asynchronous lock.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
    /// What a remote unit's driver and its callers tell each other; other units never have one.
    link: OnceLock<Arc<Link>>,
}

impl Live {
    fn new(status: Arc<Status>) -> Self {
        Self { changes: watch::Sender::new(status), turn: Arc::default(), link: OnceLock::new() }
    }
}

/// Somebody who follows a unit's status.
#[derive(Debug)]
pub(crate) struct Follower {
    status: watch::Receiver<Arc<Status>>,
    _live: Arc<Live>,
}

impl Deref for Follower {
    type Target = watch::Receiver<Arc<Status>>;
    fn deref(&self) -> &Self::Target {
        &self.status
    }
}

impl DerefMut for Follower {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.status
    }
}

/// The link to a remote unit's driver, there for as long as somebody holds this.
#[derive(Debug)]
pub(crate) struct LinkHandle {
    link: Arc<Link>,
    _live: Arc<Live>,
}

impl Deref for LinkHandle {
    type Target = Link;
    fn deref(&self) -> &Link {
        &self.link
    }
}

impl Entry {
    pub(crate) fn new(id: UnitId, dir: UnitDir, status: Status) -> Arc<Self> {
        let (reached, end) = (AtomicU8::new(status.life.state as u8), status.life.state.is_final());
        let status = Arc::new(status);
        let live = match end {
            true => Hold::Lent(Weak::new()),
            false => Hold::Kept(Arc::new(Live::new(status.clone()))),
        };
        Arc::new(Self {
            id,
            dir,
            shown: Mutex::new(Shown { status, live }),
            behind: AtomicBool::new(false),
            is_saved: AtomicBool::new(true),
            reached,
            charge: Mutex::default(),
            gone: AtomicBool::new(false),
            repeated: AtomicBool::new(false),
        })
    }

    /// What the unit takes of a quota, if its caller has one. A plain lock, for single operations.
    pub(super) fn charge(&self) -> MutexGuard<'_, Option<Charge>> {
        self.charge.lock()
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock()
    }

    /// What is shared by those who wait for the unit or work on it.
    pub(super) fn live(&self) -> Arc<Live> {
        let mut shown = self.shown();
        shown.live.get().unwrap_or_else(|| {
            let live = Arc::new(Live::new(shown.status.clone()));
            shown.live = Hold::Lent(Arc::downgrade(&live));
            live
        })
    }

    /// The link to a remote unit's driver; other units never have one.
    pub(crate) fn link(&self) -> LinkHandle {
        let live = self.live();
        LinkHandle { link: live.link.get_or_init(Arc::default).clone(), _live: live }
    }

    /// The status as it stands.
    pub(crate) fn status(&self) -> Arc<Status> {
        self.shown().status.clone()
    }

    /// Follows the status.
    pub(crate) fn subscribe(&self) -> Follower {
        let live = self.live();
        Follower { status: live.changes.subscribe(), _live: live }
    }

    /// Shows a status to everybody. Whoever calls this has the turn, or there is nobody else.
    pub(super) fn show(&self, status: Status) {
        let mut shown = self.shown();
        shown.status = Arc::new(status);
        if let Some(live) = shown.live.get() {
            live.changes.send_replace(shown.status.clone());
            if shown.status.life.state.is_final() {
                shown.live = Hold::Lent(Arc::downgrade(&live));
            }
        }
    }

    /// Whether the unit is deleted.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Notes that the unit's submission is repeated, and that this is the end of the first one.
    pub(super) fn note_repeated(&self) {
        self.repeated.store(true, Ordering::Relaxed);
    }

    /// Whether the unit ended because its submission was repeated.
    pub(super) fn is_repeated(&self) -> bool {
        self.repeated.load(Ordering::Relaxed)
    }

    /// The unit is deleted: whoever still waits for its end waits no longer, and nothing is written any more.
    pub(super) fn retire(&self) {
        drop(self.charge().take());
        self.gone.store(true, Ordering::Relaxed);
        self.forget_unsaved();
        let mut status = Status::clone(&self.status());
        if status.life.apply(&Event::CancelledLocally) {
            self.show(status);
        }
    }

    /// Waits for the turn to change the unit.
    pub(crate) async fn writer(self: &Arc<Self>, store: &Store) -> Writer {
        Writer::new(self.clone(), self.live(), store.clone()).await
    }

    /// Applies one event, durably. Says whether it changed anything.
    pub(crate) async fn apply(self: &Arc<Self>, store: &Store, event: Event) -> bool {
        self.writer(store).await.apply(event, Durability::Durable).await
    }

    /// Makes the status durable, if it is not.
    ///
    /// # Errors
    /// The failed write.
    pub(crate) async fn save(self: &Arc<Self>, store: &Store) -> Result<(), WorkError> {
        if self.is_saved.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut writer = self.writer(store).await;
        match self.is_saved.load(Ordering::Relaxed) {
            true => Ok(()),
            false => writer.put(Status::clone(&writer.status()), Durability::Durable).await,
        }
    }

    /// Whether a restart might find an earlier state than the one that is shown. Of a unit that runs here the runner's
    /// own files tell; its end is shown once it is durable.
    pub(crate) fn is_ahead(&self) -> bool {
        let status = self.status();
        let may_be = status.remote().is_some() || status.life.state.is_final();
        may_be && status.life.state as u8 > self.reached.load(Ordering::Relaxed)
    }

    /// The unit is deleted: nothing needs to be written any more.
    pub(crate) fn forget_unsaved(&self) {
        self.is_saved.store(true, Ordering::Relaxed);
    }

    /// Ready when a deferred change has waited for so long.
    pub(crate) async fn unsaved_for(&self, pause: Duration) {
        let mut status = self.subscribe();
        loop {
            if !self.is_saved.load(Ordering::Relaxed) {
                tokio::time::sleep(pause).await;
                if !self.is_saved.load(Ordering::Relaxed) {
                    return;
                }
            } else {
                // The follower keeps the sender, so this cannot fail.
                let _ = status.changed().await;
            }
        }
    }

    /// Waits until the unit is final.
    pub(crate) async fn finished(&self) {
        let mut status = self.subscribe();
        // The follower keeps the sender, so this cannot fail.
        let _ = status.wait_for(|status| status.life.state.is_final()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::status::Extra;
    use crate::work::unit::State;

    #[tokio::test]
    async fn who_waits_for_a_unit_and_who_changes_it_share_one_of_everything() {
        let dir = UnitDir::at("/nonexistent".into());
        let entry = Entry::new("abcd1234".parse().unwrap(), dir, Status::new("t", Extra::None));
        let first = entry.live();
        assert!(Arc::ptr_eq(&first, &entry.live()));
        let mut follower = entry.subscribe();
        let mut status = Status::clone(&entry.status());
        status.life.apply(&Event::Reported(State::Succeeded, "exit status 0".into(), 3));
        entry.show(status.clone());
        assert!(Arc::ptr_eq(&first, &entry.live()), "somebody still holds it");
        assert_eq!(follower.wait_for(|status| status.life.state.is_final()).await.unwrap().life, status.life);
        let held = Arc::downgrade(&first);
        drop((first, follower));
        assert!(held.upgrade().is_none(), "a final unit that nobody asks about keeps none of it");
        let (one, two) = (entry.live(), entry.subscribe());
        assert!(Arc::ptr_eq(&one, &two._live));
        assert_eq!(two.borrow().life, status.life);
        entry.finished().await;
    }
}
