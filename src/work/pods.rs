//! Units that run as pods, beside those that run commands: which requests go to their executor, and what the store
//! keeps of them. Owns the release of a unit whose pod cannot be deleted yet; asks no API server.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::oneshot;

use super::WorkError;
use super::jobs::JobsSlot;
use super::local::Local;
use super::remote::Gate;
use super::status::{Extra, Status};
use super::store::{Durability, Store};
use super::unit::{Event, State, UnitId};
use super::units::{Entry, Outcome, Units};
use crate::os::back_off::BackOff;
use crate::pods::driver::{Command, Permit, Recording, Removed, Unit};
use crate::pods::environment::Environment;
use crate::pods::executor::{Executor, PodUnit, put_record};
use crate::pods::extra::KubeExtra;
use crate::pods::machine::StatusChange;
use crate::pods::name::label_value;
use crate::pods::options::{AuthMethod, KubernetesType};
use crate::pods::place::{ClusterError, PodPlace};

/// The file with the random ID of the node's directory.
const STORE_ID: &str = ".store-id";
/// How long the pod of a released unit is tried to be deleted.
const RELEASE_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Time between two of these attempts, at first and at most.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_secs(300);
/// How often a driver is started for one command.
const ATTEMPTS: usize = 5;
/// Time between attempts to write a status.
const REWRITE: Duration = Duration::from_secs(1);

/// What runs units as pods.
pub(crate) struct Pods {
    units: Arc<Units>,
    /// Knows the types.
    local: Arc<Local>,
    /// Holds back what is done in clusters for jobs of a controller.
    gate: Gate,
    /// Says when their payloads may be sent.
    jobs: JobsSlot,
    /// Without one, why nothing runs.
    executor: Result<Executor, String>,
}

impl Pods {
    /// Reads the settings, those of the node before the environment, and the ID of the node's directory.
    pub(crate) async fn open(
        units: Arc<Units>,
        local: Arc<Local>,
        settings: BTreeMap<&'static str, String>,
        gate: Gate,
        jobs: JobsSlot,
    ) -> Arc<Self> {
        let setting = |name: &str| settings.get(name).cloned().or_else(|| std::env::var(name).ok());
        let environment = Environment::read(setting);
        let path = units.store().root().join(STORE_ID);
        let id = units.store().blocking(move || store_id(path)).await;
        let executor = match (environment, id) {
            (Ok(environment), Ok(id)) => Ok(Executor::new(units.node_id().as_str(), id, environment)),
            (Err(error), _) => Err(error.to_string()),
            (_, Err(error)) => Err(format!("the file {STORE_ID} cannot be used: {error}")),
        };
        Arc::new(Self { units, local, gate, jobs, executor })
    }

    /// Requests to Kubernetes: verb, answer's code, number.
    pub(crate) fn calls(&self) -> Vec<(&'static str, String, u64)> {
        self.executor.as_ref().map(Executor::calls).unwrap_or_default()
    }

    fn executor(&self) -> Result<&Executor, WorkError> {
        self.executor.as_ref().map_err(|error| WorkError::Pod(error.clone()))
    }
}

fn store_id(path: PathBuf) -> std::io::Result<String> {
    match crate::os::regular_file::read_text(&path) {
        Ok(id) if !id.trim().is_empty() => return Ok(id.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let id = format!("{:032x}", rand::random::<u128>());
    crate::os::replace::replace(&path, id.as_bytes(), 0o600)?;
    Ok(id)
}

impl Pods {
    /// The first status of a unit that is to run as a pod; none if it is to run otherwise.
    pub(crate) async fn new_status(
        &self,
        work_type: &str,
        params: &BTreeMap<String, String>,
    ) -> Result<Option<Status>, WorkError> {
        let Some(kind) = self.local.pods_of(work_type) else { return Ok(None) };
        let extra = self.executor()?.check(&kind, params).await.map_err(WorkError::Pod)?;
        let status = Status::new(work_type, Extra::Kubernetes(Box::new(extra)));
        Ok(Some(Status { verify_signature: kind.verify_signature, ..status }))
    }

    /// Whether a unit with these parameters would be accepted as a pod.
    pub(crate) async fn check(&self, place: &PodPlace) -> Result<(), WorkError> {
        self.new_status(&place.work_type, &place.params).await?.map(drop).ok_or_else(|| unknown(place))
    }

    /// Has a secret be where pods go.
    pub(crate) async fn write_secret(&self, place: &PodPlace, secret: &Value) -> Result<(), ClusterError> {
        let (executor, kind) = self.at(place)?;
        executor.write_secret(&kind, place, secret).await
    }

    /// Deletes a secret where pods go.
    pub(crate) async fn delete_secret(&self, place: &PodPlace, name: &str) -> Result<(), ClusterError> {
        let (executor, kind) = self.at(place)?;
        executor.delete_secret(&kind, place, name).await
    }

    /// The name and namespace of the pod that any node made for a unit.
    pub(crate) async fn find(
        &self,
        place: &PodPlace,
        unit: &str,
    ) -> Result<Option<(String, String)>, ClusterError> {
        let (executor, kind) = self.at(place)?;
        executor.find_pod(&kind, place, unit).await
    }

    fn at(&self, place: &PodPlace) -> Result<(&Executor, Box<KubernetesType>), ClusterError> {
        let refused = |error: WorkError| ClusterError::Refused(error.to_string());
        let kind = self.local.pods_of(&place.work_type).ok_or_else(|| refused(unknown(place)))?;
        Ok((self.executor().map_err(refused)?, kind))
    }

    /// Starts a unit whose payload is complete.
    pub(crate) async fn start(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(), WorkError> {
        let mut writer = entry.writer(self.units.store()).await;
        if writer.status().life.state != State::Pending {
            return Err(WorkError::EndedEarly(entry.id.to_string()));
        }
        writer.apply(Event::PayloadComplete, Durability::Durable).await;
        drop(writer);
        let executor = self.executor()?;
        let started = self.with_pod(entry, async |unit, _| executor.start(unit).await).await;
        if let Err(cause) = started {
            entry.apply(self.units.store(), Event::StartFailed(cause.clone())).await;
            return Err(WorkError::NotStarted(cause));
        }
        Ok(())
    }

    /// Goes on with a unit that an earlier daemon left.
    pub(crate) async fn resume(self: &Arc<Self>, entry: &Arc<Entry>) {
        let life = entry.status().life.clone();
        if life.awaits_payload {
            entry.apply(self.units.store(), Event::Restarted).await;
        } else if (!life.state.is_final() || life.state == State::Canceled)
            && let Err(error) = self.resume_driver(entry).await
        {
            entry.apply(self.units.store(), Event::StartFailed(error.to_string())).await;
        }
    }

    /// Ends a unit. One that has ended stays as it is, and its pod goes.
    pub(crate) async fn cancel(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Outcome, WorkError> {
        if !self.may_have_pod(entry) {
            entry.apply(self.units.store(), Event::CancelledEarly).await;
            return Ok(Outcome::Done);
        }
        self.command_pod(entry, Command::Cancel).await.map(|()| Outcome::Done)
    }

    /// Ends a unit for a reason of this node's own, with which it fails.
    pub(crate) async fn stop(&self, entry: &Arc<Entry>, why: String) -> Result<(), WorkError> {
        if let Some(driver) = self.executor()?.driver(entry.id.as_str()) {
            // One that has just ended has nothing that could be ended.
            drop(driver.send(Command::Fail(format!("Killed: {why}"))));
        }
        Ok(())
    }

    /// Deletes a unit's pod, and then everything of the unit. What cannot be deleted yet is hidden meanwhile.
    pub(crate) async fn release(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        force: bool,
    ) -> Result<Outcome, WorkError> {
        if entry.is_gone() {
            return Ok(Outcome::Done);
        }
        if !self.may_have_pod(entry) {
            entry.apply(self.units.store(), Event::CancelledEarly).await;
            return self.units.remove(entry, |_| ()).await.map(|()| Outcome::Done);
        }
        let why = match self.delete_pod(entry, force).await {
            Ok(Removed::Done { .. }) => {
                return self.units.remove(entry, |_| ()).await.map(|()| Outcome::Done);
            }
            Ok(Removed::Pending(why)) => why,
            Err(error) => error.to_string(),
        };
        if force {
            tracing::warn!(unit = %entry.id, why, "released by force: the unit's pod may stay");
            return self.units.remove(entry, |_| ()).await.map(|()| Outcome::Done);
        }
        tracing::info!(unit = %entry.id, why, "the pod of a released unit is not deleted yet");
        self.hide_pod(entry).await?;
        Ok(Outcome::Pending)
    }

    /// Deletes a unit here, and leaves its pod, which is another control node's now.
    pub(crate) async fn forget(&self, entry: &Arc<Entry>) -> Result<(), WorkError> {
        let driver = self.executor.as_ref().ok().and_then(|executor| executor.driver(entry.id.as_str()));
        if let Some(driver) = driver {
            let (answer, ended) = oneshot::channel();
            // One that has just ended drops it as well.
            drop(driver.send(Command::Forget(answer)));
            drop(ended.await);
        }
        entry.apply(self.units.store(), Event::CancelledEarly).await;
        self.units.remove(entry, |_| ()).await
    }

    async fn delete_pod(self: &Arc<Self>, entry: &Arc<Entry>, force: bool) -> Result<Removed, WorkError> {
        let released = pod_of(&entry.status()).and_then(|extra| extra.released);
        let since = released.map_or(Duration::ZERO, |at| {
            Duration::try_from(at.duration_until(Timestamp::now())).unwrap_or_default()
        });
        let give_up = Instant::now() + RELEASE_FOR.saturating_sub(since);
        self.command_pod(entry, |answer| Command::Release { force, give_up, answer }).await
    }

    /// Takes a released unit out of sight; its pod is deleted as soon as it can be.
    async fn hide_pod(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(), WorkError> {
        let writer = entry.writer(self.units.store()).await;
        let mut status = Status::clone(&writer.status());
        status.life.apply(&Event::CancelledEarly);
        if let Extra::Kubernetes(extra) = &mut status.extra {
            extra.released.get_or_insert_with(Timestamp::now);
        }
        let dir = self.units.store().hide(&entry.id, &status).await?;
        drop(writer);
        self.units.remove(entry, |_| ()).await?;
        tokio::spawn(self.clone().finish_release(Entry::new(entry.id.clone(), dir, status)));
        Ok(())
    }

    /// Deletes the pod of a hidden unit, and what was kept of the unit.
    pub(crate) async fn finish_release(self: Arc<Self>, hidden: Arc<Entry>) {
        let mut pauses = BackOff::new(FIRST_RETRY, LAST_RETRY);
        loop {
            match self.delete_pod(&hidden, false).await {
                Ok(Removed::Done { is_gone }) => {
                    if !is_gone {
                        tracing::warn!(unit = %hidden.id, "the pod of a released unit may stay: it could not be deleted");
                    }
                    break;
                }
                Ok(Removed::Pending(_)) => {}
                Err(error) => {
                    tracing::debug!(unit = %hidden.id, %error, "a released unit's pod is not deleted")
                }
            }
            let released = pod_of(&hidden.status()).and_then(|extra| extra.released).unwrap_or_default();
            let since = Duration::try_from(released.duration_until(Timestamp::now())).unwrap_or_default();
            if since > RELEASE_FOR {
                break;
            }
            tokio::time::sleep(pauses.next()).await;
        }
        if let Err(error) = self.units.remove(&hidden, |_| ()).await {
            tracing::warn!(unit = %hidden.id, %error, "what is left of a released unit stays");
        }
    }

    /// Whether there is, or may be, a pod of a unit, or soon will be.
    fn may_have_pod(&self, entry: &Entry) -> bool {
        let status = entry.status();
        let has_name = pod_of(&status).is_some_and(|extra| !extra.pod_name.is_empty());
        let starts = !status.life.state.is_final() && !status.life.awaits_payload;
        let is_driven = self.executor.as_ref().is_ok_and(|e| e.driver(entry.id.as_str()).is_some());
        has_name || starts || is_driven
    }

    /// Has a unit's driver do something, and waits for its answer.
    async fn command_pod<T>(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        command: impl Fn(oneshot::Sender<T>) -> Command,
    ) -> Result<T, WorkError> {
        // A driver that has just ended is replaced by another; one that ends at once cannot open the unit's files.
        for _ in 0..ATTEMPTS {
            if self.executor()?.driver(entry.id.as_str()).is_none() {
                self.resume_driver(entry).await?;
            }
            let driver = self.executor()?.driver(entry.id.as_str());
            let (answer, answered) = oneshot::channel();
            if driver.is_some_and(|driver| driver.send(command(answer)).is_ok())
                && let Ok(answer) = answered.await
            {
                return Ok(answer);
            }
        }
        Err(WorkError::Pod("the unit's files cannot be opened: see its Detail".into()))
    }

    async fn resume_driver(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(), WorkError> {
        let executor = self.executor()?;
        let resumed = async |unit: PodUnit<'_>, status: &Status| {
            executor.resume(unit, status.life.state, status.life.detail.clone()).await
        };
        self.with_pod(entry, resumed).await.map_err(WorkError::Pod)
    }

    async fn with_pod<T>(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        act: impl AsyncFnOnce(PodUnit<'_>, &Status) -> Result<T, String>,
    ) -> Result<T, String> {
        let status = entry.status();
        let Some(extra) = pod_of(&status) else { return Err("the unit has no pod".into()) };
        let known = self.local.pods_of(&status.work_type);
        let kind = known.unwrap_or_else(|| Box::new(forgotten(&status.work_type, extra)));
        let dir = entry.dir.clone();
        let has_stdin = self.units.store().blocking(move || dir.payload_size() > 0).await;
        let (store, gate, jobs) = (self.units.store().clone(), self.gate.clone(), self.jobs.clone());
        let is_unique = gate.is_child(&entry.id);
        let files = Arc::new(Files { entry: entry.clone(), store, gate, jobs });
        let max_stdout = status.max_stdout.as_deref();
        let unit =
            PodUnit { id: entry.id.as_str(), is_unique, kind: &kind, extra, has_stdin, max_stdout, files };
        act(unit, &status).await
    }

    /// Deletes pods of this node whose unit is not here any more. Those of jobs stay: another control node may follow them.
    pub(crate) fn sweep(self: &Arc<Self>) {
        for kind in self.local.all_pods() {
            let this = self.clone();
            tokio::spawn(async move {
                let is_child =
                    |label: &str| label.parse().is_ok_and(|unit: UnitId| this.gate.is_child(&unit));
                let is_here = |label: &str| {
                    let is_it = |entry: &Arc<Entry>| label_value(entry.id.as_str()) == label;
                    is_child(label) || this.units.all().iter().any(is_it)
                };
                if let Ok(executor) = &this.executor {
                    executor.sweep(&kind, is_here).await;
                }
            });
        }
    }
}

fn unknown(place: &PodPlace) -> WorkError {
    WorkError::UnknownType(place.work_type.clone())
}

fn pod_of(status: &Status) -> Option<&KubeExtra> {
    if let Extra::Kubernetes(extra) = &status.extra { Some(extra) } else { None }
}

/// A type that is no longer configured, as far as a unit of it tells.
fn forgotten(work_type: &str, extra: &KubeExtra) -> KubernetesType {
    let auth_method = if extra.kube_config.is_empty() { AuthMethod::InCluster } else { AuthMethod::Runtime };
    KubernetesType { auth_method, ..KubernetesType::new(work_type) }
}

/// A unit's directory and status.
struct Files {
    entry: Arc<Entry>,
    store: Store,
    gate: Gate,
    jobs: JobsSlot,
}

impl Unit for Files {
    fn dir(&self) -> PathBuf {
        self.entry.dir.path().to_owned()
    }

    fn may_act(&self) -> Permit {
        Box::pin(self.gate.passes(&self.entry.id))
    }

    fn may_send(&self) -> Permit {
        let (jobs, unit) = (self.jobs.clone(), self.entry.id.clone());
        let is_child = self.gate.is_child(&unit);
        Box::pin(async move {
            if is_child {
                jobs.may_send(&unit).await;
            }
        })
    }

    fn record(&self, change: StatusChange, stdout_size: u64) -> Recording {
        let (entry, store) = (self.entry.clone(), self.store.clone());
        Box::pin(async move {
            loop {
                let mut writer = entry.writer(&store).await;
                let mut status = Status::clone(&writer.status());
                let StatusChange { state, detail, record } = change.clone();
                status.life.apply(&Event::Reported(state, detail, stdout_size));
                status.exit_code = record.exit_code;
                if let Extra::Kubernetes(extra) = &mut status.extra {
                    put_record(extra, record);
                }
                match writer.put(status, Durability::Durable).await {
                    Ok(()) => return,
                    Err(error) => tracing::warn!(unit = %entry.id, %error, "a status is not on disk yet"),
                }
                drop(writer);
                tokio::time::sleep(REWRITE).await;
            }
        })
    }
}
