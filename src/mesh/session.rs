//! The sessions with neighbours: who each one is, what its link costs, and when something was heard.
//!
//! A session greets until the other side has introduced itself, and is established from then on. The table knows which
//! session stands for which neighbour. What a message means is decided elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::anti_entropy::Comparison;
use super::exchange::Exchange;
use super::first_hand::HeldMessage;
use super::probe::{Liveness, PeerKind};
use super::quota::Quota;
use super::{CloseReason, LinkPolicy, Tick};
use crate::counters::NeighborStats;
use crate::wire::{Cost, NodeId, RoutingUpdate};

/// Updates and advertisements within [`FLOOD_WINDOW`] that an operator should know of: several times what a
/// neighbour passes on while a mesh of a thousand nodes starts at once.
pub(super) const FLOOD: u32 = 30_000;
const FLOOD_WINDOW: Duration = Duration::from_secs(10);

/// Identifies one session and is never used again, so an event that comes late for an old session cannot reach a newer
/// one with the same neighbour.
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
    /// We introduce ourselves again and again; the peer has not.
    Greeting {
        /// Greetings sent so far.
        sent: u32,
        /// When the next one is due.
        next: Tick,
        /// Its introduction names a neighbour whose other session has to prove that it is alive.
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
    /// The newest update (epoch, sequence) in which the peer has listed us as its neighbour: newer ones must
    /// go on doing so, while an older one may have been overtaken on its way.
    pub(super) listed: Option<(u64, u64)>,
    /// The peer has answered our introduction: it lists us since, or sends what it sends only on an established session.
    pub(super) is_let_in: bool,
    /// Another session claims to be this peer: until when this one has time to prove that it is alive.
    pub(super) prove_alive_by: Option<Tick>,
    /// Whether the peer has the smaller name of the two.
    pub(super) is_first: bool,
    /// Before this, the peer is not pinged again.
    pub(super) next_ping: Tick,
    /// When it was told last what it had not taken.
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
    /// Older than what the peer has said since.
    Overtaken,
}

#[derive(Debug)]
pub(super) struct Session {
    policy: LinkPolicy,
    phase: Phase,
    last_heard: Tick,
    /// How much later that is than it really was.
    forgiven: Duration,
    stats: NeighborStats,
    /// Since when its updates and advertisements are counted, and how many there were.
    recent: (Tick, u32),
}

impl Session {
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

    /// Counts an update or an advertisement. True once in each window in which the peer reaches [`FLOOD`].
    pub(super) fn count_flooded(&mut self, now: Tick) -> bool {
        let (since, count) = &mut self.recent;
        if now.since(*since) >= FLOOD_WINDOW {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count == FLOOD
    }

    /// Something was heard at `when`.
    pub(super) fn note_heard(&mut self, when: Tick) {
        self.last_heard = self.last_heard.max(when);
        self.forgiven = Duration::ZERO;
        if let Phase::Established(established) = &mut self.phase {
            established.liveness.note_heard();
        }
    }

    /// The same, reported later; false if it is not the latest.
    pub(super) fn note_activity(&mut self, when: Tick) -> bool {
        let latest = self.last_heard < when;
        if latest {
            self.note_heard(when);
        }
        latest
    }

    /// This node was busy for that long, which is no silence of the peer. One standstill is forgiven in full. Many in a
    /// row, as a flood brings them about, only up to `most`: they must not keep a dead neighbour alive.
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
    /// Checks an update from the peer against what it said before.
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
    all: BTreeMap<SessionId, Session>,
    by_peer: BTreeMap<NodeId, SessionId>,
    /// Sessions to which more is to be sent than their links had room for so far.
    behind: BTreeSet<SessionId>,
    /// Bytes that the names of unvouched neighbours take in the own update, by host.
    unvouched: Quota<String>,
}

impl Sessions {
    /// An own update may have that many bytes.
    pub(super) fn new(max_own_message: usize) -> Self {
        Self {
            all: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            behind: BTreeSet::new(),
            unvouched: Quota::new(max_own_message / 5 * 4),
        }
    }

    pub(super) fn open(&mut self, id: SessionId, policy: LinkPolicy, now: Tick) {
        self.all.insert(id, Session::new(policy, now));
    }

    pub(super) fn get(&self, id: SessionId) -> Option<&Session> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
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

    pub(super) fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.all.iter().map(|(id, session)| (*id, session))
    }

    /// The peer has introduced itself; what the link costs.
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

    /// Removes a session; `None` if there was none, else what is known of its peer if it was established.
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

    /// The peer's host, if nothing vouches for the peer and those like it have left no room for its name: a part of the
    /// own update is kept for neighbours that the configuration knows, and one host's leave some of the rest to
    /// others.
    pub(super) fn crowded_host(&self, id: SessionId, peer: &NodeId) -> Option<String> {
        let host = self.get(id)?.policy.unknown_host()?;
        (!self.unvouched.admits(host, name_bytes(peer), 0)).then(|| host.clone())
    }

    /// Notes that more is to be sent on a session; false if that was noted already.
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

    /// This node was busy for that long: extends the deadlines of all neighbours.
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
        let contests = |session: &Session| matches!(session.phase, Phase::Greeting { contests: Some(other), .. } if other == living);
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

/// About what a neighbour of that name takes in our update.
fn name_bytes(peer: &NodeId) -> usize {
    // Its cost, and the punctuation between them.
    const REST: usize = 8;
    serde_json::to_string(peer).map_or(peer.as_str().len(), |printed| printed.len()) + REST
}
