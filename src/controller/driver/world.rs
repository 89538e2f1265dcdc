//! What the driver sees of the mesh, and what it does to units. Traits only, so that tests run the driver without a
//! mesh.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use crate::controller::core::{ChildEnd, ChildId, InstanceName, JobId, Known};
use crate::controller::pod::PullSecret;
use crate::pods::place::{ClusterError, PodPlace};
use crate::rpc::OutputBound;
use crate::work::jobs::{Act, JobUnit};
use crate::work::{ChildUnit, FarUnit, Leftovers};

/// A node as its advertisement and the routes show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// Its ID.
    pub name: InstanceName,
    /// There is a route to it.
    pub routed: bool,
    /// The time in its control service's advertisement, in milliseconds of its own clock; `None` without one.
    pub advertised: Option<i64>,
    /// Its control service uses TLS.
    pub tls: bool,
    /// Its work types, and whether they need signatures.
    pub work_types: Vec<(String, bool)>,
}

/// The mesh, as this node sees it.
pub trait MeshView: Send + Sync + 'static {
    /// Every known node, including this one.
    fn nodes(&self) -> Act<'_, Vec<NodeView>>;

    /// Changes when the nodes may have changed.
    fn changes(&self) -> watch::Receiver<u64>;

    /// This node has a key that signs work.
    fn signs(&self) -> bool;

    /// Whether nodes that are reached with this TLS profile have to prove their names with their certificates.
    fn proves_names(&self, profile: &str) -> bool;
}

/// A unit to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildRequest {
    /// Its ID.
    pub unit: String,
    /// The node that is to run it.
    pub node: InstanceName,
    /// The work type there.
    pub work_type: String,
    /// Added to the command's arguments.
    pub params: String,
    /// The parent of its private directory on a node that provides none.
    pub run_dir: Option<String>,
    /// Its submission is signed.
    pub signed: bool,
    /// TLS profile for the connection to its node.
    pub tls: Option<String>,
    /// How long its start may take.
    pub ttl: Option<Duration>,
    /// How much it may print.
    pub max_stdout: OutputBound,
    /// What its node may already have of it from an earlier process.
    pub far: Option<FarUnit>,
    /// Set if it runs as a pod; `params` is ignored then.
    pub pod: Option<PodChild>,
}

impl ChildRequest {
    /// Whether it is a pod that may have been sent already.
    pub fn is_inherited(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.is_inherited)
    }
}

/// A unit that runs as a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodChild {
    /// Where it goes, and the parameters of its submission.
    pub place: PodPlace,
    /// The secret with which its image is pulled.
    pub pull_secret: Option<PullSecret>,
    /// It may have been sent already, by another control node or by an earlier process of this one.
    pub is_inherited: bool,
}

/// What a unit reads. It may hold secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ChildInput {
    /// The bytes before the files.
    pub head: Vec<u8>,
    /// The files that follow, each read from this byte on.
    pub files: Vec<(PathBuf, u64)>,
}

impl std::fmt::Debug for ChildInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChildInput").field("head", &self.head.len()).field("files", &self.files).finish()
    }
}

/// News of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChildNews {
    /// Its node has accepted it, or has it, as is known after a silence.
    Accepted,
    /// Its node does not have it but may still run it, because another control node may have been about to send it.
    Missing,
    /// More output.
    Output(Bytes),
    /// It has ended, and all output was delivered.
    Ended {
        /// How it ended.
        end: ChildEnd,
        /// Its Detail.
        detail: String,
    },
}

/// A unit that is followed.
pub trait ChildStream: Send {
    /// The next news. After the end, returns the end again each time. Dropping the future loses nothing.
    fn next(&mut self) -> Act<'_, ChildNews>;
}

/// The units of this node.
pub trait Children: Send + Sync + 'static {
    /// What is known of a unit.
    fn known(&self, unit: &str) -> Known;

    /// What a unit does at the moment, for people.
    fn detail(&self, unit: &str) -> Option<String>;

    /// The nodes that have not answered any question about their units for this long.
    fn unanswering(&self, limit: Duration) -> BTreeSet<InstanceName>;

    /// Returns once this node's disk has room for what units read and print.
    fn room(&self) -> Act<'_, ()>;

    /// Starts a unit. Once this returns, the unit's input files may be deleted. Returns false if this node is to run
    /// the unit but has promised not to ([`Self::disclaim`]).
    ///
    /// # Errors
    /// Why it was refused.
    fn send(&self, request: ChildRequest, input: ChildInput) -> Act<'_, Result<bool, String>>;

    /// Makes a unit known here again that may have been started before. Returns false if its cluster has no such pod.
    /// Only following the unit shows whether a node has it.
    ///
    /// # Errors
    /// Why this is not possible here now. The unit may be running all the same.
    fn adopt(&self, request: ChildRequest) -> Act<'_, Result<bool, String>>;

    /// Ensures that a unit that another control node may still send never runs here. Returns false if the unit is here.
    ///
    /// # Errors
    /// Why this cannot be promised now.
    fn disclaim(&self, unit: String) -> Act<'_, Result<bool, String>>;

    /// Follows a unit from a byte of its output on.
    fn follow(&self, unit: String, from: u64) -> Act<'_, Box<dyn ChildStream>>;

    /// Cancels a unit, now or when its node answers. Returns false if the request has to be repeated.
    fn cancel(&self, unit: String) -> Act<'_, bool>;

    /// Notes that a unit is to be cancelled, without waiting for its node: if it was not sent yet, it never starts.
    fn withhold(&self, unit: String) -> Act<'_, ()>;

    /// Releases a unit, and ends the processes that it left or lets them run. Returns false if the request has to be
    /// repeated.
    fn release(&self, unit: String, leftovers: Leftovers) -> Act<'_, bool>;

    /// Checks whether such a pod would be accepted as a unit, without asking the cluster.
    ///
    /// # Errors
    /// Why it would be refused.
    fn check_pod(&self, place: &PodPlace) -> Act<'_, Result<(), String>>;

    /// Ensures that everything that a pod needs is in its cluster.
    fn prepare_pod(&self, pod: &PodChild) -> Act<'_, Result<(), ClusterError>>;

    /// Deletes a secret, if it is there.
    fn delete_secret(&self, place: PodPlace, name: String) -> Act<'_, Result<(), ClusterError>>;

    /// The children that are here.
    fn list(&self) -> Vec<ChildUnit<ChildId>>;

    /// The children here that belong to the same job as this one.
    fn of_job(&self, child: &ChildId) -> Vec<ChildId>;

    /// Forgets a child here without asking its node, because another control node drives it or its node is given up.
    /// Its pod stays.
    fn forget(&self, unit: String) -> Act<'_, ()>;

    /// Allows children to be started, cancelled and released on other nodes, or holds such requests back.
    fn let_act(&self, may_act: bool);

    /// The unit of a job, if it is here.
    fn job_unit(&self, unit: &str) -> Option<JobUnit>;

    /// Makes a unit for a job that was submitted to another control node; `None` if that is not possible.
    fn adopt_job(&self, job: JobId) -> Act<'_, Option<JobUnit>>;
}
