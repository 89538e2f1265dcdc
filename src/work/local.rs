//! Units that run on this node: the configured types, the processes that run units, the queue of waiting units, and
//! what finished units leave. Owns the spawner and every process started for a unit. `units` owns the units themselves.
//! Knows neither clients nor other nodes.

mod queue;
mod reconcile;
mod start;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Semaphore;

use self::queue::TypeQueues;
use super::cgroup::{Cgroup, Cgroups};
use super::limits::Limits;
use super::run_dir::RunDirs;
use super::runner::{Killed, SpawnerHandle, kill_leftovers, kill_survivors};
use super::status::{CommandExtra, Extra, REMOTE, Status};
use super::unit::UnitId;
use super::units::{Entry, Leftovers, Units};
use super::{Caller, CommandType, OpenError, RUNNER, Reach, SYNC, WorkError};
use crate::os::watch::{Subscription, WatchFlags, Watcher};
use crate::pods::options::KubernetesType;
use crate::wire::WorkCommand;

/// The file events that wake readers of a unit's stdout, and how often they look if there is no inotify.
const OUTPUT_EVENTS: WatchFlags = WatchFlags::MODIFY.union(WatchFlags::CREATE).union(WatchFlags::MOVED_TO);
const OUTPUT_POLL: Duration = Duration::from_millis(250);

/// Runs units on this node.
pub(crate) struct Local {
    units: Arc<Units>,
    types: ArcSwap<TypeTable>,
    spawner: SpawnerHandle,
    watcher: Watcher,
    queues: TypeQueues,
    /// Permits for the descriptors on which the daemon waits for runners to end.
    pidfds: Semaphore,
    run_dirs: Arc<RunDirs>,
    /// Found when the first unit needs a group; `None` inside if there can be no groups.
    cgroups: OnceLock<Option<Cgroups>>,
    cancel_grace: Duration,
    /// Says whether a unit is the child of a job.
    is_child: Option<fn(&UnitId) -> bool>,
}

impl Local {
    /// Starts the spawner.
    ///
    /// # Errors
    /// [`OpenError`] for two types of the same name, or if no process can be started.
    pub(crate) fn new(
        units: Arc<Units>,
        types: Vec<CommandType>,
        runner_exe: PathBuf,
        cancel_grace: Duration,
        is_child: Option<fn(&UnitId) -> bool>,
    ) -> Result<Arc<Self>, OpenError> {
        let types = type_table(types)?;
        let run_dirs = RunDirs::open(units.store().root()).map_err(|source| OpenError::Io {
            what: "make private directories in",
            path: units.store().root().to_owned(),
            source,
        })?;
        run_dirs.set_passable(has_users(&types));
        let types = ArcSwap::from_pointee(types);
        let spawner = SpawnerHandle::start(runner_exe.clone())
            .map_err(|source| OpenError::Spawner { path: runner_exe, source })?;
        let local = Self {
            units,
            types,
            spawner,
            watcher: Watcher::new("following output", OUTPUT_EVENTS, OUTPUT_POLL),
            queues: TypeQueues::default(),
            pidfds: Semaphore::new((crate::os::rlimit::open_files() / 2).min(Semaphore::MAX_PERMITS)),
            run_dirs: Arc::new(run_dirs),
            cgroups: OnceLock::new(),
            cancel_grace,
            is_child,
        };
        Ok(Arc::new(local))
    }

    /// The types that other nodes may use, as advertisements list them.
    pub(crate) fn work_commands(&self) -> Vec<WorkCommand> {
        let types = self.types.load();
        let types = types.values().filter(|kind| kind.reach == Reach::Mesh);
        types
            .map(|kind| WorkCommand { work_type: kind.name.clone(), secure: kind.verify_signature })
            .collect()
    }

    /// The names of all types.
    pub(crate) fn type_names(&self) -> Vec<String> {
        self.types.load().values().map(|kind| kind.name.clone()).collect()
    }

    /// Replaces the types. Running units go on. Queued units start with the new types.
    ///
    /// # Errors
    /// [`OpenError::DuplicateType`], and the old types stay.
    pub(crate) fn set_types(self: &Arc<Self>, types: Vec<CommandType>) -> Result<(), OpenError> {
        let types = type_table(types)?;
        self.run_dirs.set_passable(has_users(&types));
        self.types.store(Arc::new(types));
        self.review_queues();
        Ok(())
    }

    /// Whether a type with this name is configured.
    pub(crate) fn has_type(&self, name: &str) -> bool {
        self.types.load().contains_key(name)
    }

    /// Whether requests about units of a type need a signature.
    pub(crate) fn verifies(&self, work_type: &str) -> bool {
        self.types.load().get(work_type).is_some_and(|kind| kind.verify_signature)
    }

    /// Whether other nodes may have units of a type. True if the type is not configured.
    pub(crate) fn is_open(&self, work_type: &str) -> bool {
        self.types.load().get(work_type).is_none_or(|kind| kind.reach == Reach::Mesh)
    }

    /// Whether a caller may have units of a type.
    ///
    /// # Errors
    /// Why not. A caller who may not know of a type gets the same answer as for an unknown one.
    pub(crate) fn admit(&self, work_type: &str, caller: &Caller) -> Result<(), WorkError> {
        match self.types.load().get(work_type).map(|kind| kind.reach) {
            Some(reach) if reach.admits(caller) => Ok(()),
            Some(Reach::Operators) => Err(WorkError::OperatorsOnly(work_type.to_owned())),
            Some(Reach::Controller) => Err(WorkError::UnknownType(work_type.to_owned())),
            Some(Reach::Mesh) | None => Ok(()),
        }
    }

    /// The status of a new unit of a type.
    ///
    /// # Errors
    /// The type is unknown, or does not take these parameters.
    pub(crate) fn new_status(
        &self,
        work_type: &str,
        params: &BTreeMap<String, String>,
    ) -> Result<Status, WorkError> {
        let kind = self.known(work_type)?;
        let params = kind.arguments(params)?;
        let status = Status::new(work_type, Extra::Command(CommandExtra { pid: 0, params }));
        Ok(Status { verify_signature: kind.verify_signature, ..status })
    }

    /// How units of a type run as pods, if they do.
    pub(crate) fn pods_of(&self, work_type: &str) -> Option<Box<KubernetesType>> {
        self.known(work_type).ok()?.pods
    }

    /// All types whose units run as pods.
    pub(crate) fn all_pods(&self) -> Vec<KubernetesType> {
        self.types.load().values().filter_map(|kind| kind.pods.as_deref().cloned()).collect()
    }

    fn known(&self, work_type: &str) -> Result<CommandType, WorkError> {
        let kind = self.types.load().get(work_type).cloned();
        kind.ok_or_else(|| WorkError::UnknownType(work_type.to_owned()))
    }

    /// Subscribes to changes of the files in a unit's directory.
    pub(crate) async fn watch(&self, dir: &Path) -> Subscription {
        self.watcher.subscribe(dir).await
    }

    /// How long finished units are kept, for each type that limits it.
    pub(crate) fn kept_for(&self) -> BTreeMap<String, Duration> {
        let types = self.types.load();
        let limited = |kind: &CommandType| Some((kind.name.clone(), kind.limits.release_after?));
        types.values().filter_map(limited).collect()
    }

    /// The limits of a type; `None` if it is no longer configured.
    fn limits_of(&self, work_type: &str) -> Option<Limits> {
        self.types.load().get(work_type).map(|kind| kind.limits.clone())
    }

    /// Cancels a unit and deletes it. With `force`, deletes it even if its processes do not end.
    ///
    /// # Errors
    /// Processes do not end, or files cannot be removed.
    pub(crate) async fn release(
        &self,
        entry: &Arc<Entry>,
        force: bool,
        leftovers: Leftovers,
    ) -> Result<(), WorkError> {
        let cancelled = self.cancel(entry).await;
        if !force {
            cancelled?;
        }
        self.remove(entry, leftovers).await
    }

    /// Deletes a unit, and first ends the processes that outlived its command, as far as `leftovers` says.
    ///
    /// # Errors
    /// Files that cannot be removed.
    pub(crate) async fn remove(&self, entry: &Arc<Entry>, leftovers: Leftovers) -> Result<(), WorkError> {
        let (id, limits) = (entry.id.clone(), self.limits_of(&entry.status().work_type));
        let run_dirs = self.run_dirs.clone();
        let end = move |dir: &super::store::UnitDir| {
            end_rest(&id, dir, limits.as_ref(), leftovers);
            run_dirs.unit_released(id.as_str());
        };
        self.units.remove(entry, end).await
    }

    /// Removes the private directories of units that ended while no daemon ran.
    pub(crate) async fn discard_old_run_dirs(&self) {
        let all = self.units.all();
        let units: BTreeMap<String, bool> =
            all.iter().map(|entry| (entry.id.to_string(), entry.status().life.state.is_final())).collect();
        let run_dirs = self.run_dirs.clone();
        let discard = move || {
            run_dirs.discard_old(|unit| units.contains_key(unit), |unit| units.get(unit) == Some(&true));
        };
        self.units.store().blocking(discard).await;
    }
}

/// Ends the processes that a released unit has left, as far as `leftovers` says.
fn end_rest(id: &UnitId, dir: &super::store::UnitDir, limits: Option<&Limits>, leftovers: Leftovers) {
    match leftovers {
        Leftovers::Stay => {
            if let Some(group) = Cgroup::of(dir) {
                group.end();
            }
            kill_survivors(dir);
        }
        Leftovers::End => match kill_leftovers(dir, limits) {
            Killed { count, left: None } => {
                tracing::debug!(unit = %id, count, "ended the processes that a released unit left")
            }
            Killed { left: Some(left), .. } => {
                tracing::warn!(unit = %id, left, "cannot end all that a released unit left")
            }
        },
    }
}

/// Whether units of any type run as a configured user.
fn has_users(types: &TypeTable) -> bool {
    types.values().any(|kind| kind.limits.user.is_some())
}

/// The work types by name.
type TypeTable = BTreeMap<String, CommandType>;

/// Checks that these types can be configured together.
///
/// # Errors
/// [`OpenError::DuplicateType`].
pub(crate) fn check_types(types: Vec<CommandType>) -> Result<(), OpenError> {
    type_table(types).map(drop)
}

fn type_table(work_types: Vec<CommandType>) -> Result<TypeTable, OpenError> {
    let mut types = TypeTable::new();
    for kind in work_types {
        let is_inner = [RUNNER, SYNC].contains(&kind.name.as_str());
        let is_reserved = kind.name == REMOTE || is_inner && kind.reach != Reach::Controller;
        if is_reserved || types.contains_key(&kind.name) {
            return Err(OpenError::DuplicateType(kind.name));
        }
        types.insert(kind.name.clone(), kind);
    }
    Ok(types)
}
