//! Who a client is, and which clients are counted together. Owns how a resource is divided among clients. It refuses to
//! know which resource that is, and what a client may ask for.

use std::net::IpAddr;

use crate::node::{CountedBy, NodeHandle};
use crate::os::address::network_of;
use crate::work::{Caller, Origin};

/// Who a client is.
#[derive(Debug, Clone)]
pub(super) struct ClientPeer {
    /// The caller as its listener identified it, without a signature.
    pub(super) caller: Caller,
    /// The address of a TCP client.
    pub(super) host: Option<IpAddr>,
    /// For logs.
    pub(super) name: String,
}

impl ClientPeer {
    /// The caller for the work engine, with the signature of a request.
    pub(super) fn caller(&self, signature: Option<String>) -> Caller {
        Caller { signature, ..self.caller.clone() }
    }

    /// The account that the client is counted on.
    pub(super) fn neighbour(&self, node: &NodeHandle) -> PeerAccount {
        match self.caller.origin {
            Origin::Unix => PeerAccount::Local,
            Origin::Tcp => PeerAccount::Hosts(self.host.map(network_of)),
            Origin::Mesh { node: caller, certified } => PeerAccount::Mesh(node.counted(caller, certified)),
        }
    }
}

/// Clients whose connections and lines are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PeerAccount {
    /// The users of this machine's Unix socket.
    Local,
    /// TCP clients of one network.
    Hosts(Option<IpAddr>),
    /// Nodes of the mesh that are counted together.
    Mesh(CountedBy),
}

/// One share each for the users of this machine, for other trusted clients, and for everybody else, so that nobody can
/// use up another's share.
#[derive(Debug, Clone)]
pub(super) struct Shares<T> {
    local: T,
    trusted: T,
    others: T,
}

impl<T> Shares<T> {
    /// Three equal shares.
    pub(super) fn new(share: impl Fn() -> T) -> Self {
        Self { local: share(), trusted: share(), others: share() }
    }

    /// The share of a neighbour.
    pub(super) fn of(&self, neighbour: PeerAccount, trusted: bool) -> &T {
        match neighbour {
            PeerAccount::Local => &self.local,
            PeerAccount::Hosts(_) | PeerAccount::Mesh(_) if trusted => &self.trusted,
            PeerAccount::Hosts(_) | PeerAccount::Mesh(_) => &self.others,
        }
    }
}
