//! A link between two nodes, and how it treats messages. The world knows which session runs over it, and which end
//! notices when it breaks.

use std::time::Duration;

use meshd_core::wire::Cost;
use rand::RngExt;
use rand::rngs::SmallRng;

/// What a link promises.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// Order and no loss, like TCP: a break ends the session.
    Stream,
    /// Nothing, like UDP: chances of loss in each direction and of duplication, and the most additional delay of a
    /// message.
    Datagram { loss: [f64; 2], duplication: f64, jitter: Duration },
}

/// Whether a link carries anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Up,
    /// Every message vanishes, and neither end notices.
    Silent,
    /// Streams over it are reset at both ends, and dialling fails.
    Down,
}

/// One link.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub nodes: [usize; 2],
    pub cost: Cost,
    pub delay: Duration,
    pub kind: Kind,
    pub state: State,
    /// Whether each of the two nodes dials the other.
    pub dials: [bool; 2],
}

impl Link {
    /// The delay of each copy of a message from this node; none if the message is lost.
    pub(crate) fn copies(&self, from: usize, rng: &mut SmallRng) -> Vec<Duration> {
        match self.kind {
            Kind::Stream => vec![self.delay],
            Kind::Datagram { loss, duplication, jitter } => {
                let copies = if rng.random_bool(duplication) { 2 } else { 1 };
                (0..copies)
                    .filter_map(|_| {
                        let lost = rng.random_bool(loss[usize::from(self.nodes[1] == from)]);
                        let late = jitter.mul_f64(rng.random());
                        (!lost).then_some(self.delay + late)
                    })
                    .collect()
            }
        }
    }
}
