//! A peer that lies. It links to a hop, as anybody may in an open mesh, reads the hop's messages, and sends false ones:
//! forged, malformed, truncated or repeated. Owns the content of lies; the fault decides when and for how long it lies.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddrV4;
use std::os::unix::net;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use jiff::{SignedDuration, Timestamp};
use meshd_core::wire::advertisement::AdvertisementMessage;
use meshd_core::wire::{
    Advertisement, ConnType, Cost, DataHeader, MAX_HOPS, MessageType, NodeId, Problem, RoutingUpdate,
    ServiceName, Unreachable, WorkCommand, frame,
};
use meshd_machine::{self as machine, Host};
use rand::RngExt as _;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::time::sleep;

use super::world::{World, host};

/// Messages that the liar keeps in order to repeat them.
const KEPT: usize = 64;

/// Lies at this hop, until it is dropped.
pub(super) async fn attack(world: &World, hop: usize, from: Host) {
    let names = world.names.iter().map(|name| NodeId::new(name).expect("a name that nodes have"));
    let mut liar = Liar { own: NodeId::new(format!("x{}", from.0)).expect("a name"), ..Liar::new(names) };
    for port in 40_000.. {
        let own = liar.own.clone();
        if world.chance(0.3) {
            // The hop admits the name of another node if that node has lost its link to the hop.
            liar.own = world.choose(&liar.nodes).expect("there are nodes");
        }
        let (local, to) = (machine::address_of(from), machine::address_of(host(hop)));
        if let Ok(end) = machine::deliver(SocketAddrV4::new(local, port), SocketAddrV4::new(to, 7000)) {
            let link = UnixStream::from_std(net::UnixStream::from(end)).expect("a socket");
            liar.visit(world, link).await;
        }
        liar.own = own;
        sleep(world.millis(10..2000)).await;
    }
}

struct Liar {
    own: NodeId,
    nodes: Vec<NodeId>,
    heard: RefCell<Heard>,
}

#[derive(Default)]
struct Heard {
    /// The last update of each node.
    updates: BTreeMap<NodeId, RoutingUpdate>,
    /// Messages of all kinds.
    messages: VecDeque<Bytes>,
    told: u64,
}

impl Liar {
    fn new(nodes: impl Iterator<Item = NodeId>) -> Self {
        let nodes: Vec<NodeId> = nodes.collect();
        Self { own: nodes[0].clone(), nodes, heard: RefCell::default() }
    }

    /// One session, until the other end closes it or some time has passed.
    async fn visit(&self, world: &World, link: UnixStream) {
        let (read, mut write) = link.into_split();
        let talk = async {
            let own = self.introduction(&mut world.rng.borrow_mut());
            let mut next = own.message().map(framed).unwrap_or_default();
            for _lie in 0..300 {
                if write.write_all(&next).await.is_err() {
                    return;
                }
                sleep(world.millis(1..400)).await;
                if world.chance(0.01) {
                    // A message that never ends.
                    let _gone = write.write_all(&[0xff, 0xff, 1]).await;
                    return sleep(world.millis(0..60_000)).await;
                }
                next = self.lie(&mut world.rng.borrow_mut());
            }
        };
        tokio::select! {
            () = talk => {}
            () = self.listen(read) => {}
        }
    }

    async fn listen(&self, mut read: OwnedReadHalf) {
        let mut buffer = BytesMut::new();
        while let Ok(1..) = read.read_buf(&mut buffer).await {
            while let Some(message) = frame::next_message(&mut buffer) {
                self.heard.borrow_mut().hear(message.freeze());
            }
        }
    }

    fn introduction(&self, rng: &mut SmallRng) -> RoutingUpdate {
        RoutingUpdate {
            node_id: Some(self.own.clone()),
            update_id: format!("own{:05}", rng.random_range(0..99_999)),
            epoch: rng.random_range(1..u64::MAX),
            sequence: rng.random_range(1..1000),
            connections: Arc::new(self.nodes.iter().map(|node| (node.clone(), Cost::DEFAULT)).collect()),
            forwarding_node: self.own.clone(),
            suspected_duplicate: 0,
        }
    }

    /// The next bytes that it sends.
    fn lie(&self, rng: &mut SmallRng) -> Vec<u8> {
        let message = match rng.random_range(0..100) {
            0..40 => self.word(rng),
            40..60 => self.advertisement(rng).message().ok(),
            60..70 => Some(self.notice(rng)),
            70..90 => Some(self.datagram(rng)),
            90..95 => self.echo(rng),
            95..99 => Some(garbage(rng, 5000)),
            // A rejection of the other end, which ends the session.
            _ => Some(Bytes::from_static(&[3, b'[', b']'])),
        };
        message.map(framed).unwrap_or_default()
    }

    fn victim(&self, rng: &mut SmallRng) -> NodeId {
        match rng.random_range(0..10) {
            0 => NodeId::new(format!("nobody{}", rng.random_range(0..1000))).expect("a name"),
            1 => self.own.clone(),
            _ => self.nodes.choose(rng).expect("there are nodes").clone(),
        }
    }

    /// An update in a node's name: older or newer than the node's own, or as old with other links, or a correction.
    fn word(&self, rng: &mut SmallRng) -> Option<Bytes> {
        let victim = self.victim(rng);
        let mut heard = self.heard.borrow_mut();
        heard.told += 1;
        let mut update = heard.updates.get(&victim).cloned().unwrap_or_else(|| self.introduction(rng));
        let (epoch, more) = (update.epoch, rng.random_range(1..1000));
        (update.epoch, update.sequence) = match rng.random_range(0..7) {
            0 => (epoch, update.sequence),
            1 | 2 => (epoch, update.sequence.saturating_add(more)),
            3 => (epoch, u64::MAX - more),
            4 => (epoch.saturating_add(more), more),
            5 => (u64::MAX - more, more),
            _ => (epoch.saturating_sub(more), more),
        };
        if rng.random_bool(0.2) {
            update.suspected_duplicate = epoch;
        }
        update.connections = match rng.random_range(0..4) {
            0 => Arc::default(),
            1 => Arc::new([(self.own.clone(), cheap())].into()),
            2 => {
                let invented = (0..rng.random_range(1..300)).map(|number| format!("nobody{number}"));
                Arc::new(invented.filter_map(|name| Some((NodeId::new(name).ok()?, cheap()))).collect())
            }
            _ => update.connections,
        };
        update.node_id = Some(victim);
        update.update_id = format!("lie{:05}", heard.told - rng.random_range(0..2));
        update.forwarding_node = if rng.random_bool(0.01) { self.victim(rng) } else { self.own.clone() };
        update.message().ok()
    }

    fn advertisement(&self, rng: &mut SmallRng) -> AdvertisementMessage {
        let ahead = SignedDuration::from_secs(rng.random_range(-100_000..100_000));
        let work = |secure| WorkCommand { work_type: "ansible-runner".to_owned(), secure };
        let advertisement = Advertisement {
            node_id: self.victim(rng),
            service: if rng.random() { ServiceName::CONTROL } else { service(rng) },
            time: Timestamp::now() + ahead,
            conn_type: ConnType(rng.random_range(0..4)),
            tags: rng.random_bool(0.5).then(|| [("type".to_owned(), "Control Service".to_owned())].into()),
            work_commands: rng.random_bool(0.5).then(|| vec![work(rng.random())]),
        };
        AdvertisementMessage { advertisement, cancel: rng.random_bool(0.3) }
    }

    /// A notice that a datagram did not arrive, which its receiver may or may not have sent.
    fn notice(&self, rng: &mut SmallRng) -> Bytes {
        let (from_node, to_node) = (self.victim(rng), self.victim(rng));
        let header = header(&to_node, &from_node, (ServiceName::UNREACH, ServiceName::UNREACH));
        let problem = match rng.random_range(0..3) {
            0 => Problem::ServiceUnknown,
            1 => Problem::MessageExpired,
            _ => Problem::Other("no route to node".to_owned()),
        };
        let (from_service, to_service) = match self.heard.borrow().services(rng) {
            Some(services) => services,
            None => (service(rng), ServiceName::CONTROL),
        };
        let notice = Unreachable { from_node, to_node, from_service, to_service, problem };
        header.message(&serde_json::to_vec(&notice).unwrap_or_default())
    }

    /// A datagram from one node to another.
    fn datagram(&self, rng: &mut SmallRng) -> Bytes {
        let services = match self.heard.borrow().services(rng) {
            Some(services) if rng.random_bool(0.7) => services,
            _ => (service(rng), service(rng)),
        };
        header(&self.victim(rng), &self.victim(rng), services).message(&garbage(rng, 1300))
    }

    /// A message that was heard here, repeated or altered.
    fn echo(&self, rng: &mut SmallRng) -> Option<Bytes> {
        let heard = self.heard.borrow();
        let mut message = heard.messages.get(rng.random_range(0..KEPT))?.to_vec();
        match rng.random_range(0..3) {
            0 => message.truncate(rng.random_range(0..=message.len())),
            1 if !message.is_empty() => {
                let at = rng.random_range(0..message.len());
                message[at] ^= 1 << rng.random_range(0..8);
            }
            _ => {}
        }
        Some(message.into())
    }
}

impl Heard {
    fn hear(&mut self, message: Bytes) {
        if MessageType::of(&message).ok() == Some(MessageType::RoutingUpdate)
            && let Ok(update) = RoutingUpdate::parse(&message)
            && let Some(node) = update.node_id.clone()
        {
            self.updates.insert(node, update);
        }
        self.messages.push_back(message);
        if self.messages.len() > KEPT {
            self.messages.pop_front();
        }
    }

    /// The two services of a datagram that was heard here.
    fn services(&self, rng: &mut SmallRng) -> Option<(ServiceName, ServiceName)> {
        let of = |message: &Bytes| {
            let is_data = MessageType::of(message).ok() == Some(MessageType::Data);
            is_data.then(|| DataHeader::parse(message).ok()).flatten()
        };
        let headers: Vec<DataHeader> = self.messages.iter().filter_map(of).collect();
        headers.choose(rng).map(|header| (header.from_service, header.to_service))
    }
}

fn header(from: &NodeId, to: &NodeId, (from_service, to_service): (ServiceName, ServiceName)) -> DataHeader {
    DataHeader { hops: MAX_HOPS, from_node: from.hash(), to_node: to.hash(), from_service, to_service }
}

fn service(rng: &mut SmallRng) -> ServiceName {
    match rng.random_range(0..4) {
        0 => ServiceName::CONTROL,
        1 => ServiceName::PING,
        // The service with which nodes probe each other.
        2 => ServiceName::from_wire(*b"\x01alive\0\0"),
        _ => ServiceName::from_wire(rng.random()),
    }
}

fn garbage(rng: &mut SmallRng, most: usize) -> Bytes {
    let mut bytes: Vec<u8> = (0..rng.random_range(0..most)).map(|_| rng.random()).collect();
    // The first byte becomes an existing message type.
    if let Some(first) = bytes.first_mut() {
        *first %= 5;
    }
    bytes.into()
}

fn cheap() -> Cost {
    Cost::new(1e-9).expect("positive")
}

/// The message with its frame for TCP; empty if it is too long.
fn framed(message: Bytes) -> Vec<u8> {
    frame::prefix(message.len()).map(|prefix| [&prefix[..], &message].concat()).unwrap_or_default()
}

/// The shortest attack; during a shorter one the liar would not be admitted.
pub(super) const STAYS: Duration = Duration::from_secs(3);
