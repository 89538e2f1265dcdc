//! The units of this node by ID. Owns which units there are, which ID a new unit gets, which IDs are refused, what is
//! remembered of released units, and what each caller may have. `entry` holds a unit's own state, which only its
//! `writer` changes. Knows nothing of processes or other nodes.

mod attempt;
mod disclaimed;
mod entry;
mod farewell;
mod id_locks;
mod kept;
mod link;
mod quota;
mod released;
mod writer;

pub(crate) use self::attempt::{AHEAD, AttemptReader, FarAttempt, IdKeeper};
pub use self::attempt::{AttemptPayload, FarUnit};
pub use self::entry::CancelInProgress;
pub(crate) use self::entry::{DriverHandle, Entry, Follower, OutputWriter};
pub(crate) use self::kept::Shortened;
pub(crate) use self::link::DriverNews;
pub(crate) use self::quota::Exceeded;
pub use self::quota::Quota;
pub(crate) use self::writer::UnitWriter;

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::RwLock;
use tokio::time::Instant;

use self::disclaimed::Disclaimed;
use self::id_locks::{IdLock, IdLocks};
use self::quota::Accounts;
use self::released::Released;
use super::figures::{Timings, UnitTimer};
use super::status::Status;
use super::store::{Durability, UnitDir, UnitStore};
use super::unit::UnitId;
use super::{OpenError, Submitter, WorkError};
use crate::wire::NodeId;

/// How long a unit's removal waits for a write that is under way.
const LAST_WRITE: Duration = Duration::from_secs(5);
/// How long an answer waits until the states in it are on disk.
const SAVED_WITHIN: Duration = Duration::from_secs(1);

pub(crate) struct Units {
    store: UnitStore,
    node_id: NodeId,
    /// A plain lock, held for single map operations and never across a wait.
    by_id: RwLock<BTreeMap<UnitId, Arc<Entry>>>,
    /// Attempts of jobs on other nodes. They have no directories, and only the controller sees them as units. A plain
    /// lock, as above.
    attempts: RwLock<BTreeMap<UnitId, Arc<Entry>>>,
    id_locks: IdLocks,
    released: Released,
    /// Units that a caller released before they came: their start may still be on its way.
    withdrawn: Released,
    disclaimed: Disclaimed,
    accounts: Arc<Accounts>,
    timings: Arc<Timings>,
}

/// Why a unit was not made.
#[derive(Debug)]
pub(crate) enum CreateError {
    /// Its caller has too many.
    Exceeded(Exceeded),
    /// Anything else.
    Failed(WorkError),
}

impl From<WorkError> for CreateError {
    fn from(error: WorkError) -> Self {
        Self::Failed(error)
    }
}

impl Units {
    /// Has no units yet. `store` is that of node `node_id`.
    ///
    /// # Errors
    /// The promises of earlier daemons cannot be read.
    pub(crate) fn open(store: UnitStore, node_id: NodeId) -> Result<Self, OpenError> {
        Ok(Self {
            disclaimed: Disclaimed::load(&store)?,
            store,
            node_id,
            by_id: RwLock::default(),
            attempts: RwLock::default(),
            id_locks: IdLocks::default(),
            released: Released::new(),
            withdrawn: Released::new(),
            accounts: Arc::default(),
            timings: Arc::default(),
        })
    }

    /// Where the units are on disk.
    pub(crate) fn store(&self) -> &UnitStore {
        &self.store
    }

    /// This node.
    pub(crate) fn node_id(&self) -> &NodeId {
        &self.node_id
    }

    /// How long units wait and run.
    pub(crate) fn timings(&self) -> &Timings {
        &self.timings
    }

    /// The number of units.
    pub(crate) fn len(&self) -> usize {
        self.by_id.read().len()
    }

    /// All units, in the order of their IDs.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.by_id.read().values().cloned().collect()
    }

    /// All units, and the attempts of jobs on other nodes.
    pub(crate) fn all_with_attempts(&self) -> Vec<Arc<Entry>> {
        self.attempts.read().values().cloned().chain(self.all()).collect()
    }

    /// The IDs of units and attempts that begin with `start`.
    pub(crate) fn ids_from(&self, start: &UnitId) -> Vec<UnitId> {
        let from = |units: &BTreeMap<UnitId, Arc<Entry>>| -> Vec<UnitId> {
            let from = units.range(start..).map(|(id, _)| id);
            from.take_while(|id| id.as_str().starts_with(start.as_str())).cloned().collect()
        };
        [from(&self.attempts.read()), from(&self.by_id.read())].concat()
    }

    /// The unit or the attempt that the controller asks for.
    pub(crate) fn child(&self, id: &str) -> Result<Arc<Entry>, WorkError> {
        let known: Option<UnitId> = id.parse().ok();
        let attempt = known.as_ref().and_then(|id| self.attempts.read().get(id).cloned());
        attempt.map_or_else(|| self.find(id), Ok)
    }

    /// Makes an attempt; `None` if another one has that ID.
    pub(crate) fn add_attempt(&self, id: UnitId, status: Status, attempt: FarAttempt) -> Option<Arc<Entry>> {
        let mut attempts = self.attempts.write();
        if attempts.contains_key(&id) {
            return None;
        }
        let entry = Entry::of_attempt(id.clone(), self.store.unit(&id), status, attempt);
        entry.set_timer(UnitTimer::new(&self.timings, Instant::now()));
        attempts.insert(id, entry.clone());
        Some(entry)
    }

    /// All units, or the one that a client asks for.
    pub(crate) fn listed(&self, id: Option<&str>) -> Result<Vec<Arc<Entry>>, WorkError> {
        id.map_or_else(|| Ok(self.all()), |id| Ok(vec![self.find(id)?]))
    }

    /// The unit that a client asks for.
    ///
    /// # Errors
    /// [`WorkError::UnknownUnit`], [`WorkError::Released`].
    pub(crate) fn find(&self, id: &str) -> Result<Arc<Entry>, WorkError> {
        let known: Option<UnitId> = id.parse().ok();
        let found = known.as_ref().and_then(|id| self.by_id.read().get(id).cloned());
        found.ok_or_else(|| {
            let ago = known.and_then(|id| self.released_ago(&id));
            ago.map_or_else(|| WorkError::UnknownUnit(id.to_owned()), |ago| released(id, ago))
        })
    }

    /// The unit to release. If it is not here and the caller is a node, a start that comes later is refused.
    pub(crate) async fn find_to_release(&self, id: &str, by: Submitter) -> Result<Arc<Entry>, WorkError> {
        let found = self.find(id);
        let (Err(WorkError::UnknownUnit(_)), Ok(unit)) = (&found, id.parse()) else { return found };
        // Under this lock, no submission of the unit is under way.
        let _lock = self.lock_id(&unit).await;
        let found = self.find(id);
        if let (Err(WorkError::UnknownUnit(_)), Submitter::Node { .. }) = (&found, by) {
            self.withdrawn.remember(&withdrawn(&unit, by), by);
        }
        found
    }

    /// Whether a submission that its node sent in one piece may make a unit: it may come after the unit's release. The
    /// caller holds the ID's lock, and has found no unit of that ID.
    ///
    /// # Errors
    /// [`WorkError::Released`] if its release came first.
    pub(crate) fn check_late(&self, id: &UnitId, by: Submitter) -> Result<(), WorkError> {
        let ago = self.released_ago(id).or_else(|| self.withdrawn.ago(&withdrawn(id, by)));
        ago.map_or(Ok(()), |ago| Err(released(id.as_str(), ago)))
    }

    /// Whether a unit of that ID was released, as far as that is remembered.
    pub(crate) fn was_released(&self, id: &UnitId) -> bool {
        self.released_ago(id).is_some()
    }

    /// Notes that a unit of that ID was released, because another node says so.
    pub(crate) fn note_released(&self, id: &UnitId) {
        self.released.remember(id.as_str(), Submitter::Operator);
    }

    /// How long ago a unit of that ID was released, as far as that is remembered.
    fn released_ago(&self, id: &UnitId) -> Option<Duration> {
        self.released.ago(id.as_str()).or_else(|| self.disclaimed.has_run(id))
    }

    /// The unit of that ID, if there is one.
    ///
    /// # Errors
    /// [`WorkError::InUse`] if the unit was released by force and may still be on its node.
    pub(crate) fn get(&self, id: &UnitId) -> Result<Option<Arc<Entry>>, WorkError> {
        let found = self.by_id.read().get(id).cloned();
        match found.is_none() && self.store.hidden(id).path().exists() {
            true => Err(WorkError::InUse(id.to_string())),
            false => Ok(found),
        }
    }

    /// Whether a unit of that ID may be made, if none is here. A released child has run, so a node that submits it now
    /// repeats itself.
    ///
    /// # Errors
    /// [`WorkError::Released`] if the unit has run here, [`WorkError::Disclaimed`] if this node only promised not to
    /// run it.
    pub(crate) fn check_disclaimed(&self, id: &UnitId, by: Submitter) -> Result<(), WorkError> {
        let ago = match by {
            Submitter::Node { .. } => self.released.ago(id.as_str()).filter(|_| id.is_child()),
            // On its own node, a controller releases a unit only before it starts it again, never afterwards.
            Submitter::Operator | Submitter::Stranger => None,
        };
        match ago.or_else(|| self.disclaimed.has_run(id)) {
            Some(ago) => Err(released(id.as_str(), ago)),
            None if self.disclaimed.has(id) => Err(WorkError::Disclaimed(id.to_string())),
            None => Ok(()),
        }
    }

    /// Promises durably that no unit of that ID is made. The caller holds the ID's lock, and no unit has the ID.
    ///
    /// # Errors
    /// [`WorkError::NoPromise`], or the promise cannot be written.
    pub(crate) async fn disclaim(&self, id: UnitId, to: Submitter) -> Result<(), WorkError> {
        let has_run = self.released.ago(id.as_str()).is_some();
        self.disclaimed.promise(id, to, has_run).await
    }

    /// Writes down what has to outlive this daemon and is not on disk yet.
    pub(crate) async fn save(&self) -> Result<(), WorkError> {
        self.disclaimed.save().await
    }

    /// Waits for the right to give an ID to a unit.
    pub(crate) async fn lock_id(&self, id: &UnitId) -> IdLock<'_> {
        self.id_locks.lock(id).await
    }

    /// Makes a unit whose request was `received` at that time, under the chosen ID or a new one. If the unit is not
    /// durable yet, also returns the file that [`UnitDir::finish`] needs.
    pub(crate) async fn create(
        &self,
        chosen: Option<UnitId>,
        status: Status,
        received: Instant,
        durability: Durability,
    ) -> Result<(Arc<Entry>, Option<File>), CreateError> {
        let charge = match status.submitter {
            Some(submitter) => self.accounts.admit(submitter).map_err(CreateError::Exceeded)?,
            None => None,
        };
        let id = loop {
            let id = chosen.clone().unwrap_or_else(|| UnitId::made_by(&self.node_id));
            match (self.by_id.read().contains_key(&id), &chosen) {
                (false, _) => break id,
                (true, None) => {}
                (true, Some(_)) => return Err(WorkError::InUse(id.to_string()).into()),
            }
        };
        let made = self.store.create(&id, &status, durability).await?;
        let entry = Entry::new(id.clone(), self.store.unit(&id), status);
        entry.set_charge(charge);
        entry.set_timer(UnitTimer::new(&self.timings, received));
        self.by_id.write().insert(id, entry.clone());
        Ok((entry, made))
    }

    /// Takes in units that were found on disk.
    pub(crate) fn load(&self, entries: Vec<Arc<Entry>>) {
        for entry in &entries {
            let payload = || entry.dir.payload_size();
            entry.set_charge(entry.status().submitter.and_then(|by| self.accounts.readmit(by, payload)));
        }
        self.by_id.write().extend(entries.into_iter().map(|entry| (entry.id.clone(), entry)));
    }

    /// Deletes a unit. `end` ends what is left of its processes, and blocks.
    pub(crate) async fn remove(
        &self,
        entry: &Arc<Entry>,
        end: impl FnOnce(&UnitDir) + Send + 'static,
    ) -> Result<(), WorkError> {
        if entry.attempt().is_some() {
            self.attempts.write().remove(&entry.id);
            entry.retire();
            return Ok(());
        }
        // Keeps every other writer out, now and later, because the next unit of this ID has a directory of the same
        // name. A write that hangs does not prevent the removal.
        let lock = tokio::time::timeout(LAST_WRITE, entry.writer(&self.store)).await;
        if entry.is_gone() {
            return Ok(());
        }
        let dir = entry.dir.clone();
        self.store.blocking(move || end(&dir)).await;
        self.store.remove(&entry.dir).await?;
        entry.retire();
        drop(lock);
        // A unit that never ran may be submitted again, or disclaimed. It does not count as released, because that
        // would say that it had run.
        let never_ran = entry.is_discarded() || entry.is_repeated() || entry.status().life.lacks_payload();
        let mut by_id = self.by_id.write();
        if !entry.dir.is_hidden() && by_id.remove(&entry.id).is_some() && !never_ran {
            self.released
                .remember(entry.id.as_str(), entry.status().submitter.unwrap_or(Submitter::Operator));
        }
        Ok(())
    }

    /// Brings states to disk before clients see them, so that no state goes back if the daemon ends now. Waits a
    /// limited time, so that a disk that hangs holds up no answer.
    pub(crate) async fn save_shown(&self, entries: &[Arc<Entry>]) {
        let ahead = entries.iter().filter(|entry| entry.is_ahead());
        let saves = ahead.map(|entry| entry.save(&self.store));
        let _ = tokio::time::timeout(SAVED_WITHIN, join_all(saves)).await;
    }

    /// Replaces the bounds of what one calling node may have here. Units that exist stay.
    pub(crate) fn set_quota(&self, quota: Quota) {
        self.accounts.set_quota(quota);
    }
}

/// What to remember of a unit that a caller released before it came. It names the caller, so that nobody else can keep
/// the unit from coming.
fn withdrawn(id: &UnitId, by: Submitter) -> String {
    format!("{by} {id}")
}

fn released(unit: &str, ago: Duration) -> WorkError {
    WorkError::Released { unit: unit.to_owned(), seconds: ago.as_secs() }
}

/// Whether a cancel or release is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The cancel or release is complete.
    Done,
    /// The request is durable, and goes on as soon as the other node can be reached.
    Pending,
}

/// What happens, when a unit is released, to processes that it left running. A command that ended by itself may have
/// put them into the background on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftovers {
    /// They go on, except those in the process group or the control group of the unit's command.
    Stay,
    /// They are ended.
    End,
}

/// What a client learns when its payload is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// It runs.
    Started,
    /// It will run as soon as its node can be reached.
    Submitted,
}

/// Runs a future to its end even if the caller is dropped in the middle, for example because a client's connection
/// breaks.
pub(crate) async fn detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work).await {
        Ok(value) => value,
        Err(gone) => match gone.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and the waiting task with it.
            Err(_) => std::future::pending().await,
        },
    }
}
