//! Small meshes of real nodes over in-memory and TCP links.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use super::*;
use crate::backend::{
    DialSpec, ListenSpec, Listener, MemoryDialOptions, MemoryListenOptions, MemoryNet, Reader, Session,
    Writer, dial,
};
use crate::mesh::{LinkPolicy, SendError};
use crate::wire::{MAX_HOPS, NodeId, Problem, ServiceName, Unreachable};

/// The precision of tokio's timers.
const TICK: Duration = Duration::from_millis(1);

/// Nodes on an in-memory network, each listening under its own name.
pub(crate) struct Lab {
    net: MemoryNet,
    links: Vec<LinkHandle>,
}

/// Makes the node believe that another node has restarted.
pub(crate) fn announce_restart(node: &NodeHandle, of: &NodeId) {
    node.plane().restarted.send(of.hash()).unwrap();
}

/// Gives service `from` of the node the notice that another node has no service `to`.
pub(crate) fn announce_unknown(
    node: &NodeHandle,
    from: ServiceName,
    to: (&NodeId, ServiceName),
    by: &NodeId,
) {
    let notice = Unreachable {
        from_node: node.id().clone(),
        to_node: to.0.clone(),
        from_service: from,
        to_service: to.1,
        problem: Problem::ServiceUnknown,
    };
    let port = node.plane().port(from).unwrap();
    port.push_notice(super::port::Notice { notice, reported_by: by.clone() });
}

pub(crate) fn node_id(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// Waits for a condition, as long as a loaded machine may need.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Forwards packets at `rate` bytes a second.
async fn pump(mut from: Reader, mut to: Writer, rate: u32) {
    let mut batch = Vec::new();
    while from.read_batch(&mut batch).await.is_ok() {
        for packet in batch.drain(..) {
            tokio::time::sleep(Duration::from_secs(1) * packet.len() as u32 / rate).await;
            let _gone = to.write_batch(&mut VecDeque::from([packet.freeze()])).await;
        }
    }
}

/// How a link carries packets.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    /// The delay of each packet.
    pub(crate) delay: Duration,
    /// Bytes a second, evenly paced.
    pub(crate) rate: u32,
    /// The share of packets that get lost.
    pub(crate) loss: f64,
    /// Packets back wait for up to this long and arrive together, like acknowledgements that are sent late.
    pub(crate) gathered: Duration,
}

impl Way {
    /// A link with this delay, without loss or limit.
    pub(crate) const fn of(delay: Duration) -> Self {
        Self { delay, rate: u32::MAX, loss: 0.0, gathered: Duration::ZERO }
    }

    /// Forwards packets in this way.
    async fn carry(self, mut from: Reader, mut to: Writer) {
        let (sender, mut under_way) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some((due, packet)) = under_way.recv().await {
                tokio::time::sleep_until(due).await;
                let _gone = to.write_batch(&mut VecDeque::from([packet])).await;
            }
        });
        let (begun, mut rng) = (Instant::now(), SmallRng::seed_from_u64(7));
        let (mut free_at, mut batch) = (begun, Vec::<bytes::BytesMut>::new());
        while from.read_batch(&mut batch).await.is_ok() {
            for packet in batch.drain(..) {
                // Timers are late by up to a tick; the next packets make up for it.
                let cost = Duration::from_secs(1) * packet.len() as u32 / self.rate;
                free_at = free_at.max(Instant::now() - TICK) + cost;
                tokio::time::sleep_until(free_at).await;
                let mut due = free_at + self.delay;
                if !self.gathered.is_zero() {
                    let since = (due - begun).as_nanos().next_multiple_of(self.gathered.as_nanos());
                    due = begun + Duration::from_nanos(since as u64);
                }
                if !rng.random_bool(self.loss) {
                    let _gone = sender.send((due, packet.freeze()));
                }
            }
        }
    }
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self { net: MemoryNet::new(), links: Vec::new() }
    }

    pub(crate) async fn start(&mut self, name: &str) -> NodeHandle {
        let (node, _stopped) = NodeHandle::start(NodeOptions::new(node_id(name)));
        let spec = ListenSpec::Memory(MemoryListenOptions { net: self.net.clone(), name: name.into() });
        let link = LinkSpec::Listen { spec, policy: LinkPolicy::default() };
        self.links.push(node.add_link(link).await.unwrap());
        node
    }

    pub(crate) async fn join(&mut self, from: &NodeHandle, to: &NodeHandle) {
        let options =
            MemoryDialOptions { net: self.net.clone(), from: from.id().to_string(), to: to.id().to_string() };
        let spec = DialSpec::Memory(options);
        let link = LinkSpec::Dial { spec, redial: true, policy: LinkPolicy::default() };
        self.links.push(from.add_link(link).await.unwrap());
    }

    /// Joins two nodes by a link that carries `rate` bytes a second.
    pub(crate) async fn join_slowly(&mut self, from: &NodeHandle, to: &NodeHandle, rate: u32) {
        let (near, far) = self.join_by_hand(from, to).await;
        tokio::spawn(pump(near.reader, far.writer, rate));
        tokio::spawn(pump(far.reader, near.writer, rate));
    }

    /// Joins two nodes by a link that carries packets in this way.
    pub(crate) async fn join_by(&mut self, from: &NodeHandle, to: &NodeHandle, way: Way) {
        let (near, far) = self.join_by_hand(from, to).await;
        tokio::spawn(Way { gathered: Duration::ZERO, ..way }.carry(near.reader, far.writer));
        tokio::spawn(way.carry(far.reader, near.writer));
    }

    /// Joins two nodes by a session that is open already; takes both ends of it.
    pub(crate) async fn join_with(&mut self, ends: [(&NodeHandle, Session); 2]) {
        for (node, session) in ends {
            let (net, from) = (self.net.clone(), node.id().to_string());
            let to = format!("made for {from}");
            net.prepare(&to, session);
            let spec = DialSpec::Memory(MemoryDialOptions { net, from, to });
            let link = LinkSpec::Dial { spec, redial: false, policy: LinkPolicy::default() };
            self.links.push(node.add_link(link).await.unwrap());
        }
    }

    /// Both ends of a link, for a caller that carries the packets between them.
    async fn join_by_hand(&mut self, from: &NodeHandle, to: &NodeHandle) -> (Session, Session) {
        let name = format!("{}-{}", from.id(), to.id());
        let spec = ListenSpec::Memory(MemoryListenOptions { net: self.net.clone(), name: name.clone() });
        let mut middle = Listener::bind(&spec).await.unwrap();
        let dial_to = |to: String| {
            let (net, from) = (self.net.clone(), from.id().to_string());
            DialSpec::Memory(MemoryDialOptions { net, from, to })
        };
        let link = LinkSpec::Dial { spec: dial_to(name), redial: true, policy: LinkPolicy::default() };
        let onward = dial_to(to.id().to_string());
        self.links.push(from.add_link(link).await.unwrap());
        (middle.accept().await.unwrap(), dial(&onward).await.unwrap())
    }

    /// Cuts the sessions that one node dialled to another; returns how many.
    pub(crate) fn cut(&self, from: &str, to: &str) -> usize {
        self.net.cut(from, to)
    }

    /// Drops all packets between two nodes, or no longer.
    pub(crate) fn silence(&self, one: &str, other: &str, silent: bool) {
        self.net.black_hole(one, other, silent);
        self.net.black_hole(other, one, silent);
    }

    /// A line of nodes that know all routes.
    pub(crate) async fn line(&mut self, names: &[&str]) -> Vec<NodeHandle> {
        let mut nodes = Vec::new();
        for name in names {
            let node = self.start(name).await;
            if let Some(last) = nodes.last() {
                self.join(&node, last).await;
            }
            nodes.push(node);
        }
        for node in &nodes {
            eventually("all routes", || async { node.status().await.routing_table.len() == names.len() - 1 })
                .await;
        }
        nodes
    }
}

#[tokio::test]
async fn a_line_converges_and_pings_across() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b", "c", "d"]).await;
    let reply = nodes[0].ping(nodes[3].id(), MAX_HOPS).await;
    assert_eq!((reply.from, reply.error), (Some(node_id("d")), None));
    let way = nodes[0].traceroute(nodes[3].id()).await;
    let from: Vec<_> = way.iter().map(|reply| reply.from.clone().unwrap().to_string()).collect();
    assert_eq!(from, ["a", "b", "c", "d"]);
    assert!(way.iter().all(|reply| reply.error.is_none()), "{way:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_ping_does_not_end_a_trace() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b"]).await;
    lab.silence("a", "b", true);
    let (way, ()) = tokio::join!(nodes[0].traceroute(nodes[1].id()), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        lab.silence("a", "b", false);
    });
    let from: Vec<_> = way.iter().map(|reply| reply.from.as_ref().map(NodeId::as_str)).collect();
    assert_eq!(from, [Some("a"), Some("b")]);
    assert_eq!(way[1].error, None);
}

#[tokio::test]
async fn a_ping_to_nowhere_says_so_at_once() {
    let mut lab = Lab::new();
    let a = lab.start("a").await;
    let reply = a.ping(&node_id("nowhere"), MAX_HOPS).await;
    assert_eq!(reply.error, Some(PingError::Send(SendError::NoRoute)));
    let reply = a.ping(&node_id("a"), MAX_HOPS).await;
    assert_eq!((reply.from, reply.error), (Some(node_id("a")), None));
}

#[tokio::test]
async fn datagrams_arrive_or_are_answered() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b", "c"]).await;
    let service = ServiceName::new("inbox").unwrap();
    let inbox = nodes[2].bind(service).await.unwrap();
    assert_eq!(nodes[2].bind(service).await.unwrap_err(), BindError::InUse(service));
    let sender = nodes[0].bind_ephemeral().await.unwrap();
    sender.try_send_to(nodes[2].id().hash(), service, b"fast").unwrap();
    sender.send_to(nodes[2].id(), service, Bytes::from_static(b"slow"), MAX_HOPS).await.unwrap();
    for expected in [&b"fast"[..], b"slow"] {
        let datagram = inbox.receive().await.unwrap();
        assert_eq!(datagram.payload, expected);
        assert_eq!(datagram.header.from_service, sender.service());
    }
    drop(inbox);
    eventually("the service is closed", || async {
        sender.send_to(nodes[2].id(), service, Bytes::new(), MAX_HOPS).await.unwrap();
        let wait = tokio::time::timeout(Duration::from_millis(200), sender.unreachable());
        matches!(wait.await, Ok(Some((notice, by))) if notice.problem == Problem::ServiceUnknown && by == node_id("c"))
    })
    .await;
}

#[tokio::test]
async fn a_service_of_the_node_itself_is_reached_too() {
    let mut lab = Lab::new();
    let a = lab.start("a").await;
    let service = ServiceName::new("self").unwrap();
    let inbox = a.bind(service).await.unwrap();
    let sender = a.bind_ephemeral().await.unwrap();
    sender.try_send_to(a.id().hash(), service, b"x").unwrap();
    assert_eq!(inbox.receive().await.unwrap().payload, &b"x"[..]);
}

#[tokio::test]
async fn a_link_that_was_replaced_is_another_way() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b"]).await;
    let far = nodes[1].id().hash();
    let first = nodes[0].other_way(far, None).await;
    assert_eq!(nodes[0].way(far), Some(first));
    for _ in 0..3 {
        let before = nodes[0].way(far);
        assert!(lab.cut("a", "b") > 0);
        let next = nodes[0].other_way(far, before).await;
        assert_ne!(Some(next), before);
    }
}

#[tokio::test]
async fn a_lost_link_heals_by_itself() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b"]).await;
    assert!(lab.cut("b", "a") > 0);
    eventually("the loss is noticed", || async { nodes[0].status().await.connections.is_empty() }).await;
    eventually("the link is back", || async { !nodes[0].status().await.connections.is_empty() }).await;
}

#[tokio::test]
async fn removing_a_link_ends_its_sessions() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b"]).await;
    for link in lab.links.drain(..) {
        link.stop().await;
    }
    for node in &nodes {
        eventually("no connection is left", || async { node.status().await.connections.is_empty() }).await;
    }
}

#[tokio::test]
async fn one_stuck_neighbour_does_not_hold_up_the_others() {
    let mut lab = Lab::new();
    let hub = lab.start("hub").await;
    let mut leaves = Vec::new();
    for name in ["stuck", "fine", "other"] {
        let leaf = lab.start(name).await;
        lab.join(&leaf, &hub).await;
        leaves.push(leaf);
    }
    for leaf in &leaves[1..] {
        eventually("the star stands", || async { leaf.status().await.routing_table.len() == 3 }).await;
    }
    lab.net.black_hole("hub", "stuck", true);
    let sender = leaves[1].bind_ephemeral().await.unwrap();
    for _ in 0..20_000 {
        let _blocked = sender.try_send_to(leaves[0].id().hash(), ServiceName::PING, &[0; 1400]);
        tokio::task::yield_now().await;
    }
    let reply = leaves[1].ping(leaves[2].id(), MAX_HOPS).await;
    assert_eq!((reply.from, reply.error), (Some(node_id("other")), None));
}

#[tokio::test]
async fn a_stopped_node_leaves_its_neighbours_at_once() {
    let mut lab = Lab::new();
    let nodes = lab.line(&["a", "b"]).await;
    nodes[1].stop();
    eventually("the neighbour is gone", || async { nodes[0].status().await.connections.is_empty() }).await;
    assert_eq!(nodes[1].bind(ServiceName::new("x").unwrap()).await.unwrap_err(), BindError::Stopped);
}
