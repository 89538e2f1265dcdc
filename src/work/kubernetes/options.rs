//! What the directive `work-kubernetes` says about one work type. Owns the checked settings; reads no files and has
//! never heard of the syntax they were written in.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How long the API server may be away before a healthy unit fails.
pub const API_OUTAGE: Duration = Duration::from_secs(30 * 60);

/// Where the credentials come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMethod {
    /// A kubeconfig file of this host, or a submitted one.
    KubeConfig,
    /// The service account of the pod that this node runs in.
    InCluster,
    /// A kubeconfig that each submission brings.
    Runtime,
}

/// How stdin and stdout of a pod travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamMethod {
    /// Attach for stdin, the log for stdout.
    Logger,
    /// One TCP connection that the pod opens.
    Tcp,
}

/// A configured work type that runs pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesType {
    /// Name of the work type.
    pub name: String,
    /// Namespace of the pods, empty for the credential's own.
    pub namespace: String,
    /// Image of the simple pod.
    pub image: String,
    /// Its command, in shell quoting.
    pub command: String,
    /// Its arguments, in shell quoting.
    pub params: String,
    /// Where the credentials come from.
    pub auth_method: AuthMethod,
    /// The kubeconfig file, if it is not in its usual place.
    pub kubeconfig: Option<PathBuf>,
    /// A pod definition, read at each submission.
    pub pod: Option<PathBuf>,
    /// Submissions may bring credentials and choose the namespace.
    pub allow_runtime_auth: bool,
    /// Submissions may choose image and command.
    pub allow_runtime_command: bool,
    /// Submissions may add arguments and limit the time that a pod is pending.
    pub allow_runtime_params: bool,
    /// Submissions may bring a pod definition.
    pub allow_runtime_pod: bool,
    /// A pod that has not started when the daemon restarts is deleted, and its unit fails.
    pub delete_pod_on_restart: bool,
    /// How stdin and stdout travel.
    pub stream_method: StreamMethod,
    /// The address that pods connect to with [`StreamMethod::Tcp`], if it is not to be found out.
    pub tcp_address: Option<IpAddr>,
    /// Submissions must be signed.
    pub verify_signature: bool,
    /// How long the API server may be away before a healthy unit fails.
    pub api_outage: Duration,
    /// `exceeded quota` is tried again until the unit's pending timeout.
    pub quota_retry: bool,
}

impl KubernetesType {
    /// A type with receptor's defaults: credentials of the pod this node runs in, nothing allowed at run time.
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
            api_outage: API_OUTAGE,
            quota_retry: false,
        }
    }
}
