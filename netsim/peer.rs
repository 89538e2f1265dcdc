//! A simulated node: the product's core unchanged, or a peer that does what receptor nodes do and no more.
//!
//! Such a peer is the same core without what our nodes add. Its own probes are dropped, and it refuses those of others.
//! A new neighbour gets only what is flooded, and rounds have receptor's length. An update by others in its own name
//! ends it or is ignored. It passes on updates in a neighbour's name, whichever node sends them, and takes each
//! UpdateID once.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use meshd_core::mesh::{Event, Mesh, Now, Options, QueueClass, SessionId, Transmit};
use meshd_core::wire::advertisement::AdvertisementMessage;
use meshd_core::wire::{
    DataHeader, MAX_HOPS, MessageType, NodeId, Problem, RoutingUpdate, ServiceName, Unreachable,
};
use rand::rngs::SmallRng;

/// Where our nodes send their probes.
const ALIVE: ServiceName = ServiceName::from_wire(*b"\x01alive\0\0");

/// One simulated node's core.
pub(crate) struct Peer {
    mesh: Mesh,
    receptor_like: bool,
    epoch: u64,
    /// Messages that it sends besides those of its core.
    aside: VecDeque<Transmit>,
    /// Epoch and sequence of the newest update of each node, by a receptor node's rules.
    heard: BTreeMap<NodeId, (u64, u64)>,
    /// The date of the newest advertisement of each node's service.
    dates: BTreeMap<NodeId, Timestamp>,
    /// The IDs of updates that it has taken.
    seen: HashSet<String>,
    /// Updates that it has sent besides its core, with the session that carried them.
    passed_on: HashSet<(SessionId, String)>,
    stops: bool,
}

impl Peer {
    pub(crate) fn new(id: NodeId, epoch: u64, receptor_like: bool, rng: SmallRng, now: Now) -> Self {
        let mut options = Options::default();
        if receptor_like {
            (options.relaxed_interval, options.relaxed_per_node) = (options.update_interval, Duration::ZERO);
            (options.answer_hold, options.answer_per_node) = (Duration::ZERO, Duration::ZERO);
            // It announces its services only in its rounds, and repeats nothing.
            options.newcomer_hold = Duration::from_secs(1 << 30);
            options.reminder_hold = Duration::from_secs(1 << 30);
        }
        let (heard, dates, seen) = (BTreeMap::new(), BTreeMap::new(), HashSet::new());
        let passed_on = HashSet::new();
        let mesh = Mesh::new(id, epoch, options, rng, now);
        Self {
            mesh,
            receptor_like,
            epoch,
            aside: VecDeque::new(),
            heard,
            dates,
            seen,
            passed_on,
            stops: false,
        }
    }

    /// Whether it was told that it is a duplicate, so that it ends as a receptor node does.
    pub(crate) fn stops(&self) -> bool {
        self.stops
    }

    pub(crate) fn handle_packet(&mut self, session: SessionId, message: Bytes, now: Now) {
        if self.receptor_like
            && let Some(header) = probe(&message)
            && let Some(neighbour) = self.mesh.peer(session).cloned()
            && header.to_node == self.mesh.id().hash()
        {
            self.mesh.handle_activity(session, now.tick);
            let message = refusal(&header, &neighbour, self.mesh.id());
            self.aside.push_back(Transmit { session, message, class: QueueClass::Control });
            return;
        }
        if self.receptor_like && MessageType::of(&message).ok() == Some(MessageType::Advertisement) {
            let floods = self.mesh.counters().floods;
            self.mesh.handle_packet(session, message.clone(), now);
            return self.pass_on_service(session, &message, self.mesh.counters().floods > floods);
        }
        let update = as_update(&message).filter(|_| self.receptor_like);
        let Some(update) = update else { return self.mesh.handle_packet(session, message, now) };
        if update.node_id.as_ref() == Some(self.mesh.id()) {
            self.stops |= update.suspected_duplicate == self.epoch && update.epoch != self.epoch;
            if update.epoch > self.epoch {
                self.mesh.handle_packet(session, message, now);
            }
            return;
        }
        if self.takes(session, &update) && !self.seen.insert(update.update_id.clone()) {
            return self.mesh.handle_activity(session, now.tick);
        }
        let floods = self.mesh.counters().floods;
        self.mesh.handle_packet(session, message, now);
        self.pass_on(session, update, self.mesh.counters().floods > floods);
    }

    /// True unless the update introduces a neighbour, or its core waits for the neighbour's own update.
    fn takes(&self, session: SessionId, update: &RoutingUpdate) -> bool {
        let neighbours = self.mesh.neighbours();
        let its_own = update.node_id.as_ref().and_then(|node| neighbours.get(node));
        let lists_us = update.connections.contains_key(self.mesh.id());
        self.mesh.peer(session).is_some()
            && its_own.is_none_or(|its_own| its_own.session == session && lists_us)
    }

    /// Passes on an update that its core does not, because it came in a neighbour's name over another session.
    fn pass_on(&mut self, session: SessionId, update: RoutingUpdate, core_does: bool) {
        let Some(node) = update.node_id.clone() else { return };
        let version = (update.epoch, update.sequence);
        // Corrections are recognised by their IDs instead.
        if update.suspected_duplicate == 0 {
            if self.heard.get(&node).is_some_and(|known| version <= *known) {
                return;
            }
            self.heard.insert(node.clone(), version);
        }
        let neighbours = self.mesh.neighbours();
        let is_own_word = neighbours.get(&node).is_none_or(|neighbour| neighbour.session == session);
        if core_does || is_own_word {
            return;
        }
        let forwarded = RoutingUpdate { forwarding_node: self.mesh.id().clone(), ..update };
        let Ok(message) = forwarded.message() else { return };
        for (_, neighbour) in neighbours.iter().filter(|(peer, n)| n.session != session && **peer != node) {
            let (session, message, class) = (neighbour.session, message.clone(), QueueClass::Control);
            if self.passed_on.insert((session, forwarded.update_id.clone())) {
                self.aside.push_back(Transmit { session, message, class });
            }
        }
    }

    /// The same for an advertisement that is newer than all earlier ones. In the simulation each node has one service.
    fn pass_on_service(&mut self, session: SessionId, message: &Bytes, core_does: bool) {
        let Ok(AdvertisementMessage { advertisement, .. }) = AdvertisementMessage::parse(message) else {
            return;
        };
        let (node, date) = (advertisement.node_id, advertisement.time);
        if self.dates.get(&node).is_some_and(|known| date <= *known) {
            return;
        }
        self.dates.insert(node.clone(), date);
        let neighbours = self.mesh.neighbours();
        if core_does || neighbours.get(&node).is_none_or(|neighbour| neighbour.session == session) {
            return;
        }
        for neighbour in neighbours.values().filter(|neighbour| neighbour.session != session) {
            let (session, message, class) = (neighbour.session, message.clone(), QueueClass::Control);
            self.aside.push_back(Transmit { session, message, class });
        }
    }

    /// True if its core sends an update that was passed on already.
    fn is_said(&self, transmit: &Transmit) -> bool {
        !self.passed_on.is_empty()
            && as_update(&transmit.message)
                .is_some_and(|update| self.passed_on.contains(&(transmit.session, update.update_id)))
    }

    pub(crate) fn poll_transmit(&mut self) -> Option<Transmit> {
        while let Some(next) = self.mesh.poll_transmit() {
            if !self.receptor_like || (probe(&next.message).is_none() && !self.is_said(&next)) {
                return Some(next);
            }
        }
        self.aside.pop_front()
    }

    /// The next event. Simulated links have room for everything, and computations take no time.
    pub(crate) fn poll_event(&mut self, now: Now) -> Option<Event> {
        let event = self.mesh.poll_event()?;
        match &event {
            Event::Behind { session } if !self.receptor_like => {
                self.mesh.handle_room(*session, usize::MAX, now)
            }
            Event::ComputeRoutes(computation) => {
                self.mesh.handle_routes(&computation.clone().run(), now.tick);
            }
            _other => {}
        }
        Some(event)
    }
}

fn as_update(message: &[u8]) -> Option<RoutingUpdate> {
    if MessageType::of(message).ok()? != MessageType::RoutingUpdate {
        return None;
    }
    RoutingUpdate::parse(message).ok()
}

/// The header of a probe, if this is one.
fn probe(message: &[u8]) -> Option<DataHeader> {
    if MessageType::of(message).ok()? != MessageType::Data {
        return None;
    }
    DataHeader::parse(message).ok().filter(|header| header.to_service == ALIVE)
}

/// What a node without such a service answers to a probe.
fn refusal(probe: &DataHeader, asked_by: &NodeId, refused_by: &NodeId) -> Bytes {
    let notice = Unreachable {
        from_node: asked_by.clone(),
        to_node: refused_by.clone(),
        from_service: probe.from_service,
        to_service: probe.to_service,
        problem: Problem::ServiceUnknown,
    };
    let header = DataHeader {
        hops: MAX_HOPS,
        from_node: probe.to_node,
        to_node: probe.from_node,
        from_service: ServiceName::UNREACH,
        to_service: ServiceName::UNREACH,
    };
    header.message(&notice.payload().expect("it is small"))
}

impl Deref for Peer {
    type Target = Mesh;

    fn deref(&self) -> &Mesh {
        &self.mesh
    }
}

impl DerefMut for Peer {
    fn deref_mut(&mut self) -> &mut Mesh {
        &mut self.mesh
    }
}
