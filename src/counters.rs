//! What a node counts of its mesh: plain numbers, as the core counts them and as clients read them. Nothing is decided by
//! them.

use serde::{Deserialize, Serialize};

/// What was counted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
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

/// How much is remembered at the moment. Each of these is bounded, whatever neighbours send.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
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
