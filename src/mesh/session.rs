//! One session with a neighbour: who it is, what its link costs, and why it may end.
//!
//! A session greets until the other side has introduced itself, and is established from then on. The
//! checks that only need the session itself are here; whatever needs the whole node is in `core`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::anti_entropy::Comparison;
use super::exchange::Catchup;
use super::life::Life;
use super::{Tick, Told};
use crate::wire::{Cost, MAX_MESSAGE, NodeId, RoutingUpdate};

/// Updates and advertisements within [`LOUD_WINDOW`] that an operator should know of: several times what a
/// neighbour passes on while a mesh of a thousand nodes starts at once.
pub(super) const LOUD: u32 = 30_000;
const LOUD_WINDOW: Duration = Duration::from_secs(10);

/// Names one session for ever: a number is never used again, so what comes late for an old session can
/// never hit a newer one with the same neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// What a listener or a peer says about the sessions that come from it.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkPolicy {
    /// Cost of the link.
    pub cost: Cost,
    /// Cost by neighbour, where it differs.
    pub node_cost: BTreeMap<NodeId, Cost>,
    /// The only neighbours that are let in; `None` lets everybody in.
    pub allowed_peers: Option<BTreeSet<NodeId>>,
    /// The names in the neighbour's certificate, of which it must be one; `None` where that is not asked for.
    pub certified: Option<Vec<String>>,
    /// The host that it was accepted from; `None` where this node has dialled.
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
    /// What a link with `peer` costs.
    pub fn cost_for(&self, peer: &NodeId) -> Cost {
        self.node_cost.get(peer).copied().unwrap_or(self.cost)
    }

    /// Whether the neighbour may call itself `peer`.
    pub fn certifies(&self, peer: &NodeId) -> bool {
        self.certified.as_ref().is_none_or(|names| names.iter().any(|name| name == peer.as_str()))
    }

    /// The neighbour's host, if neither the configuration nor a certificate says who may come from there.
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
    /// There is a living session with that node ID.
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
        /// What we say.
        ours: Cost,
        /// What the peer says.
        theirs: Cost,
    },
    /// The peer listed us as its neighbour and no longer does.
    NoLongerListsUs,
    /// The peer rejected us.
    RejectedByPeer,
    /// Nothing was heard for this long.
    Idle(Duration),
    /// A neighbour of our kind did not answer any more; nothing was heard for this long.
    Silent(Duration),
    /// With one more neighbour, the list of our links would not fit into a message any more.
    TooManyLinks {
        /// The size that our update would have, in bytes.
        bytes: usize,
    },
    /// Nothing says that it may come, and others like it have left no room for its name in our update.
    Crowded {
        /// The host that it comes from.
        host: String,
    },
    /// The peer never introduced itself.
    NoIntroduction,
    /// The peer has come back on another session while this one was dead.
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
            Self::OwnId => f.write_str("it uses our own node ID: give each node an ID of its own"),
            Self::NotAllowed(peer) => write!(f, "{peer} is not in the link's allowedpeers"),
            Self::NotCertified { claimed, certified } => write!(
                f,
                "it calls itself {claimed}, and its certificate names {} (skipreceptornamescheck turns this check off)",
                certified.join(", ")
            ),
            Self::AlreadyConnected(peer) => write!(f, "there already is a living session with {peer}"),
            Self::PeerChanged { from, to } => write!(f, "its node ID changed from {from} to {to}"),
            Self::CostDisagreement { ours, theirs } => write!(
                f,
                "we give the link the cost {}, it says {}: set the same cost at both ends",
                ours.get(),
                theirs.get()
            ),
            Self::NoLongerListsUs => f.write_str("it no longer lists us as its neighbour"),
            Self::RejectedByPeer => f.write_str("it rejected us; its log says why"),
            Self::Idle(time) => write!(f, "nothing was heard for {} s", time.as_secs_f32()),
            Self::Silent(time) => write!(f, "it did not answer for {:.1} s", time.as_secs_f32()),
            Self::TooManyLinks { bytes } => write!(
                f,
                "this node has too many neighbours: with one more, telling them would take {bytes} bytes, and a \
                 message holds {MAX_MESSAGE}; let some of them link to another node"
            ),
            Self::Crowded { host } => write!(
                f,
                "neighbours that anybody may be have taken the room for their names, those from {host} a large share: \
                 what is left is for nodes in allowedpeers, with certificates, or that this node dials"
            ),
            Self::NoIntroduction => f.write_str("it never introduced itself"),
            Self::Superseded => {
                f.write_str("it was dead, and the same node has come back on another session")
            }
            Self::LinkClosed => f.write_str("the link was closed"),
        }
    }
}

/// How far a session has come.
#[derive(Debug)]
pub(super) enum Phase {
    /// We introduce ourselves again and again; the peer has not.
    Greeting {
        /// Greetings sent so far.
        sent: u32,
        /// When the next one is due.
        next: Tick,
        /// Its introduction names a neighbour whose other session is being asked whether it lives.
        contests: Option<SessionId>,
    },
    /// The peer is known.
    Established(Box<Established>),
}

/// An established session's knowledge.
#[derive(Debug)]
pub(super) struct Established {
    pub(super) peer: NodeId,
    pub(super) cost: Cost,
    /// The newest update (epoch, sequence) in which the peer has listed us as its neighbour: newer ones must
    /// go on doing so, while an older one may have been overtaken on its way.
    pub(super) listed: Option<(u64, u64)>,
    /// Another session claims to be this peer: until when this one has time to show that it lives.
    pub(super) prove_alive_by: Option<Tick>,
    /// Whether the peer has the smaller name of the two.
    pub(super) is_first: bool,
    /// Before this, the peer is not pinged again.
    pub(super) next_probe: Tick,
    /// What the probes between nodes of our kind tell.
    pub(super) life: Life,
    pub(super) comparison: Comparison,
    pub(super) catchup: Catchup,
}

/// What an update from the peer is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// To be processed.
    Process,
    /// The peer has not got to know us yet: our introduction has not reached it.
    NotIntroduced,
    /// Older than what the peer has said since.
    Overtaken,
}

/// One session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) policy: LinkPolicy,
    pub(super) phase: Phase,
    pub(super) last_heard: Tick,
    /// How much later that is than it really was.
    forgiven: Duration,
    pub(super) told: Told,
    /// Since when its updates and advertisements are counted, and how many there were.
    recent: (Tick, u32),
}

impl Session {
    pub(super) fn new(policy: LinkPolicy, now: Tick) -> Self {
        let phase = Phase::Greeting { sent: 0, next: now, contests: None };
        let (forgiven, told) = (Duration::ZERO, Told::default());
        Self { policy, phase, last_heard: now, forgiven, told, recent: (now, 0) }
    }

    /// An update or an advertisement came in. True once in each window in which the peer is [`LOUD`].
    pub(super) fn is_getting_loud(&mut self, now: Tick) -> bool {
        let (since, count) = &mut self.recent;
        if now.since(*since) >= LOUD_WINDOW {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count == LOUD
    }

    /// Something was heard at `when`; true if it was waited for.
    pub(super) fn hears(&mut self, when: Tick) -> bool {
        self.last_heard = self.last_heard.max(when);
        self.forgiven = Duration::ZERO;
        match &mut self.phase {
            Phase::Established(established) => established.life.hears(),
            Phase::Greeting { .. } => false,
        }
    }

    /// This node was busy for so long: that much of the peer's silence is not its own. One standstill is forgiven in
    /// full. Many in a row, as a flood brings them about, only up to `most`: the dead must not live on in them.
    pub(super) fn forgive(&mut self, late: Duration, most: Duration, now: Tick) {
        let room = if self.forgiven.is_zero() { late } else { most.saturating_sub(self.forgiven) };
        let grace = late.min(room);
        self.forgiven += grace;
        self.last_heard = (self.last_heard + grace).min(now);
    }

    /// True if this session waits for the end of `other`, which has the same peer.
    pub(super) fn contests(&self, other: SessionId) -> bool {
        matches!(self.phase, Phase::Greeting { contests: Some(contested), .. } if contested == other)
    }

    pub(super) fn established(&self) -> Option<&Established> {
        match &self.phase {
            Phase::Established(established) => Some(&**established),
            Phase::Greeting { .. } => None,
        }
    }
}

impl Established {
    /// Checks an update from the peer against what it said before.
    pub(super) fn check(&mut self, own: &NodeId, update: &RoutingUpdate) -> Result<Use, CloseReason> {
        if update.forwarding_node != self.peer {
            let (from, to) = (self.peer.clone(), update.forwarding_node.clone());
            return Err(CloseReason::PeerChanged { from, to });
        }
        if update.node_id.as_ref() != Some(&self.peer) {
            return Ok(Use::Process);
        }
        let version = (update.epoch, update.sequence);
        match (update.connections.get(own), self.listed) {
            (None, None) => Ok(Use::NotIntroduced),
            (None, Some((epoch, sequence))) if epoch == version.0 && version.1 < sequence => {
                Ok(Use::Overtaken)
            }
            (None, Some(_)) => Err(CloseReason::NoLongerListsUs),
            (Some(&theirs), _) if theirs != self.cost => {
                Err(CloseReason::CostDisagreement { ours: self.cost, theirs })
            }
            (Some(_), listed) => {
                self.listed = listed.max(Some(version));
                Ok(Use::Process)
            }
        }
    }
}
