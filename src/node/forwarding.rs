//! State that readers and senders share: the forwarding table, its links' queues, and the bound services.
//!
//! Many tasks read the table, and the driver replaces it as a whole. [`Routes::decide`] decides where a message goes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use parking_lot::RwLock;
use tokio::sync::{broadcast, watch};

use super::port::ServicePort;
use super::queue::Queue;
use crate::mesh::{Datagram, ForwardingDecision, Routes, SessionId};
use crate::wire::data::HOPS_OFFSET;
use crate::wire::{DATA_HEADER_LEN, DataHeader, NameHash, NodeId, ServiceName};

/// Most restarts of other nodes that may wait for a receiver.
const RESTARTS: usize = 256;

/// One consistent forwarding table.
#[derive(Debug, Default)]
pub(super) struct ForwardingTable {
    pub(super) routes: Arc<Routes>,
    pub(super) queues: HashMap<SessionId, Arc<Queue>>,
}

/// The state that all tasks of a node share.
#[derive(Debug)]
pub(super) struct ForwardingPlane {
    pub(super) id: NodeId,
    pub(super) own: NameHash,
    pub(super) table: ArcSwap<ForwardingTable>,
    /// Notified when the table is replaced.
    pub(super) replaced: watch::Sender<()>,
    /// Notified when the services that other nodes offer change.
    pub(super) offers: watch::Sender<()>,
    /// Other nodes that restart. A receiver that lags misses some.
    pub(super) restarted: broadcast::Sender<NameHash>,
    ports: RwLock<HashMap<ServiceName, Arc<ServicePort>>>,
    /// Datagrams for this node's services that found no room.
    ports_dropped: Arc<AtomicU64>,
}

impl ForwardingPlane {
    pub(super) fn new(id: NodeId) -> Self {
        Self {
            own: id.hash(),
            id,
            table: ArcSwap::default(),
            replaced: watch::Sender::new(()),
            offers: watch::Sender::new(()),
            restarted: broadcast::Sender::new(RESTARTS),
            ports: RwLock::default(),
            ports_dropped: Arc::default(),
        }
    }

    /// Forwards a data message from a link by the table, or returns it for the core. Messages for other links wait in
    /// `bursts` until [`Bursts::send`].
    pub(super) fn carry(
        &self,
        table: &ForwardingTable,
        mut message: BytesMut,
        bursts: &mut Bursts,
    ) -> Option<BytesMut> {
        let Ok(header) = DataHeader::parse(&message) else { return Some(message) };
        match table.routes.decide(&header) {
            ForwardingDecision::Forward(session) => {
                let Some(burst) = bursts.to(session, table) else { return Some(message) };
                message[HOPS_OFFSET] = header.hops - 1;
                burst.push((header, message.freeze()));
            }
            ForwardingDecision::Local => {
                let Some(port) = self.port(header.to_service) else { return Some(message) };
                let payload = message.freeze().slice(DATA_HEADER_LEN..);
                port.push(Datagram { header, payload });
            }
            ForwardingDecision::Core => return Some(message),
        }
        None
    }

    /// Where a datagram of this node with this header goes.
    pub(super) fn outlet(&self, header: &DataHeader) -> Outlet {
        let table = self.table.load();
        match table.routes.decide(header) {
            ForwardingDecision::Forward(session) => {
                table.queues.get(&session).cloned().map_or(Outlet::Core, Outlet::Link)
            }
            ForwardingDecision::Local => self.port(header.to_service).map_or(Outlet::Core, Outlet::Port),
            ForwardingDecision::Core => Outlet::Core,
        }
    }

    /// True if there is a route to that node.
    pub(super) fn reaches(&self, node: NameHash) -> bool {
        node == self.own || self.way(node).is_some()
    }

    /// The link that leads to that node.
    pub(super) fn way(&self, node: NameHash) -> Option<SessionId> {
        self.table.load().routes.next_hop(node)
    }

    /// The open service of that name.
    pub(super) fn port(&self, service: ServiceName) -> Option<Arc<ServicePort>> {
        self.ports.read().get(&service).cloned()
    }

    /// A new inbox for a service.
    pub(super) fn new_port(&self) -> Arc<ServicePort> {
        Arc::new(ServicePort::new(self.ports_dropped.clone()))
    }

    /// Bytes that wait in all services' inboxes, and how many datagrams found no room there so far.
    pub(super) fn port_stats(&self) -> (usize, u64) {
        let ports = self.ports.read();
        (ports.values().map(|port| port.waiting()).sum(), self.ports_dropped.load(Ordering::Relaxed))
    }

    /// Opens or closes a service.
    pub(super) fn set_port(&self, service: ServiceName, port: Option<Arc<ServicePort>>) {
        let mut ports = self.ports.write();
        match port {
            Some(port) => ports.insert(service, port),
            None => ports.remove(&service),
        };
    }

    /// Ends all services: the node has stopped.
    pub(super) fn close_ports(&self) {
        let mut ports = self.ports.write();
        let ports: std::collections::BTreeMap<_, _> = ports.drain().collect();
        ports.values().for_each(|port| port.close());
    }
}

/// The datagrams of one read, by their next link: all for one link enter its queue at once.
#[derive(Debug, Default)]
pub(super) struct Bursts(Vec<Burst>);

#[derive(Debug)]
struct Burst {
    to: SessionId,
    queue: Arc<Queue>,
    datagrams: Vec<(DataHeader, Bytes)>,
}

impl Bursts {
    /// The datagrams for that link, if there is such a link.
    fn to(&mut self, session: SessionId, table: &ForwardingTable) -> Option<&mut Vec<(DataHeader, Bytes)>> {
        // A linear search: the datagrams of one read rarely go to more than a few links.
        let index = match self.0.iter().position(|burst| burst.to == session) {
            Some(index) => index,
            None => {
                let queue = table.queues.get(&session)?.clone();
                self.0.push(Burst { to: session, queue, datagrams: Vec::new() });
                self.0.len() - 1
            }
        };
        Some(&mut self.0[index].datagrams)
    }

    /// Puts all datagrams into their links' queues, and forgets links that got none.
    pub(super) fn send(&mut self) {
        self.0.retain(|burst| !burst.datagrams.is_empty());
        for burst in &mut self.0 {
            burst.queue.push_burst(&mut burst.datagrams);
        }
    }
}

/// Where a datagram of this node goes.
#[derive(Debug)]
pub(super) enum Outlet {
    /// Onto this link.
    Link(Arc<Queue>),
    /// To this service of the node itself.
    Port(Arc<ServicePort>),
    /// The core must decide.
    Core,
}

/// A whole message as it leaves this node: with one hop fewer than the header says.
pub(super) fn outgoing(header: &DataHeader, payload: &[u8]) -> Bytes {
    DataHeader { hops: header.hops.saturating_sub(1), ..*header }.message(payload)
}
