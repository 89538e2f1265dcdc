//! What a node knows of its mesh, as its clients ask for it.

use std::collections::BTreeMap;

use super::paths;
use crate::wire::{Advertisement, Cost, NodeId};

/// One consistent view.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// Established sessions: neighbour and cost.
    pub connections: BTreeMap<NodeId, Cost>,
    /// Each reachable node with the neighbour towards it.
    pub routing_table: BTreeMap<NodeId, NodeId>,
    /// Services on offer, by node; a node's control service stands before its others.
    pub advertisements: Vec<Advertisement>,
    /// Known links: from, to, cost.
    pub known_connection_costs: BTreeMap<NodeId, BTreeMap<NodeId, Cost>>,
}

impl Status {
    /// What the shortest path from that node to each other one costs, over the known links.
    pub fn path_costs(&self, from: &NodeId) -> BTreeMap<NodeId, f64> {
        paths::costs(from, &self.known_connection_costs)
    }
}
