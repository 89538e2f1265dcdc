//! What the driver does to the world: the mesh that it looks at, and the units that it starts there. Traits only, so
//! that it can be driven without a mesh.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use crate::controller::core::{ChildEnd, InstanceName};

/// Something that takes time.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

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
    fn nodes(&self) -> Doing<'_, Vec<NodeView>>;

    /// Changes when they may have.
    fn changes(&self) -> watch::Receiver<u64>;

    /// This node has a key that signs work.
    fn signs(&self) -> bool;
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
    /// It is signed.
    pub signed: bool,
    /// Profile for the way there.
    pub tls: Option<String>,
    /// How long its start may take.
    pub ttl: Option<Duration>,
}

/// What a unit reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildInput {
    /// Comes first.
    pub head: Vec<u8>,
    /// Comes then, from this byte on.
    pub file: Option<(PathBuf, u64)>,
}

/// What is known here of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Nothing.
    Unknown,
    /// It was begun and has no payload, so that nothing of it was started.
    Unsent,
    /// It is here.
    Here,
}

/// News of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChildNews {
    /// Its node has accepted it.
    Accepted,
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
    fn next(&mut self) -> Doing<'_, ChildNews>;
}

/// The units of this node.
pub trait Children: Send + Sync + 'static {
    /// What is known of a unit.
    fn known(&self, unit: &str) -> Known;

    /// Starts a unit. Once this returns, the unit is durable here, with what it reads.
    ///
    /// # Errors
    /// It was refused, for this cause.
    fn send(&self, request: ChildRequest, input: ChildInput) -> Doing<'_, Result<(), String>>;

    /// Follows a unit that was started before, and of which nothing is left here.
    ///
    /// # Errors
    /// It was refused, for this cause.
    fn adopt(&self, request: ChildRequest) -> Doing<'_, Result<(), String>>;

    /// Follows a unit from a byte of its output on.
    fn follow(&self, unit: String, from: u64) -> Doing<'_, Box<dyn ChildStream>>;

    /// Has a unit cancelled, now or when its node answers.
    fn cancel(&self, unit: String) -> Doing<'_, ()>;

    /// Has a unit released. Returns false if it has to be asked for again.
    fn release(&self, unit: String) -> Doing<'_, bool>;
}
