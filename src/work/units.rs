//! The units of this node by ID: which there are, which ID a new one gets and which none gets, what is remembered of
//! released ones and what each caller may have. A unit's own state is its `entry`'s, and changes through its `writer`
//! alone. Knows nothing of processes and of other nodes.

mod disclaimed;
mod entry;
mod farewell;
mod id_locks;
mod kept;
mod quota;
mod released;
mod steps;
mod writer;

pub use self::entry::CancelInProgress;
pub(crate) use self::entry::{Entry, Follower, LinkHandle, OutputWriter};
pub(crate) use self::quota::Exceeded;
pub use self::quota::Quota;
pub(crate) use self::writer::Writer;

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
use self::steps::KeptSteps;
use super::figures::Timings;
use super::remote::Attempt;
use super::status::Status;
use super::store::{Durability, Store, UnitDir};
use super::unit::UnitId;
use super::{OpenError, Submitter, WorkError};
use crate::wire::NodeId;

/// How long a unit's removal waits for a write that is under way.
const LAST_WRITE: Duration = Duration::from_secs(5);
/// How long an answer waits for a disk to take the states in it.
const SAVED_WITHIN: Duration = Duration::from_secs(1);

pub(crate) struct Units {
    store: Store,
    node_id: NodeId,
    /// A plain lock, held for single map operations and never across a wait.
    by_id: RwLock<BTreeMap<UnitId, Arc<Entry>>>,
    /// Of jobs, on other nodes: they have no directories, and are units to nobody but the controller. As above.
    attempts: RwLock<BTreeMap<UnitId, Arc<Entry>>>,
    id_locks: IdLocks,
    released: Released,
    /// Released when they were not here, each with its caller: their start may still be on its way.
    withdrawn: Released,
    disclaimed: Disclaimed,
    accounts: Arc<Accounts>,
    step_times: KeptSteps,
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
    /// None yet, of the node whose store this is.
    ///
    /// # Errors
    /// What earlier daemons promised cannot be read.
    pub(crate) fn open(store: Store, node_id: NodeId) -> Result<Self, OpenError> {
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
            step_times: KeptSteps::default(),
        })
    }

    /// Where they are on disk.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The node whose units they are.
    pub(crate) fn node_id(&self) -> &NodeId {
        &self.node_id
    }

    /// How long they wait and run.
    pub(crate) fn timings(&self) -> &Timings {
        &self.step_times.timings
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_id.read().len()
    }

    /// All of them, in the order of their IDs.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.by_id.read().values().cloned().collect()
    }

    /// All of them, and the attempts of jobs on other nodes.
    pub(crate) fn all_with_attempts(&self) -> Vec<Arc<Entry>> {
        self.attempts.read().values().cloned().chain(self.all()).collect()
    }

    /// The IDs that begin like this one, also of attempts.
    pub(crate) fn ids_from(&self, start: &UnitId) -> Vec<UnitId> {
        let from = |units: &BTreeMap<UnitId, Arc<Entry>>| -> Vec<UnitId> {
            let from = units.range(start..).map(|(id, _)| id);
            from.take_while(|id| id.as_str().starts_with(start.as_str())).cloned().collect()
        };
        [from(&self.attempts.read()), from(&self.by_id.read())].concat()
    }

    /// The unit or the attempt that the controller asks for.
    ///
    /// # Errors
    /// Those of [`Self::find`].
    pub(crate) fn child(&self, id: &str) -> Result<Arc<Entry>, WorkError> {
        let known: Option<UnitId> = id.parse().ok();
        let attempt = known.as_ref().and_then(|id| self.attempts.read().get(id).cloned());
        attempt.map_or_else(|| self.find(id), Ok)
    }

    /// Makes an attempt; `None` if there is one of that ID.
    pub(crate) fn add_attempt(&self, id: UnitId, status: Status, attempt: Attempt) -> Option<Arc<Entry>> {
        let mut attempts = self.attempts.write();
        if attempts.contains_key(&id) {
            return None;
        }
        let entry = Entry::of_attempt(id.clone(), self.store.unit(&id), status, attempt);
        entry.set_steps(self.step_times.begin(Instant::now()));
        attempts.insert(id, entry.clone());
        Some(entry)
    }

    /// All units, or the one that a client asks for.
    ///
    /// # Errors
    /// Those of [`Self::find`].
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

    /// The unit that is to be released. If it is not here, a start of it that comes later is refused.
    ///
    /// # Errors
    /// Those of [`Self::find`].
    pub(crate) async fn find_to_release(&self, id: &str, by: Submitter) -> Result<Arc<Entry>, WorkError> {
        let found = self.find(id);
        let (Err(WorkError::UnknownUnit(_)), Ok(unit)) = (&found, id.parse()) else { return found };
        // No submission of it is half way.
        let _lock = self.lock_id(&unit).await;
        let found = self.find(id);
        if let (Err(WorkError::UnknownUnit(_)), Submitter::Node { .. }) = (&found, by) {
            self.withdrawn.remember(&withdrawn(&unit, by), by);
        }
        found
    }

    /// Whether a unit may be made of a submission that its node has sent in one piece: it may be late, and what it is about
    /// over. The caller has the right to give the ID, and has found no unit of it.
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

    /// Notes that a unit of that ID was released, as another node remembers.
    pub(crate) fn note_released(&self, id: &UnitId) {
        self.released.remember(id.as_str(), Submitter::Operator);
    }

    /// How long ago a unit of that ID was released, as far as that is remembered.
    fn released_ago(&self, id: &UnitId) -> Option<Duration> {
        self.released.ago(id.as_str()).or_else(|| self.disclaimed.has_run(id))
    }

    /// The unit that has an ID, if one has.
    ///
    /// # Errors
    /// [`WorkError::InUse`] for one that was released by force and may still be on its node.
    pub(crate) fn get(&self, id: &UnitId) -> Result<Option<Arc<Entry>>, WorkError> {
        let found = self.by_id.read().get(id).cloned();
        match found.is_none() && self.store.hidden(id).path().exists() {
            true => Err(WorkError::InUse(id.to_string())),
            false => Ok(found),
        }
    }

    /// Whether a unit of that ID, of which none is there, may be made. A child that was released has run: a node that submits
    /// it later has done so before.
    ///
    /// # Errors
    /// [`WorkError::Released`] for one that has run here, [`WorkError::Disclaimed`] for one that never did.
    pub(crate) fn check_disclaimed(&self, id: &UnitId, by: Submitter) -> Result<(), WorkError> {
        let ago = match by {
            Submitter::Node { .. } => self.released.ago(id.as_str()).filter(|_| id.is_child()),
            // What a controller starts on its own node it has released only before.
            Submitter::Operator | Submitter::Stranger => None,
        };
        match ago.or_else(|| self.disclaimed.has_run(id)) {
            Some(ago) => Err(released(id.as_str(), ago)),
            None if self.disclaimed.has(id) => Err(WorkError::Disclaimed(id.to_string())),
            None => Ok(()),
        }
    }

    /// Promises, durably, that none is made. The caller has the right to give the ID, and none has it.
    ///
    /// # Errors
    /// [`WorkError::NoPromise`], or the disk refuses.
    pub(crate) async fn disclaim(&self, id: UnitId, to: Submitter) -> Result<(), WorkError> {
        let has_run = self.released.ago(id.as_str()).is_some();
        self.disclaimed.promise(id, to, has_run).await
    }

    /// Writes down what has to outlive this daemon and is not on disk yet.
    ///
    /// # Errors
    /// The disk refuses.
    pub(crate) async fn save(&self) -> Result<(), WorkError> {
        self.disclaimed.save().await
    }

    /// Waits for the right to give an ID to a unit.
    pub(crate) async fn lock_id(&self, id: &UnitId) -> IdLock<'_> {
        self.id_locks.lock(id).await
    }

    /// Makes a unit, which was asked for at that time, under an ID that was chosen for it or a new one. Of one that is not
    /// durable yet also the file that [`UnitDir::finish`] needs.
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
        entry.set_steps(self.step_times.begin(received));
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
        // Nobody writes to it meanwhile, or afterwards: the next unit of this ID has a directory of the same name. A
        // write that hangs does not keep the unit.
        let lock = tokio::time::timeout(LAST_WRITE, entry.writer(&self.store)).await;
        if entry.is_gone() {
            return Ok(());
        }
        let dir = entry.dir.clone();
        self.store.blocking(move || end(&dir)).await;
        self.store.remove(&entry.dir).await?;
        entry.retire();
        drop(lock);
        // What never ran may be submitted again, or disclaimed; that it was released would say that it had run.
        let never_ran = entry.is_discarded() || entry.is_repeated() || entry.status().life.lacks_payload();
        let mut by_id = self.by_id.write();
        if !entry.dir.is_hidden() && by_id.remove(&entry.id).is_some() && !never_ran {
            self.released
                .remember(entry.id.as_str(), entry.status().submitter.unwrap_or(Submitter::Operator));
        }
        Ok(())
    }

    /// Brings states to disk before clients see them: none shall go back because the daemon ends now. A disk that hangs
    /// holds up no answer.
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

/// What is remembered of a unit that a caller released before it came: nobody else can keep it from coming.
fn withdrawn(id: &UnitId, by: Submitter) -> String {
    format!("{by} {id}")
}

fn released(unit: &str, ago: Duration) -> WorkError {
    WorkError::Released { unit: unit.to_owned(), seconds: ago.as_secs() }
}

/// Whether a cancel or release is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is.
    Done,
    /// It is durable and goes on as soon as the other node can be reached.
    Pending,
}

/// What becomes of what a unit has left running, when it is released. What ended by itself may have put something into
/// the background on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftovers {
    /// It goes on, unless it is in the process group or the control group of the unit's command.
    Stay,
    /// It is ended.
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

/// Runs something to its end even when its caller goes away in the middle, as a client's connection may.
pub(crate) async fn detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work).await {
        Ok(value) => value,
        Err(gone) => match gone.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and with it whoever waits.
            Err(_) => std::future::pending().await,
        },
    }
}
