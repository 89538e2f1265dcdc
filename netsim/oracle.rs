//! What must be true once a mesh has come to rest, computed from the true graph and never from what the
//! nodes say about it.

use std::collections::BTreeMap;

use meshd::wire::{Cost, NodeId};
use petgraph::algo::bellman_ford;
use petgraph::graph::{NodeIndex, UnGraph};

use crate::link::{Link, State};
use crate::world::{World, service};

/// The true mesh: living nodes by index, with the shortest distances between them.
pub struct Truth<'a> {
    world: &'a World,
    adjacent: BTreeMap<usize, BTreeMap<usize, Cost>>,
    /// From, to: infinite if there is no path.
    distance: BTreeMap<usize, Vec<f64>>,
}

impl<'a> Truth<'a> {
    pub fn of(world: &'a World) -> Self {
        let alive = |node: usize| world.nodes[node].mesh.is_some();
        let mut adjacent: BTreeMap<usize, BTreeMap<usize, Cost>> =
            (0..world.nodes.len()).filter(|&node| alive(node)).map(|node| (node, BTreeMap::new())).collect();
        let mut graph = UnGraph::<(), f64>::new_undirected();
        for _ in &world.nodes {
            graph.add_node(());
        }
        for link in world.links.iter().filter(|link| link.state == State::Up) {
            let [a, b] = link.nodes;
            if alive(a) && alive(b) {
                adjacent.entry(a).or_default().insert(b, link.cost);
                adjacent.entry(b).or_default().insert(a, link.cost);
                graph.add_edge(NodeIndex::new(a), NodeIndex::new(b), link.cost.get());
            }
        }
        // An undirected edge counts from one end only in this algorithm, so it is told of both.
        let both = graph.map(|_, ()| (), |_, &cost| cost).into_edge_type::<petgraph::Directed>();
        let mut both = both;
        for edge in graph.edge_indices() {
            let (a, b) = graph.edge_endpoints(edge).expect("listed");
            both.add_edge(b, a, graph[edge]);
        }
        let distance = adjacent
            .keys()
            .map(|&node| {
                let paths = bellman_ford(&both, NodeIndex::new(node)).expect("no negative cost");
                (node, paths.distances)
            })
            .collect();
        Self { world, adjacent, distance }
    }

    pub fn reaches(&self, from: usize, to: usize) -> bool {
        self.distance.get(&from).is_some_and(|d| d[to].is_finite())
    }

    /// Links on the way that the nodes' tables lead.
    pub fn hops(&self, from: usize, to: usize) -> Result<usize, String> {
        let next = self.next_hops();
        self.walk(&next, from, to).map(|(hops, _)| hops)
    }

    fn name(&self, node: usize) -> &NodeId {
        &self.world.nodes[node].id
    }

    /// For each node its table, by index.
    fn next_hops(&self) -> BTreeMap<usize, BTreeMap<usize, usize>> {
        let index: BTreeMap<&NodeId, usize> = self.adjacent.keys().map(|&n| (self.name(n), n)).collect();
        let table = |node: usize| {
            let mesh = self.world.nodes[node].mesh.as_ref().expect("alive");
            let by_name = mesh.routes().by_name().iter();
            by_name.filter_map(|(to, via)| Some((*index.get(to)?, *index.get(via)?))).collect()
        };
        self.adjacent.keys().map(|&node| (node, table(node))).collect()
    }

    fn walk(
        &self,
        next: &BTreeMap<usize, BTreeMap<usize, usize>>,
        from: usize,
        to: usize,
    ) -> Result<(usize, f64), String> {
        let (mut at, mut cost, mut hops) = (from, 0.0, 0);
        while at != to {
            let stuck = || format!("{} has no route to {}", self.name(at), self.name(to));
            let via = *next[&at].get(&to).ok_or_else(stuck)?;
            let link = self.adjacent[&at].get(&via);
            cost += link.ok_or_else(|| format!("{} goes by {}", self.name(at), self.name(via)))?.get();
            (at, hops) = (via, hops + 1);
            if hops > self.adjacent.len() {
                return Err(format!("from {} to {} runs in a circle", self.name(from), self.name(to)));
            }
        }
        Ok((hops, cost))
    }

    /// Every node's routes are shortest paths, to exactly those that can be reached.
    pub fn routes_are_shortest(&self) -> Result<(), String> {
        let next = self.next_hops();
        for (&from, distance) in &self.distance {
            let mesh = self.world.nodes[from].mesh.as_ref().expect("alive");
            let reachable =
                self.adjacent.keys().filter(|&&to| to != from && distance[to].is_finite()).count();
            let listed = mesh.routes().by_name().len();
            if listed != reachable {
                return Err(format!("{} has {listed} routes, {reachable} are right", self.name(from)));
            }
            for &to in self.adjacent.keys().filter(|&&to| to != from && distance[to].is_finite()) {
                let (_, cost) = self.walk(&next, from, to)?;
                if cost != distance[to] {
                    let (from, to, best) = (self.name(from), self.name(to), distance[to]);
                    return Err(format!("from {from} to {to} costs {cost}, {best} is possible"));
                }
            }
        }
        Ok(())
    }

    /// What each node knows of the links between nodes that it can reach is the truth, and so neighbours
    /// agree.
    pub fn tables_are_true(&self) -> Result<(), String> {
        for &node in self.adjacent.keys() {
            let mesh = self.world.nodes[node].mesh.as_ref().expect("alive");
            let status = mesh.status(self.world.clock());
            for (&of, links) in self.adjacent.iter().filter(|(of, _)| self.reaches(node, **of)) {
                let links: BTreeMap<NodeId, Cost> =
                    links.iter().map(|(&to, &cost)| (self.name(to).clone(), cost)).collect();
                let told = status.known_connection_costs.get(self.name(of)).cloned().unwrap_or_default();
                if *told != links {
                    let (node, of) = (self.name(node), self.name(of));
                    return Err(format!("{node} knows of {of}: {told:?}, true is {links:?}"));
                }
            }
            if status.connections.len() != self.adjacent[&node].len() {
                return Err(format!("{} has connections {:?}", self.name(node), status.connections));
            }
        }
        Ok(())
    }

    /// Every node lists the service of every reachable node that tells of one.
    pub fn services_are_known(&self) -> Result<(), String> {
        for &node in self.adjacent.keys() {
            let mesh = self.world.nodes[node].mesh.as_ref().expect("alive");
            let ads = mesh.status(self.world.clock()).advertisements;
            for &of in self.adjacent.keys().filter(|&&of| self.reaches(node, of)) {
                let known = ads.iter().any(|ad| ad.node_id == *self.name(of) && ad.service == service());
                if self.world.nodes[of].advertises && !known {
                    return Err(format!("{} knows no service of {}", self.name(node), self.name(of)));
                }
            }
        }
        Ok(())
    }

    /// No node remembers more than there ever was: each name, each service and, for an hour, each update once.
    pub fn memory_is_bounded(&self) -> Result<(), String> {
        let nodes = self.world.nodes.len() as u64;
        for node in self.adjacent.keys() {
            let mesh = self.world.nodes[*node].mesh.as_ref().expect("alive");
            let tables = mesh.tables();
            let [names, services] = [tables.nodes.max(tables.names), tables.services + tables.withdrawn];
            let bytes = tables.node_bytes + tables.service_bytes;
            let links = 2 * self.world.links.len() as u64;
            if names > nodes || services > nodes || bytes > 500 * nodes + 50 * links || tables.seen > 65_536 {
                return Err(format!("{} remembers too much: {tables:?}", self.name(*node)));
            }
        }
        Ok(())
    }

    /// Routing and advertisement messages that floods need at most in `seconds` at rest, if each node tells of
    /// its links once in `round` seconds.
    pub fn most_messages_at_rest(&self, seconds: u64, round: u64) -> u64 {
        let nodes = self.adjacent.len() as u64;
        let ends: u64 = self.adjacent.values().map(|links| links.len() as u64).sum();
        let updates = nodes * (seconds / round + 1);
        let ads = nodes * (seconds / 54 + 1);
        // Over datagrams a dialer cannot tell that nobody is there, and goes on greeting.
        let alive = |node: &usize| self.adjacent.contains_key(node);
        let vain = |link: &&Link| link.state != State::Up || !link.nodes.iter().all(alive);
        let in_vain = self.world.links.iter().filter(vain).count() as u64;
        (updates + ads) * ends + in_vain * (seconds + 2)
    }
}
