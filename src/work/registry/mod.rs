//! The units of this node, by ID, and what clients may do with them. Owns the map and the rules who may ask;
//! each unit's own state is its `entry`'s, processes are `local`'s and other nodes `remote`'s business.

mod adopt;
mod allocate;
mod listing;

mod restart;
mod submit;

pub(crate) use super::units::entry::{Entry, Follower, LinkHandle};
pub use super::units::quota::Quota;
pub use listing::Listing;
pub use submit::{Started, Submission};

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_util::future::join_all;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::Semaphore;

use super::cgroup::{Cgroup, Cgroups};
use super::local::Queues;
use super::results::ResultStream;
use super::runner::{SpawnerHandle, kill_survivors};
use super::signing::{PayloadHash, Refusal, Signer, Subject, Verb, Verifier};
use super::status::{REMOTE, Status};
use super::store::Store;
use super::unit::{State, UnitId};
use super::units::id_locks::Names;
use super::units::quota::Accounts;
use super::units::released::Released;
use super::{Caller, CommandType, Dialer, OpenError, Submitter, WorkError};
use crate::os::watch::{WatchFlags, Watcher};
use crate::rpc::UnitReport;
use crate::wire::{NodeId, WorkCommand};

/// How long a unit's removal waits for a write that is under way.
const LAST_WRITE: Duration = Duration::from_secs(5);
/// How long an answer waits for a disk to take what it tells.
const SURE_WITHIN: Duration = Duration::from_secs(1);
/// How long the end of a daemon waits for one.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// What readers of a unit's stdout are woken by, and how often they look where there is no inotify.
const OUTPUT_EVENTS: WatchFlags = WatchFlags::MODIFY.union(WatchFlags::CREATE).union(WatchFlags::MOVED_TO);
const OUTPUT_POLL: Duration = Duration::from_millis(250);

/// What the work engine is made with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data directory; units live in a directory of the node's name below it.
    pub data_dir: PathBuf,
    /// This node.
    pub node_id: NodeId,
    /// What it can run.
    pub work_types: Vec<CommandType>,
    /// The `meshd` binary, whose hidden mode runs jobs.
    pub runner_exe: PathBuf,
    /// Time between SIGINT and SIGTERM.
    pub cancel_grace: Duration,
    /// Signs requests to other nodes, where that is asked for.
    pub signer: Option<Arc<Signer>>,
    /// Checks the signatures of requests from other nodes.
    pub verifier: Option<Arc<Verifier>>,
}

impl Options {
    /// Options with this very binary as runner and ten seconds of grace.
    ///
    /// # Errors
    /// When the system does not tell which binary this is.
    pub fn new(data_dir: PathBuf, node_id: NodeId, work_types: Vec<CommandType>) -> std::io::Result<Self> {
        let runner_exe = std::env::current_exe()?;
        Ok(Self {
            data_dir,
            node_id,
            work_types,
            runner_exe,
            cancel_grace: Duration::from_secs(10),
            signer: None,
            verifier: None,
        })
    }
}

/// Whether a cancel or release is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is.
    Done,
    /// It is written down and goes on as soon as the other node can be reached.
    Pending,
}

/// The units of a node. Clones share them.
#[derive(Debug, Clone)]
pub struct Registry {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) node_id: NodeId,
    pub(crate) types: ArcSwap<TypeTable>,
    pub(crate) spawner: SpawnerHandle,
    pub(crate) watcher: Watcher,
    pub(crate) queues: Queues,
    pub(crate) names: Names,
    /// Descriptors for waiting for the ends of units.
    pub(crate) watched: Semaphore,
    /// Looked for when the first unit needs one.
    pub(crate) cgroups: OnceLock<Option<Cgroups>>,
    pub(crate) dialer: Arc<dyn Dialer>,
    pub(crate) grace: Duration,
    pub(crate) signer: ArcSwapOption<Signer>,
    pub(crate) verifier: ArcSwapOption<Verifier>,
    /// A plain lock, held for single map operations and never across a wait.
    pub(crate) units: RwLock<BTreeMap<UnitId, Arc<Entry>>>,
    pub(crate) released: Released,
    pub(crate) accounts: Arc<Accounts>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("node", &self.node_id).field("units", &self.units().len()).finish()
    }
}

impl Registry {
    /// Opens the data directory, takes up the units in it and gets ready for more.
    ///
    /// # Errors
    /// [`OpenError`] when the directory cannot be trusted or used, or no process can be started.
    pub async fn open(options: Options, dialer: Arc<dyn Dialer>) -> Result<Self, OpenError> {
        let Options { data_dir, node_id, work_types, runner_exe, cancel_grace, signer, verifier } = options;
        let store = Store::open(&data_dir, &node_id)?;
        let types = ArcSwap::from_pointee(type_table(work_types)?);
        let spawner = SpawnerHandle::start(runner_exe.clone())
            .map_err(|source| OpenError::Spawner { path: runner_exe, source })?;
        let inner = Arc::new(Inner {
            store,
            node_id,
            types,
            spawner,
            watcher: Watcher::new("following output", OUTPUT_EVENTS, OUTPUT_POLL),
            queues: Queues::default(),
            names: Names::default(),
            watched: Semaphore::new((crate::os::rlimit::open_files() / 2).min(Semaphore::MAX_PERMITS)),
            cgroups: OnceLock::new(),
            dialer,
            grace: cancel_grace,
            signer: signer.into(),
            verifier: verifier.into(),
            units: RwLock::default(),
            released: Released::new(),
            accounts: Arc::default(),
        });
        inner.take_up_units().await?;
        inner.start_retention();
        Ok(Self { inner })
    }

    /// Leaves nothing in the journal, for whoever has the data directory next. For a daemon's end, which a disk that hangs
    /// does not hold up.
    pub async fn close(&self) {
        match tokio::time::timeout(CLOSE_WITHIN, self.inner.store.checkpoint()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the journal of units is left as it is"),
            Err(_) => tracing::warn!("the journal of units is left as it is: its disk does not answer"),
        }
    }

    /// The work types that can run, as advertisements list them.
    pub fn work_commands(&self) -> Vec<WorkCommand> {
        let types = self.inner.types.load();
        types
            .values()
            .filter(|kind| kind.cannot_run.is_none())
            .map(|kind| WorkCommand { work_type: kind.name.clone(), secure: kind.verify_signature })
            .collect()
    }

    /// Whether [`Self::set_work_types`] would take them.
    ///
    /// # Errors
    /// [`OpenError::DuplicateType`].
    pub fn check_work_types(work_types: Vec<CommandType>) -> Result<(), OpenError> {
        type_table(work_types).map(drop)
    }

    /// Replaces the work types. Units that run go on; what is submitted from now on goes by the new ones, and so does
    /// what waits for its turn.
    ///
    /// # Errors
    /// [`OpenError::DuplicateType`]; the old types stay then.
    pub fn set_work_types(&self, work_types: Vec<CommandType>) -> Result<(), OpenError> {
        self.inner.types.store(Arc::new(type_table(work_types)?));
        self.inner.review_queues();
        Ok(())
    }

    /// Replaces the key that signs requests to other nodes. Units under way are signed with it from now on.
    pub fn set_signer(&self, signer: Option<Arc<Signer>>) {
        self.inner.signer.store(signer);
    }

    /// Replaces the key by which signatures are verified.
    pub fn set_verifier(&self, verifier: Option<Arc<Verifier>>) {
        self.inner.verifier.store(verifier);
    }

    /// Replaces the bounds of what one calling node may have here. What is here stays.
    pub fn set_quota(&self, quota: Quota) {
        self.inner.accounts.set_quota(quota);
    }

    /// All units, or the one asked for.
    ///
    /// # Errors
    /// [`WorkError::UnknownUnit`] or [`WorkError::Released`] for the one asked for.
    pub async fn list(&self, id: Option<&str>) -> Result<BTreeMap<UnitId, UnitReport>, WorkError> {
        let entries = self.inner.listed(id)?;
        self.inner.make_sure(&entries).await;
        Ok(entries.into_iter().map(|entry| (entry.id.clone(), self.inner.report(&entry))).collect())
    }

    /// The same as one line of JSON, piece by piece.
    ///
    /// # Errors
    /// Those of [`Self::list`].
    pub async fn listing(&self, id: Option<&str>) -> Result<Listing, WorkError> {
        let entries = self.inner.listed(id)?;
        self.inner.make_sure(&entries).await;
        Ok(Listing::new(self.inner.clone(), entries))
    }

    /// The units that a caller submitted, in the same form.
    pub async fn listing_of(&self, submitter: Submitter) -> Listing {
        let is_theirs =
            |entry: &Arc<Entry>| entry.status().submitter.is_some_and(|kept| kept.is_same_caller(submitter));
        let entries: Vec<_> = self.inner.units().values().filter(|entry| is_theirs(entry)).cloned().collect();
        self.inner.make_sure(&entries).await;
        Listing::new(self.inner.clone(), entries)
    }

    /// One unit.
    ///
    /// # Errors
    /// [`WorkError::UnknownUnit`], [`WorkError::Released`].
    pub async fn status(&self, id: &str) -> Result<UnitReport, WorkError> {
        let entry = self.inner.find(id)?;
        self.inner.make_sure(std::slice::from_ref(&entry)).await;
        Ok(self.inner.report(&entry))
    }

    /// Ends a unit's processes, here or on its node. A finished unit stays as it is.
    ///
    /// # Errors
    /// An unknown unit (not one that was released a moment ago), a caller who may not, processes that do not end.
    pub async fn cancel(&self, id: &str, caller: &Caller) -> Result<Outcome, WorkError> {
        let entry = match self.inner.find(id) {
            Err(WorkError::Released { .. }) => return Ok(Outcome::Done),
            found => found?,
        };
        let status = self.inner.check_caller(&entry, caller, Verb::Cancel)?;
        match status.remote() {
            Some(_) => self.inner.cancel_remote(&entry).await,
            None => self.inner.cancel_local(&entry).await,
        }
    }

    /// Cancels a unit and deletes everything of it, here and on its node. With `force` it is deleted here
    /// whatever happens.
    ///
    /// # Errors
    /// An unknown unit (not one that was released a moment ago), a caller who may not, processes that do not end,
    /// files that cannot be removed.
    pub async fn release(&self, id: &str, force: bool, caller: &Caller) -> Result<Outcome, WorkError> {
        let entry = match self.inner.find(id) {
            Err(WorkError::Released { .. }) => return Ok(Outcome::Done),
            found => found?,
        };
        let status = self.inner.check_caller(&entry, caller, Verb::Release)?;
        let inner = self.inner.clone();
        match status.remote() {
            Some(_) => detached(async move { inner.release_remote(&entry, force).await }).await,
            None => detached(async move { inner.release_local(&entry, force).await }).await,
        }
    }

    /// A unit's output from byte `start` on, followed until the unit is final.
    ///
    /// # Errors
    /// An unknown unit, a caller who may not.
    pub async fn results(&self, id: &str, start: u64, caller: &Caller) -> Result<ResultStream, WorkError> {
        let entry = self.inner.find(id)?;
        self.inner.check_caller(&entry, caller, Verb::Results)?;
        let changes = self.inner.watcher.subscribe(&entry.dir.path()).await;
        Ok(ResultStream {
            id: entry.id.clone(),
            dir: entry.dir.clone(),
            store: self.inner.store.clone(),
            position: start,
            status: entry.subscribe(),
            changes,
            file: None,
        })
    }
}

impl Inner {
    pub(crate) fn units(&self) -> RwLockReadGuard<'_, BTreeMap<UnitId, Arc<Entry>>> {
        self.units.read()
    }

    pub(crate) fn units_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<UnitId, Arc<Entry>>> {
        self.units.write()
    }

    /// The unit of that ID.
    pub(crate) fn find(&self, id: &str) -> Result<Arc<Entry>, WorkError> {
        let known: Option<UnitId> = id.parse().ok();
        let found = known.and_then(|id| self.units().get(&id).cloned());
        found.ok_or_else(|| match self.released.ago(id) {
            Some(ago) => WorkError::Released { unit: id.to_owned(), seconds: ago.as_secs() },
            None => WorkError::UnknownUnit(id.to_owned()),
        })
    }

    /// All units, in the order of their IDs, or the one asked for.
    pub(crate) fn listed(&self, id: Option<&str>) -> Result<Vec<Arc<Entry>>, WorkError> {
        Ok(match id {
            Some(id) => vec![self.find(id)?],
            None => self.units().values().cloned().collect(),
        })
    }

    /// The unit as clients see it; what runs is as large as its file.
    pub(crate) fn report(&self, entry: &Entry) -> UnitReport {
        let status = entry.status();
        UnitReport { stdout_size: stdout_size(entry, &status), ..status.report(self.knows(&status)) }
    }

    /// The same of a unit that has ended, with less output than it promised.
    pub(crate) fn report_with(&self, entry: &Entry, left: u64) -> UnitReport {
        let mut status = Status::clone(&entry.status());
        status.life.lose_output(left);
        status.report(self.knows(&status))
    }

    /// The same as JSON.
    pub(crate) fn report_json(&self, entry: &Entry) -> serde_json::Result<String> {
        let status = entry.status();
        status.report_json(self.knows(&status), stdout_size(entry, &status))
    }

    /// Whether a unit is of a type that can be here.
    pub(crate) fn knows(&self, status: &Status) -> bool {
        status.work_type == REMOTE || self.types.load().contains_key(&status.work_type)
    }

    /// Brings states to disk that are about to be told: nobody shall see one go back because the daemon ends now.
    /// A disk that hangs holds no answer up.
    pub(crate) async fn make_sure(&self, entries: &[Arc<Entry>]) {
        let ahead = entries.iter().filter(|entry| entry.is_ahead());
        let saves = ahead.map(|entry| entry.save(&self.store));
        let _ = tokio::time::timeout(SURE_WITHIN, join_all(saves)).await;
    }

    /// Whether a caller may touch the unit.
    pub(crate) fn check_caller(
        &self,
        entry: &Entry,
        caller: &Caller,
        verb: Verb,
    ) -> Result<Arc<Status>, WorkError> {
        let status = entry.status();
        let verify = match status.remote() {
            Some(remote) => remote.sign_work,
            None => status.verify_signature || self.verifies(&status.work_type),
        };
        let about = Subject { verb, unit: Some(entry.id.as_str()), ..Subject::default() };
        self.verify_if(verify, caller, &about)?;
        Ok(status)
    }

    /// Whether a caller may do what `about` says; gives the hash that the payload must have, if it must.
    pub(crate) fn check_signature(
        &self,
        work_type: &str,
        signed: bool,
        caller: &Caller,
        about: &Subject<'_>,
    ) -> Result<Option<PayloadHash>, WorkError> {
        let verify = if work_type == REMOTE { signed } else { self.verifies(work_type) };
        self.verify_if(verify, caller, about)
    }

    pub(crate) fn verify_if(
        &self,
        verify: bool,
        caller: &Caller,
        about: &Subject<'_>,
    ) -> Result<Option<PayloadHash>, WorkError> {
        let given = caller.signature.as_deref().unwrap_or("");
        match (verify, caller.is_local(), given) {
            (false, _, "") | (true, true, _) => Ok(None),
            (false, _, _) => Err(WorkError::UnexpectedSignature),
            (true, false, "") => Err(Refusal::Empty.into()),
            (true, false, given) => {
                let verifier = self.verifier.load_full().ok_or(Refusal::NoKey)?;
                Ok(verifier.verify(given, about)?)
            }
        }
    }

    pub(crate) fn verifies(&self, work_type: &str) -> bool {
        self.types.load().get(work_type).is_some_and(|kind| kind.verify_signature)
    }

    pub(crate) async fn release_local(&self, entry: &Arc<Entry>, force: bool) -> Result<Outcome, WorkError> {
        let cancelled = self.cancel_local(entry).await;
        if !force {
            cancelled?;
        }
        self.remove(entry).await.map(|()| Outcome::Done)
    }

    /// Deletes a unit that nothing runs for any more.
    pub(crate) async fn remove(&self, entry: &Arc<Entry>) -> Result<(), WorkError> {
        // Nobody writes to it meanwhile, or afterwards: the next unit of this ID has a directory of the same name. A
        // write that hangs does not keep the unit for ever.
        let turn = tokio::time::timeout(LAST_WRITE, entry.writer(&self.store)).await;
        if entry.is_gone() {
            return Ok(());
        }
        let dir = entry.dir.clone();
        let end = move || {
            if let Some(group) = Cgroup::of(&dir) {
                group.end();
            }
            kill_survivors(&dir);
        };
        self.store.blocking(end).await;
        self.store.remove(&entry.dir).await?;
        entry.retire();
        drop(turn);
        let mut units = self.units_mut();
        if !entry.dir.is_hidden() && units.remove(&entry.id).is_some() {
            self.released.remember(entry.id.as_str());
        }
        Ok(())
    }
}

fn stdout_size(entry: &Entry, status: &Status) -> u64 {
    if status.life.state == State::Running { entry.dir.stdout_size() } else { status.life.stdout_size }
}

/// The work types by name.
type TypeTable = BTreeMap<String, CommandType>;

fn type_table(work_types: Vec<CommandType>) -> Result<TypeTable, OpenError> {
    let mut types = TypeTable::new();
    for kind in work_types {
        if kind.name == REMOTE || types.contains_key(&kind.name) {
            return Err(OpenError::DuplicateType(kind.name));
        }
        types.insert(kind.name.clone(), kind);
    }
    Ok(types)
}

/// Runs something to its end even when its asker goes away in the middle, as a client's connection may.
pub(crate) async fn detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work).await {
        Ok(value) => value,
        Err(gone) => std::panic::resume_unwind(gone.into_panic()),
    }
}
