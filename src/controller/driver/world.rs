//! What the driver does to the world: the mesh that it looks at, and the units that it starts there. Traits only, so
//! that it can be driven without a mesh.

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
    /// There is a way to it.
    pub routed: bool,
    /// The time in its control service's advertisement, in milliseconds of its own clock; `None` without one.
    pub advertised: Option<i64>,
    /// Its control service uses TLS.
    pub tls: bool,
    /// Its work types, and whether they need signatures.
    pub work_types: Vec<(String, bool)>,
}

/// The mesh, as this node sees it.
pub trait Mesh: Send + Sync + 'static {
    /// Every node that is known, this one included.
    fn nodes(&self) -> Act<'_, Vec<NodeView>>;

    /// Changes when they may have.
    fn changes(&self) -> watch::Receiver<u64>;

    /// This node has a key that signs work.
    fn signs(&self) -> bool;

    /// Whether a node that is reached with a TLS profile has a certificate that names it.
    fn proves_names(&self, profile: &str) -> bool;
}

/// A unit to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildRequest {
    /// Its ID.
    pub unit: String,
    /// The node that shall run it.
    pub node: InstanceName,
    /// The work type there.
    pub work_type: String,
    /// Added to the command's arguments.
    pub params: String,
    /// Where its private directory is made on a node that does not make it.
    pub run_dir: Option<String>,
    /// It is signed.
    pub signed: bool,
    /// Profile for the way there.
    pub tls: Option<String>,
    /// How long its start may take.
    pub ttl: Option<Duration>,
    /// How much it may print.
    pub max_stdout: OutputBound,
    /// What that node may have of it from an earlier process.
    pub far: Option<FarUnit>,
    /// It runs as a pod; `params` mean nothing then.
    pub pod: Option<PodChild>,
}

impl ChildRequest {
    /// It is a pod that another control node may have sent already.
    pub fn is_inherited(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.is_inherited)
    }
}

/// A unit that runs as a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodChild {
    /// Where it goes, and what it is, as parameters of its submission.
    pub place: PodPlace,
    /// The secret with which its image is pulled.
    pub pull_secret: Option<PullSecret>,
    /// Another control node may have sent it already.
    pub is_inherited: bool,
}

/// What a unit reads. It may hold secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ChildInput {
    /// Comes first.
    pub head: Vec<u8>,
    /// Come then, each from that byte on.
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
    /// Its node has accepted it, or was found to have it after a silence.
    Accepted,
    /// Its node does not have it, and may yet run it: another control node may have been about to send it.
    Missing,
    /// More output.
    Output(Bytes),
    /// It has ended, and all output was delivered.
    Ended {
        /// How.
        end: ChildEnd,
        /// Its Detail.
        detail: String,
    },
}

/// A unit that is followed.
pub trait ChildStream: Send {
    /// The next news; the end again and again. Dropping the future loses nothing.
    fn next(&mut self) -> Act<'_, ChildNews>;
}

/// The units of this node.
pub trait Children: Send + Sync + 'static {
    /// What is known of a unit.
    fn known(&self, unit: &str) -> Known;

    /// What a unit does at the moment, for people.
    fn detail(&self, unit: &str) -> Option<String>;

    /// The nodes that have answered nothing that was asked about their units for so long.
    fn unanswering(&self, limit: Duration) -> BTreeSet<InstanceName>;

    /// Returns once this node's disk has room for what units read and print.
    fn room(&self) -> Act<'_, ()>;

    /// Starts a unit. What it reads need not stay where it is once this returns. Returns false if this node is to run it and
    /// has promised not to.
    ///
    /// # Errors
    /// It was refused, for this cause.
    fn send(&self, request: ChildRequest, input: ChildInput) -> Act<'_, Result<bool, String>>;

    /// Follows a unit that may have been started before, and of which nothing is left here. Returns false if its cluster
    /// has no such pod; what a node has, shows when it is followed.
    ///
    /// # Errors
    /// Why that is not possible here as things are. The unit may run all the same.
    fn adopt(&self, request: ChildRequest) -> Act<'_, Result<bool, String>>;

    /// Sees to it that a unit never runs here that another control node may yet send. Returns false if it is here.
    ///
    /// # Errors
    /// That cannot be promised now.
    fn disclaim(&self, unit: String) -> Act<'_, Result<bool, String>>;

    /// Follows a unit from a byte of its output on.
    fn follow(&self, unit: String, from: u64) -> Act<'_, Box<dyn ChildStream>>;

    /// Has a unit cancelled, now or when its node answers. Returns false if that has to be asked again.
    fn cancel(&self, unit: String) -> Act<'_, bool>;

    /// Notes that a unit is to be cancelled, and waits for nothing else: one that was not sent is never started.
    fn withhold(&self, unit: String) -> Act<'_, ()>;

    /// Has a unit released, and what it has left running ended or not. Returns false if it has to be asked for again.
    fn release(&self, unit: String, leftovers: Leftovers) -> Act<'_, bool>;

    /// Whether such a pod would be accepted as a unit. Asks no cluster.
    ///
    /// # Errors
    /// It would be refused, for this cause.
    fn check_pod(&self, place: &PodPlace) -> Act<'_, Result<(), String>>;

    /// Has everything be in its cluster that a pod needs besides itself.
    ///
    /// # Errors
    /// In the API server's words.
    fn prepare_pod(&self, pod: &PodChild) -> Act<'_, Result<(), ClusterError>>;

    /// Deletes a secret, if it is there.
    ///
    /// # Errors
    /// In the API server's words.
    fn delete_secret(&self, place: PodPlace, name: String) -> Act<'_, Result<(), ClusterError>>;

    /// The children of jobs that are here.
    fn list(&self) -> Vec<ChildUnit<ChildId>>;

    /// The children of the same job that are here.
    fn of_job(&self, child: &ChildId) -> Vec<ChildId>;

    /// Drops a child here, and asks its node for nothing: another control node drives it, or its node is given up. Its pod
    /// stays.
    fn forget(&self, unit: String) -> Act<'_, ()>;

    /// Lets children be started, cancelled and released on other nodes, or holds that back.
    fn let_act(&self, may_act: bool);

    /// A unit of a job that is here.
    fn job_unit(&self, unit: &str) -> Option<JobUnit>;

    /// Makes a unit for a job that was submitted to another control node; `None` if there can be none.
    fn adopt_job(&self, job: JobId) -> Act<'_, Option<JobUnit>>;
}
