//! The mesh protocol, pure: what a node decides about sessions, routes, floods and datagrams.
//!
//! [`Mesh`] takes inputs (`handle_*`) and gives outputs (`poll_*`); time is an argument and randomness comes from a
//! generator given at the start, so the same inputs give the same outputs. This module knows no sockets, tasks, files
//! or configuration. Its parts each own their state:
//!
//! - `session`: the neighbours, from handshake to end; `link_policy`: who may connect, and why a session ends;
//!   `duplicate_session`: two sessions with one neighbour; `probe`: whether a neighbour is alive;
//! - `flood`: how flooded messages are checked and passed on; `own_update`: when this node announces its links;
//!   `exchange`: sends a new or slow neighbour everything, piece by piece; `anti_entropy`: repairs what floods missed;
//! - `lsdb`: who is linked to whom; `spf`: the shortest paths over these links; `forwarding`: the table made of the
//!   paths, and what becomes of a datagram; `firewall`: the rules that a datagram meets first;
//! - `services`, `service_table`: services of this node and of others; `newcomers`: when new nodes are told of ours;
//! - `broken_links`: links that have counted and do not any more; `outage`: what is out of reach by them;
//! - `aging`: nodes that have been away for long; `duplicate_node`: updates that others send in our name;
//!   `first_hand`: updates in a neighbour's name; `update_ids`: updates that are passed on without being believed;
//! - `quota`: how much of a table each neighbour may fill; `throttle`: "soon, but not too often";
//! - `options`, `clock`, `outbox`, `status`: timers and bounds, time, outputs, and all that is known as plain data.

mod aging;
mod anti_entropy;
mod broken_links;
mod clock;
mod duplicate_node;
mod duplicate_session;
mod exchange;
pub mod firewall;
mod first_hand;
mod flood;
mod forwarding;
mod link_policy;
mod lsdb;
mod newcomers;
mod options;
mod outage;
mod outbox;
mod own_update;
mod probe;
mod quota;
mod service_table;
mod services;
mod session;
mod spf;
mod status;
mod throttle;
mod update_ids;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::SmallRng;

pub use self::aging::ForgetError;
pub use self::broken_links::{Break, Breaks};
pub use self::clock::{Now, Tick};
pub use self::forwarding::{Datagram, ForwardingDecision, Routes, SendError};
pub use self::link_policy::{CloseReason, LinkPolicy};
pub use self::options::Options;
pub use self::outage::NodeOutage;
pub use self::outbox::{Event, QueueClass, Transmit};
pub use self::services::LocalService;
pub use self::session::SessionId;
pub use self::spf::{ComputedRoutes, RouteComputation};
pub use self::status::{Hops, LinkCosts, Links, MeshStatus, Neighbour};

use self::aging::Aging;
use self::duplicate_node::DuplicateNodes;
use self::forwarding::Forwarding;
use self::lsdb::Lsdb;
use self::outbox::Outbox;
use self::own_update::OwnUpdate;
use self::services::Services;
use self::session::{Established, Phase, SessionState, Sessions};
use self::update_ids::UpdateIds;
use crate::counters::Counters;
use crate::wire::{MessageType, NameHash, NodeId, REJECT, WireError};

/// Why the core wants to be woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wakeup {
    /// A session has to greet, ping or probe, or its peer has been silent for too long.
    Session(SessionId),
    /// Links have changed: the routes are to be computed.
    Routes,
    /// This node has to announce its links.
    OwnUpdate,
    /// This node has to announce its services.
    Advertise,
    /// Something is to be forgotten.
    Sweep,
}

/// A node's part of the mesh protocol.
#[derive(Debug)]
pub struct Mesh {
    id: NodeId,
    hash: NameHash,
    epoch: u64,
    options: Options,
    rng: SmallRng,
    sessions: Sessions,
    own_update: OwnUpdate,
    lsdb: Lsdb,
    forwarding: Forwarding,
    services: Services,
    aging: Aging,
    duplicates: DuplicateNodes,
    update_ids: UpdateIds,
    counters: Counters,
    outbox: Outbox,
    /// When the outside began to wait for a wake-up.
    waiting_since: Tick,
}

impl Mesh {
    /// A node without links. `epoch` must exceed that of the node's last run (docs/protocol.md#epochs).
    pub fn new(id: NodeId, epoch: u64, options: Options, rng: SmallRng, now: Now) -> Self {
        let hash = id.hash();
        Self {
            hash,
            epoch,
            sessions: Sessions::new(options.max_own_message),
            own_update: OwnUpdate::new(&options, now.tick),
            lsdb: Lsdb::new(id.clone(), &options),
            forwarding: Forwarding::new(hash, &options),
            services: Services::new(id.clone(), &options, now.tick),
            aging: Aging::default(),
            duplicates: DuplicateNodes::new(epoch),
            update_ids: UpdateIds::new(options.seen_time),
            counters: Counters::default(),
            outbox: Outbox::default(),
            waiting_since: now.tick,
            id,
            options,
            rng,
        }
    }

    /// The node's own ID.
    pub fn id(&self) -> &NodeId {
        &self.id
    }

    /// What has been counted so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The neighbour on a session, once it has introduced itself.
    pub fn peer(&self, session: SessionId) -> Option<&NodeId> {
        self.sessions.peer(session)
    }

    /// Whether the neighbour on a session has let this node in.
    pub fn is_let_in(&self, session: SessionId) -> bool {
        self.sessions.established(session).is_some_and(|established| established.is_let_in)
    }

    /// A link has come up, dialled or accepted: introduces this node on it.
    pub fn handle_session_opened(&mut self, session: SessionId, policy: LinkPolicy, now: Now) {
        self.sessions.open(session, policy, now.tick);
        self.greet(session, now.tick);
    }

    /// A link has gone down by itself.
    pub fn handle_session_closed(&mut self, session: SessionId, now: Now) {
        self.close(session, CloseReason::LinkClosed, now);
    }

    /// Sets how long a session may be silent.
    pub fn set_max_idle(&mut self, limit: Duration) {
        self.options.max_idle = limit;
    }

    /// Datagrams were heard on a session at `when`, by a reader that forwarded them without the core.
    pub fn handle_activity(&mut self, session: SessionId, when: Tick) {
        if self.sessions.get_mut(session).is_some_and(|state| state.note_activity(when)) {
            self.confirm_alive(session);
        }
    }

    /// A message has come in on a session. Bytes that are no message are dropped and counted.
    pub fn handle_packet(&mut self, session: SessionId, message: Bytes, now: Now) {
        let Some(state) = self.sessions.get_mut(session) else { return };
        state.note_heard(now.tick);
        if let Err(error) = self.dispatch(session, message, now) {
            self.counters.malformed += 1;
            self.sessions.count(session, |stats| stats.malformed += 1);
            // No node's first message is malformed. But a web page can make a browser send an HTTP or TLS request,
            // which looks like a long routing update, with bytes after it that look like messages.
            let is_none = self.sessions.peer(session).is_none();
            self.outbox.report(Event::Malformed { session, error: Arc::new(error) });
            if is_none {
                self.close(session, CloseReason::NoIntroduction, now);
            }
        }
    }

    fn dispatch(&mut self, session: SessionId, message: Bytes, now: Now) -> Result<(), WireError> {
        let established = self.sessions.established(session).is_some();
        match MessageType::of(&message)? {
            MessageType::Reject => self.close(session, CloseReason::RejectedByPeer, now),
            MessageType::RoutingUpdate if established => self.handle_update(session, &message, now)?,
            MessageType::RoutingUpdate => self.handle_introduction(session, &message, now)?,
            MessageType::Data if established => self.handle_datagram(session, message, now)?,
            MessageType::Advertisement if established => self.handle_advertisement(session, message, now)?,
            // The other end may have established a contested session before us, and advertises only once a minute.
            MessageType::Advertisement if self.sessions.contested_peer(session).is_some() => {
                self.handle_advertisement(session, message, now)?;
            }
            // Nothing else is accepted before the introduction.
            MessageType::Data => self.counters.unintroduced += 1,
            MessageType::Advertisement => {}
        }
        Ok(())
    }

    /// Does all that is due by `now`.
    pub fn handle_timeout(&mut self, now: Now) {
        if let Some((due, _)) = self.poll_timeout() {
            // A change can make something due in the past: count it as late only from when the outside began to wait.
            self.forgive_lateness(due.max(self.waiting_since), now.tick);
        }
        for session in self.sessions.ids() {
            // Looked up one by one, because the end of one session may establish another one.
            let due = self.sessions.get(session).map(|state| self.session_due(state));
            if due.is_some_and(|due| due <= now.tick) {
                self.handle_session_timeout(session, now);
            }
        }
        if self.forwarding.take_due(now.tick) {
            self.compute_routes(now.tick);
        }
        self.answer_duplicates(now.tick);
        if self.own_update.take_due(now.tick) {
            self.flood_own_update(0, now.tick);
        }
        if self.services.take_due(now.tick) {
            self.flood_own_advertisements(now);
        }
        if self.aging.due().is_some_and(|due| due <= now.tick) {
            self.sweep(now.tick);
        }
    }

    /// When and why to call [`Mesh::handle_timeout`] next. A late call does no harm, but it must come.
    pub fn poll_timeout(&self) -> Option<(Tick, Wakeup)> {
        let session =
            |(id, state): (SessionId, &SessionState)| (self.session_due(state), Wakeup::Session(id));
        let others = [
            (self.forwarding.due(), Wakeup::Routes),
            (Some(self.own_update.due()), Wakeup::OwnUpdate),
            (self.duplicates.due(), Wakeup::OwnUpdate),
            (Some(self.services.due()), Wakeup::Advertise),
            (self.aging.due(), Wakeup::Sweep),
        ];
        let others = others.into_iter().filter_map(|(due, why)| Some((due?, why)));
        self.sessions.iter().map(session).chain(others).min()
    }

    /// The outside begins to wait for [`Mesh::poll_timeout`]: how late it wakes this node is measured from here on.
    pub fn handle_wait(&mut self, now: Tick) {
        self.waiting_since = now;
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.outbox.next_transmit()
    }

    /// The next event that the outside should know of or act on.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.outbox.next_event()
    }

    fn session_due(&self, session: &SessionState) -> Tick {
        match session.phase() {
            Phase::Greeting { next, .. } => *next,
            Phase::Established(e) => {
                let idle = session.last_heard() + self.options.max_idle;
                let ping = e.next_ping.max(session.last_heard() + self.options.max_idle / 2);
                let others = [e.prove_alive_by, self.probe_due(session, e)];
                others.into_iter().flatten().fold(idle.min(ping), Tick::min)
            }
        }
    }

    fn handle_session_timeout(&mut self, session: SessionId, now: Now) {
        let Some(state) = self.sessions.get(session) else { return };
        let silence = now.tick.since(state.last_heard());
        match state.phase() {
            Phase::Greeting { sent, .. } if *sent >= self.options.max_greetings => {
                self.close(session, CloseReason::NoIntroduction, now);
            }
            Phase::Greeting { .. } => self.greet(session, now.tick),
            Phase::Established(e) if e.prove_alive_by.is_some_and(|by| by <= now.tick) => {
                self.end_contest(session, now);
            }
            Phase::Established(_) if silence >= self.options.max_idle => {
                self.close(session, CloseReason::Idle(silence), now);
            }
            Phase::Established(e) if self.probe_due(state, e).is_some_and(|due| due <= now.tick) => {
                self.probe_or_close(session, now);
            }
            Phase::Established(_) => self.ping(session, now.tick),
        }
    }

    fn greet(&mut self, session: SessionId, now: Tick) {
        let update = self.greeting();
        if let Some(state) = self.sessions.get_mut(session) {
            state.count_greeting(now + self.options.greeting_interval);
        }
        self.outbox.send(session, update, QueueClass::Control);
    }

    /// The peer has introduced itself and is let in.
    fn establish(&mut self, session: SessionId, peer: NodeId, now: Now) {
        let Some(cost) = self.sessions.establish(session, &peer, &self.id, now.tick) else { return };
        self.lsdb.connect(&peer, cost);
        if self.sessions.by_peer().len() > 1 {
            self.own_update.request(now.tick);
        } else {
            // The only neighbour is sent the update below, and passes it on.
            let round = self.update_round();
            self.own_update.bring_forward(now.tick + round);
        }
        self.forwarding.request(now.tick);
        self.counters.sessions_established += 1;
        let own = self.announced_update(0);
        self.outbox.send(session, own, QueueClass::Control);
        self.send_all_links(session);
        self.outbox.report(Event::SessionUp { session, peer, cost });
    }

    /// Ends a session and all that depends on it. Sends a reject first if the reason asks for one.
    fn close(&mut self, session: SessionId, reason: CloseReason, now: Now) {
        let contested = self.sessions.contested_peer(session).cloned();
        let Some(gone) = self.sessions.remove(session) else { return };
        let (peer, held) = gone.map(|gone| (gone.peer, gone.held)).unzip();
        if reason.rejects() {
            self.outbox.send(session, Bytes::from_static(REJECT), QueueClass::Control);
        }
        if let Some(peer) = &peer {
            self.counters.sessions_ended += 1;
            self.lsdb.disconnect(peer, now);
            self.own_update.request(now.tick);
            self.forwarding.request(now.tick);
        }
        self.outbox.report(Event::CloseSession { session, peer: peer.clone().or(contested), reason });
        if let Some(peer) = peer {
            self.promote_contester(session, peer, now);
        }
        if let Some(held) = held.flatten() {
            self.release(held, now);
        }
    }

    fn established_mut(&mut self, session: SessionId) -> Option<&mut Established> {
        self.sessions.get_mut(session)?.established_mut()
    }
}

#[cfg(test)]
mod tests;
