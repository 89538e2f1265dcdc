//! Shapes of meshes. Every shape is connected; costs and names come from the seed, so that the order of
//! names never follows the shape.

use meshd::wire::{Cost, NodeId};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt};

/// How nodes are linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topology {
    Line,
    Ring,
    Star,
    Tree,
    Random,
    /// A tree with a few links more: large meshes are not linked as densely as small ones.
    Sparse,
}

impl Topology {
    pub const ALL: [Self; 5] = [Self::Line, Self::Ring, Self::Star, Self::Tree, Self::Random];

    /// The pairs of linked nodes among `nodes` of them.
    pub fn edges(self, nodes: usize, rng: &mut SmallRng) -> Vec<(usize, usize)> {
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

/// A cost of a link.
pub fn cost(rng: &mut SmallRng) -> Cost {
    const COSTS: [f64; 6] = [1.0, 1.0, 1.0, 0.5, 2.0, 3.5];
    Cost::new(COSTS[rng.random_range(0..COSTS.len())]).expect("positive")
}

/// A name for the `i`th node.
pub fn name(i: usize, rng: &mut SmallRng) -> NodeId {
    NodeId::new(format!("n{:04x}-{i}", rng.next_u32() & 0xffff)).expect("valid")
}
