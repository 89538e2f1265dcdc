//! What clients may do with the units of this node: submit, adopt, list, follow, cancel and release them; `rights` says
//! who may. It leaves the rest to others: `units` has the units, and `executor` runs them.

mod adopt;
mod allocate;
mod attempts;
mod cache;
mod clusters;
mod disclaim;
mod doctor;
mod figures;
mod jobs;
mod listing;
mod pieces;
mod reserve;
mod restart;
mod retention;
mod rights;
mod submit;

pub use self::jobs::{ChildStatus, ChildUnit, ChildWatch};
pub use self::listing::Listing;
pub(crate) use self::pieces::Assembled;
pub use self::submit::UnitSubmission;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;

use self::listing::is_listed;
use self::reserve::Reserve;
use super::executor::Executor;
use super::jobs::JobsSlot;
use super::local::{self, Local};
use super::pieces::{PieceKeeper, PieceStore};
use super::pods::Pods;
use super::remote::{Gate, Remotes};
use super::results::ResultStream;
use super::signing::{Signer, Verb, Verifier};
use super::status::{REMOTE, Status, UnitKind};
use super::store::{OutputFile, UnitStore};
use super::unit::{State, UnitId};
use super::units::{CancelInProgress, Entry, Leftovers, Outcome, Quota, Units, detached};
use super::{Caller, CommandType, Dialer, OpenError, WorkError};
use crate::rpc::UnitReport;
use crate::wire::{NodeId, WorkCommand};

/// How long the end of a daemon waits for its disk.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// The settings of the work engine.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data directory; units live in a directory of the node's name below it.
    pub data_dir: PathBuf,
    /// This node.
    pub node_id: NodeId,
    /// The types that it can run.
    pub work_types: Vec<CommandType>,
    /// The `meshd` binary, whose hidden mode runs jobs.
    pub runner_exe: PathBuf,
    /// Time between SIGINT and SIGTERM.
    pub cancel_grace: Duration,
    /// Signs requests to other nodes, where that is asked for.
    pub signer: Option<Arc<Signer>>,
    /// Checks the signatures of requests from other nodes.
    pub verifier: Option<Arc<Verifier>>,
    /// Settings for Kubernetes by the names of the environment variables that they override.
    pub kubernetes: BTreeMap<&'static str, String>,
    /// Which units are children of jobs. Nothing is started, cancelled or released for them on other nodes before
    /// [`Registry::let_children_act`].
    pub is_child: Option<fn(&UnitId) -> bool>,
    /// Bytes that may be kept of payloads; `None` for a part of the disk.
    pub payload_cache: Option<u64>,
}

impl Options {
    /// Options with this very binary as runner and ten seconds of grace.
    ///
    /// # Errors
    /// When the system does not say which binary this is.
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
            kubernetes: BTreeMap::new(),
            is_child: None,
            payload_cache: None,
        })
    }
}

/// The units of a node. Clones share them.
#[derive(Clone)]
pub struct Registry {
    pub(super) units: Arc<Units>,
    executor: Arc<Executor>,
    reserve: Arc<Reserve>,
    /// What is kept of payloads, so that it need not be sent again.
    pieces: Arc<PieceStore>,
    keeper: Arc<PieceKeeper>,
    /// Checks the signatures of requests from other nodes.
    verifier: Arc<ArcSwapOption<Verifier>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("node", self.units.node_id())
            .field("units", &self.units.len())
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// Opens the data directory, resumes the units in it and gets ready for more.
    ///
    /// # Errors
    /// [`OpenError`] when the directory cannot be trusted or used, or no process can be started.
    pub async fn open(options: Options, dialer: Arc<dyn Dialer>) -> Result<Self, OpenError> {
        let Options { data_dir, node_id, work_types, runner_exe, cancel_grace, .. } = options;
        let Options { signer, verifier, kubernetes, is_child, payload_cache, .. } = options;
        let store = UnitStore::open(&data_dir, &node_id)?;
        let units = Arc::new(Units::open(store, node_id)?);
        let local = Local::new(units.clone(), work_types, runner_exe, cancel_grace, is_child)?;
        let gate = Gate::new(is_child);
        let remotes = Remotes::new(units.clone(), dialer, signer, gate.clone());
        let jobs = JobsSlot::default();
        let pods = Pods::open(units.clone(), local.clone(), kubernetes, gate, jobs.clone()).await;
        let executor = Arc::new(Executor { units: units.clone(), local, remotes, pods, jobs });
        let pieces = PieceStore::open(units.store().root().to_owned(), payload_cache);
        let reserve = Reserve::new(&units, &executor, &pieces);
        let keeper = Arc::new(PieceKeeper::start(pieces.clone()));
        let this = Self { units, executor, reserve, pieces, keeper, verifier: Arc::new(verifier.into()) };
        this.resume_all().await?;
        this.executor.local.discard_old_run_dirs().await;
        this.start_retention();
        this.executor.pods.sweep();
        this.keep_reserve();
        Ok(this)
    }

    /// Saves what has to outlive the daemon, at its end. A disk that hangs does not hold it up.
    pub async fn close(&self) {
        if !matches!(tokio::time::timeout(CLOSE_WITHIN, self.units.save()).await, Ok(Ok(()))) {
            tracing::debug!("cannot save the promises in time: they last longer than they need to");
        }
    }

    /// The work types that can run, as advertisements list them.
    pub fn work_commands(&self) -> Vec<WorkCommand> {
        let mut commands = self.executor.local.work_commands();
        commands.extend(self.controller_command());
        commands
    }

    /// Whether [`Self::set_work_types`] would accept these types.
    ///
    /// # Errors
    /// [`OpenError::DuplicateType`].
    pub fn check_work_types(work_types: Vec<CommandType>) -> Result<(), OpenError> {
        local::check_types(work_types)
    }

    /// Replaces the work types. Units that run go on; new units and those in the queue use the new types.
    ///
    /// # Errors
    /// [`OpenError::DuplicateType`]; the old types stay then.
    pub fn set_work_types(&self, work_types: Vec<CommandType>) -> Result<(), OpenError> {
        self.executor.local.set_types(work_types)
    }

    /// Replaces the key that signs requests to other nodes. Units under way are signed with it from now on.
    pub fn set_signer(&self, signer: Option<Arc<Signer>>) {
        self.executor.remotes.far().set_signer(signer);
    }

    /// Whether there is a key that signs requests to other nodes.
    pub fn signs(&self) -> bool {
        self.executor.remotes.far().signs()
    }

    /// Replaces the key by which signatures are verified.
    pub fn set_verifier(&self, verifier: Option<Arc<Verifier>>) {
        self.verifier.store(verifier);
    }

    /// Replaces the bounds of what one calling node may have here. Units that exist stay.
    pub fn set_quota(&self, quota: Quota) {
        self.units.set_quota(quota);
    }

    /// All units, or the one asked for.
    ///
    /// # Errors
    /// [`WorkError::UnknownUnit`] or [`WorkError::Released`] for the one asked for.
    pub async fn list(&self, id: Option<&str>) -> Result<BTreeMap<UnitId, UnitReport>, WorkError> {
        let entries = self.units.listed(id)?;
        self.units.save_shown(&entries).await;
        let report = |entry: Arc<Entry>| (entry.id.clone(), self.report(&entry, &entry.status()));
        Ok(entries.into_iter().map(report).collect())
    }

    /// The units that a caller may look at, or the one asked for, as one line of JSON, piece by piece. A node of the
    /// mesh gets the units that it submitted, unless it names one.
    ///
    /// # Errors
    /// Those of [`Self::check_look`], for the one asked for.
    pub async fn listing(&self, id: Option<&str>, caller: &Caller) -> Result<Listing, WorkError> {
        let mut entries = self.units.listed(id)?;
        match id {
            Some(_) => entries.iter().try_for_each(|entry| self.may_look(entry, caller))?,
            None => {
                entries.retain(|entry| {
                    is_listed(&entry.status(), caller) && self.may_look(entry, caller).is_ok()
                });
            }
        }
        self.units.save_shown(&entries).await;
        Ok(Listing::new(self.clone(), entries))
    }

    /// How many units there are.
    pub fn count(&self) -> usize {
        self.units.len()
    }

    /// One unit.
    ///
    /// # Errors
    /// [`WorkError::UnknownUnit`], [`WorkError::Released`].
    pub async fn status(&self, id: &str) -> Result<UnitReport, WorkError> {
        let entry = self.units.find(id)?;
        Ok(self.status_of(&entry).await)
    }

    /// Notes that a client cancels a unit, so that results of the unit stay open until a while after the answer. The
    /// caller drops the returned value when the answer has gone out.
    pub fn begin_cancel(&self, id: &str) -> CancelInProgress {
        CancelInProgress::begin(self.units.find(id).ok())
    }

    /// Ends a unit's processes, here or on its node. A finished unit stays as it is.
    ///
    /// # Errors
    /// The unit is unknown and was not released a moment ago, the caller may not do this, or processes do not end.
    pub async fn cancel(&self, id: &str, caller: &Caller) -> Result<Outcome, WorkError> {
        let entry = match self.units.find(id) {
            Err(WorkError::Released { .. }) => return Ok(Outcome::Done),
            found => found.map_err(|error| self.explained(id, caller, error))?,
        };
        self.check_caller(&entry, caller, Verb::Cancel)?;
        self.executor.jobs.check_child(&entry.id)?;
        self.executor.cancel(&entry).await
    }

    /// Cancels a unit and deletes everything of it, here and on its node. With `force` it is deleted here
    /// whatever happens.
    ///
    /// # Errors
    /// The unit is unknown and was not released a moment ago, the caller may not do this, processes do not end, or
    /// files cannot be removed.
    pub async fn release(&self, id: &str, force: bool, caller: &Caller) -> Result<Outcome, WorkError> {
        self.release_with(id, force, Leftovers::Stay, caller).await
    }

    /// Like [`Self::release`]; `leftovers` says what happens to processes that the unit has left running.
    pub async fn release_with(
        &self,
        id: &str,
        force: bool,
        leftovers: Leftovers,
        caller: &Caller,
    ) -> Result<Outcome, WorkError> {
        let mut entry = match self.units.find_to_release(id, caller.submitter()).await {
            Err(WorkError::Released { .. }) => return Ok(Outcome::Done),
            found => found.map_err(|error| self.explained(id, caller, error))?,
        };
        self.check_caller(&entry, caller, Verb::Release)?;
        if !force {
            self.executor.jobs.check_child(&entry.id)?;
        }
        let mut outcome = self.executor.release(entry.clone(), force, leftovers).await?;
        // The node has submitted the unit again meanwhile. That unit is to be released too; if it is not here yet, it
        // is refused when it comes.
        while entry.is_repeated()
            && entry.is_gone()
            && let Ok(again) = self.units.find_to_release(id, caller.submitter()).await
        {
            entry = again;
            outcome = self.executor.release(entry.clone(), force, leftovers).await?;
        }
        Ok(outcome)
    }

    /// A unit's output from byte `start` on, followed until the unit is final.
    ///
    /// # Errors
    /// The unit is unknown, or the caller may not read it.
    pub async fn results(&self, id: &str, start: u64, caller: &Caller) -> Result<ResultStream, WorkError> {
        let entry = self.units.find(id)?;
        self.check_caller(&entry, caller, Verb::Results)?;
        Ok(self.stream(entry, OutputFile::Stdout, start).await)
    }

    /// As [`Self::results`], of what the unit's command writes to its stderr.
    ///
    /// # Errors
    /// As there; the unit runs on another node, or its stderr is not kept apart.
    pub async fn stderr(&self, id: &str, start: u64, caller: &Caller) -> Result<ResultStream, WorkError> {
        let entry = self.units.find(id)?;
        let status = self.check_caller(&entry, caller, Verb::Results)?;
        if let Some(remote) = status.remote() {
            let (unit, node) = (id.to_owned(), remote.remote_node.to_string());
            return Err(WorkError::StderrElsewhere { unit, node });
        }
        let is_apart = entry.dir.file("stderr").is_file();
        if !is_apart && status.life.state != State::Pending {
            return Err(WorkError::NoStderr(id.to_owned()));
        }
        Ok(self.stream(entry, OutputFile::Stderr, start).await)
    }

    async fn stream(&self, entry: Arc<Entry>, what: OutputFile, start: u64) -> ResultStream {
        let changes = self.executor.local.watch(&entry.dir.path()).await;
        let status = entry.subscribe();
        ResultStream {
            what,
            store: self.units.store().clone(),
            position: start,
            shortened: status.shortened(),
            status,
            unit: entry,
            changes,
            file: None,
            last: Bytes::new(),
        }
    }

    /// The unit of that ID.
    ///
    /// # Errors
    /// [`WorkError::UnknownUnit`], [`WorkError::Released`].
    pub(super) fn find(&self, id: &str) -> Result<Arc<Entry>, WorkError> {
        self.units.find(id)
    }

    /// The unit as clients see it, once that is durable.
    pub(super) async fn status_of(&self, entry: &Arc<Entry>) -> UnitReport {
        self.units.save_shown(std::slice::from_ref(entry)).await;
        self.report(entry, &entry.status())
    }

    /// The unit as clients see it. While it runs, the length of its file is the size of its output.
    pub(super) fn report(&self, entry: &Entry, status: &Status) -> UnitReport {
        UnitReport { stdout_size: stdout_size(entry, status), ..status.report(self.knows(status)) }
    }

    /// The report of a unit that has ended and has less output than it counted.
    pub(super) fn report_with(&self, mut status: Status, left: u64) -> UnitReport {
        status.life.lose_output(left);
        status.report(self.knows(&status))
    }

    /// The unit as clients see it, as JSON.
    fn report_json(&self, entry: &Entry) -> serde_json::Result<String> {
        let status = entry.status();
        status.report_json(self.knows(&status), stdout_size(entry, &status))
    }

    /// Whether the type of a unit is known here.
    fn knows(&self, status: &Status) -> bool {
        status.work_type == REMOTE
            || status.kind() == UnitKind::Job
            || self.executor.local.has_type(&status.work_type)
    }
}

fn stdout_size(entry: &Entry, status: &Status) -> u64 {
    if status.life.state == State::Running { entry.dir.stdout_size() } else { status.life.stdout_size }
}
