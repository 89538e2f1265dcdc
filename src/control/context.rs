//! The parts of the daemon that commands use: the node, its streams, its work and the hooks. Owns none of them, and
//! refuses to know the commands.

use std::sync::Arc;

use super::hooks::{Examine, LogLevels, Reload};
use super::lines::LineBudget;
use super::observe::Observer;
use crate::node::NodeHandle;
use crate::service::LinkTests;
use crate::stream::Streams;
use crate::tls::Profiles;
use crate::wire::NodeId;
use crate::work::Registry;
use crate::work::jobs::Operations;

/// Everything that commands use; cheap to clone.
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
    /// Examines this node.
    pub doctor: Arc<dyn Examine>,
    /// The controller, if the node has one.
    pub controller: Option<Arc<dyn Operations>>,
    /// Shows and changes how much is logged.
    pub log: Arc<dyn LogLevels>,
    /// Measures links.
    pub link_tests: LinkTests,
    /// Bounds the memory of command lines and answers.
    pub lines: LineBudget,
    /// Makes reports of this node's state.
    pub observer: Observer,
}

impl Context {
    /// The node that a client names: `localhost` is this node. `None` for a name that no node can have.
    pub(super) fn node_named(&self, name: &str) -> Option<NodeId> {
        NodeId::resolve(name, self.node.id()).ok()
    }
}
