//! Units that run as pods: which requests go to the pods' executor, and what the store keeps of such units. Owns the
//! release of a unit whose pod cannot be deleted yet. Sends no requests to API servers itself.

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
use super::store::{Durability, UnitStore};
use super::unit::{State, UnitEvent, UnitId};
use super::units::{Entry, Outcome, Units};
use crate::os::back_off::BackOff;
use crate::pods::driver::{Permit, PodCommand, PodRemoved, Recording, Unit};
use crate::pods::environment::PodEnvironment;
use crate::pods::executor::{PodExecutor, PodUnit, put_record};
use crate::pods::extra::KubeExtra;
use crate::pods::machine::StatusChange;
use crate::pods::name::label_value;
use crate::pods::options::{AuthMethod, KubernetesType};
use crate::pods::place::{ClusterError, PodPlace};

/// The file with the random ID of the node's directory.
const STORE_ID: &str = ".store-id";
/// How long to try to delete the pod of a released unit.
const RELEASE_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Time between two of these attempts, at first and at most.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_secs(300);
/// The most attempts to start a driver for one command.
const ATTEMPTS: usize = 5;
/// Time between attempts to write a status.
const REWRITE: Duration = Duration::from_secs(1);

/// Runs units as pods.
pub(crate) struct Pods {
    units: Arc<Units>,
    /// Has the work types.
    local: Arc<Local>,
    /// Holds back what is done in clusters for a controller's jobs until that is allowed.
    gate: Gate,
    /// Says when the payloads of jobs' children may be sent.
    jobs: JobsSlot,
    /// The executor, or why there is none.
    executor: Result<PodExecutor, String>,
}

impl Pods {
    /// Reads the settings and the ID of the node's directory. The node's settings take precedence over environment
    /// variables.
    pub(crate) async fn open(
        units: Arc<Units>,
        local: Arc<Local>,
        settings: BTreeMap<&'static str, String>,
        gate: Gate,
        jobs: JobsSlot,
    ) -> Arc<Self> {
        let setting = |name: &str| settings.get(name).cloned().or_else(|| std::env::var(name).ok());
        let environment = PodEnvironment::read(setting);
        let path = units.store().root().join(STORE_ID);
        let id = units.store().blocking(move || store_id(path)).await;
        let executor = match (environment, id) {
            (Ok(environment), Ok(id)) => Ok(PodExecutor::new(units.node_id().as_str(), id, environment)),
            (Err(error), _) => Err(error.to_string()),
            (_, Err(error)) => Err(format!("the file {STORE_ID} cannot be used: {error}")),
        };
        Arc::new(Self { units, local, gate, jobs, executor })
    }

    /// The numbers of requests to Kubernetes, by verb and the answer's code.
    pub(crate) fn calls(&self) -> Vec<(&'static str, String, u64)> {
        self.executor.as_ref().map(PodExecutor::calls).unwrap_or_default()
    }

    fn executor(&self) -> Result<&PodExecutor, WorkError> {
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
    /// The first status of a unit that is to run as a pod; `None` if units of its type do not run as pods.
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

    /// Writes a secret where the pods are made.
    pub(crate) async fn write_secret(&self, place: &PodPlace, secret: &Value) -> Result<(), ClusterError> {
        let (executor, kind) = self.at(place)?;
        executor.write_secret(&kind, place, secret).await
    }

    /// Deletes a secret where the pods are made.
    pub(crate) async fn delete_secret(&self, place: &PodPlace, name: &str) -> Result<(), ClusterError> {
        let (executor, kind) = self.at(place)?;
        executor.delete_secret(&kind, place, name).await
    }

    /// The name and namespace of a unit's pod, whichever node made it.
    pub(crate) async fn find(
        &self,
        place: &PodPlace,
        unit: &str,
    ) -> Result<Option<(String, String)>, ClusterError> {
        let (executor, kind) = self.at(place)?;
        executor.find_pod(&kind, place, unit).await
    }

    fn at(&self, place: &PodPlace) -> Result<(&PodExecutor, Box<KubernetesType>), ClusterError> {
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
        writer.apply(UnitEvent::PayloadComplete, Durability::Durable).await;
        drop(writer);
        let executor = self.executor()?;
        let started = self.with_pod(entry, async |unit, _| executor.start(unit).await).await;
        if let Err(cause) = started {
            entry.apply(self.units.store(), UnitEvent::StartFailed(cause.clone())).await;
            return Err(WorkError::NotStarted(cause));
        }
        Ok(())
    }

    /// Resumes a unit that an earlier daemon left.
    pub(crate) async fn resume(self: &Arc<Self>, entry: &Arc<Entry>) {
        let life = entry.status().life.clone();
        if life.awaits_payload {
            entry.apply(self.units.store(), UnitEvent::Restarted).await;
        } else if (!life.state.is_final() || life.state == State::Canceled)
            && let Err(error) = self.resume_driver(entry).await
        {
            entry.apply(self.units.store(), UnitEvent::StartFailed(error.to_string())).await;
        }
    }

    /// Ends a unit. If it has ended already, only its pod is deleted.
    pub(crate) async fn cancel(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Outcome, WorkError> {
        if !self.may_have_pod(entry) {
            entry.apply(self.units.store(), UnitEvent::CancelledEarly).await;
            return Ok(Outcome::Done);
        }
        self.command_pod(entry, PodCommand::Cancel).await.map(|()| Outcome::Done)
    }

    /// Ends a unit for a reason of this node's own. The unit fails, and its Detail gives the reason.
    pub(crate) async fn stop(&self, entry: &Arc<Entry>, why: String) -> Result<(), WorkError> {
        if let Some(driver) = self.executor()?.driver(entry.id.as_str()) {
            // Sending fails only if the driver has just ended, and the unit with it.
            drop(driver.send(PodCommand::Fail(format!("Killed: {why}"))));
        }
        Ok(())
    }

    /// Deletes a unit's pod, and then the unit. While the pod cannot be deleted, the unit is hidden.
    pub(crate) async fn release(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        force: bool,
    ) -> Result<Outcome, WorkError> {
        if entry.is_gone() {
            return Ok(Outcome::Done);
        }
        if !self.may_have_pod(entry) {
            entry.apply(self.units.store(), UnitEvent::CancelledEarly).await;
            return self.units.remove(entry, |_| ()).await.map(|()| Outcome::Done);
        }
        let why = match self.delete_pod(entry, force, false).await {
            Ok(PodRemoved::Done { .. }) => {
                return self.units.remove(entry, |_| ()).await.map(|()| Outcome::Done);
            }
            Ok(PodRemoved::Pending(why)) => why,
            Err(error) => error.to_string(),
        };
        if force {
            tracing::warn!(unit = %entry.id, why, "released by force: the unit's pod may be left behind");
            return self.units.remove(entry, |_| ()).await.map(|()| Outcome::Done);
        }
        tracing::info!(unit = %entry.id, why, "cannot delete the pod of a released unit yet");
        self.hide_pod(entry).await?;
        Ok(Outcome::Pending)
    }

    /// Deletes a unit here but leaves its pod, which another control node follows now.
    pub(crate) async fn forget(&self, entry: &Arc<Entry>) -> Result<(), WorkError> {
        let driver = self.executor.as_ref().ok().and_then(|executor| executor.driver(entry.id.as_str()));
        if let Some(driver) = driver {
            let (answer, ended) = oneshot::channel();
            // A driver that has just ended drops the answer, which ends the wait as well.
            drop(driver.send(PodCommand::Forget(answer)));
            drop(ended.await);
        }
        entry.apply(self.units.store(), UnitEvent::CancelledEarly).await;
        self.units.remove(entry, |_| ()).await
    }

    /// Deletes a unit's pod. `waits` says whether to wait until the driver has deleted it or given up.
    async fn delete_pod(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        force: bool,
        waits: bool,
    ) -> Result<PodRemoved, WorkError> {
        let released = pod_of(&entry.status()).and_then(|extra| extra.released);
        let since = released.map_or(Duration::ZERO, |at| {
            Duration::try_from(at.duration_until(Timestamp::now())).unwrap_or_default()
        });
        let give_up = Instant::now() + RELEASE_FOR.saturating_sub(since);
        self.command_pod(entry, |answer| PodCommand::Release { force, give_up, waits, answer }).await
    }

    /// Hides a released unit. Its pod is deleted as soon as that is possible.
    async fn hide_pod(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(), WorkError> {
        let writer = entry.writer(self.units.store()).await;
        let mut status = Status::clone(&writer.status());
        status.life.apply(&UnitEvent::CancelledEarly);
        if let Extra::Kubernetes(extra) = &mut status.extra {
            extra.released.get_or_insert_with(Timestamp::now);
        }
        let dir = self.units.store().hide(&entry.id, &status).await?;
        drop(writer);
        self.units.remove(entry, |_| ()).await?;
        tokio::spawn(self.clone().finish_release(Entry::new(entry.id.clone(), dir, status)));
        Ok(())
    }

    /// Deletes the pod of a hidden unit, and then the hidden unit.
    pub(crate) async fn finish_release(self: Arc<Self>, hidden: Arc<Entry>) {
        let mut pauses = BackOff::new(FIRST_RETRY, LAST_RETRY);
        loop {
            // This waits for the driver's result: if the driver ended unnoticed, another would be started, which would
            // have to begin again.
            match self.delete_pod(&hidden, false, true).await {
                Ok(PodRemoved::Done { is_gone }) => {
                    if !is_gone {
                        tracing::warn!(unit = %hidden.id, "cannot delete the pod of a released unit: it may be left behind");
                    }
                    break;
                }
                Ok(PodRemoved::Pending(_)) => {}
                Err(error) => {
                    tracing::debug!(unit = %hidden.id, %error, "cannot delete a released unit's pod, trying again")
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
            tracing::warn!(unit = %hidden.id, %error, "cannot remove a released unit");
        }
    }

    /// Whether a unit has a pod, may have one, or may soon get one.
    fn may_have_pod(&self, entry: &Entry) -> bool {
        let status = entry.status();
        let has_name = pod_of(&status).is_some_and(|extra| !extra.pod_name.is_empty());
        let starts = !status.life.state.is_final() && !status.life.awaits_payload;
        let is_driven = self.executor.as_ref().is_ok_and(|e| e.driver(entry.id.as_str()).is_some());
        has_name || starts || is_driven
    }

    /// Sends a command to a unit's driver, and waits for the answer.
    async fn command_pod<T>(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        command: impl Fn(oneshot::Sender<T>) -> PodCommand,
    ) -> Result<T, WorkError> {
        // A driver that has just ended is replaced. If each new one ends at once, it cannot open the unit's files.
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
        Err(WorkError::Pod("cannot open the unit's files: see its Detail".into()))
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
        let files = Arc::new(UnitFiles { entry: entry.clone(), store, gate, jobs });
        let max_stdout = status.max_stdout.as_deref();
        let unit =
            PodUnit { id: entry.id.as_str(), is_unique, kind: &kind, extra, has_stdin, max_stdout, files };
        act(unit, &status).await
    }

    /// Deletes pods of this node whose unit is no longer here. Jobs' pods stay, because another control node may follow
    /// them.
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

/// A stand-in for a type that is no longer configured, with what a unit of it shows.
fn forgotten(work_type: &str, extra: &KubeExtra) -> KubernetesType {
    let auth_method = if extra.kube_config.is_empty() { AuthMethod::InCluster } else { AuthMethod::Runtime };
    KubernetesType { auth_method, ..KubernetesType::new(work_type) }
}

/// A unit's directory and status.
struct UnitFiles {
    entry: Arc<Entry>,
    store: UnitStore,
    gate: Gate,
    jobs: JobsSlot,
}

impl Unit for UnitFiles {
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
                status.life.apply(&UnitEvent::Reported(state, detail, stdout_size));
                status.exit_code = record.exit_code;
                if let Extra::Kubernetes(extra) = &mut status.extra {
                    put_record(extra, record);
                }
                match writer.put(status, Durability::Durable).await {
                    Ok(()) => return,
                    Err(error) => {
                        tracing::warn!(unit = %entry.id, %error, "cannot write a unit's status, trying again")
                    }
                }
                drop(writer);
                tokio::time::sleep(REWRITE).await;
            }
        })
    }
}
