//! Units as pods, for the registry: checks a submission, starts the driver of a unit and finds it again, and deletes
//! pods whose unit is gone. Owns the drivers and what they share. Knows the unit store only as [`Unit`].

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;

use super::api::connect::CredentialSource;
use super::api::{PodName, Select};
use super::cluster::{Cluster, Clusters};
use super::driver::{self, Begin, Commands, PodRun, Unit};
use super::environment::PodEnvironment;
use super::extra::KubeExtra;
use super::kubeconfig;
use super::machine::{PodRecord, StatusChange, UnitSettings};
use super::name::{Owner, STORE_LABEL, letters_of};
use super::options::{AuthMethod, KubernetesType, StreamMethod};
use super::parameters::{self, CheckedSubmission, Configured};
use super::pod::Template;
use super::pod_status::PodSeen;
use crate::os::regular_file::read_text;
use crate::rpc::{OutputBound, UnitState as State};

/// Time between two attempts to look for pods without a unit.
const SWEEP_AGAIN: Duration = Duration::from_secs(30);

/// The units of a node that run as pods.
#[derive(Debug)]
pub struct PodExecutor {
    node: String,
    store: String,
    environment: PodEnvironment,
    clusters: Clusters,
    /// The drivers of units that need one. A plain lock, for single operations.
    drivers: Mutex<BTreeMap<String, Commands>>,
}

/// A unit whose driver is to be started.
pub struct PodUnit<'a> {
    /// Its ID.
    pub id: &'a str,
    /// No other unit ever has this ID, so the pod is named after it.
    pub is_unique: bool,
    /// Its work type, or a stand-in if the type is not configured any more.
    pub kind: &'a KubernetesType,
    /// Its ExtraData.
    pub extra: &'a KubeExtra,
    /// It has a payload.
    pub has_stdin: bool,
    /// How much it may print.
    pub max_stdout: Option<&'a OutputBound>,
    /// Its files and its status.
    pub files: Arc<dyn Unit>,
}

impl PodExecutor {
    /// An executor without units. `store` is the random ID of the node's directory.
    pub fn new(node: impl Into<String>, store: String, environment: PodEnvironment) -> Self {
        for warning in &environment.warnings {
            tracing::warn!("{warning}");
        }
        let clusters = Clusters::new(environment.rate, store.clone());
        Self { node: node.into(), store, environment, clusters, drivers: Mutex::default() }
    }

    /// Requests to API servers: verb, status code, count.
    pub fn calls(&self) -> Vec<(&'static str, String, u64)> {
        self.clusters.calls()
    }

    /// Checks a submission, and returns the ExtraData of its unit.
    ///
    /// # Errors
    /// The text of the refusal.
    pub async fn check(
        &self,
        kind: &KubernetesType,
        params: &BTreeMap<String, String>,
    ) -> Result<KubeExtra, String> {
        let configured = Configured {
            kubeconfig: read("kubeconfig", kind.kubeconfig.as_deref()).await?,
            pod: read("pod", kind.pod.as_deref()).await?,
        };
        let checked = parameters::check(kind, configured, params).map_err(|error| error.to_string())?;
        let CheckedSubmission { mut extra, pending_timeout, kubeconfig_is_submitted } = checked;
        extra.pending_until = pending_timeout.and_then(|timeout| Timestamp::now().checked_add(timeout).ok());
        if kind.auth_method == AuthMethod::InCluster {
            // The kubeconfig would not be used.
            extra.kube_config.clear();
            return Ok(extra);
        }
        if !extra.kube_config.is_empty() {
            let what = if kubeconfig_is_submitted { "secret_kube_config" } else { "kubeconfig" };
            let mut value = parse(what, &extra.kube_config)?;
            if kubeconfig_is_submitted {
                kubeconfig::check_submitted(&value).map_err(|error| error.to_string())?;
            } else if let Some(dir) = kind.kubeconfig.as_deref().and_then(Path::parent) {
                kubeconfig::make_paths_absolute(&mut value, dir);
            }
            if extra.kube_namespace.is_empty() {
                let namespace = kubeconfig::namespace(&value).map_err(|error| error.to_string())?;
                extra.kube_namespace = namespace.to_owned();
            }
            // Keeps the checked value, because parsing the text again might see other keys.
            extra.kube_config = value.to_string();
        }
        Ok(extra)
    }

    /// Starts a unit that was just submitted.
    ///
    /// # Errors
    /// Why it cannot start: its credential cannot be used.
    pub async fn start(&self, unit: PodUnit<'_>) -> Result<(), String> {
        let cluster = self.cluster(unit.kind, unit.extra).await?;
        let mut extra = unit.extra.clone();
        if extra.kube_namespace.is_empty() {
            extra.kube_namespace.clone_from(&cluster.namespace);
        }
        let template = match self.template(&unit, &extra) {
            Ok(template) => template,
            Err(error) => {
                let detail = format!("Error creating pod: {error}");
                let change = StatusChange { state: State::Failed, detail, record: record_of(&extra) };
                unit.files.record(change, 0).await;
                return Ok(());
            }
        };
        let namespace = template.as_ref().map_or(extra.kube_namespace.clone(), |t| t.namespace().to_owned());
        let record = PodRecord { namespace, ..record_of(&extra) };
        self.drive(&unit, cluster, template, Begin::Submitted(record)).await
    }

    /// The driver of a unit, if it has one that has not ended.
    pub fn driver(&self, id: &str) -> Option<Commands> {
        self.drivers.lock().get(id).filter(|commands| !commands.has_ended()).cloned()
    }

    /// Starts a driver for a unit that an earlier driver or daemon left.
    ///
    /// # Errors
    /// Why there can be none: its credential cannot be used any more.
    pub async fn resume(&self, unit: PodUnit<'_>, state: State, detail: String) -> Result<(), String> {
        let cluster = self.cluster(unit.kind, unit.extra).await?;
        // An error is ignored: the template was valid at submission, and a pod that already exists needs none.
        let template = self.template(&unit, unit.extra).unwrap_or_default();
        let mut record = record_of(unit.extra);
        if record.namespace.is_empty() {
            record.namespace.clone_from(&cluster.namespace);
        }
        self.drive(&unit, cluster, template, Begin::Left(state, detail, record)).await
    }

    async fn drive(
        &self,
        unit: &PodUnit<'_>,
        cluster: Arc<Cluster>,
        template: Option<Template>,
        begin: Begin,
    ) -> Result<(), String> {
        let listen_at = match (unit.kind.stream_method, &begin) {
            (StreamMethod::Tcp, Begin::Submitted(_)) => Some(listen_address(unit.kind, &cluster).await?),
            (StreamMethod::Tcp | StreamMethod::Logger, _) => None,
        };
        let settings = self.settings(unit, &cluster, template.as_ref());
        let run = PodRun { unit: unit.files.clone(), cluster, template, listen_at, settings, begin };
        let mut drivers = self.drivers.lock();
        drivers.retain(|_, commands| !commands.has_ended());
        drivers.entry(unit.id.to_owned()).or_insert_with(|| driver::start(run));
        Ok(())
    }

    fn settings(&self, unit: &PodUnit<'_>, cluster: &Cluster, template: Option<&Template>) -> UnitSettings {
        let pending_until = unit.extra.pending_until.map(|until| {
            let left = Duration::try_from(Timestamp::now().duration_until(until)).unwrap_or_default();
            tokio::time::Instant::now().into_std() + left
        });
        UnitSettings {
            owner: self.owner(unit.id),
            prefix: template.map(|template| template.prefix().to_owned()).unwrap_or_default(),
            method: unit.kind.stream_method,
            has_stdin: unit.has_stdin,
            max_stdout: unit.max_stdout.cloned(),
            pending_until,
            api_outage: unit.kind.api_outage,
            first_pause: self.environment.first_pause,
            quota_retry: unit.kind.quota_retry,
            delete_pod_on_restart: unit.kind.delete_pod_on_restart && !unit.extra.keep_pod,
            may_read_events: cluster.may_read_events(),
            name: unit.is_unique.then(|| letters_of(unit.id)),
            seed: rand::random(),
        }
    }

    fn owner(&self, id: &str) -> Owner {
        Owner::new(&self.node, id, &self.store)
    }

    pub(super) async fn cluster(
        &self,
        kind: &KubernetesType,
        extra: &KubeExtra,
    ) -> Result<Arc<Cluster>, String> {
        let credential = match (kind.auth_method, extra.kube_config.as_str()) {
            (AuthMethod::InCluster, _) => CredentialSource::InCluster,
            (AuthMethod::KubeConfig, "") => CredentialSource::Default,
            (AuthMethod::Runtime, "") => return Err(parameters::ParameterError::NoKubeConfig.to_string()),
            (AuthMethod::KubeConfig | AuthMethod::Runtime, text) => {
                CredentialSource::Kubeconfig(parse("kubeconfig", text)?)
            }
        };
        self.clusters.get(&credential).await.map_err(|error| error.to_string())
    }

    /// None for a pod that somebody else made.
    fn template(&self, unit: &PodUnit<'_>, extra: &KubeExtra) -> Result<Option<Template>, String> {
        if extra.adopted {
            return Ok(None);
        }
        let definition = match extra.kube_pod.as_str() {
            "" => None,
            text => Some(parse("pod definition", text)?),
        };
        let template = Template::new(&unit.kind.name, extra, definition, &self.owner(unit.id));
        template.map(Some).map_err(|error| error.to_string())
    }

    /// Deletes the pods of this store whose unit label `is_here` does not know, with the work type's own credential and
    /// in its namespace. Retries until that has worked, at most for as long as an outage may last.
    pub async fn sweep(&self, kind: &KubernetesType, is_here: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        while let Err(error) = self.sweep_once(kind, &is_here).await {
            tracing::debug!(work_type = kind.name, error, "cannot look for pods without a unit");
            if begun.elapsed() > kind.api_outage {
                return;
            }
            tokio::time::sleep(SWEEP_AGAIN).await;
        }
    }

    async fn sweep_once(&self, kind: &KubernetesType, is_here: impl Fn(&str) -> bool) -> Result<(), String> {
        let Some(credential) = own_credential(kind).await? else { return Ok(()) };
        let cluster = self.clusters.get(&credential).await.map_err(|error| error.to_string())?;
        let namespace = if kind.namespace.is_empty() { &cluster.namespace } else { &kind.namespace };
        let ours = Select::Label(STORE_LABEL, self.store.clone());
        let list = cluster.api.list(namespace, &ours).await.map_err(|error| error.to_string())?;
        for pod in list.pods.iter().map(PodSeen::read) {
            let is_orphan = pod.owner.as_ref().is_some_and(|owner| owner.is_orphan(&self.store, &is_here));
            if !is_orphan {
                continue;
            }
            let name = PodName { namespace: pod.namespace, name: pod.name };
            tracing::info!(pod = name.name, namespace = name.namespace, "deleting a pod whose unit is gone");
            if let Err(error) = cluster.api.delete(&name, &pod.uid).await {
                tracing::warn!(pod = name.name, %error, "cannot delete a pod whose unit is gone");
            }
        }
        Ok(())
    }
}

/// A work type's own credential; None if each submission brings one.
pub(super) async fn own_credential(kind: &KubernetesType) -> Result<Option<CredentialSource>, String> {
    let text = match kind.auth_method {
        AuthMethod::Runtime => return Ok(None),
        AuthMethod::InCluster => return Ok(Some(CredentialSource::InCluster)),
        AuthMethod::KubeConfig => read("kubeconfig", kind.kubeconfig.as_deref()).await?,
    };
    if text.is_empty() {
        return Ok(Some(CredentialSource::Default));
    }
    let mut value = parse("kubeconfig", &text)?;
    if let Some(dir) = kind.kubeconfig.as_deref().and_then(Path::parent) {
        kubeconfig::make_paths_absolute(&mut value, dir);
    }
    Ok(Some(CredentialSource::Kubeconfig(value)))
}

/// The record of a unit's pod, from its ExtraData.
pub fn record_of(extra: &KubeExtra) -> PodRecord {
    PodRecord {
        namespace: extra.kube_namespace.clone(),
        pod_name: extra.pod_name.clone(),
        pod_uid: extra.pod_uid.clone(),
        adopted: extra.adopted,
        stdin_begun: extra.stdin_begun,
        exit_code: extra.exit_code,
        terminated_reason: extra.terminated_reason.clone(),
    }
}

/// Puts the record of a unit's pod into its ExtraData.
pub fn put_record(extra: &mut KubeExtra, record: PodRecord) {
    extra.kube_namespace = record.namespace;
    extra.pod_name = record.pod_name;
    extra.pod_uid = record.pod_uid;
    extra.adopted = record.adopted;
    extra.stdin_begun = record.stdin_begun;
    extra.exit_code = record.exit_code;
    extra.terminated_reason = record.terminated_reason;
}

pub(super) async fn read(what: &str, path: Option<&Path>) -> Result<String, String> {
    match path {
        Some(path) => {
            let path = path.to_owned();
            let read = tokio::task::spawn_blocking(move || read_text(&path)).await;
            read.map_err(io::Error::other)
                .flatten()
                .map_err(|error| format!("could not read {what}: {error}"))
        }
        None => Ok(String::new()),
    }
}

/// Reads YAML, or JSON.
///
/// # Errors
/// Names only the wrong line, because the parser's own message would show secrets.
pub fn parse(what: &str, text: &str) -> Result<Value, String> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map_or(0, |location| location.line());
        format!("{what} is not valid YAML: see line {line}")
    })
}

/// The address that the pod is to connect to: the configured one, or this node's address towards the API server.
async fn listen_address(kind: &KubernetesType, cluster: &Cluster) -> Result<IpAddr, String> {
    if let Some(address) = kind.tcp_address {
        return Ok(address);
    }
    let (host, port) = cluster.api.server();
    let found = tokio::net::lookup_host((host, port)).await;
    let server = found.ok().and_then(|mut addresses| addresses.next());
    let server = server.ok_or("Error listening: the API server's address cannot be looked up")?;
    // Nothing is sent: the system only chooses the address to send from.
    let bind = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let local = UdpSocket::bind(bind).and_then(|socket| {
        socket.connect(server)?;
        socket.local_addr()
    });
    local.map(|address| address.ip()).map_err(|error| format!("Error listening: {error}"))
}
