//! What clients may do with the units of this node: submit, adopt, list, follow, cancel and release them; `rights` says who may.
//! It leaves the rest to those whose duty it is: `units` has the units, `executor` what runs them.

mod adopt;
mod allocate;
mod attempts;
mod clusters;
mod disclaim;
mod doctor;
mod jobs;
mod listing;
mod reserve;
mod restart;
mod retention;
mod rights;
mod submit;

pub use self::jobs::{ChildStatus, ChildUnit, ChildWatch};
pub use self::listing::Listing;
pub use self::submit::Submission;

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
use super::pods::Pods;
use super::remote::{Gate, Remotes};
use super::results::ResultStream;
use super::signing::{Signer, Verb, Verifier};
use super::status::{REMOTE, Status, UnitKind};
use super::store::Store;
use super::unit::{State, UnitId};
use super::units::{CancelInProgress, Entry, Leftovers, Outcome, Quota, Units, detached};
use super::{Caller, CommandType, Dialer, OpenError, WorkError};
use crate::rpc::UnitReport;
use crate::rpc::report::unit::UnitStep;
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
    /// Settings for Kubernetes that count before those of the environment, by their names there.
    pub kubernetes: BTreeMap<&'static str, String>,
    /// Which units are children of jobs. Nothing is started, cancelled or released for them on other nodes before
    /// [`Registry::let_children_act`].
    pub is_child: Option<fn(&UnitId) -> bool>,
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
        })
    }
}

/// The units of a node. Clones share them.
#[derive(Clone)]
pub struct Registry {
    pub(super) units: Arc<Units>,
    executor: Arc<Executor>,
    reserve: Arc<Reserve>,
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
        let Options { signer, verifier, kubernetes, is_child, .. } = options;
        let store = Store::open(&data_dir, &node_id)?;
        let units = Arc::new(Units::open(store, node_id)?);
        let local = Local::new(units.clone(), work_types, runner_exe, cancel_grace, is_child)?;
        let gate = Gate::new(is_child);
        let remotes = Remotes::new(units.clone(), dialer, signer, gate.clone());
        let jobs = JobsSlot::default();
        let pods = Pods::open(units.clone(), local.clone(), kubernetes, gate, jobs.clone()).await;
        let executor = Arc::new(Executor { units: units.clone(), local, remotes, pods, jobs });
        let reserve = Reserve::new(&units, &executor);
        let this = Self { units, executor, reserve, verifier: Arc::new(verifier.into()) };
        this.resume_all().await?;
        this.executor.local.discard_old_run_dirs().await;
        this.start_retention();
        this.executor.pods.sweep();
        this.keep_reserve();
        Ok(this)
    }

    /// For a daemon's end, which a disk that hangs does not hold up.
    pub async fn close(&self) {
        if !matches!(tokio::time::timeout(CLOSE_WITHIN, self.units.save()).await, Ok(Ok(()))) {
            tracing::debug!("promises last longer than they need to: their file stays as it is");
        }
    }

    /// The work types that can run, as advertisements list them.
    pub fn work_commands(&self) -> Vec<WorkCommand> {
        let mut commands = self.executor.local.work_commands();
        commands.extend(self.controller_command());
        commands
    }

    /// Whether [`Self::set_work_types`] would take them.
    ///
    /// # Errors
    /// [`OpenError::DuplicateType`].
    pub fn check_work_types(work_types: Vec<CommandType>) -> Result<(), OpenError> {
        local::check_types(work_types)
    }

    /// Replaces the work types. Units that run go on; new ones and those in the queue go by the new types.
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

    /// Whether there is a key that signs them.
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

    /// Those that a caller may look at, or the one asked for, as one line of JSON, piece by piece. A node of the mesh gets
    /// those that it submitted, unless it names one.
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

    /// The names of the types that are configured.
    pub(super) fn type_names(&self) -> Vec<String> {
        self.executor.local.type_names()
    }

    /// Requests to Kubernetes: verb, answer's code, number.
    pub(super) fn kubernetes_calls(&self) -> Vec<(&'static str, String, u64)> {
        self.executor.pods.calls()
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
        if entry.status().life.state.is_final() {
            entry.note_step(UnitStep::Told);
        }
        Ok(self.status_of(&entry).await)
    }

    /// Notes that a client cancels a unit: until a while after its answer went out, when what this returns is dropped,
    /// results of the unit stay open.
    pub fn begin_cancel(&self, id: &str) -> CancelInProgress {
        CancelInProgress::begin(self.units.find(id).ok())
    }

    /// Ends a unit's processes, here or on its node. A finished unit stays as it is.
    ///
    /// # Errors
    /// An unknown unit (not one that was released a moment ago), a caller who may not, processes that do not end.
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
    /// An unknown unit (not one that was released a moment ago), a caller who may not, processes that do not end,
    /// files that cannot be removed.
    pub async fn release(&self, id: &str, force: bool, caller: &Caller) -> Result<Outcome, WorkError> {
        self.release_with(id, force, Leftovers::Stay, caller).await
    }

    /// The same, and says what becomes of what the unit has left running.
    ///
    /// # Errors
    /// As [`Self::release`].
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
        // Its node has submitted it again meanwhile: that one is meant too, and comes late if it is not here yet.
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
    /// An unknown unit, a caller who may not.
    pub async fn results(&self, id: &str, start: u64, caller: &Caller) -> Result<ResultStream, WorkError> {
        let entry = self.units.find(id)?;
        self.check_caller(&entry, caller, Verb::Results)?;
        let changes = self.executor.local.watch(&entry.dir.path()).await;
        Ok(ResultStream {
            store: self.units.store().clone(),
            position: start,
            status: entry.subscribe(),
            unit: entry,
            changes,
            file: None,
            last: Bytes::new(),
        })
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

    /// The unit as clients see it; what runs is as large as its file.
    pub(super) fn report(&self, entry: &Entry, status: &Status) -> UnitReport {
        let times = entry.step_times(self.units.node_id());
        UnitReport { stdout_size: stdout_size(entry, status), times, ..status.report(self.knows(status)) }
    }

    /// The same for a unit that has ended, with less output than it counted.
    pub(super) fn report_with(&self, mut status: Status, left: u64) -> UnitReport {
        status.life.lose_output(left);
        status.report(self.knows(&status))
    }

    /// The same as JSON.
    fn report_json(&self, entry: &Entry) -> serde_json::Result<String> {
        let status = entry.status();
        status.report_json(self.knows(&status), stdout_size(entry, &status))
    }

    /// Whether a unit is of a type that can be here.
    fn knows(&self, status: &Status) -> bool {
        status.work_type == REMOTE
            || status.kind() == UnitKind::Job
            || self.executor.local.has_type(&status.work_type)
    }
}

fn stdout_size(entry: &Entry, status: &Status) -> u64 {
    if status.life.state == State::Running { entry.dir.stdout_size() } else { status.life.stdout_size }
}
