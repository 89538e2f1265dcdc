//! One unit in memory: its status as everybody sees it, how far that is durable, and what its readers and its writer
//! share. A final unit that nobody asks about is little more than its status: thousands may be kept. `writer` changes
//! the status.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::info;

use super::attempt::FarAttempt;
use super::farewell::Farewell;
use super::kept::{KeptOutput, Shortened};
use super::link::DriverLink;
use super::quota::{Charge, Exceeded};
use crate::work::figures::UnitTimer;
use crate::work::status::{Extra, Status};
use crate::work::store::{FlushOnce, OutputFile, UnitDir};
use crate::work::unit::{State, UnitEvent, UnitId, job_of};

/// A unit that exists.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: UnitId,
    pub(crate) dir: UnitDir,
    /// What the attempt of a job has in place of a directory.
    attempt: Option<Box<FarAttempt>>,
    /// A plain lock, for reading and replacing alone.
    shown: Mutex<Shown>,
    /// Made by the first cancel of a client.
    farewell: OnceLock<Box<Farewell>>,
}

/// A client's cancel, until its answer has gone out.
#[derive(Debug)]
pub struct CancelInProgress(Option<Arc<Entry>>);

impl CancelInProgress {
    /// Begins a cancel. It has no effect if the unit has ended.
    pub(crate) fn begin(unit: Option<Arc<Entry>>) -> Self {
        let unit = unit.filter(|unit| !unit.status().life.state.is_final());
        if let Some(unit) = &unit {
            unit.farewell.get_or_init(Box::default).ask();
        }
        Self(unit)
    }

    /// Notes that the cancel was refused, so that results do not wait for its answer.
    pub fn refused(&mut self) {
        if let Some(farewell) = self.0.take().as_ref().and_then(|unit| unit.farewell.get()) {
            farewell.refuse();
        }
    }
}

impl Drop for CancelInProgress {
    fn drop(&mut self) {
        if let Some(farewell) = self.0.as_ref().and_then(|unit| unit.farewell.get()) {
            farewell.answer();
        }
    }
}

#[derive(Debug)]
struct Shown {
    status: Arc<Status>,
    live: UnitHold,
    /// Present until the unit's end, if this process made the unit.
    timer: Option<Box<UnitTimer>>,
    /// The unit's part of its caller's quota, until the unit is deleted.
    charge: Option<Box<Charge>>,
    /// The furthest state that a power loss would leave.
    durable: State,
    /// The status is not yet on disk as it is shown, and has to be.
    is_unsaved: bool,
    /// A task is going to save the status.
    has_saver: bool,
    /// The unit is deleted, and another unit may have its ID by now.
    is_gone: bool,
    /// Its submission was repeated before its payload was complete.
    is_repeated: bool,
    /// Its submission was given up half way, so nobody ever had this unit.
    is_discarded: bool,
}

/// A unit that can still change keeps its [`Live`]. That of a final unit exists only while somebody uses it.
#[derive(Debug)]
enum UnitHold {
    Kept(Arc<Live>),
    Lent(Weak<Live>),
}

impl UnitHold {
    fn get(&self) -> Option<Arc<Live>> {
        match self {
            Self::Kept(live) => Some(live.clone()),
            Self::Lent(live) => live.upgrade(),
        }
    }
}

/// The latest writer of the output of a job's unit.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputWriter {
    /// The attempt whose output it writes.
    pub(crate) attempt: u32,
    /// The number of the writer, because an attempt's output may get another writer.
    pub(crate) number: u64,
}

/// What the readers and the writer of a unit share. A unit never has more than one.
#[derive(Debug)]
pub(crate) struct Live {
    changes: watch::Sender<Arc<Status>>,
    /// Like `changes`, but shows an end before it is durable.
    ahead: watch::Sender<Arc<Status>>,
    /// The unit's whole payload, while it is not known to be durable. A plain lock, never held across a wait.
    unflushed: Mutex<Option<Arc<FlushOnce>>>,
    /// Held by the unit's one writer. It is an asynchronous lock, because it is held across disk writes and the start
    /// of a runner.
    pub(crate) write_lock: Arc<tokio::sync::Mutex<()>>,
    /// Who writes the output of a job's unit. Held across disk writes.
    output_writer: Arc<tokio::sync::Mutex<OutputWriter>>,
    /// How much of its output is durable.
    pub(crate) kept_output: KeptOutput,
    /// Links a remote unit's driver with its callers; other units have none.
    link: OnceLock<Arc<DriverLink>>,
}

impl Live {
    fn new(status: Arc<Status>) -> Self {
        Self {
            changes: watch::Sender::new(status.clone()),
            ahead: watch::Sender::new(status),
            unflushed: Mutex::default(),
            write_lock: Arc::default(),
            output_writer: Arc::default(),
            kept_output: KeptOutput::default(),
            link: OnceLock::new(),
        }
    }
}

/// A reader that follows a unit's status.
#[derive(Debug)]
pub(crate) struct Follower {
    status: watch::Receiver<Arc<Status>>,
    live: Arc<Live>,
}

impl Follower {
    /// What was cut off the unit's output.
    pub(crate) fn shortened(&self) -> Shortened {
        self.live.kept_output.shortened()
    }
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

/// The link to a remote unit's driver, which exists while somebody holds this.
#[derive(Debug)]
pub(crate) struct DriverHandle {
    link: Arc<DriverLink>,
    _live: Arc<Live>,
}

impl Deref for DriverHandle {
    type Target = DriverLink;
    fn deref(&self) -> &DriverLink {
        &self.link
    }
}

impl Entry {
    pub(crate) fn new(id: UnitId, dir: UnitDir, status: Status) -> Arc<Self> {
        Self::with(id, dir, status, None)
    }

    /// The attempt of a job on another node. Nothing is ever in the directory.
    pub(super) fn of_attempt(id: UnitId, dir: UnitDir, status: Status, attempt: FarAttempt) -> Arc<Self> {
        Self::with(id, dir, status, Some(Box::new(attempt)))
    }

    fn with(id: UnitId, dir: UnitDir, status: Status, attempt: Option<Box<FarAttempt>>) -> Arc<Self> {
        let durable = status.life.state;
        let status = Arc::new(status);
        let live = match durable.is_final() {
            true => UnitHold::Lent(Weak::new()),
            false => UnitHold::Kept(Arc::new(Live::new(status.clone()))),
        };
        let shown = Shown {
            status,
            live,
            timer: None,
            charge: None,
            durable,
            is_unsaved: false,
            has_saver: false,
            is_gone: false,
            is_repeated: false,
            is_discarded: false,
        };
        Arc::new(Self { id, dir, attempt, shown: Mutex::new(shown), farewell: OnceLock::new() })
    }

    /// What the attempt of a job has in place of a directory. Other units have none.
    pub(crate) fn attempt(&self) -> Option<&FarAttempt> {
        self.attempt.as_deref()
    }

    /// Bytes of output that are here, or came through here. Looks at the disk.
    pub(crate) fn printed(&self) -> u64 {
        self.attempt().map_or_else(
            || self.dir.stdout_size() + self.dir.output_size(OutputFile::Stderr),
            FarAttempt::received,
        )
    }

    /// Gives a unit that was just made the timer that counts how long it waits and runs.
    pub(super) fn set_timer(&self, timer: UnitTimer) {
        self.shown.lock().timer = Some(Box::new(timer));
    }

    /// Gives the unit its part of a quota, if its caller has one.
    pub(super) fn set_charge(&self, charge: Option<Charge>) {
        // The former charge is dropped after the lock is released.
        let _former = std::mem::replace(&mut self.shown.lock().charge, charge.map(Box::new));
    }

    /// Counts more payload against its caller's quota.
    ///
    /// # Errors
    /// The bound that is met.
    pub(crate) fn charge_payload(&self, bytes: u64) -> Result<(), Exceeded> {
        self.shown.lock().charge.as_mut().map_or(Ok(()), |charge| charge.add_payload(bytes))
    }

    pub(crate) fn live(&self) -> Arc<Live> {
        let mut shown = self.shown.lock();
        shown.live.get().unwrap_or_else(|| {
            let live = Arc::new(Live::new(shown.status.clone()));
            shown.live = UnitHold::Lent(Arc::downgrade(&live));
            live
        })
    }

    /// The link to a remote unit's driver; other units never have one.
    pub(crate) fn link(&self) -> DriverHandle {
        let live = self.live();
        DriverHandle { link: live.link.get_or_init(Arc::default).clone(), _live: live }
    }

    /// The current status.
    pub(crate) fn status(&self) -> Arc<Status> {
        self.shown.lock().status.clone()
    }

    /// Follows the status.
    pub(crate) fn subscribe(&self) -> Follower {
        let live = self.live();
        Follower { status: live.changes.subscribe(), live }
    }

    /// Follows the status for a node that makes the end durable itself, and so need not wait until it is durable here.
    pub(crate) fn subscribe_ahead(&self) -> Follower {
        let live = self.live();
        Follower { status: live.ahead.subscribe(), live }
    }

    /// Shows the end to the followers of [`Self::subscribe_ahead`], before it is written.
    pub(super) fn show_ahead(&self, status: &Status) {
        self.shown.lock().time(status.life.state);
        self.live().ahead.send_replace(status.clone().into());
    }

    /// Makes the whole payload durable, unless it is known to be durable. Blocks.
    pub(crate) fn flush_payload(&self) -> io::Result<()> {
        let payload = self.live().unflushed.lock().clone();
        payload.map_or(Ok(()), |payload| payload.flush())
    }

    /// Notes the file of the whole payload, or with `None` that the payload is durable.
    pub(crate) fn set_unflushed(&self, payload: Option<Arc<FlushOnce>>) {
        *self.live().unflushed.lock() = payload;
    }

    /// Shows a status to everybody. The caller has the write lock, or there is no other writer.
    pub(crate) fn show(&self, status: Status) {
        let news = self.shown.lock().show(status);
        self.tell(news);
    }

    /// Shows a status that is to be saved. Returns whether the caller has to start a task for that.
    pub(crate) fn show_unsaved(&self, status: Status) -> bool {
        let mut shown = self.shown.lock();
        shown.is_unsaved = true;
        let news = shown.show(status);
        let needs_saver = !std::mem::replace(&mut shown.has_saver, true);
        drop(shown);
        self.tell(news);
        needs_saver
    }

    /// Shows a status that is durable.
    pub(crate) fn show_saved(&self, status: Status) {
        let mut shown = self.shown.lock();
        (shown.durable, shown.is_unsaved) = (status.life.state, false);
        let news = shown.show(status);
        drop(shown);
        self.tell(news);
    }

    /// Logs that the unit has started or ended, with the same fields on every node that has the unit.
    fn tell(&self, news: Option<Arc<Status>>) {
        let Some(status) = news else { return };
        let state = status.life.state.name();
        // The detail of a job may quote its output, which not everybody who reads logs may see.
        let (job, detail) = match &status.extra {
            Extra::Job(job) => (job.job_id.map(i64::unsigned_abs), None),
            _ => (job_of(self.id.as_str()), Some(status.life.detail.as_str())),
        };
        info!(unit = %self.id, job, work_type = &*status.work_type, state, detail, "unit");
    }

    /// Leaves the status unsaved: the unit is deleted, or a runner writes its files from now on.
    pub(crate) fn forget_unsaved(&self) {
        self.shown.lock().is_unsaved = false;
    }

    pub(crate) fn is_unsaved(&self) -> bool {
        self.shown.lock().is_unsaved
    }

    /// Returns whether the task that saves may end. It may not if the status is unsaved again.
    pub(crate) fn end_saving(&self) -> bool {
        let mut shown = self.shown.lock();
        shown.has_saver = shown.is_unsaved;
        !shown.has_saver
    }

    /// Whether a restart might find an earlier state than the one that is shown. Never for a unit that is running here,
    /// because a restart reads its runner's files.
    pub(crate) fn is_ahead(&self) -> bool {
        let shown = self.shown.lock();
        let state = shown.status.life.state;
        (shown.status.remote().is_some() || state.is_final()) && state > shown.durable
    }

    /// Whether the unit is deleted.
    pub(crate) fn is_gone(&self) -> bool {
        self.shown.lock().is_gone
    }

    /// Notes that the unit's submission is repeated, which ends the first one.
    pub(crate) fn note_repeated(&self) {
        self.shown.lock().is_repeated = true;
    }

    /// Whether the unit ended because its submission was repeated.
    pub(crate) fn is_repeated(&self) -> bool {
        self.shown.lock().is_repeated
    }

    /// Notes that nothing is kept of a submission that stopped half way.
    pub(crate) fn note_discarded(&self) {
        self.shown.lock().is_discarded = true;
    }

    /// Whether the unit goes because its submission stopped half way.
    pub(crate) fn is_discarded(&self) -> bool {
        self.shown.lock().is_discarded
    }

    /// Marks the unit as deleted: nobody waits for its end any longer, and nothing is written any more.
    pub(crate) fn retire(&self) {
        self.set_charge(None);
        let mut shown = self.shown.lock();
        (shown.is_gone, shown.is_unsaved) = (true, false);
        let mut status = Status::clone(&shown.status);
        if status.life.apply(&UnitEvent::CancelledLocally) {
            // A deletion is not logged as an end.
            let _deleted = shown.show(status);
        }
    }

    /// Waits for the right to write the output of a job's unit.
    pub(crate) async fn output_writer(&self) -> tokio::sync::OwnedMutexGuard<OutputWriter> {
        self.live().output_writer.clone().lock_owned().await
    }

    /// Waits until results of the unit, which is final, may end.
    pub(crate) async fn farewell(&self) {
        if let Some(farewell) = self.farewell.get() {
            farewell.passed().await;
        }
    }

    /// Waits until the unit is final.
    pub(crate) async fn finished(&self) {
        let mut status = self.subscribe();
        // The follower keeps the sender, so this cannot fail.
        let _ = status.wait_for(|status| status.life.state.is_final()).await;
    }
}

impl Shown {
    fn time(&mut self, state: State) {
        if let Some(timer) = &mut self.timer {
            timer.show(&self.status.work_type, state);
        }
        if state.is_final() {
            self.timer = None;
        }
    }

    /// Returns the status if the unit has started or ended.
    fn show(&mut self, status: Status) -> Option<Arc<Status>> {
        let before = std::mem::replace(&mut self.status, Arc::new(status)).life.state;
        let state = self.status.life.state;
        self.time(state);
        if let Some(live) = self.live.get() {
            live.changes.send_replace(self.status.clone());
            live.ahead.send_replace(self.status.clone());
            if state.is_final() {
                self.live = UnitHold::Lent(Arc::downgrade(&live));
            }
        }
        (state != before).then(|| self.status.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::status::Extra;

    #[tokio::test]
    async fn readers_and_writers_of_a_unit_share_one_of_everything() {
        let dir = UnitDir::at("/nonexistent".as_ref());
        let entry = Entry::new("abcd1234".parse().unwrap(), dir, Status::new("t", Extra::None));
        let first = entry.live();
        assert!(Arc::ptr_eq(&first, &entry.live()));
        let mut follower = entry.subscribe();
        let mut status = Status::clone(&entry.status());
        status.life.apply(&UnitEvent::Reported(State::Succeeded, "exit status 0".into(), 3));
        entry.show(status.clone());
        assert!(Arc::ptr_eq(&first, &entry.live()), "somebody still holds it");
        assert_eq!(follower.wait_for(|status| status.life.state.is_final()).await.unwrap().life, status.life);
        let held = Arc::downgrade(&first);
        drop((first, follower));
        assert!(held.upgrade().is_none(), "a final unit that nobody asks about keeps none of it");
        let (one, two) = (entry.live(), entry.subscribe());
        assert!(Arc::ptr_eq(&one, &two.live));
        assert_eq!(two.borrow().life, status.life);
        entry.finished().await;
    }
}
