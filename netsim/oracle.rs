//! What must be true once a mesh has come to rest, computed from the true graph and never from what the
//! nodes say about it. In very large meshes only a sample of the nodes is checked.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use meshd_core::mesh::Mesh;
use meshd_core::wire::{Cost, NodeId};

use crate::link::{Link, State};
use crate::world::{World, service};

/// In larger meshes only a sample of the nodes is checked.
const ALL: usize = 2_000;
const SAMPLE: usize = 100;
/// The sample of runs that measure memory, because each checked node remembers its answers.
const FEW: usize = 30;

/// The true mesh: living nodes by index.
pub(crate) struct Truth<'a> {
    world: &'a World,
    /// The wanted number of checked nodes; up to twice as many are checked.
    sample: usize,
    adjacent: BTreeMap<usize, BTreeMap<usize, Cost>>,
    /// A number for each node, the same for connected nodes.
    island: Vec<usize>,
    /// Shortest distances from a node, computed when first needed.
    distance: RefCell<BTreeMap<usize, Rc<Vec<f64>>>>,
}

impl<'a> Truth<'a> {
    pub(crate) fn of(world: &'a World) -> Self {
        let alive = |node: usize| world.nodes[node].mesh.is_some();
        let mut adjacent: BTreeMap<usize, BTreeMap<usize, Cost>> =
            (0..world.nodes.len()).filter(|&node| alive(node)).map(|node| (node, BTreeMap::new())).collect();
        for link in world.links.iter().filter(|link| link.state == State::Up) {
            let [a, b] = link.nodes;
            if alive(a) && alive(b) {
                adjacent.entry(a).or_default().insert(b, link.cost);
                adjacent.entry(b).or_default().insert(a, link.cost);
            }
        }
        let island = islands(world.nodes.len(), &adjacent);
        let sample = if adjacent.len() > ALL { SAMPLE } else { ALL };
        Self { world, sample, adjacent, island, distance: RefCell::default() }
    }

    /// As [`Self::of`], but checks few nodes, because each checked node remembers its answers.
    pub(crate) fn of_few(world: &'a World) -> Self {
        Self { sample: FEW, ..Self::of(world) }
    }

    pub(crate) fn reaches(&self, from: usize, to: usize) -> bool {
        [from, to].iter().all(|node| self.adjacent.contains_key(node)) && self.island[from] == self.island[to]
    }

    /// Whether some other nodes reach each other only through this node.
    pub(crate) fn is_only_way(&self, node: usize) -> bool {
        let mut others = self.adjacent.clone();
        others.remove(&node);
        for links in others.values_mut() {
            links.remove(&node);
        }
        let island = islands(self.world.nodes.len(), &others);
        others.keys().map(|other| island[*other]).collect::<BTreeSet<_>>().len() > 1
    }

    /// The number of links on the way that the nodes' tables give.
    pub(crate) fn hops(&self, from: usize, to: usize) -> Result<usize, String> {
        let (mut at, mut hops) = (from, 0);
        while at != to {
            at = self.next(at, to)?.0;
            hops += 1;
            if hops > self.adjacent.len() {
                return Err(format!("from {} to {} runs in a circle", self.name(from), self.name(to)));
            }
        }
        Ok(hops)
    }

    fn name(&self, node: usize) -> &NodeId {
        &self.world.nodes[node].id
    }

    fn mesh(&self, node: usize) -> &Mesh {
        self.world.nodes[node].mesh.as_ref().expect("alive")
    }

    /// The nodes that are checked.
    fn asked(&self) -> impl Iterator<Item = usize> + '_ {
        let step = (self.adjacent.len() / self.sample).max(1);
        self.adjacent.keys().copied().step_by(step)
    }

    fn distances(&self, from: usize) -> Rc<Vec<f64>> {
        let mut known = self.distance.borrow_mut();
        known.entry(from).or_insert_with(|| Rc::new(self.bellman_ford(from))).clone()
    }

    /// The costs of the shortest paths from a node, by Bellman and Ford: each node whose cost has fallen lowers the
    /// costs of its neighbours, until no cost falls any more. The product uses another algorithm.
    fn bellman_ford(&self, from: usize) -> Vec<f64> {
        let mut best = vec![f64::INFINITY; self.world.nodes.len()];
        best[from] = 0.0;
        let mut fallen = VecDeque::from([from]);
        while let Some(node) = fallen.pop_front() {
            for (&to, cost) in self.adjacent.get(&node).into_iter().flatten() {
                let cost = best[node] + cost.get();
                if cost < best[to] {
                    best[to] = cost;
                    fallen.push_back(to);
                }
            }
        }
        best
    }

    /// The next node by a node's table, and the cost of the link to it.
    fn next(&self, at: usize, to: usize) -> Result<(usize, f64), String> {
        let stuck = || format!("{} has no route to {}", self.name(at), self.name(to));
        let via = self.mesh(at).routing_table().get(self.name(to)).ok_or_else(stuck)?;
        let link = self.adjacent[&at].iter().find(|(next, _)| self.name(**next) == via);
        let (next, cost) = link.ok_or_else(|| format!("{} goes by {via}", self.name(at)))?;
        Ok((*next, cost.get()))
    }

    /// Every node has routes to exactly the nodes that it can reach, and these are shortest paths: each leads to a
    /// neighbour that is nearer by the cost of the link to it, so no route is a circle.
    pub(crate) fn routes_are_shortest(&self) -> Result<(), String> {
        for from in self.asked() {
            let reachable = self.adjacent.keys().filter(|&&to| to != from && self.reaches(from, to)).count();
            let listed = self.mesh(from).routing_table().len();
            if listed != reachable {
                let has = |to: usize| self.mesh(from).routing_table().contains_key(self.name(to));
                let lacks =
                    self.adjacent.keys().find(|&&to| to != from && self.reaches(from, to) && !has(to));
                let lacks = lacks.map(|&to| self.name(to));
                return Err(format!(
                    "{} has {listed} routes, {reachable} are right; it lacks {lacks:?}",
                    self.name(from)
                ));
            }
            let distance = self.distances(from);
            for &to in self.adjacent.keys().filter(|&&to| to != from && self.reaches(from, to)) {
                let (via, cost) = self.next(from, to)?;
                let cost = cost + self.distances(via)[to];
                if cost != distance[to] {
                    let (from, to, best) = (self.name(from), self.name(to), distance[to]);
                    return Err(format!("from {from} to {to} costs {cost}, {best} is possible"));
                }
            }
        }
        Ok(())
    }

    /// Each node knows the true links of all nodes that it can reach.
    pub(crate) fn tables_are_true(&self) -> Result<(), String> {
        let named = |links: &BTreeMap<usize, Cost>| -> BTreeMap<NodeId, Cost> {
            links.iter().map(|(&to, &cost)| (self.name(to).clone(), cost)).collect()
        };
        let links: BTreeMap<usize, _> = self.adjacent.iter().map(|(of, links)| (*of, named(links))).collect();
        for node in self.asked() {
            let status = self.mesh(node).status(self.world.clock());
            for (&of, links) in links.iter().filter(|(of, _)| self.reaches(node, **of)) {
                let known = status.known_connection_costs.get(self.name(of)).cloned().unwrap_or_default();
                if *known != *links {
                    let (node, of) = (self.name(node), self.name(of));
                    return Err(format!("{node} knows of {of}: {known:?}, true is {links:?}"));
                }
            }
            if status.connections.len() != self.adjacent[&node].len() {
                return Err(format!("{} has connections {:?}", self.name(node), status.connections));
            }
        }
        Ok(())
    }

    /// Every node lists the service of every reachable node that announces one.
    pub(crate) fn services_are_known(&self) -> Result<(), String> {
        for node in self.asked() {
            let ads = self.mesh(node).status(self.world.clock()).advertisements;
            let known: BTreeSet<&NodeId> =
                ads.iter().filter(|ad| ad.service == service()).map(|ad| &ad.node_id).collect();
            for &of in self.adjacent.keys().filter(|&&of| self.reaches(node, of)) {
                if self.world.nodes[of].advertises && !known.contains(self.name(of)) {
                    return Err(format!(
                        "{} does not know the service of {}",
                        self.name(node),
                        self.name(of)
                    ));
                }
            }
        }
        Ok(())
    }

    /// No node remembers more than ever existed: each name and each service once, and a bounded number of updates.
    pub(crate) fn memory_is_bounded(&self) -> Result<(), String> {
        let nodes = self.world.nodes.len() as u64;
        for node in self.adjacent.keys() {
            let mesh = self.world.nodes[*node].mesh.as_ref().expect("alive");
            let tables = mesh.tables();
            let [names, services] = [tables.nodes.max(tables.names), tables.services + tables.withdrawn];
            let bytes = tables.node_bytes + tables.service_bytes;
            let links = 2 * self.world.links.len() as u64;
            if names > nodes || services > nodes || bytes > 500 * nodes + 150 * links || tables.seen > 65_536
            {
                return Err(format!("{} remembers too much: {tables:?}", self.name(*node)));
            }
        }
        Ok(())
    }

    /// The most routing and advertisement messages that floods need in `seconds` at rest, if each node announces its
    /// links once in `round` seconds.
    pub(crate) fn most_messages_at_rest(&self, seconds: u64, round: u64) -> u64 {
        let nodes = self.adjacent.len() as u64;
        let ends: u64 = self.adjacent.values().map(|links| links.len() as u64).sum();
        let updates = nodes * (seconds / round + 1);
        let ads = nodes * (seconds / 54 + 1);
        // Over datagrams a dialer cannot notice that nobody is there, and keeps greeting.
        let alive = |node: &usize| self.adjacent.contains_key(node);
        let vain = |link: &&Link| link.state != State::Up || !link.nodes.iter().all(alive);
        let in_vain = self.world.links.iter().filter(vain).count() as u64;
        (updates + ads) * ends + in_vain * (seconds + 2)
    }
}

/// A number for each node, the same for connected nodes.
fn islands(nodes: usize, adjacent: &BTreeMap<usize, BTreeMap<usize, Cost>>) -> Vec<usize> {
    let mut island = vec![usize::MAX; nodes];
    for &start in adjacent.keys() {
        let mut frontier = vec![start];
        while let Some(node) = frontier.pop() {
            if island[node] == usize::MAX {
                island[node] = start;
                frontier.extend(adjacent[&node].keys().filter(|next| island[**next] == usize::MAX));
            }
        }
    }
    island
}
