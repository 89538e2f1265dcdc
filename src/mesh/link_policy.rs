//! Who may connect over a link, what the link costs, and why a session ends. Knows no sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::wire::{Cost, MAX_MESSAGE, NodeId};

/// The configuration of a listener or a dialled peer, as far as its sessions need it.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkPolicy {
    /// Cost of the link.
    pub cost: Cost,
    /// Cost by neighbour, where it differs.
    pub node_cost: BTreeMap<NodeId, Cost>,
    /// The only neighbours that may connect; `None` allows all.
    pub allowed_peers: Option<BTreeSet<NodeId>>,
    /// The names in the neighbour's certificate: it must use one of them. `None` if names are not checked.
    pub certified: Option<Vec<String>>,
    /// The host that the link was accepted from; `None` if this node dialled.
    pub host: Option<String>,
}

impl Default for LinkPolicy {
    fn default() -> Self {
        Self {
            cost: Cost::DEFAULT,
            node_cost: BTreeMap::new(),
            allowed_peers: None,
            certified: None,
            host: None,
        }
    }
}

impl LinkPolicy {
    /// The cost of a link with `peer`.
    pub fn cost_for(&self, peer: &NodeId) -> Cost {
        self.node_cost.get(peer).copied().unwrap_or(self.cost)
    }

    /// Whether the neighbour may call itself `peer`.
    pub fn certifies(&self, peer: &NodeId) -> bool {
        self.certified.as_ref().is_none_or(|names| names.iter().any(|name| name == peer.as_str()))
    }

    /// The neighbour's host, if neither the configuration nor a certificate vouches for the neighbour.
    pub fn unknown_host(&self) -> Option<&String> {
        self.host.as_ref().filter(|_| self.allowed_peers.is_none() && self.certified.is_none())
    }

    /// Whether `peer` is let in.
    pub fn allows(&self, peer: &NodeId) -> bool {
        self.allowed_peers.as_ref().is_none_or(|allowed| allowed.contains(peer))
    }
}

/// Why a session ended.
#[derive(Debug, Clone, PartialEq)]
pub enum CloseReason {
    /// The peer claims our own node ID.
    OwnId,
    /// The peer is not in the link's list of allowed peers.
    NotAllowed(NodeId),
    /// The peer's certificate is for other nodes.
    NotCertified {
        /// The name it claims.
        claimed: NodeId,
        /// The names that its certificate holds.
        certified: Vec<String>,
    },
    /// A living session with that node ID exists.
    AlreadyConnected(NodeId),
    /// The peer introduced itself under one name and goes on under another.
    PeerChanged {
        /// The name it had.
        from: NodeId,
        /// The name it has now.
        to: NodeId,
    },
    /// Both ends must give their link the same cost.
    CostDisagreement {
        /// Our cost.
        ours: Cost,
        /// The peer's cost.
        theirs: Cost,
    },
    /// The peer listed us as its neighbour and no longer does.
    NoLongerListsUs,
    /// The peer rejected us.
    RejectedByPeer,
    /// Nothing was heard for this long.
    Idle(Duration),
    /// A meshd neighbour no longer answers probes; nothing was heard for this long.
    Silent(Duration),
    /// With one more neighbour, the list of our links would not fit into a message any more.
    TooManyLinks {
        /// The size that our update would have, in bytes.
        bytes: usize,
    },
    /// Nothing vouches for the peer, and the room in our update for the names of such peers is used up.
    Crowded {
        /// The host that it comes from.
        host: String,
    },
    /// The peer never introduced itself.
    NoIntroduction,
    /// This session was dead, and the peer has connected again.
    Superseded,
    /// The link below ended.
    LinkClosed,
}

impl CloseReason {
    /// True if the peer is sent a reject before the session is closed.
    pub fn rejects(&self) -> bool {
        match self {
            Self::OwnId
            | Self::NotAllowed(_)
            | Self::NotCertified { .. }
            | Self::AlreadyConnected(_)
            | Self::PeerChanged { .. }
            | Self::CostDisagreement { .. }
            | Self::TooManyLinks { .. }
            | Self::Crowded { .. }
            | Self::NoLongerListsUs => true,
            Self::RejectedByPeer
            | Self::Idle(_)
            | Self::Silent(_)
            | Self::NoIntroduction
            | Self::Superseded
            | Self::LinkClosed => false,
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnId => f.write_str("it uses this node's own ID: give each node an ID of its own"),
            Self::NotAllowed(peer) => write!(f, "{peer} is not in the link's allowedpeers"),
            Self::NotCertified { claimed, certified } => write!(
                f,
                "it calls itself {claimed}, but its certificate names {} (skipreceptornamescheck turns this check off)",
                certified.join(", ")
            ),
            Self::AlreadyConnected(peer) => write!(f, "there is already a live session with {peer}"),
            Self::PeerChanged { from, to } => write!(f, "its node ID changed from {from} to {to}"),
            Self::CostDisagreement { ours, theirs } => write!(
                f,
                "this node gives the link the cost {}, and the peer {}: set the same cost at both ends",
                ours.get(),
                theirs.get()
            ),
            Self::NoLongerListsUs => f.write_str("it no longer lists us as its neighbour"),
            Self::RejectedByPeer => f.write_str("it rejected us; its log says why"),
            Self::Idle(time) => write!(f, "nothing was heard for {} s", time.as_secs_f32()),
            Self::Silent(time) => write!(f, "it did not answer for {:.1} s", time.as_secs_f32()),
            Self::TooManyLinks { bytes } => write!(
                f,
                "this node has too many neighbours: with one more, the list of them would take {bytes} bytes, but a \
                 message holds {MAX_MESSAGE}; link some of them to another node"
            ),
            Self::Crowded { host } => write!(
                f,
                "neighbours without proof of identity have used up their room for names, those from {host} a large \
                 share: the rest is for nodes in allowedpeers, nodes with certificates, and nodes that this node dials"
            ),
            Self::NoIntroduction => f.write_str("it never introduced itself"),
            Self::Superseded => {
                f.write_str("it was dead, and the same node has come back on another session")
            }
            Self::LinkClosed => f.write_str("the link was closed"),
        }
    }
}
