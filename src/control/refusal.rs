//! Why a command is not carried out, as text for its client. It refuses to know how the text is sent.

use crate::mesh::ForgetError;
use crate::service::LinkTestError;
use crate::stream::DialError;
use crate::tls::UnknownProfile;
use crate::wire::{InvalidServiceName, NodeId};
use crate::work::WorkError;

/// Why a command was not carried out; the client gets the text after `ERROR: `.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestRefusal {
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
    NoLinkTest(#[from] NoSuchTest),
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

/// Why a link cannot be tested at all.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoSuchTest {
    #[error("{name} is not a neighbour of this node: its neighbours are {neighbours}")]
    NotNeighbour { name: String, neighbours: String },
    #[error("this node has no neighbours")]
    Alone,
    #[error("the link to {0} cannot be tested: {0} does not answer link tests, which only meshd nodes do")]
    OtherMake(NodeId),
    #[error(
        "the link to {node} cannot be tested: messages to {node} go through {via}, because that link costs more"
    )]
    Detour { node: NodeId, via: NodeId },
}
