//! Shapes of meshes. Every shape is connected; costs and names come from the seed, so that the order of
//! names never follows the shape.

use meshd_core::wire::{Cost, NodeId};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt};

/// How nodes are linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topology {
    Line,
    Ring,
    Star,
    Tree,
    Random,
    /// A tree with a few more links, because large meshes are linked less densely than small ones.
    Sparse,
}

impl Topology {
    pub(crate) const ALL: [Self; 5] = [Self::Line, Self::Ring, Self::Star, Self::Tree, Self::Random];

    /// The pairs of linked nodes in a mesh of `nodes` nodes.
    pub(crate) fn edges(self, nodes: usize, rng: &mut SmallRng) -> Vec<(usize, usize)> {
        let mut edges: Vec<(usize, usize)> = match self {
            Self::Line | Self::Ring => (1..nodes).map(|i| (i - 1, i)).collect(),
            Self::Star => (1..nodes).map(|i| (0, i)).collect(),
            Self::Tree | Self::Random | Self::Sparse => {
                (1..nodes).map(|i| (rng.random_range(0..i), i)).collect()
            }
        };
        if self == Self::Ring && nodes > 2 {
            edges.push((nodes - 1, 0));
        }
        let more = match self {
            Self::Line | Self::Ring | Self::Star | Self::Tree => 0,
            Self::Random => nodes,
            Self::Sparse => nodes / 4,
        };
        for _ in 0..more {
            let (a, b) = (rng.random_range(0..nodes), rng.random_range(0..nodes));
            if a != b && !edges.contains(&(a, b)) && !edges.contains(&(b, a)) {
                edges.push((a, b));
            }
        }
        edges
    }
}

/// A mesh as users build it: some control nodes, all linked to each other; hop nodes in regions, each linked to a
/// control node and to the previous hop node of its region; execution nodes, each of which dials a hop node of its
/// region. Every fifth execution node dials a second hop node.
pub(crate) struct Tiers {
    /// Pairs of nodes, of which the first dials. Nodes are numbered tier by tier.
    pub edges: Vec<(usize, usize)>,
    /// Control and hop nodes.
    pub core: usize,
    /// The links between the hop nodes of each region and the control nodes, by their places in `edges`.
    pub uplinks: Vec<Vec<usize>>,
    /// The execution nodes' second links, also by their places in `edges`.
    pub spare: Vec<usize>,
}

impl Tiers {
    pub(crate) fn new(nodes: usize, rng: &mut SmallRng) -> Self {
        const CONTROL: usize = 8;
        const REGION: usize = 500;
        const PER_HOP: usize = 32;
        let regions = (nodes / REGION).max(2);
        let hops = (nodes / regions / PER_HOP).max(2);
        let hop = |region: usize, i: usize| CONTROL + region * hops + i;
        let core = hop(regions, 0);
        let mut edges: Vec<(usize, usize)> = (0..CONTROL).flat_map(|a| (0..a).map(move |b| (a, b))).collect();
        let mut uplinks = vec![Vec::new(); regions];
        for (region, uplinks) in uplinks.iter_mut().enumerate() {
            for i in 0..hops {
                uplinks.push(edges.len());
                edges.push((hop(region, i), rng.random_range(0..CONTROL)));
                edges.extend((i > 0).then(|| (hop(region, i), hop(region, i - 1))));
            }
        }
        let mut spare = Vec::new();
        for node in core..nodes {
            let (region, first) = ((node - core) * regions / (nodes - core), rng.random_range(0..hops));
            edges.push((node, hop(region, first)));
            if node % 5 == 0 {
                spare.push(edges.len());
                edges.push((node, hop(region, (first + 1) % hops)));
            }
        }
        Self { edges, core, uplinks, spare }
    }
}

/// A cost of a link.
pub(crate) fn cost(rng: &mut SmallRng) -> Cost {
    const COSTS: [f64; 6] = [1.0, 1.0, 1.0, 0.5, 2.0, 3.5];
    Cost::new(COSTS[rng.random_range(0..COSTS.len())]).expect("positive")
}

/// A name for the `i`th node.
pub(crate) fn name(i: usize, rng: &mut SmallRng) -> NodeId {
    NodeId::new(format!("n{:04x}-{i}", rng.next_u32() & 0xffff)).expect("valid")
}
