//! The control service: the line protocol that `receptorctl`, AWX, other nodes and our own client speak.
//!
//! [`request`] owns the grammar, `session` the conversation with one client, [`listen`] the sockets and
//! [`server`] the life of them all; each command has a file of its own. This room asks `node`, `stream` and
//! `work` for everything it reports and has never heard of backends or configuration files.

mod access;
mod channel;
mod connect;
mod controller;
mod doctor;
mod far_links;
mod health;
mod lines;
mod link;
pub(crate) mod listen;
mod loglevel;
mod node;
mod observe;
mod ping;
pub(crate) mod reload;
pub(crate) mod server;
mod session;
mod traceroute;
mod work;

use std::sync::Arc;

use crate::mesh::ForgetError;
use crate::node::NodeHandle;
use crate::service::{LinkTestError, LinkTests};
use crate::stream::{DialError, Streams};
use crate::tls::{Profiles, UnknownProfile};
use crate::wire::{InvalidServiceName, NodeId};
use crate::work::{Registry, WorkError};

pub(crate) use controller::{Operated, OperationStream, Operations};
pub(crate) use doctor::{EXAMINED_WITHIN, Examine};
pub(crate) use far_links::far_links;
pub(crate) use health::Life;
pub(crate) use lines::LineBudget;
pub(crate) use listen::ListenError;
pub(crate) use loglevel::LogLevels;
pub(crate) use observe::Observer;
pub(crate) use reload::{Reload, ReloadError};
pub(crate) use server::{Server, ServerLimits};

/// Everything that commands reach; cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    /// The node itself.
    pub node: NodeHandle,
    /// Dials services of other nodes.
    pub streams: Streams,
    /// TLS profiles, by name.
    pub tls: Profiles,
    /// All work units.
    pub work: Registry,
    /// Reads the configuration again.
    pub reload: Arc<dyn Reload>,
    /// Finds out what is wrong with this node.
    pub doctor: Arc<dyn Examine>,
    /// The controller, if the node has one.
    pub controller: Option<Arc<dyn Operations>>,
    /// Shows and changes how much is logged.
    pub log: Arc<dyn LogLevels>,
    /// Measures links.
    pub link_tests: LinkTests,
    /// How much room command lines may take.
    pub lines: LineBudget,
    /// What reports are made of.
    pub observer: Observer,
}

impl Context {
    /// The node that a client means: `localhost` is the own one. `None` for a name that no node can have.
    fn node_named(&self, name: &str) -> Option<NodeId> {
        NodeId::resolve(name, self.node.id()).ok()
    }
}

/// Why a command was not carried out; the text stands behind `ERROR: `.
#[derive(Debug, thiserror::Error)]
enum RequestRefusal {
    #[error(transparent)]
    Request(#[from] crate::rpc::request::RequestError),
    #[error(transparent)]
    Work(#[from] WorkError),
    #[error(transparent)]
    Forget(#[from] ForgetError),
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error(transparent)]
    Service(#[from] InvalidServiceName),
    #[error(
        "{0} over this connection is not allowed: use the Unix socket, a client certificate, or forward of control-service"
    )]
    NotAllowed(&'static str),
    #[error(transparent)]
    NoLinkTest(#[from] link::NoSuchTest),
    #[error(transparent)]
    LinkTest(#[from] LinkTestError),
    #[error("no route to node")]
    NoSuchNode,
    #[error("{0}")]
    LogLevel(String),
    #[error(transparent)]
    UnknownTls(#[from] UnknownProfile),
    #[error("could not convert response to JSON: {0}")]
    Json(#[from] serde_json::Error),
}

#[cfg(test)]
mod tests;
