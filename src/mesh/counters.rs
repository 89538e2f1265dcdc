//! What the core counts since birth. Counting is all: nobody decides by these numbers.

/// The core's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Counters {
    /// Messages that could not be read.
    pub malformed: u64,
    /// Datagrams for which there was no route.
    pub no_route: u64,
    /// Datagrams whose hops ran out here.
    pub expired: u64,
    /// Datagrams that the firewall held back.
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
    /// Of those, the ones whose peers of our kind fell silent.
    pub silent_neighbours: u64,
    /// Probes sent to neighbours.
    pub probes: u64,
    /// Times that a neighbour was told what floods had missed.
    pub repairs: u64,
    /// Times that this node was woken late, which it forgives its neighbours.
    pub late_wakeups: u64,
    /// Nodes forgotten.
    pub forgotten: u64,
}

/// What one neighbour has told since its session began, and how much of that was of no use: whom a flood comes
/// from is seen here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Told {
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
