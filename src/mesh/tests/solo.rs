//! One node under test: the test sends its neighbours' messages. Time passes only when told to, and nothing that the
//! node sends or reports is lost.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::mesh::{CloseReason, Event, LinkPolicy, Mesh, Now, Options, SessionId, Tick};
use crate::wire::advertisement::AdvertisementMessage;
use crate::wire::{Cost, DataHeader, MessageType, NodeId, RoutingUpdate, ServiceName};

/// The epoch of the node under test.
pub(super) const EPOCH: u64 = 1_000 << 24;

pub(super) fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

pub(super) fn service(name: &str) -> ServiceName {
    ServiceName::new(name).unwrap()
}

pub(super) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(super) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) fn at(since_start: Duration) -> Now {
    let wall = Timestamp::from_second(1_800_000_000).unwrap();
    Now { tick: Tick::at(since_start), wall: wall.checked_add(since_start).unwrap() }
}

/// An update of `of`, sent by itself.
pub(super) fn update(of: &str, id: &str, epoch: u64, sequence: u64, links: &[(&str, f64)]) -> RoutingUpdate {
    RoutingUpdate {
        node_id: NodeId::new(of).ok(),
        update_id: id.to_owned(),
        epoch,
        sequence,
        connections: Arc::new(links.iter().map(|&(to, cost)| (node(to), Cost::new(cost).unwrap())).collect()),
        forwarding_node: node(of),
        suspected_duplicate: 0,
    }
}

/// The node under test.
pub(super) struct Solo {
    pub(super) mesh: Mesh,
    pub(super) time: Duration,
    opened: u64,
    events: Vec<Event>,
}

impl Solo {
    pub(super) fn new(name: &str) -> Self {
        Self::with(name, Options::default())
    }

    pub(super) fn with(name: &str, options: Options) -> Self {
        let rng = SmallRng::seed_from_u64(7);
        let mesh = Mesh::new(node(name), EPOCH, options, rng, at(Duration::ZERO));
        Self { mesh, time: Duration::ZERO, opened: 0, events: Vec::new() }
    }

    pub(super) fn now(&self) -> Now {
        at(self.time)
    }

    pub(super) fn open_with(&mut self, policy: LinkPolicy) -> SessionId {
        self.opened += 1;
        let session = SessionId(self.opened);
        self.mesh.handle_session_opened(session, policy, self.now());
        session
    }

    /// Opens a session and lets `peer` introduce itself on it, listing this node already.
    pub(super) fn neighbour(&mut self, peer: &str) -> SessionId {
        let session = self.open_with(LinkPolicy::default());
        let own = self.mesh.id().to_string();
        self.say(session, &update(peer, &format!("i{peer:.>7}"), 1, 1, &[]));
        self.say(session, &update(peer, &format!("j{peer:.>7}"), 1, 2, &[(&own, 1.0)]));
        self.advance(millis(500));
        self.refuse_probe(session, peer);
        self.sent();
        self.events();
        session
    }

    /// Answers a probe as a receptor node does, which knows no such service.
    pub(super) fn refuse_probe(&mut self, session: SessionId, peer: &str) {
        let notice = format!(
            r#"{{"FromNode":"{}","ToNode":"{peer}","FromService":"\u0001probe","ToService":"\u0001alive","Problem":"service unknown"}}"#,
            self.mesh.id()
        );
        let header = DataHeader {
            hops: 30,
            from_node: node(peer).hash(),
            to_node: self.mesh.id().hash(),
            from_service: ServiceName::UNREACH,
            to_service: ServiceName::UNREACH,
        };
        self.packet(session, header.message(notice.as_bytes()));
    }

    pub(super) fn say(&mut self, session: SessionId, update: &RoutingUpdate) {
        self.packet(session, update.message().unwrap());
    }

    pub(super) fn packet(&mut self, session: SessionId, message: Bytes) {
        let now = self.now();
        self.mesh.handle_packet(session, message, now);
        self.mesh.handle_wait(now.tick);
    }

    /// Lets time pass, waking the node whenever it asks for it.
    pub(super) fn advance(&mut self, by: Duration) {
        let end = self.time + by;
        while let Some((due, _)) = self.mesh.poll_timeout()
            && due <= Tick::at(end)
        {
            self.time = self.time.max(due.since_origin());
            let now = self.now();
            self.mesh.handle_timeout(now);
            self.mesh.handle_wait(now.tick);
        }
        self.time = end;
        self.mesh.handle_wait(Tick::at(end));
    }

    /// Gives links room for everything, unless a test takes the events itself.
    fn give_room(&mut self) {
        let now = self.now();
        while let Some(event) = self.mesh.poll_event() {
            match event {
                Event::Behind { session } => self.mesh.handle_room(session, usize::MAX, now),
                other => self.events.push(other),
            }
        }
    }

    pub(super) fn sent(&mut self) -> Vec<(SessionId, Bytes)> {
        self.give_room();
        std::iter::from_fn(|| self.mesh.poll_transmit()).map(|t| (t.session, t.message)).collect()
    }

    pub(super) fn sent_to(&mut self, session: SessionId) -> Vec<Bytes> {
        self.sent().into_iter().filter(|(to, _)| *to == session).map(|(_, message)| message).collect()
    }

    pub(super) fn updates_to(&mut self, session: SessionId) -> Vec<RoutingUpdate> {
        self.sent_to(session).iter().filter_map(as_update).collect()
    }

    pub(super) fn events(&mut self) -> Vec<Event> {
        self.give_room();
        std::mem::take(&mut self.events)
    }

    /// The links that another node is known to list, whether they count or not.
    pub(super) fn said(&self, of: &str) -> Vec<String> {
        let message = self.mesh.lsdb.message(&node(of)).unwrap();
        as_update(&message).unwrap().connections.keys().map(ToString::to_string).collect()
    }

    /// Which sessions were closed, and why.
    pub(super) fn closed(&mut self) -> Vec<(SessionId, CloseReason)> {
        let closed = |event| match event {
            Event::CloseSession { session, reason, .. } => Some((session, reason)),
            _ => None,
        };
        self.events().into_iter().filter_map(closed).collect()
    }
}

pub(super) fn kind(message: &Bytes) -> MessageType {
    MessageType::of(message).unwrap()
}

pub(super) fn as_update(message: &Bytes) -> Option<RoutingUpdate> {
    (kind(message) == MessageType::RoutingUpdate).then(|| RoutingUpdate::parse(message).unwrap())
}

pub(super) fn as_advert(message: &Bytes) -> Option<AdvertisementMessage> {
    (kind(message) == MessageType::Advertisement).then(|| AdvertisementMessage::parse(message).unwrap())
}

pub(super) fn as_data(message: &Bytes) -> Option<DataHeader> {
    (kind(message) == MessageType::Data).then(|| DataHeader::parse(message).unwrap())
}
