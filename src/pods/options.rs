//! The checked settings of a `work-kubernetes` work type. This module reads no files and knows no
//! configuration syntax.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The default for how long the API server may be unavailable before a healthy unit fails.
pub const API_OUTAGE: Duration = Duration::from_secs(30 * 60);

/// The source of the credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMethod {
    /// A kubeconfig file on this host, or a submitted one.
    KubeConfig,
    /// The service account of the pod in which this node runs.
    InCluster,
    /// A kubeconfig in each submission.
    Runtime,
}

/// The transport of a pod's stdin and stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamMethod {
    /// Attach for stdin, and the log for stdout.
    Logger,
    /// One TCP connection, opened by the pod.
    Tcp,
}

/// A configured work type whose units are pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesType {
    /// Name of the work type.
    pub name: String,
    /// Namespace of the pods; empty for the credential's own.
    pub namespace: String,
    /// Image of the simple pod.
    pub image: String,
    /// Its command, in shell quoting.
    pub command: String,
    /// Its arguments, in shell quoting.
    pub params: String,
    /// Where the credentials come from.
    pub auth_method: AuthMethod,
    /// The kubeconfig file, unless it is in its usual place.
    pub kubeconfig: Option<PathBuf>,
    /// A pod definition file, read at each submission.
    pub pod: Option<PathBuf>,
    /// Submissions may supply credentials and choose the namespace.
    pub allow_runtime_auth: bool,
    /// Submissions may choose image and command.
    pub allow_runtime_command: bool,
    /// Submissions may add arguments, and limit how long a pod may be pending.
    pub allow_runtime_params: bool,
    /// Submissions may supply a pod definition.
    pub allow_runtime_pod: bool,
    /// If a pod has not started when the daemon restarts, delete it and fail its unit.
    pub delete_pod_on_restart: bool,
    /// The transport of stdin and stdout.
    pub stream_method: StreamMethod,
    /// The address for pods to connect to with [`StreamMethod::Tcp`]; `None` to detect it.
    pub tcp_address: Option<IpAddr>,
    /// Submissions must be signed.
    pub verify_signature: bool,
    /// Other nodes may submit to this type, even if it is powerful (see [`Self::is_for_operators`]).
    pub mesh: bool,
    /// How long the API server may be unavailable before a healthy unit fails.
    pub api_outage: Duration,
    /// Retry after `exceeded quota` until the unit's pending timeout.
    pub quota_retry: bool,
}

impl KubernetesType {
    /// A type with receptor's defaults: the credentials of this node's own pod, and nothing allowed at run
    /// time.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            namespace: String::new(),
            image: String::new(),
            command: String::new(),
            params: String::new(),
            auth_method: AuthMethod::InCluster,
            kubeconfig: None,
            pod: None,
            allow_runtime_auth: false,
            allow_runtime_command: false,
            allow_runtime_params: false,
            allow_runtime_pod: false,
            delete_pod_on_restart: true,
            stream_method: StreamMethod::Logger,
            tcp_address: None,
            verify_signature: false,
            mesh: false,
            api_outage: API_OUTAGE,
            quota_retry: false,
        }
    }

    /// Whether only this node's operators may use this type. It is powerful if a submission may define the pod, because
    /// the definition decides what the pod sees of its host, or if it uses the service account of this node's own pod,
    /// which may do more than other nodes should.
    pub fn is_for_operators(&self) -> bool {
        let is_powerful = self.allow_runtime_pod || self.auth_method == AuthMethod::InCluster;
        is_powerful && !self.verify_signature && !self.mesh
    }
}
