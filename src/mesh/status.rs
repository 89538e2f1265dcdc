//! What a node knows of its mesh, as plain data: a snapshot, the node's counters, and how much it remembers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;

use super::broken_links::{Break, Breaks};
use super::outage::{self, NodeOutage};
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
    /// Whether it answers our probes, which show whether it is alive and what it lacks.
    pub is_meshd: bool,
    /// Smoothed time from a probe to its answer.
    pub rtt: Option<Duration>,
    /// Share of the last 32 probes that were not answered, from 0 to 1.
    pub loss: f64,
    /// Counts of what it has sent so far.
    pub stats: NeighborStats,
}

/// A consistent snapshot. It shares its large parts with the core, so it is cheap to take.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MeshStatus {
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
    /// For services dated ahead of our clock when they came: how much later their own date is than the one shown.
    pub dated_ahead: BTreeMap<(NodeId, ServiceName), SignedDuration>,
    /// Known links: from, to, cost.
    pub known_connection_costs: Arc<LinkCosts>,
    /// Links that have counted and do not any more.
    pub broken_links: Arc<Breaks>,
    /// The neighbours that brought updates in this node's name that it had not sent, and how long ago the last one
    /// came; latest first.
    pub spoken_for: Vec<(NodeId, Duration)>,
}

impl MeshStatus {
    /// The cost of the shortest path over the known links from `from` to each reachable node.
    pub fn path_costs(&self, from: &NodeId) -> BTreeMap<NodeId, f64> {
        spf::costs(from, &self.known_connection_costs)
    }

    /// Each broken link once, with the lesser name first.
    pub fn each_broken_link(&self) -> impl Iterator<Item = (&NodeId, &NodeId, &Break)> {
        let ends =
            self.broken_links.iter().flat_map(|(a, others)| others.iter().map(move |(b, link)| (a, b, link)));
        ends.filter(|(a, b, _)| a < b)
    }

    /// What is out of reach of `own`, whose status this is, and behind which lost nodes.
    pub fn outages(&self, own: &NodeId) -> Vec<NodeOutage> {
        outage::outages(own, &self.known_connection_costs, &self.routing_table, &self.broken_links)
    }
}

impl Mesh {
    /// What is known of the mesh.
    pub fn status(&self, now: Now) -> MeshStatus {
        let neighbours = self.neighbours();
        MeshStatus {
            connections: neighbours.iter().map(|(peer, neighbour)| (peer.clone(), neighbour.cost)).collect(),
            neighbours,
            counters: self.counters,
            tables: self.tables(),
            routing_table: self.lsdb.hops().clone(),
            advertisements: self.services.list(now.wall),
            dated_ahead: self.services.remote.ahead(),
            known_connection_costs: self.lsdb.links().clone(),
            broken_links: self.lsdb.broken().clone(),
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
