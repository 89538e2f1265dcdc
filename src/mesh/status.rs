//! What a node knows of its mesh, as plain data: a snapshot, a node's counters, and how much it remembers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::probe::PeerKind;
use super::{Mesh, Now, SessionId, spf};
use crate::wire::{Advertisement, Cost, NodeId};

/// One node's links: to whom, and the cost.
pub type Links = BTreeMap<NodeId, Cost>;

/// Known links: from, to, cost.
pub type LinkCosts = BTreeMap<NodeId, Arc<Links>>;

/// Each reachable node with the neighbour towards it.
pub type Hops = BTreeMap<NodeId, NodeId>;

/// What was counted since the start. Nothing is decided by these numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that could not be read.
    pub malformed: u64,
    /// Datagrams for which there was no route.
    pub no_route: u64,
    /// Datagrams whose hops ran out here.
    pub expired: u64,
    /// Datagrams that the firewall dropped or rejected.
    pub blocked: u64,
    /// Datagrams from or to nodes whose names are unknown.
    pub unknown_name: u64,
    /// Datagrams on sessions whose peers had not introduced themselves, or whose other session stands.
    pub unintroduced: u64,
    /// Routing updates of nodes for which there was no room.
    pub no_room: u64,
    /// Advertisements for which there was no room.
    pub no_room_for_services: u64,
    /// Routing updates that came in.
    pub updates_heard: u64,
    /// Of those, the ones that were news.
    pub updates_accepted: u64,
    /// Advertisements that came in.
    pub advertisements_heard: u64,
    /// Of those, the ones that were news.
    pub advertisements_accepted: u64,
    /// Messages flooded, own ones and others', each counted once.
    pub floods: u64,
    /// Copies of them that were sent.
    pub flood_copies: u64,
    /// Own routing updates flooded.
    pub own_updates: u64,
    /// Computations of the routes.
    pub route_computations: u64,
    /// Computations that changed them.
    pub route_changes: u64,
    /// Sessions established.
    pub sessions_established: u64,
    /// Established sessions that ended.
    pub sessions_ended: u64,
    /// Of those, the ones whose meshd peers fell silent.
    pub silent_neighbours: u64,
    /// Probes sent to neighbours.
    pub probes: u64,
    /// Times that a neighbour was sent what floods had missed.
    pub repairs: u64,
    /// Times that this node woke up late, and extended its neighbours' deadlines.
    pub late_wakeups: u64,
    /// Nodes forgotten.
    pub forgotten: u64,
}

/// What one neighbour has sent since its session began, and how much of that was of no use: it shows where a flood
/// comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NeighborStats {
    /// Routing updates.
    pub updates: u64,
    /// Nodes of which nothing was known before.
    pub new_nodes: u64,
    /// Advertisements.
    pub advertisements: u64,
    /// Updates and advertisements for which there was no room.
    pub refused: u64,
    /// Messages that could not be read.
    pub malformed: u64,
}

/// An established session, as its probes show it.
#[derive(Debug, Clone, PartialEq)]
pub struct Neighbour {
    /// The session.
    pub session: SessionId,
    /// Cost of the link.
    pub cost: Cost,
    /// It answers our probes, which decide whether it is alive and what it lacks.
    pub is_meshd: bool,
    /// Smoothed time from a probe to its answer.
    pub rtt: Option<Duration>,
    /// Share of the last 32 probes that stayed without an answer, from 0 to 1.
    pub loss: f64,
    /// What it has sent so far.
    pub stats: NeighborStats,
}

/// How much is remembered at the moment. Each of these is bounded, whatever neighbours send.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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

/// One consistent view. Its large parts are shared with the core, so taking it costs little.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// Established sessions: neighbour and cost.
    pub connections: BTreeMap<NodeId, Cost>,
    /// The same sessions in more detail.
    pub neighbours: BTreeMap<NodeId, Neighbour>,
    /// What was counted since the start.
    pub counters: Counters,
    /// How much is remembered.
    pub tables: Tables,
    /// Each reachable node with the neighbour towards it.
    pub routing_table: Arc<Hops>,
    /// Services on offer, by node; a node's control service stands before its others.
    pub advertisements: Vec<Arc<Advertisement>>,
    /// Known links: from, to, cost.
    pub known_connection_costs: Arc<LinkCosts>,
}

impl Status {
    /// What the shortest path from that node to each other one costs, over the known links.
    pub fn path_costs(&self, from: &NodeId) -> BTreeMap<NodeId, f64> {
        spf::costs(from, &self.known_connection_costs)
    }
}

impl Mesh {
    /// What is known of the mesh.
    pub fn status(&self, now: Now) -> Status {
        let neighbours = self.neighbours();
        Status {
            connections: neighbours.iter().map(|(peer, neighbour)| (peer.clone(), neighbour.cost)).collect(),
            neighbours,
            counters: self.counters,
            tables: self.tables(),
            routing_table: self.lsdb.hops().clone(),
            advertisements: self.services.list(now.wall),
            known_connection_costs: self.lsdb.links().clone(),
        }
    }

    /// How much is remembered at the moment.
    pub fn tables(&self) -> Tables {
        let (absent, seen) = (self.aging.len() as u64, self.update_ids.len() as u64);
        let mut tables = Tables { absent, seen, ..Tables::default() };
        self.lsdb.measure(&mut tables);
        self.services.measure(&mut tables);
        tables
    }

    /// The forwarding table by names: each reachable node with the neighbour towards it.
    pub fn routing_table(&self) -> &Hops {
        self.lsdb.hops()
    }

    /// The established sessions in detail.
    pub fn neighbours(&self) -> BTreeMap<NodeId, Neighbour> {
        let neighbour = |(peer, &session): (&NodeId, &SessionId)| {
            let state = self.sessions.get(session)?;
            let e = state.established()?;
            let (rtt, loss, is_meshd) =
                (e.liveness.rtt(), e.liveness.loss(), e.liveness.kind() == PeerKind::Meshd);
            Some((
                peer.clone(),
                Neighbour { session, cost: e.cost, is_meshd, rtt, loss, stats: state.stats() },
            ))
        };
        self.sessions.by_peer().iter().filter_map(neighbour).collect()
    }
}
