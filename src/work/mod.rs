//! Units of work: accepted durably, run by detached processes here or by another node, followed, cancelled and
//! released. [`Registry`] is the way in. Owns the unit directories below the data directory and every process started
//! for them; knows nothing of the control socket's syntax, and leaves opening streams to other nodes to a [`Dialer`].
//!
//! - [`mod@unit`]: the states and what may follow what, pure.
//! - [`status`]: the status file's shape. `store`: where the files lie and how they survive a crash.
//! - [`runner`]: spawner and runner processes. `command`: the arguments they get.
//! - `caller`: who asks, and what a unit keeps of that. `asked`: what was asked for.
//! - `registry`: what clients may do: submission, cancel, release, restart. `units`: one entry per unit and its writer.
//! - `executor`: passes each action on a unit to the module that runs it. `local`: units that run here. [`follow`] and
//!   `remote`: units on other nodes, about which `far` asks.
//! - [`limits`]: what bounds the units of a type. `cgroup`: the kernel's part of that. [`signing`]: signatures of
//!   requests between nodes.
//! - `pieces`: parts of payloads that are kept, so that they need not be sent again.
//! - `reserve`: the part of its disk that a node leaves free. `results`: output as it grows.
//! - `figures`: what is counted of units.
//! - [`jobs`]: units that are jobs of a controller: what it does for them.
//! - `pieces`: payloads that are not sent twice.
//! - `pods`: units that run as pods: [`crate::pods`] decides and acts; here they are units like others.

mod asked;
mod caller;
mod cgroup;
mod command;
mod error;
mod executor;
mod far;
mod figures;
pub mod follow;
pub mod jobs;
pub mod limits;
mod local;
pub(crate) mod pieces;
mod pods;
mod registry;
mod remote;
pub(crate) mod reserve;
mod results;
pub(crate) mod run_dir;
pub mod runner;
pub mod signing;
pub mod status;
mod store;
pub mod unit;
mod units;

pub(crate) use cgroup::check_limits;

pub use caller::{Caller, CallerName, Origin, Rights, Submitter, UnknownSubmitter};
pub use command::{CommandType, PYTHON_WORKER, PythonPlugin, RUNNER, Reach, SYNC};
pub use error::{OpenError, WorkError};
pub use figures::WorkFigures;
pub(crate) use registry::Assembled;
pub use registry::{ChildStatus, ChildUnit, ChildWatch, Listing, Options, Registry, UnitSubmission};
pub use remote::FarOutput;
pub use results::ResultStream;
pub use store::NodeDirectory;
pub use unit::{State, UnitId};
pub use units::{AttemptPayload, CancelInProgress, FarUnit, Leftovers, Outcome, Quota, Started};

#[cfg(test)]
pub(crate) use runner::kill_all_units;

use std::future::Future;
use std::pin::Pin;

pub use crate::rpc::{Duplex, UnitReport};
use crate::stream::Peer;
use crate::wire::{NameHash, NodeId, ServiceName};

/// A stream to a service of another node.
pub struct Dialed {
    /// The stream.
    pub stream: Box<dyn Duplex>,
    /// The program at the other end.
    pub peer: Peer,
}

/// A stream that is being opened.
pub type StreamDialing = Pin<Box<dyn Future<Output = Result<Dialed, StreamFailure>> + Send>>;

/// Why no stream was opened. Only `OwnProfile` is proven, because this node alone decides it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamFailure {
    /// The node cannot be reached now.
    #[error("{0}")]
    Unreachable(String),
    /// The TLS handshake failed: the certificates do not fit, or a node on the way made it fail.
    #[error("{0}")]
    Handshake(String),
    /// This node has no TLS profile of that name.
    #[error("{0}")]
    OwnProfile(String),
}

/// Opens streams to services of other nodes.
pub trait Dialer: Send + Sync + 'static {
    /// Opens a stream to a service of a node, under the named TLS profile if any. Bounded in time.
    fn dial(&self, node: NodeId, service: ServiceName, tls: Option<String>) -> StreamDialing;

    /// Whether a TLS profile of that name is configured: a unit that names another could never be sent.
    fn knows_profile(&self, name: &str) -> bool;

    /// Ends when a route to the node appears, so that callers need not guess when to try again. Never ends if that
    /// cannot be known.
    fn appears(&self, _node: NodeId) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    /// Ends when there is no route to the node, at once if there is none now: waiting for its answer may be in vain.
    /// Never ends if that cannot be known.
    fn disappears(&self, _node: NodeId) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    /// The name that a hash stands for, if it is known. For texts only.
    fn name_of(&self, _node: NameHash) -> Pin<Box<dyn Future<Output = Option<NodeId>> + Send>> {
        Box::pin(std::future::ready(None))
    }

    /// This node.
    fn node_id(&self) -> &NodeId;
}
