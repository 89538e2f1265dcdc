//! The sessions with neighbours: who each neighbour is, what its link costs, and when it was last heard.
//!
//! A session sends greetings until the other side has introduced itself, and is established from then on. The table
//! knows which session belongs to which neighbour. What a message means is decided elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::anti_entropy::Comparison;
use super::exchange::Exchange;
use super::first_hand::HeldMessage;
use super::probe::{Liveness, PeerKind};
use super::quota::TableQuota;
use super::{CloseReason, LinkPolicy, Tick};
use crate::counters::NeighborStats;
use crate::wire::{Cost, NodeId, RoutingUpdate};

/// The operator is told of a neighbour that sends this many updates and advertisements within [`FLOOD_WINDOW`]. Several
/// times fewer come from a neighbour while a mesh of a thousand nodes starts at once.
pub(super) const FLOOD: u32 = 30_000;
const FLOOD_WINDOW: Duration = Duration::from_secs(10);

/// Identifies one session. Never used again, so a late event of an old session cannot reach a newer session with the
/// same neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// How far a session has come.
#[derive(Debug)]
pub(super) enum Phase {
    /// We introduce ourselves again and again, because the peer has not introduced itself yet.
    Greeting {
        /// Greetings sent so far.
        sent: u32,
        /// When the next greeting is due.
        next: Tick,
        /// The established session of the same neighbour, which has to prove that it is alive.
        contests: Option<SessionId>,
    },
    /// The peer is known.
    Established(Box<Established>),
}

/// What is known of an established session.
#[derive(Debug)]
pub(super) struct Established {
    pub(super) peer: NodeId,
    pub(super) cost: Cost,
    /// The newest update (epoch, sequence) in which the peer has listed us as its neighbour: newer ones must list us,
    /// too, while an older one may have been overtaken on its way.
    pub(super) listed: Option<(u64, u64)>,
    /// The peer has answered our introduction: it lists us, or has sent a message that needs an established session.
    pub(super) is_let_in: bool,
    /// The deadline to prove that this session is alive, set while another session claims to be with the same peer.
    pub(super) prove_alive_by: Option<Tick>,
    /// Whether the peer has the smaller name of the two.
    pub(super) is_first: bool,
    /// The peer is not pinged again before this.
    pub(super) next_ping: Tick,
    /// When the peer was last reminded of an update that it had not taken.
    pub(super) reminded: Tick,
    pub(super) liveness: Liveness,
    pub(super) comparison: Comparison,
    pub(super) exchange: Exchange,
    pub(super) held: Option<HeldMessage>,
}

/// What to do with an update from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerUpdate {
    Process,
    /// The peer does not list us yet: our introduction has not reached it.
    NotIntroduced,
    /// Older than an update that the peer has sent since.
    Overtaken,
}

#[derive(Debug)]
pub(super) struct SessionState {
    policy: LinkPolicy,
    phase: Phase,
    last_heard: Tick,
    /// How far `forgive` has moved `last_heard` forward since something was really heard.
    forgiven: Duration,
    stats: NeighborStats,
    /// When the present [`FLOOD_WINDOW`] began, and the updates and advertisements in it.
    recent: (Tick, u32),
}

impl SessionState {
    fn new(policy: LinkPolicy, now: Tick) -> Self {
        let phase = Phase::Greeting { sent: 0, next: now, contests: None };
        let (forgiven, stats) = (Duration::ZERO, NeighborStats::default());
        Self { policy, phase, last_heard: now, forgiven, stats, recent: (now, 0) }
    }

    pub(super) fn policy(&self) -> &LinkPolicy {
        &self.policy
    }

    pub(super) fn phase(&self) -> &Phase {
        &self.phase
    }

    pub(super) fn last_heard(&self) -> Tick {
        self.last_heard
    }

    pub(super) fn stats(&self) -> NeighborStats {
        self.stats
    }

    /// A greeting has gone out.
    pub(super) fn count_greeting(&mut self, next_due: Tick) {
        if let Phase::Greeting { sent, next, .. } = &mut self.phase {
            *sent += 1;
            *next = next_due;
        }
    }

    /// Makes this session wait for the end of `other`, which has the same peer.
    pub(super) fn contest(&mut self, other: SessionId) {
        if let Phase::Greeting { contests, .. } = &mut self.phase {
            *contests = Some(other);
        }
    }

    /// Counts an update or an advertisement. True if the count reaches [`FLOOD`], so at most once in each window.
    pub(super) fn count_flooded(&mut self, now: Tick) -> bool {
        let (since, count) = &mut self.recent;
        if now.since(*since) >= FLOOD_WINDOW {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count == FLOOD
    }

    /// The peer was heard at `when`.
    pub(super) fn note_heard(&mut self, when: Tick) {
        self.last_heard = self.last_heard.max(when);
        self.forgiven = Duration::ZERO;
        if let Phase::Established(established) = &mut self.phase {
            established.liveness.note_heard();
        }
    }

    /// The same, reported later; false if the peer was heard later than `when`.
    pub(super) fn note_activity(&mut self, when: Tick) -> bool {
        let latest = self.last_heard < when;
        if latest {
            self.note_heard(when);
        }
        latest
    }

    /// This node was busy for `late`, so the peer was not silent in that time. The first delay since the peer was heard
    /// is forgiven in full, further ones only up to `most` in total: a flood causes many, and must not keep a dead
    /// neighbour alive.
    fn forgive(&mut self, late: Duration, most: Duration, now: Tick) {
        let room = if self.forgiven.is_zero() { late } else { most.saturating_sub(self.forgiven) };
        let grace = late.min(room);
        self.forgiven += grace;
        self.last_heard = (self.last_heard + grace).min(now);
    }

    pub(super) fn established(&self) -> Option<&Established> {
        match &self.phase {
            Phase::Established(established) => Some(&**established),
            Phase::Greeting { .. } => None,
        }
    }

    pub(super) fn established_mut(&mut self) -> Option<&mut Established> {
        match &mut self.phase {
            Phase::Established(established) => Some(established),
            Phase::Greeting { .. } => None,
        }
    }
}

impl Established {
    /// Checks an update from the peer against its earlier ones.
    pub(super) fn check(&mut self, own: &NodeId, update: &RoutingUpdate) -> Result<PeerUpdate, CloseReason> {
        if update.forwarding_node != self.peer {
            let (from, to) = (self.peer.clone(), update.forwarding_node.clone());
            return Err(CloseReason::PeerChanged { from, to });
        }
        if update.node_id.as_ref() != Some(&self.peer) {
            return Ok(PeerUpdate::Process);
        }
        let version = (update.epoch, update.sequence);
        match (update.connections.get(own), self.listed) {
            (None, None) => Ok(PeerUpdate::NotIntroduced),
            (None, Some((epoch, sequence))) if epoch == version.0 && version.1 < sequence => {
                Ok(PeerUpdate::Overtaken)
            }
            (None, Some(_)) => Err(CloseReason::NoLongerListsUs),
            (Some(&theirs), _) if theirs != self.cost => {
                Err(CloseReason::CostDisagreement { ours: self.cost, theirs })
            }
            (Some(_), listed) => {
                self.listed = listed.max(Some(version));
                self.is_let_in = true;
                Ok(PeerUpdate::Process)
            }
        }
    }
}

/// All sessions of a node.
#[derive(Debug)]
pub(super) struct Sessions {
    all: BTreeMap<SessionId, SessionState>,
    by_peer: BTreeMap<NodeId, SessionId>,
    /// Sessions that wait for room on their links, because more is to be sent.
    behind: BTreeSet<SessionId>,
    /// Bytes in our own update for the names of neighbours for which nothing vouches, by host.
    unvouched: TableQuota<String>,
}

impl Sessions {
    /// No sessions yet. Our own update may have at most `max_own_message` bytes.
    pub(super) fn new(max_own_message: usize) -> Self {
        Self {
            all: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            behind: BTreeSet::new(),
            unvouched: TableQuota::new(max_own_message / 5 * 4),
        }
    }

    pub(super) fn open(&mut self, id: SessionId, policy: LinkPolicy, now: Tick) {
        self.all.insert(id, SessionState::new(policy, now));
    }

    pub(super) fn get(&self, id: SessionId) -> Option<&SessionState> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: SessionId) -> Option<&mut SessionState> {
        self.all.get_mut(&id)
    }

    pub(super) fn established(&self, id: SessionId) -> Option<&Established> {
        self.get(id)?.established()
    }

    /// The neighbour on a session, once it has introduced itself.
    pub(super) fn peer(&self, id: SessionId) -> Option<&NodeId> {
        self.established(id).map(|established| &established.peer)
    }

    /// The established sessions, by neighbour.
    pub(super) fn by_peer(&self) -> &BTreeMap<NodeId, SessionId> {
        &self.by_peer
    }

    pub(super) fn ids(&self) -> Vec<SessionId> {
        self.all.keys().copied().collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SessionId, &SessionState)> {
        self.all.iter().map(|(id, session)| (*id, session))
    }

    /// The peer has introduced itself. Returns what the link costs.
    pub(super) fn establish(
        &mut self,
        id: SessionId,
        peer: &NodeId,
        own: &NodeId,
        now: Tick,
    ) -> Option<Cost> {
        let session = self.all.get_mut(&id)?;
        let cost = session.policy.cost_for(peer);
        let established = Established {
            peer: peer.clone(),
            cost,
            listed: None,
            is_let_in: false,
            prove_alive_by: None,
            is_first: peer < own,
            next_ping: now,
            reminded: now,
            liveness: Liveness::new(now),
            comparison: Comparison::default(),
            exchange: Exchange::default(),
            held: None,
        };
        if let Some(host) = session.policy.unknown_host() {
            self.unvouched.add(host, name_bytes(peer));
        }
        session.phase = Phase::Established(Box::new(established));
        self.by_peer.insert(peer.clone(), id);
        Some(cost)
    }

    /// Removes a session. `None` if there was none; `Some(None)` if it was not established.
    pub(super) fn remove(&mut self, id: SessionId) -> Option<Option<Box<Established>>> {
        let gone = self.all.remove(&id)?;
        let Phase::Established(established) = gone.phase else { return Some(None) };
        let peer = &established.peer;
        self.by_peer.remove(peer);
        self.behind.remove(&id);
        if let Some(host) = gone.policy.unknown_host() {
            self.unvouched.remove(host, name_bytes(peer));
        }
        Some(Some(established))
    }

    /// The peer's host, if nothing vouches for the peer and there is no room for its name: a part of our own update is
    /// reserved for neighbours that the configuration knows, and one host cannot use up the rest.
    pub(super) fn crowded_host(&self, id: SessionId, peer: &NodeId) -> Option<String> {
        let host = self.get(id)?.policy.unknown_host()?;
        (!self.unvouched.admits(host, name_bytes(peer), 0)).then(|| host.clone())
    }

    /// Notes that more is to be sent on a session; false if this was noted already.
    pub(super) fn set_behind(&mut self, id: SessionId) -> bool {
        self.behind.insert(id)
    }

    pub(super) fn clear_behind(&mut self, id: SessionId) {
        self.behind.remove(&id);
    }

    /// Sessions on which more is to be sent.
    pub(super) fn behind(&self) -> &BTreeSet<SessionId> {
        &self.behind
    }

    /// Counts what a peer sends.
    pub(super) fn count(&mut self, id: SessionId, change: impl FnOnce(&mut NeighborStats)) {
        if let Some(session) = self.all.get_mut(&id) {
            change(&mut session.stats);
        }
    }

    /// This node was busy for `late`: extends the deadlines of all neighbours.
    pub(super) fn forgive(&mut self, late: Duration, most: Duration, now: Tick) {
        self.all.values_mut().for_each(|session| session.forgive(late, most, now));
    }

    /// True if all neighbours are meshd nodes.
    pub(super) fn all_meshd(&self) -> bool {
        let kind = |id: &SessionId| Some(self.established(*id)?.liveness.kind());
        self.by_peer.values().all(|id| kind(id) == Some(PeerKind::Meshd))
    }

    /// The sessions that wait for the end of `living`, oldest first.
    pub(super) fn contesters(&self, living: SessionId) -> Vec<SessionId> {
        let contests = |session: &SessionState| matches!(session.phase, Phase::Greeting { contests: Some(other), .. } if other == living);
        self.all.iter().filter(|(_, session)| contests(session)).map(|(&id, _)| id).collect()
    }

    /// The peer of a session that waits for the end of another one.
    pub(super) fn contested_peer(&self, id: SessionId) -> Option<&NodeId> {
        match &self.get(id)?.phase {
            Phase::Greeting { contests, .. } => self.peer((*contests)?),
            Phase::Established(_) => None,
        }
    }
}

/// About how many bytes a neighbour of that name takes in our update.
fn name_bytes(peer: &NodeId) -> usize {
    // The cost of the link, and punctuation.
    const REST: usize = 8;
    serde_json::to_string(peer).map_or(peer.as_str().len(), |printed| printed.len()) + REST
}
