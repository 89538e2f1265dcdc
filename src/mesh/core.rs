//! The state of a node in the mesh: what goes in, what comes out, and its timers.
//!
//! Sessions are opened and closed here; what a routing update means is in `flood`, what becomes of a
//! datagram in `datagram`. Outputs queue up until they are polled; nothing here waits or sends.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::SmallRng;

use super::anti_entropy::Digest;
use super::datagram::Datagram;
use super::duplicate_node::Duplicates;
use super::firewall::Rule;
use super::flood::name_bytes;
use super::lsdb::LinkTable;
use super::quota::Shares;
use super::services::{Adverts, Offer};
use super::session::{Phase, Session};
use super::status::Hops;
use super::throttle::{BackOff, Pace};
use super::update_ids::Seen;
use super::{CloseReason, Counters, LinkPolicy, Now, Options, Routes, SessionId, Tick, Told};
use crate::wire::{
    Cost, MessageType, NameHash, NodeId, REJECT, ServiceName, Unreachable, WireError, WorkCommand,
};

/// Messages to be sent for which there is always room.
const IDLE_SLOTS: usize = 256;

/// How a message ranks in a link's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Routing, advertisements, rejects: goes first. Where a link has no room for it, [`Mesh::handle_no_room`] is to hear
    /// of that.
    Control,
    /// Datagrams.
    Data,
}

/// A message to be sent on a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// Where to.
    pub session: SessionId,
    /// The whole message.
    pub message: Bytes,
    /// Its rank.
    pub class: Class,
}

/// Something that the outside should know or do.
#[derive(Debug, Clone)]
pub enum Event {
    /// A neighbour introduced itself; the session carries traffic from now on.
    SessionUp {
        /// The session.
        session: SessionId,
        /// The neighbour.
        peer: NodeId,
        /// What the link costs.
        cost: Cost,
    },
    /// There is more to tell on a session than it was given: [`Mesh::handle_room`] tells the next piece, when its link
    /// has room.
    Behind {
        /// The session.
        session: SessionId,
    },
    /// Send what is queued for the session, then close it; it is forgotten already.
    CloseSession {
        /// The session.
        session: SessionId,
        /// The neighbour, if it had introduced itself.
        peer: Option<NodeId>,
        /// Why.
        reason: CloseReason,
    },
    /// A datagram for a bound service.
    Deliver(Datagram),
    /// A datagram that this node sent did not arrive.
    Unreachable {
        /// Which one, and why.
        notice: Unreachable,
        /// The node that says so.
        reported_by: NodeId,
    },
    /// The forwarding table has changed.
    RoutesChanged(Arc<Routes>),
    /// What other nodes offer has changed.
    OffersChanged,
    /// A node has started anew: whatever it held in memory is gone.
    NodeRestarted(NameHash),
    /// A neighbour sent what is no message.
    Malformed {
        /// From where.
        session: SessionId,
        /// What is wrong.
        error: Arc<WireError>,
    },
    /// A neighbour tells of a node or a service for which there is no room any more.
    Refused {
        /// From where.
        session: SessionId,
        /// The node that was told of.
        node: NodeId,
    },
    /// A neighbour floods this node: that many updates and advertisements came within seconds.
    Loud {
        /// From where.
        session: SessionId,
        /// How many.
        messages: u32,
    },
    /// Another node that started later uses our ID; it was told so. Said once a minute at most.
    DuplicateNode {
        /// Its epoch.
        epoch: u64,
    },
    /// Somebody says that another node was here first under our ID. Said once a minute at most; this node goes on
    /// unless it is said persistently.
    Suspected {
        /// That node's epoch.
        epoch: u64,
    },
    /// Another node was here first under our ID, and goes on saying so: this one must stop.
    WeAreDuplicate,
    /// Our links or services no longer fit into a message.
    CannotTell(Arc<WireError>),
}

/// Why the core wants to be woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wakeup {
    /// A session has to greet again, or has been silent for too long.
    Session(SessionId),
    /// Links changed and the routes must follow.
    Routes,
    /// The own links have to be told.
    OwnUpdate,
    /// The own services have to be told.
    Advertise,
    /// Something is to be forgotten.
    Sweep,
}

/// A node's part of the mesh protocol.
#[derive(Debug)]
pub struct Mesh {
    pub(super) id: NodeId,
    pub(super) own: NameHash,
    pub(super) epoch: u64,
    pub(super) sequence: u64,
    pub(super) options: Options,
    pub(super) rng: SmallRng,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    /// Before this none of them wants to be woken, once somebody has asked: most messages only put it off, and a
    /// node with many links would look at all of them for each.
    pub(super) sessions_due: OnceLock<Option<(Tick, Wakeup)>>,
    pub(super) by_peer: BTreeMap<NodeId, SessionId>,
    /// Sessions with more to be told than their links had room for so far.
    pub(super) behind: BTreeSet<SessionId>,
    /// What the names of neighbours that anybody may be take in the own update, by host.
    pub(super) strangers: Shares<String>,
    pub(super) links: LinkTable,
    pub(super) seen: Seen,
    /// Whom a user of this node calls by name at the moment.
    pub(super) called: Option<(NameHash, NodeId)>,
    pub(super) adverts: Adverts,
    pub(super) ports: BTreeSet<ServiceName>,
    pub(super) firewall: Vec<Rule>,
    pub(super) routes: Arc<Routes>,
    /// The sessions that stand in it.
    pub(super) routed_by: BTreeMap<NodeId, SessionId>,
    /// The same for people, once somebody has asked. It follows each computation from then on.
    pub(super) routing_table: OnceLock<Hops>,
    pub(super) route_pace: BackOff,
    pub(super) update_pace: BackOff,
    pub(super) next_update: Tick,
    pub(super) advertise_pace: Pace,
    /// Since when newcomers wait for an answer, and when they get it.
    pub(super) newcomers: Option<(Tick, Tick)>,
    pub(super) next_advertise: Tick,
    pub(super) duplicates: Duplicates,
    /// Nodes that are known but cannot be reached, and since when.
    pub(super) absent: HashMap<NodeId, Tick>,
    pub(super) next_sweep: Option<Tick>,
    /// The own update as neighbours were last told it.
    pub(super) told_sequence: u64,
    pub(super) told_message: Bytes,
    /// What is known, for comparison; `None` after a change.
    pub(super) digest: Option<Digest>,
    pub(super) counters: Counters,
    /// Since when the outside waits.
    pub(super) waiting_since: Tick,
    pub(super) transmits: VecDeque<Transmit>,
    pub(super) events: VecDeque<Event>,
}

impl Mesh {
    /// A node without links. `epoch` must exceed that of the node's last run (docs/protocol.md#epochs).
    pub fn new(id: NodeId, epoch: u64, options: Options, rng: SmallRng, now: Now) -> Self {
        let own = id.hash();
        let links = LinkTable::new(id.clone(), &options);
        let routes = Routes::new(own, false, links.paths(), &BTreeMap::new(), options.pool.as_ref());
        Self {
            own,
            epoch,
            sequence: 0,
            sessions: BTreeMap::new(),
            sessions_due: OnceLock::new(),
            by_peer: BTreeMap::new(),
            behind: BTreeSet::new(),
            strangers: Shares::new(options.max_own_message / 5 * 4),
            links,
            seen: Seen::new(options.seen_time),
            called: None,
            adverts: Adverts::new(id.clone(), &options),
            ports: BTreeSet::new(),
            firewall: Vec::new(),
            routes: Arc::new(routes),
            routed_by: BTreeMap::new(),
            routing_table: OnceLock::new(),
            route_pace: BackOff::new(options.route_hold, options.route_hold_long),
            update_pace: BackOff::new(options.update_hold, options.update_hold_long),
            next_update: now.tick + options.update_interval,
            newcomers: None,
            advertise_pace: Pace::new(options.advertise_hold),
            next_advertise: now.tick + options.advertise_interval,
            duplicates: Duplicates::new(),
            absent: HashMap::new(),
            next_sweep: None,
            told_sequence: 0,
            told_message: Bytes::new(),
            digest: None,
            counters: Counters::default(),
            waiting_since: now.tick,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            id,
            options,
            rng,
        }
    }

    /// The node's own ID.
    pub fn id(&self) -> &NodeId {
        &self.id
    }

    /// What went wrong so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The forwarding table as it stands.
    pub fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    /// The name behind a hash, if this node has learned it.
    pub fn name_of(&self, hash: NameHash) -> Option<NodeId> {
        let called = self.called.as_ref().filter(|(called, _)| *called == hash).map(|(_, name)| name.clone());
        let own = (hash == self.own).then(|| self.id.clone());
        called.or(own).or_else(|| self.links.name_of(hash))
    }

    /// A link has come up, dialled or accepted: introduces this node on it.
    pub fn handle_session_opened(&mut self, session: SessionId, policy: LinkPolicy, now: Now) {
        self.sessions.insert(session, Session::new(policy, now.tick));
        self.sessions_due.take();
        self.greet(session, now.tick);
    }

    /// A link has gone down by itself.
    pub fn handle_session_closed(&mut self, session: SessionId, now: Now) {
        self.close(session, CloseReason::LinkClosed, now);
    }

    /// How long a session may be silent from now on.
    pub fn set_max_idle(&mut self, limit: Duration) {
        self.options.max_idle = limit;
        self.sessions_due.take();
    }

    /// Datagrams were heard on a session at `when`, by a reader that forwarded them without the core.
    pub fn handle_activity(&mut self, session: SessionId, when: Tick) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        if state.last_heard < when {
            state.hears(when);
            self.sessions_due.take();
            self.has_shown_life(session);
        }
    }

    /// A message has come in on a session. What is no message is dropped and counted.
    pub fn handle_packet(&mut self, session: SessionId, message: Bytes, now: Now) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        if state.hears(now.tick) {
            self.sessions_due.take();
        }
        if let Err(error) = self.dispatch(session, message, now) {
            self.counters.malformed += 1;
            self.note(session, |told| told.malformed += 1);
            self.events.push_back(Event::Malformed { session, error: Arc::new(error) });
        }
    }

    fn dispatch(&mut self, session: SessionId, message: Bytes, now: Now) -> Result<(), WireError> {
        let established = self.sessions.get(&session).is_some_and(|s| s.established().is_some());
        let kind = MessageType::of(&message)?;
        if !established || !matches!(kind, MessageType::RoutingUpdate | MessageType::Advertisement) {
            self.sessions_due.take();
        }
        match kind {
            MessageType::Reject => self.close(session, CloseReason::RejectedByPeer, now),
            MessageType::RoutingUpdate if established => self.handle_update(session, &message, now)?,
            MessageType::RoutingUpdate => self.handle_introduction(session, &message, now)?,
            MessageType::Data if established => self.handle_datagram(session, message, now)?,
            MessageType::Advertisement if established => self.handle_advertisement(session, message, now)?,
            // The other end may be ahead of us on a contested session, and says this only once a minute.
            MessageType::Advertisement if self.is_contester(session) => {
                self.handle_advertisement(session, message, now)?;
            }
            // Before the introduction nothing else is listened to.
            MessageType::Data => self.counters.unintroduced += 1,
            MessageType::Advertisement => {}
        }
        Ok(())
    }

    /// Keeps account of what a session's peer tells.
    pub(super) fn note(&mut self, session: SessionId, what: impl FnOnce(&mut Told)) {
        if let Some(state) = self.sessions.get_mut(&session) {
            what(&mut state.told);
        }
    }

    /// The neighbour on a session, once it has introduced itself.
    pub fn peer(&self, session: SessionId) -> Option<&NodeId> {
        self.sessions.get(&session)?.established().map(|established| &established.peer)
    }

    /// Time has passed: does all that is due.
    pub fn handle_timeout(&mut self, now: Now) {
        if let Some((due, _)) = self.poll_timeout() {
            // A change of plans may make something due long ago: it is late since somebody could have waited for it.
            self.forgive_lateness(due.max(self.waiting_since), now.tick);
        }
        self.sessions_due.take();
        let sessions: Vec<SessionId> = self.sessions.keys().copied().collect();
        for session in sessions {
            // Asked one by one: the end of one session may give another one its place.
            let due = self.sessions.get(&session).map(|session| self.session_wakeup(session));
            if due.is_some_and(|due| due <= now.tick) {
                self.session_timeout(session, now);
            }
        }
        if self.route_pace.take(now.tick) {
            self.recompute_routes(now.tick);
        }
        self.give_duplicate_notice(now.tick);
        let answer = self.newcomers.is_some_and(|(_, due)| due <= now.tick);
        if self.update_pace.take(now.tick) || self.next_update <= now.tick || answer {
            self.flood_own_update(0, now.tick);
        }
        if self.advertise_pace.take(now.tick) || self.next_advertise <= now.tick {
            self.flood_own_advertisements(now);
        }
        if self.next_sweep.is_some_and(|due| due <= now.tick) {
            self.sweep(now.tick);
        }
    }

    /// When, and why, [`Mesh::handle_timeout`] wants to be called next. Late is harmless, never is not.
    pub fn poll_timeout(&self) -> Option<(Tick, Wakeup)> {
        let wakeup =
            |(id, session): (&SessionId, &Session)| (self.session_wakeup(session), Wakeup::Session(*id));
        let first = || self.sessions.iter().map(wakeup).min();
        let sessions = *self.sessions_due.get_or_init(first);
        #[cfg(test)]
        assert!(first().is_none_or(|(due, _)| sessions.is_some_and(|(early, _)| early <= due)), "woken late");
        let paced = [
            (self.route_pace.due(), Wakeup::Routes),
            (self.update_pace.due(), Wakeup::OwnUpdate),
            (self.duplicates.due(), Wakeup::OwnUpdate),
            (self.advertise_pace.due(), Wakeup::Advertise),
            (Some(self.next_update), Wakeup::OwnUpdate),
            (self.newcomers.map(|(_, due)| due), Wakeup::OwnUpdate),
            (Some(self.next_advertise), Wakeup::Advertise),
            (self.next_sweep, Wakeup::Sweep),
        ];
        sessions.into_iter().chain(paced.into_iter().filter_map(|(due, why)| Some((due?, why)))).min()
    }

    /// The outside begins to wait for what [`Mesh::poll_timeout`] says: being woken late is measured from here on.
    pub fn handle_wait(&mut self, now: Tick) {
        self.waiting_since = now;
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        let next = self.transmits.pop_front();
        if next.is_none() {
            // A new neighbour is told of the whole mesh at once, which does not happen often.
            self.transmits.shrink_to(IDLE_SLOTS);
        }
        next
    }

    /// The next thing to know or to do.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Opens a service for datagrams; false if it is open or reserved.
    pub fn bind(&mut self, service: ServiceName) -> bool {
        !service.is_reserved() && self.ports.insert(service)
    }

    /// Closes a service, and withdraws it if it was on offer.
    pub fn unbind(&mut self, service: ServiceName, now: Now) {
        self.ports.remove(&service);
        if self.adverts.stop_offering(service) {
            self.flood_advertisement_of(service, now);
        }
    }

    /// Tells the mesh of a service of this node. One whose description no link could carry is refused, with
    /// an [`Event::CannotTell`].
    pub fn advertise(&mut self, service: ServiceName, offer: Offer, now: Now) {
        match self.adverts.offer(service, offer, now.wall) {
            Ok(()) => self.advertise_pace.request(now.tick),
            Err(error) => self.events.push_back(Event::CannotTell(error.into())),
        }
        self.digest = None;
    }

    /// Replaces the work types that the control service's advertisement tells of; refused, with an
    /// [`Event::CannotTell`], if no link could carry them.
    pub fn set_work_commands(&mut self, commands: Vec<WorkCommand>, now: Now) {
        match self.adverts.set_work_commands(commands, now.wall) {
            Ok(()) => self.advertise_pace.request(now.tick),
            Err(error) => self.events.push_back(Event::CannotTell(error.into())),
        }
        self.digest = None;
    }

    /// Replaces the firewall's rules.
    pub fn set_firewall(&mut self, rules: Vec<Rule>, now: Now) {
        self.firewall = rules;
        self.recompute_routes(now.tick);
    }

    fn session_wakeup(&self, session: &Session) -> Tick {
        match &session.phase {
            Phase::Greeting { next, .. } => *next,
            Phase::Established(e) => {
                let idle = session.last_heard + self.options.max_idle;
                let probe = e.next_probe.max(session.last_heard + self.options.max_idle / 2);
                let others = [e.prove_alive_by, self.liveness_due(session, e)];
                others.into_iter().flatten().fold(idle.min(probe), Tick::min)
            }
        }
    }

    fn session_timeout(&mut self, session: SessionId, now: Now) {
        let Some(state) = self.sessions.get(&session) else { return };
        match &state.phase {
            Phase::Greeting { sent, .. } if *sent >= self.options.max_greetings => {
                self.close(session, CloseReason::NoIntroduction, now);
            }
            Phase::Greeting { .. } => self.greet(session, now.tick),
            Phase::Established(e) if e.prove_alive_by.is_some_and(|by| by <= now.tick) => {
                self.end_contest(session, now);
            }
            Phase::Established(_) if now.tick.since(state.last_heard) >= self.options.max_idle => {
                let silence = now.tick.since(state.last_heard);
                self.close(session, CloseReason::Idle(silence), now);
            }
            Phase::Established(e) if self.liveness_due(state, e).is_some_and(|due| due <= now.tick) => {
                self.check_life(session, now);
            }
            Phase::Established(_) => self.probe(session, now.tick),
        }
    }

    fn greet(&mut self, session: SessionId, now: Tick) {
        let update = self.own_update(0);
        let interval = self.options.greeting_interval;
        if let Some(Session { phase: Phase::Greeting { sent, next, .. }, .. }) =
            self.sessions.get_mut(&session)
        {
            *sent += 1;
            *next = now + interval;
        }
        self.transmit(session, update, Class::Control);
    }

    /// Ends a session and all that hangs on it; a reject goes out before, if the reason asks for one.
    pub(super) fn close(&mut self, session: SessionId, reason: CloseReason, now: Now) {
        let Some(state) = self.sessions.remove(&session) else { return };
        self.sessions_due.take();
        if reason.rejects() {
            self.transmit(session, Bytes::from_static(REJECT), Class::Control);
        }
        let peer = match state.phase {
            Phase::Greeting { .. } => None,
            Phase::Established(established) => Some(established.peer),
        };
        if let Some(peer) = &peer {
            self.by_peer.remove(peer);
            self.behind.remove(&session);
            if let Some(host) = state.policy.unknown_host() {
                self.strangers.remove(host, name_bytes(peer));
            }
            self.counters.sessions_ended += 1;
            self.digest = None;
            self.links.disconnect(peer);
            self.update_pace.request(now.tick);
            self.route_pace.request(now.tick);
        }
        self.events.push_back(Event::CloseSession { session, peer: peer.clone(), reason });
        if let Some(peer) = peer {
            self.succeed(session, peer, now);
        }
    }

    pub(super) fn transmit(&mut self, session: SessionId, message: Bytes, class: Class) {
        self.transmits.push_back(Transmit { session, message, class });
    }

    /// To every established session but `except`.
    pub(super) fn flood(&mut self, message: &Bytes, except: Option<SessionId>) {
        self.counters.floods += 1;
        let to: Vec<SessionId> = self.by_peer.values().copied().filter(|&s| Some(s) != except).collect();
        self.counters.flood_copies += to.len() as u64;
        for session in to {
            self.transmit(session, message.clone(), Class::Control);
        }
    }
}
