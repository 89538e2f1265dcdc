//! What becomes of a data message, sent here or received: the firewall decides first, then the message is delivered
//! here or sent to the next hop. If this fails, its sender gets a notice, except if there is no route
//! (docs/protocol.md#forwarding).
//!
//! The forwarding table is an immutable snapshot. It decides by two fields of the header alone, so a link's reader can
//! forward a frame without the core. A message that needs names or an answer is left to the core.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::duplicate_session::PROBE;
use super::firewall::{self, Action, PacketNames, Rule};
use super::lsdb::IdentityHasher;
use super::spf::ComputedRoutes;
use super::status::Hops;
use super::throttle::SlowingThrottle;
use super::{Event, Mesh, Now, Options, QueueClass, SessionId, Tick};
use crate::wire::data::HOPS_OFFSET;
use crate::wire::{
    DATA_HEADER_LEN, DataHeader, MAX_HOPS, MAX_PAYLOAD, NameHash, NodeId, Problem, ServiceName, Unreachable,
    WireError,
};

/// The routes of a mesh of up to this many nodes are computed in place, in a millisecond or two.
const SMALL_MESH: usize = 2_000;

/// A datagram for a service of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// Its addresses.
    pub header: DataHeader,
    /// Its content.
    pub payload: Bytes,
}

/// Why a datagram of this node was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No path to the node is known.
    #[error("no route to node")]
    NoRoute,
    /// It is for this node itself, where nobody listens on that service.
    #[error("service unknown")]
    ServiceUnknown,
    /// More than [`MAX_PAYLOAD`] bytes.
    #[error("datagram of {0} bytes exceeds the {MAX_PAYLOAD} bytes that the mesh carries")]
    TooLarge(usize),
}

/// What becomes of a data message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardingDecision {
    /// It is for this node.
    Local,
    /// It goes to this session, with one hop fewer.
    Forward(SessionId),
    /// The core must decide: there is a firewall, the hops ran out, or there is no route.
    Core,
}

/// Next hops, by the destination's hash in a header.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Routes {
    own: Option<NameHash>,
    firewall: bool,
    next: HashMap<NameHash, SessionId, BuildHasherDefault<IdentityHasher>>,
}

impl Routes {
    /// A table for the node with hash `own`. With `firewall`, the core decides about every message.
    fn new(own: NameHash, firewall: bool, hops: &Hops, sessions: &BTreeMap<NodeId, SessionId>) -> Self {
        let next = |(to, hop): (&NodeId, &NodeId)| Some((to.hash(), *sessions.get(hop)?));
        Self { own: Some(own), firewall, next: hops.iter().filter_map(next).collect() }
    }

    /// What becomes of a message with this header.
    pub fn decide(&self, header: &DataHeader) -> ForwardingDecision {
        if self.firewall {
            return ForwardingDecision::Core;
        }
        if self.own == Some(header.to_node) {
            return ForwardingDecision::Local;
        }
        if header.hops == 0 {
            return ForwardingDecision::Core;
        }
        self.next_hop(header.to_node).map_or(ForwardingDecision::Core, ForwardingDecision::Forward)
    }

    /// The session towards a node.
    pub fn next_hop(&self, to: NameHash) -> Option<SessionId> {
        self.next.get(&to).copied()
    }
}

/// The forwarding table, and when the next one is due.
#[derive(Debug)]
pub(super) struct Forwarding {
    routes: Arc<Routes>,
    firewall: Vec<Rule>,
    ports: BTreeSet<ServiceName>,
    /// The destination of the datagram that is being sent: perhaps only its sender knows the name.
    called: Option<(NameHash, NodeId)>,
    throttle: SlowingThrottle,
    /// The outside runs a computation.
    computing: bool,
}

impl Forwarding {
    pub(super) fn new(own: NameHash, options: &Options) -> Self {
        Self {
            routes: Arc::new(Routes { own: Some(own), ..Routes::default() }),
            firewall: Vec::new(),
            ports: BTreeSet::new(),
            called: None,
            throttle: SlowingThrottle::new(options.route_hold, options.route_hold_long),
            computing: false,
        }
    }

    /// Links or sessions have changed.
    pub(super) fn request(&mut self, now: Tick) {
        self.throttle.request(now);
    }

    /// When the routes are to be computed next.
    pub(super) fn due(&self) -> Option<Tick> {
        self.throttle.due().filter(|_| !self.computing)
    }

    /// True if the routes are to be computed now.
    pub(super) fn take_due(&mut self, now: Tick) -> bool {
        !self.computing && self.throttle.take(now)
    }
}

impl Mesh {
    /// The forwarding table as it stands.
    pub fn routes(&self) -> &Arc<Routes> {
        &self.forwarding.routes
    }

    /// The name behind a hash, if this node has learned it.
    pub fn name_of(&self, hash: NameHash) -> Option<NodeId> {
        let called = self.forwarding.called.as_ref().filter(|(called, _)| *called == hash);
        let own = (hash == self.hash).then_some(&self.id);
        called.map(|(_, name)| name).or(own).or_else(|| self.lsdb.name_of(hash)).cloned()
    }

    /// Opens a service for datagrams; false if it is open or reserved.
    pub fn bind(&mut self, service: ServiceName) -> bool {
        !service.is_reserved() && self.forwarding.ports.insert(service)
    }

    /// Closes a service, and withdraws it if it was on offer.
    pub fn unbind(&mut self, service: ServiceName, now: Now) {
        self.forwarding.ports.remove(&service);
        self.withdraw(service, now);
    }

    /// Replaces the firewall's rules.
    pub fn set_firewall(&mut self, rules: Vec<Rule>) {
        self.forwarding.firewall = rules;
        self.replace_routes(false);
    }

    /// Computes the routes here, or has the outside compute them if this takes long.
    pub(super) fn compute_routes(&mut self, now: Tick) {
        let computation = self.lsdb.route_computation();
        if computation.nodes() > SMALL_MESH {
            self.forwarding.computing = true;
            self.outbox.report(Event::ComputeRoutes(computation));
        } else {
            self.handle_routes(&computation.run(), now);
        }
    }

    /// The routes have been computed: brings the forwarding table up to date with them and with the sessions.
    pub fn handle_routes(&mut self, computed: &ComputedRoutes, now: Tick) {
        self.forwarding.computing = false;
        self.counters.route_computations += 1;
        self.lsdb.set_routes(computed);
        self.services.set_reachable(&computed.gained, true);
        self.services.set_reachable(&computed.lost, false);
        let hold = self.options.route_hold_long + self.options.route_hold_per_node * self.lsdb.reachable();
        self.forwarding.throttle.set_long(hold);
        self.replace_routes(computed.changed);
        self.aging.remove(&computed.gained);
        if !self.lsdb.broken().is_empty() {
            self.aging.sweep_by(Some(now + self.options.forget_time));
        }
        for node in &computed.lost {
            if self.lsdb.knows(node) || self.services.knows(node) {
                self.note_if_absent(node, now);
            }
        }
    }

    /// Replaces the forwarding table if the routes have changed or a new table would differ.
    fn replace_routes(&mut self, changed: bool) {
        let firewall = !self.forwarding.firewall.is_empty();
        let routes = Routes::new(self.hash, firewall, self.lsdb.hops(), self.sessions.by_peer());
        if changed || routes != *self.forwarding.routes {
            self.counters.route_changes += 1;
            self.forwarding.routes = Arc::new(routes);
            self.outbox.report(Event::RoutesChanged(self.forwarding.routes.clone()));
        }
    }

    /// Sends a datagram from a service of this node. With `hops` 0 it goes nowhere, and this node itself gives
    /// the notice that it expired: a traceroute begins with this.
    ///
    /// # Errors
    /// [`SendError`]. Later failures are reported as [`Event::Unreachable`].
    pub fn send(
        &mut self,
        from_service: ServiceName,
        to_node: &NodeId,
        to_service: ServiceName,
        payload: &[u8],
        hops: u8,
        now: Now,
    ) -> Result<(), SendError> {
        let to = to_node.hash();
        // The firewall and notices need the name. It is not kept, because the user may have invented it.
        self.forwarding.called = Some((to, to_node.clone()));
        let header = DataHeader { hops, from_node: self.hash, to_node: to, from_service, to_service };
        let sent = self.originate(header, payload, now);
        self.forwarding.called = None;
        sent
    }

    /// As [`Mesh::send`], by hashes: `header` must name this node as the sender.
    pub fn originate(&mut self, header: DataHeader, payload: &[u8], now: Now) -> Result<(), SendError> {
        if payload.len() > MAX_PAYLOAD {
            return Err(SendError::TooLarge(payload.len()));
        }
        let to = header.to_service;
        if header.to_node == self.hash && !to.is_reserved() && !self.forwarding.ports.contains(&to) {
            return Err(SendError::ServiceUnknown);
        }
        self.route(header, header.message(payload), now)
    }

    /// A data message on an established session.
    pub(super) fn handle_datagram(
        &mut self,
        session: SessionId,
        message: Bytes,
        now: Now,
    ) -> Result<(), WireError> {
        let header = DataHeader::parse(&message)?;
        self.confirm_alive(session);
        if self.handle_link_datagram(session, &header, &message, now) {
            return Ok(());
        }
        // The sender is not told that there is no route, because receptor nodes do not tell it either.
        let _counted = self.route(header, message, now);
        Ok(())
    }

    fn route(&mut self, header: DataHeader, message: Bytes, now: Now) -> Result<(), SendError> {
        match self.judge(&header) {
            Action::Accept => {}
            Action::Drop => {
                self.counters.blocked += 1;
                return Ok(());
            }
            Action::Reject => {
                self.counters.blocked += 1;
                self.give_up(&header, Problem::BlockedByFirewall, now);
                return Ok(());
            }
        }
        if header.to_node == self.hash {
            self.deliver(header, message.slice(DATA_HEADER_LEN..), now);
            return Ok(());
        }
        if header.hops == 0 {
            self.counters.expired += 1;
            self.give_up(&header, Problem::MessageExpired, now);
            return Ok(());
        }
        let Some(session) = self.forwarding.routes.next_hop(header.to_node) else {
            self.counters.no_route += 1;
            return Err(SendError::NoRoute);
        };
        // Changed in place if nobody else holds the buffer, as with every message from a link.
        let mut message = message.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        message[HOPS_OFFSET] = header.hops - 1;
        self.outbox.send(session, message.freeze(), QueueClass::Data);
        Ok(())
    }

    /// Rules compare names, so a message with an unknown name cannot be judged and is dropped.
    fn judge(&mut self, header: &DataHeader) -> Action {
        if self.forwarding.firewall.is_empty() {
            return Action::Accept;
        }
        let (from, to) = (self.name_of(header.from_node), self.name_of(header.to_node));
        let (Some(from_node), Some(to_node)) = (from, to) else {
            self.counters.unknown_name += 1;
            return Action::Drop;
        };
        let (from_service, to_service) = (header.from_service.to_text(), header.to_service.to_text());
        let names = PacketNames {
            from_node: from_node.as_str(),
            to_node: to_node.as_str(),
            from_service: &from_service,
            to_service: &to_service,
        };
        firewall::decide(&self.forwarding.firewall, names)
    }

    fn deliver(&mut self, header: DataHeader, payload: Bytes, now: Now) {
        match header.to_service {
            ServiceName::PING => self.answer_ping(&header, now),
            ServiceName::UNREACH => self.handle_notice(&header, &payload),
            // `handle_link_datagram` has taken the answers from neighbours; others mean nothing.
            PROBE => {}
            service if self.forwarding.ports.contains(&service) => {
                self.outbox.report(Event::Deliver(Datagram { header, payload }));
            }
            _unknown => self.give_up(&header, Problem::ServiceUnknown, now),
        }
    }

    fn answer_ping(&mut self, ping: &DataHeader, now: Now) {
        // The answer would be a ping itself, and two nodes would never stop.
        if ping.from_service == ServiceName::PING {
            return;
        }
        let answer = DataHeader {
            hops: MAX_HOPS,
            from_node: self.hash,
            to_node: ping.from_node,
            from_service: ServiceName::PING,
            to_service: ping.from_service,
        };
        let _no_route = self.route(answer, answer.message(&[]), now);
    }

    fn handle_notice(&mut self, header: &DataHeader, payload: &[u8]) {
        let Ok(notice) = Unreachable::parse(payload) else {
            self.counters.malformed += 1;
            return;
        };
        let Some(reported_by) = self.name_of(header.from_node) else {
            self.counters.unknown_name += 1;
            return;
        };
        self.outbox.report(Event::Unreachable { notice, reported_by });
    }

    /// Sends a datagram's sender a notice why the datagram goes no further; never about another notice.
    fn give_up(&mut self, header: &DataHeader, problem: Problem, now: Now) {
        if header.from_service == ServiceName::UNREACH {
            return;
        }
        let (from, to) = (self.name_of(header.from_node), self.name_of(header.to_node));
        let (Some(from_node), Some(to_node)) = (from, to) else {
            self.counters.unknown_name += 1;
            return;
        };
        let (from_service, to_service) = (header.from_service, header.to_service);
        let notice = Unreachable { from_node, to_node, from_service, to_service, problem };
        let Ok(payload) = notice.payload() else { return };
        let answer = DataHeader {
            hops: MAX_HOPS,
            from_node: self.hash,
            to_node: header.from_node,
            from_service: ServiceName::UNREACH,
            to_service: ServiceName::UNREACH,
        };
        let _no_route = self.route(answer, answer.message(&payload), now);
    }
}
