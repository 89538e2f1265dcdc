//! Nodes, links and time: a queue of events, handled in order of virtual time. Simulated backends behave like real
//! ones: dialers redial with back-off, and a listener for datagrams opens a session at the first datagram from a new
//! address. Every choice comes from one seed. This module does not judge what is right.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use meshd_core::mesh::{Event, LocalService, Mesh, Now, QueueClass, SessionId, Tick, Transmit};
use meshd_core::wire::{ConnType, MessageType, NodeId, ServiceName};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use crate::agenda::Agenda;
use crate::ledger::{Fate, Ledger};
use crate::liar::Liar;
use crate::link::{Kind, Link, State};
use crate::peer::Peer;
use crate::wires::Wire;

const START: i64 = 1_800_000_000;

/// The service that every node listens on.
pub(crate) fn service() -> ServiceName {
    ServiceName::new("sim").expect("valid")
}

/// A simulated node, which may end and start again under the same name.
pub(crate) struct Node {
    pub id: NodeId,
    /// Boxed, because it is taken out and put back with each message.
    pub mesh: Option<Box<Peer>>,
    /// Whether it advertises its service.
    pub advertises: bool,
    /// It does what receptor nodes do, and no more.
    pub receptor_like: bool,
    /// Seconds by which its clock is wrong.
    pub skew: i64,
    wake: Option<Duration>,
    /// It knows that another node uses its name.
    pub spoken_for: bool,
    /// When it stopped because it was a duplicate, as receptor nodes do.
    pub stopped: Option<Duration>,
}

pub(crate) enum Happening {
    Wake(usize),
    Dial { link: usize, side: usize },
    Accept(usize),
    Arrive { wire: usize, side: usize, message: Bytes },
    Closed { wire: usize, side: usize },
}

/// Counts of messages so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Routing updates and advertisements.
    pub control: u64,
    /// The advertisements among the control messages.
    pub adverts: u64,
    /// Probes and their answers.
    pub probes: u64,
    pub data: u64,
    /// Bytes of all messages.
    pub bytes: u64,
    pub probe_bytes: u64,
}

/// A hash of everything that was sent, a word at a time, because there are gigabytes.
#[derive(Default)]
struct Trace(u64);

impl Hasher for Trace {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in words.by_ref() {
            self.write_u64(u64::from_le_bytes(word.try_into().expect("8 bytes")));
        }
        for byte in words.remainder() {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// The whole simulation.
pub(crate) struct World {
    pub now: Duration,
    pub rng: SmallRng,
    pub nodes: Vec<Node>,
    pub links: Vec<Link>,
    pub ledger: Ledger,
    pub counts: Counts,
    /// When a forwarding table changed last, and what had been counted by then.
    pub last_change: (Duration, Counts),
    queue: Agenda<Happening>,
    pub(crate) wires: Vec<Wire>,
    pub(crate) ends: HashMap<SessionId, (usize, usize)>,
    pub(crate) back_off: BTreeMap<(usize, usize), u32>,
    pub(crate) liar: Option<Liar>,
    numbers: u64,
    trace: Trace,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            now: Duration::ZERO,
            rng: SmallRng::seed_from_u64(seed),
            nodes: Vec::new(),
            links: Vec::new(),
            ledger: Ledger::default(),
            counts: Counts::default(),
            last_change: Default::default(),
            queue: Agenda::new(),
            wires: Vec::new(),
            ends: HashMap::new(),
            back_off: BTreeMap::new(),
            liar: None,
            numbers: 0,
            trace: Trace::default(),
        }
    }

    /// A number that is equal for two runs if they have sent exactly the same.
    pub(crate) fn trace(&self) -> u64 {
        self.trace.finish()
    }

    /// True time.
    pub(crate) fn clock(&self) -> Now {
        self.clock_ahead(0)
    }

    /// Time as a node sees it.
    pub(crate) fn clock_of(&self, node: usize) -> Now {
        self.clock_ahead(self.nodes[node].skew)
    }

    fn clock_ahead(&self, seconds: i64) -> Now {
        let wall = Timestamp::from_second(START + seconds).expect("in range");
        Now { tick: Tick::at(self.now), wall: wall.checked_add(self.now).expect("in range") }
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(crate) fn schedule(&mut self, after: Duration, what: Happening) {
        self.queue.add(self.now + after, what);
    }

    /// Adds a node that does not live yet.
    pub(crate) fn add_node(&mut self, id: NodeId, advertises: bool) -> usize {
        self.nodes.push(Node {
            id,
            mesh: None,
            advertises,
            receptor_like: false,
            skew: 0,
            wake: None,
            spoken_for: false,
            stopped: None,
        });
        self.nodes.len() - 1
    }

    /// Starts a node; its clock is ahead by `clock_ahead` seconds while it makes its epoch.
    pub(crate) fn start(&mut self, node: usize, clock_ahead: i64) {
        let seconds = START + clock_ahead + self.nodes[node].skew + self.now.as_secs() as i64;
        let epoch = (seconds as u64) << 24 | u64::from(self.rng.next_u32() >> 8);
        let rng = SmallRng::seed_from_u64(self.rng.next_u64());
        let now = self.clock_of(node);
        let receptor_like = self.nodes[node].receptor_like;
        let mut mesh = Peer::new(self.nodes[node].id.clone(), epoch, receptor_like, rng, now);
        assert!(mesh.bind(service()));
        if self.nodes[node].advertises {
            let offer = LocalService { conn_type: ConnType::DATAGRAM, tags: BTreeMap::new() };
            mesh.advertise(service(), offer, now);
        }
        self.nodes[node].mesh = Some(mesh.into());
        self.nodes[node].wake = None;
        (self.nodes[node].spoken_for, self.nodes[node].stopped) = (false, None);
        for link in 0..self.links.len() {
            self.dial_if_due(link, node);
        }
        self.settle(node);
    }

    fn dial_if_due(&mut self, link: usize, node: usize) {
        for side in 0..2 {
            if self.links[link].nodes[side] == node && self.links[link].dials[side] {
                self.back_off.remove(&(link, side));
                self.schedule(Duration::ZERO, Happening::Dial { link, side });
            }
        }
    }

    /// Ends a node's life. Its neighbours' streams are reset, unless it vanishes silently.
    pub(crate) fn kill(&mut self, node: usize, silent: bool) {
        self.nodes[node].mesh = None;
        let ends_here = |wire: &usize| self.wires[*wire].nodes.contains(&node);
        let wires: Vec<usize> = (0..self.wires.len()).filter(ends_here).collect();
        for id in wires {
            let side = usize::from(self.wires[id].nodes[1] == node);
            self.forget_end(id, side);
            self.break_wire(id, silent);
        }
    }

    /// Sends a datagram that the ledger follows. Returns its number.
    pub(crate) fn send(&mut self, from: usize, to: usize, service: ServiceName) -> usize {
        let (id, from_service) = self.ledger.open();
        let (now, to) = (self.clock_of(from), self.nodes[to].id.clone());
        match self.nodes[from].mesh.as_mut().map(|m| m.send(from_service, &to, service, b"sim", 30, now)) {
            Some(Ok(())) => self.settle(from),
            Some(Err(_)) | None => self.ledger.end(id, Fate::Counted),
        }
        id
    }

    /// The liar tells all its neighbours something untrue about one of these nodes.
    pub(crate) fn lie(&mut self, about: &[NodeId]) {
        let wall = self.clock().wall;
        let Some(liar) = &mut self.liar else { return };
        let (node, Some(message)) = (liar.node, liar.lie(about, wall, &mut self.rng)) else { return };
        let Some(mesh) = &self.nodes[node].mesh else { return };
        for neighbour in mesh.neighbours().values() {
            let transmit =
                Transmit { session: neighbour.session, message: message.clone(), class: QueueClass::Control };
            self.transmit(transmit);
        }
    }

    /// Handles all events within `time`.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some((when, what)) = self.queue.next(end) {
            self.now = when;
            self.happen(what);
        }
        self.now = end;
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Wake(node) => self.wake(node),
            Happening::Dial { link, side } => self.dial(link, side),
            Happening::Accept(wire) => self.open(wire, 1),
            Happening::Arrive { wire, side, message } => self.arrive(wire, side, message),
            Happening::Closed { wire, side } => {
                if let Some(session) = self.wires[wire].sessions[side] {
                    let node = self.wires[wire].nodes[side];
                    let now = self.clock_of(node);
                    self.with_mesh(node, |mesh| mesh.handle_session_closed(session, now));
                }
            }
        }
    }

    fn wake(&mut self, node: usize) {
        if self.nodes[node].wake == Some(self.now) {
            self.nodes[node].wake = None;
            let now = self.clock_of(node);
            self.with_mesh(node, |mesh| mesh.handle_timeout(now));
        }
    }

    pub(crate) fn with_mesh(&mut self, node: usize, what: impl FnOnce(&mut Mesh)) {
        if let Some(mesh) = &mut self.nodes[node].mesh {
            what(mesh);
            self.settle(node);
        }
    }

    fn arrive(&mut self, id: usize, side: usize, message: Bytes) {
        let wire = &self.wires[id];
        let (node, datagrams) = (wire.nodes[side], self.links[wire.link].kind != Kind::Stream);
        if wire.dead || self.links[wire.link].state != State::Up || self.nodes[node].mesh.is_none() {
            return self.lose(&message);
        }
        if wire.sessions[side].is_none() && side == 1 && datagrams {
            self.open(id, 1);
        }
        let Some(session) = self.wires[id].sessions[side] else { return self.lose(&message) };
        if let Some(liar) = self.liar.as_mut().filter(|liar| liar.node == node) {
            liar.hear(&message);
        }
        let booked = Ledger::id_of(&message);
        if let Some((datagram, header)) = &booked {
            self.ledger.visit(*datagram, node, header);
        }
        let now = self.clock_of(node);
        let Some(mesh) = &mut self.nodes[node].mesh else { return };
        let silent = |mesh: &Mesh| {
            let counters = mesh.counters();
            counters.no_route + counters.unknown_name + counters.unintroduced
        };
        let before = silent(mesh);
        mesh.handle_packet(session, message, now);
        if let Some((datagram, _)) = booked
            && silent(mesh) > before
        {
            self.ledger.end(datagram, Fate::Counted);
        }
        self.settle(node);
    }

    fn lose(&mut self, message: &[u8]) {
        if let Some((id, _)) = Ledger::id_of(message) {
            self.ledger.end(id, Fate::DroppedByLink);
        }
    }

    /// Takes a node's messages and events, and schedules its next timeout.
    fn settle(&mut self, node: usize) {
        let Some(mut mesh) = self.nodes[node].mesh.take() else { return };
        let now = self.clock_of(node);
        loop {
            while let Some(transmit) = mesh.poll_transmit() {
                self.transmit(transmit);
            }
            match mesh.poll_event(now) {
                Some(event) => self.on_event(node, event),
                None => break,
            }
        }
        let due = mesh.poll_timeout().map(|(due, _)| due.since_origin().max(self.now));
        let stops = mesh.stops();
        self.nodes[node].mesh = Some(mesh);
        if stops {
            self.nodes[node].stopped = Some(self.now);
            return self.kill(node, false);
        }
        if let Some(due) = due
            && self.nodes[node].wake.is_none_or(|wake| due < wake)
        {
            self.nodes[node].wake = Some(due);
            self.schedule(due - self.now, Happening::Wake(node));
        }
    }

    fn transmit(&mut self, Transmit { session, message, class }: Transmit) {
        let Some(&(id, side)) = self.ends.get(&session) else { return self.lose(&message) };
        (self.now, session, &message).hash(&mut self.trace);
        match (class, MessageType::of(&message)) {
            (QueueClass::Control, Ok(MessageType::Data)) => {
                self.counts.probes += 1;
                self.counts.probe_bytes += message.len() as u64;
            }
            (QueueClass::Control, kind) => {
                self.counts.control += 1;
                self.counts.adverts += u64::from(kind.ok() == Some(MessageType::Advertisement));
            }
            (QueueClass::Data, _) => self.counts.data += 1,
        }
        self.counts.bytes += message.len() as u64;
        let wire = &self.wires[id];
        if let Some(liar) = self.liar.as_mut().filter(|liar| liar.node == wire.nodes[side]) {
            liar.hear(&message);
        }
        let link = &self.links[wire.link];
        if wire.dead || link.state != State::Up {
            return self.lose(&message);
        }
        let stream = link.kind == Kind::Stream;
        let copies = link.copies(wire.nodes[side], &mut self.rng);
        if copies.is_empty() {
            self.lose(&message);
        }
        for delay in copies {
            let mut at = self.now + delay;
            let wire = &mut self.wires[id];
            if stream {
                at = at.max(wire.last_arrival[side]);
                wire.last_arrival[side] = at;
            }
            let what = Happening::Arrive { wire: id, side: 1 - side, message: message.clone() };
            self.schedule(at - self.now, what);
        }
    }

    fn on_event(&mut self, node: usize, event: Event) {
        match event {
            Event::CloseSession { session, .. } => self.on_close(session),
            Event::SessionUp { session, .. } => {
                if let Some(&(wire, 0)) = self.ends.get(&session) {
                    let link = self.wires[wire].link;
                    let side = usize::from(self.links[link].nodes[1] == node);
                    self.back_off.remove(&(link, side));
                }
            }
            Event::Deliver(datagram) => {
                if let Some(id) = Ledger::id_of_service(datagram.header.from_service) {
                    self.ledger.end(id, Fate::Delivered);
                }
            }
            Event::Unreachable { notice, .. } => {
                if let Some(id) = Ledger::id_of_service(notice.from_service) {
                    self.ledger.end(id, Fate::Unreachable(notice.problem));
                }
            }
            Event::RoutesChanged(_) => self.last_change = (self.now, self.counts),
            Event::WeAreDuplicate => panic!("nobody has proved anything here"),
            Event::SpokenFor { .. } => self.nodes[node].spoken_for = true,
            Event::Malformed { error, .. } => panic!("a node sent what is no message: {error}"),
            Event::TableFull { node, .. } => panic!("no room for {node}"),
            // In very large meshes the start alone looks like a flood.
            Event::FloodDetected { .. } => assert!(self.nodes.len() >= 1_000, "a node floods its neighbour"),
            Event::UpdateTooLarge(error) => panic!("an own update does not fit: {error}"),
            Event::NodeRestarted(_)
            | Event::OffersChanged
            | Event::ComputeRoutes(_)
            | Event::Behind { .. } => {}
        }
    }

    /// A random index below `n`.
    pub(crate) fn pick(&mut self, n: usize) -> usize {
        self.rng.random_range(0..n)
    }
}
