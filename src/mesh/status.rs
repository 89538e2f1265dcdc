//! What a node knows of its mesh, as plain data: a snapshot, a node's counters, and how much it remembers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;

use super::probe::PeerKind;
use super::{Mesh, Now, SessionId, spf};
use crate::counters::{Counters, NeighborStats, Tables};
use crate::wire::{Advertisement, Cost, NodeId, ServiceName};

/// One node's links: to whom, and the cost.
pub type Links = BTreeMap<NodeId, Cost>;

/// Known links: from, to, cost.
pub type LinkCosts = BTreeMap<NodeId, Arc<Links>>;

/// Each reachable node with the neighbour towards it.
pub type Hops = BTreeMap<NodeId, NodeId>;

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
    /// Services on offer, by node; a node's control service stands before its others. None is dated later than when it came.
    pub advertisements: Vec<Arc<Advertisement>>,
    /// How much later than shown services are dated, of those that were dated ahead of our clock when they came.
    pub dated_ahead: BTreeMap<(NodeId, ServiceName), SignedDuration>,
    /// Known links: from, to, cost.
    pub known_connection_costs: Arc<LinkCosts>,
    /// The neighbours that brought updates in this node's name that it had not sent, and how long ago the last one, the
    /// latest first.
    pub spoken_for: Vec<(NodeId, Duration)>,
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
            dated_ahead: self.services.remote.ahead(),
            known_connection_costs: self.lsdb.links().clone(),
            spoken_for: self.duplicates.speakers(now.tick),
        }
    }

    /// How much is remembered at the moment.
    pub fn tables(&self) -> Tables {
        let (absent, seen) = (self.aging.len() as u64, self.update_ids.len() as u64);
        let routes = self.lsdb.hops().len() as u64;
        let mut tables = Tables { routes, absent, seen, ..Tables::default() };
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
