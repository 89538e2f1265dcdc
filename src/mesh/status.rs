//! What a node knows of its mesh, as its clients ask for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::core::Mesh;
use super::life::Kind;
use super::listing::{Entry, Listing};
use super::{Counters, Now, SessionId, Told, spf};
use crate::wire::{Advertisement, Cost, NodeId, ServiceName};

/// An established session, as its probes show it.
#[derive(Debug, Clone, PartialEq)]
pub struct Neighbour {
    /// The session.
    pub session: SessionId,
    /// Cost of the link.
    pub cost: Cost,
    /// It answers our probes: liveness and repair go by them.
    pub ours: bool,
    /// Smoothed time from a probe to its answer.
    pub rtt: Option<Duration>,
    /// Share of the last 32 probes that stayed without an answer, from 0 to 1.
    pub loss: f64,
    /// What it has told so far.
    pub told: Told,
}

/// How much is remembered at the moment. Each of these is bounded, whatever neighbours tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Tables {
    /// Nodes whose links are known, this one aside.
    pub nodes: u64,
    /// Bytes of their updates, and what each link in them takes.
    pub node_bytes: u64,
    /// Of those nodes, and of those whose services are known, the ones that cannot be reached.
    pub absent: u64,
    /// Nodes that were forgotten and are not believed again by an echo.
    pub forgotten: u64,
    /// Services of other nodes.
    pub services: u64,
    /// Bytes of their advertisements.
    pub service_bytes: u64,
    /// Services that were withdrawn and are not believed again by an echo.
    pub withdrawn: u64,
    /// Names known by their hashes.
    pub names: u64,
    /// Updates of doubtful origin that are not to be passed on again.
    pub seen: u64,
}

/// Known links: from, to, cost.
pub type LinkCosts = Listing<NodeId, Arc<BTreeMap<NodeId, Cost>>>;

/// Each reachable node with the neighbour towards it.
pub type Hops = Listing<NodeId, NodeId>;

/// Services on offer: by node, a node's control service before its others (`false` sorts first).
pub type Offers = Listing<(NodeId, bool, ServiceName), Arc<Advertisement>>;

impl Entry<NodeId> for Arc<BTreeMap<NodeId, Cost>> {
    fn print(&self, node: &NodeId, text: &mut Vec<u8>) {
        print_pair(node, &**self, text);
    }
}

impl Entry<NodeId> for NodeId {
    fn print(&self, node: &NodeId, text: &mut Vec<u8>) {
        print_pair(node, self, text);
    }
}

impl Entry<(NodeId, bool, ServiceName)> for Arc<Advertisement> {
    fn print(&self, _key: &(NodeId, bool, ServiceName), text: &mut Vec<u8>) {
        print_json(self, text);
    }
}

fn print_pair(key: &NodeId, value: &impl Serialize, text: &mut Vec<u8>) {
    print_json(key, text);
    text.push(b':');
    print_json(value, text);
}

fn print_json(value: &impl Serialize, text: &mut Vec<u8>) {
    // Writing to memory cannot fail, and none of these types can fail to be printed.
    let _written = serde_json::to_writer(text, value);
}

/// One consistent view. Its large parts are shared with the core, so taking it costs little.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// Established sessions: neighbour and cost.
    pub connections: BTreeMap<NodeId, Cost>,
    /// The same sessions in more detail.
    pub neighbours: BTreeMap<NodeId, Neighbour>,
    /// What was counted since birth.
    pub counters: Counters,
    /// How much is remembered.
    pub tables: Tables,
    /// Each reachable node with the neighbour towards it.
    pub routing_table: Hops,
    /// Services on offer, by node; a node's control service stands before its others.
    pub advertisements: Offers,
    /// Known links: from, to, cost.
    pub known_connection_costs: LinkCosts,
}

impl Status {
    /// What the shortest path from that node to each other one costs, over the known links.
    pub fn path_costs(&self, from: &NodeId) -> BTreeMap<NodeId, f64> {
        spf::costs(from, self.known_connection_costs.iter())
    }
}

impl Mesh {
    /// What a client is told of the mesh.
    pub fn status(&self, now: Now) -> Status {
        let cost = |session: &SessionId| self.sessions.get(session)?.established().map(|e| e.cost);
        Status {
            connections: self
                .by_peer
                .iter()
                .filter_map(|(peer, session)| Some((peer.clone(), cost(session)?)))
                .collect(),
            neighbours: self.neighbours(),
            counters: self.counters,
            tables: self.tables(),
            routing_table: self.routing_table().clone(),
            advertisements: self.adverts.list(now.wall),
            known_connection_costs: self.links.costs().clone(),
        }
    }

    /// How much is remembered at the moment.
    pub fn tables(&self) -> Tables {
        let (nodes, node_bytes, forgotten) = self.links.sizes();
        let (services, service_bytes, withdrawn) = self.adverts.sizes();
        Tables {
            nodes: nodes as u64,
            node_bytes: node_bytes as u64,
            absent: self.absent.len() as u64,
            forgotten: forgotten as u64,
            services: services as u64,
            service_bytes: service_bytes as u64,
            withdrawn: withdrawn as u64,
            names: self.links.names() as u64,
            seen: self.seen.len() as u64,
        }
    }

    /// The established sessions in detail.
    pub fn neighbours(&self) -> BTreeMap<NodeId, Neighbour> {
        let neighbour = |(peer, &session): (&NodeId, &SessionId)| {
            let state = self.sessions.get(&session)?;
            let (e, told) = (state.established()?, state.told);
            let life = &e.life;
            let (rtt, loss, kind) = (life.rtt(), life.loss(), life.kind());
            let ours = kind == Kind::Ours;
            Some((peer.clone(), Neighbour { session, cost: e.cost, ours, rtt, loss, told }))
        };
        self.by_peer.iter().filter_map(neighbour).collect()
    }
}
