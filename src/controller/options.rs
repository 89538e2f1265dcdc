//! The settings of a controller, checked. It knows no syntax of configuration and opens no files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use super::core::LeaseTimes;
pub use super::core::{NodeType, OnLoss};
pub use super::notify::{NoticeEvent, NoticeWay, NotifyTarget, Webhook, is_target_name};
use crate::mesh::firewall::Pattern;
use crate::wire::ServiceName;
use crate::work::CommandType;

/// The work type of children on other instances, as on every execution node of AWX.
pub const RUNNER_TYPE: &str = "ansible-runner";
/// The work type of pods in a cluster with a credential.
pub const KUBE_RUNTIME_TYPE: &str = "kubernetes-runtime-auth";
/// The work type of pods in the owner's own cluster.
pub const KUBE_IN_CLUSTER_TYPE: &str = "kubernetes-incluster-auth";
/// The fewest heartbeats that an owner may be allowed to miss before it is lost.
pub const LEAST_HEARTBEATS: u32 = 3;

/// What happens to a node that advertises the runner and is not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discovery {
    /// Nothing.
    Off,
    /// It is registered, but gets no jobs until an operator enables it.
    Disabled,
    /// It is registered and enabled, so it gets jobs with their secrets.
    Enabled,
}

/// The settings of a controller, which a reload replaces. Clones share them.
pub type SharedOptions = Arc<ArcSwap<ControllerOptions>>;

/// A controller as it is configured.
#[derive(Debug, Clone, PartialEq)]
pub struct ControllerOptions {
    /// Control or hybrid.
    pub node_type: NodeType,
    /// `sqlite`, `sqlite:PATH` or a URL of PostgreSQL, for the store to read.
    pub store: String,
    /// File with the password for PostgreSQL.
    pub store_password_file: Option<PathBuf>,
    /// Directory of credentials.
    pub credentials: Option<PathBuf>,
    /// Directory of saved jobs.
    pub jobs: Option<PathBuf>,
    /// Where notices about jobs go, by name.
    pub notify: BTreeMap<String, NotifyTarget>,
    /// The program that runs children on this node itself, which nobody but the controller starts.
    pub runner: Box<CommandType>,
    /// What syncs of projects may read besides the system's programs.
    pub sync_read: Vec<PathBuf>,
    /// Hosts that syncs may reach; if empty, all but this machine.
    pub project_hosts: Vec<String>,
    /// Where children make their directories.
    pub run_dir: PathBuf,
    /// The `tls-client` for instances whose control service uses TLS.
    pub tls_client: Option<String>,
    /// Instances without TLS get no jobs.
    pub require_tls: bool,
    /// Callers over the mesh prove themselves by a token.
    pub verify_signature: bool,
    /// What happens to new nodes.
    pub discovery: Discovery,
    /// The nodes that discovery may register; all if empty.
    pub discover_nodes: Vec<Pattern>,
    /// What happens to jobs whose owner restarts or is lost.
    pub on_loss: OnLoss,
    /// When something is lost.
    pub timers: Timers,
    /// What is kept, for how long, and how much of it.
    pub bounds: Bounds,
    /// Forks per processor.
    pub forks_per_cpu: u32,
    /// MiB per fork.
    pub mib_per_fork: u32,
    /// Bytes that jobs cannot use; `None` for the default of the machine, which is none in a pod.
    pub memory_reserve: Option<u64>,
    /// Bytes of its disk that this node leaves free; `None` for as many as a node without a controller leaves.
    pub disk_reserve: Option<u64>,
    /// How control nodes reach each other.
    pub peers: Peers,
}

/// When something is lost, and how often a node looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timers {
    /// How often a control node renews its lease.
    pub heartbeat: Duration,
    /// How long a lease may be expired before its jobs get another owner.
    pub owner_lost_after: Duration,
    /// How long an instance may be unseen before its jobs are lost.
    pub lost_after: Duration,
    /// How often pending jobs are looked at even if nothing has happened.
    pub poll: Duration,
}

impl Timers {
    /// The times of leases.
    pub fn of_leases(&self) -> LeaseTimes {
        LeaseTimes { heartbeat: self.heartbeat, owner_lost_after: self.owner_lost_after }
    }
}

/// What is kept, for how long, and how much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Most pending jobs.
    pub max_pending: u32,
    /// Most bytes of a payload.
    pub max_payload: u64,
    /// Most bytes that a job may print.
    pub job_output: u64,
    /// How long a payload is kept after its job's end.
    pub payload_retention: Duration,
    /// How long an output is kept.
    pub output_retention: Duration,
    /// Most bytes of all outputs.
    pub output_limit: u64,
    /// How long a job's row is kept.
    pub job_retention: Duration,
    /// Most bytes of project trees.
    pub project_cache: u64,
    /// How often instances are cleaned up; zero is never.
    pub cleanup_every: Duration,
}

/// How control nodes reach each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peers {
    /// The service of the mesh.
    pub service: ServiceName,
    /// The service's `tls-server`.
    pub tls_server: Option<String>,
    /// The `tls-client` towards others.
    pub tls_client: Option<String>,
}
