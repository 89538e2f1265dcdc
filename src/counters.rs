//! What a node counts: plain numbers, as rooms count them and clients read them. No decision depends on them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What was counted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct Tables {
    /// Nodes to which there is a way.
    pub routes: u64,
    /// Nodes whose links are known, this one aside.
    pub nodes: u64,
    /// Bytes of their updates, and what each link in them takes.
    pub node_bytes: u64,
    /// Of those nodes, and of those whose services are known, the ones that cannot be reached.
    pub absent: u64,
    /// Links that have broken, until their nodes are forgotten.
    pub broken_links: u64,
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

/// The bounds by which durations are counted, in seconds: from a store's transaction to a job that takes a day.
pub const BOUNDS: [f64; 13] =
    [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0];

/// Counts durations by length. Many tasks may count at once.
#[derive(Debug, Default)]
pub struct Durations {
    /// A count for each bound, and one for longer durations.
    counts: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

/// How many durations of each length there were.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Lengths {
    /// A count for each of [`BOUNDS`], of durations above the bound before and up to this one, and a count of longer
    /// ones.
    pub counts: [u64; BOUNDS.len() + 1],
    /// The sum of all durations, in seconds.
    pub seconds: f64,
}

impl Durations {
    /// Counts a duration.
    pub fn note(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let at = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn lengths(&self) -> Lengths {
        let counts = std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed));
        Lengths { counts, seconds: self.micros.load(Ordering::Relaxed) as f64 / 1e6 }
    }
}

impl Lengths {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, more)| *sum += more);
        self.seconds += other.seconds;
    }
}

/// What a controller counts. States and kinds are named as in its answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ControllerCounters {
    /// Jobs that have not ended: state, kind, number.
    pub jobs: Vec<(String, String, u64)>,
    /// How long the oldest job that is not placed has waited, in seconds.
    pub oldest_pending: f64,
    /// Jobs that have ended, as their units on this node have shown: kind, state, number.
    pub finished: Vec<(&'static str, &'static str, u64)>,
    /// Of those, the time from submission to start.
    pub start_delay: Lengths,
    /// Of those, the number of their events.
    pub events: u64,
    /// How long passes took.
    pub pass: Lengths,
    /// How long reading transactions took.
    pub reads: Lengths,
    /// How long writing transactions took.
    pub writes: Lengths,
    /// Control nodes whose jobs this one has given new owners.
    pub takeovers: u64,
    /// Writes that the store refused because another node owns what they change.
    pub fenced: u64,
    /// Units that seem to belong to no job.
    pub orphans: u64,
    /// Bytes that the payloads of jobs take on this node's disk.
    pub payload_bytes: u64,
    /// Saved jobs of this node, broken ones among them.
    pub saved: u64,
    /// What is wrong with their files.
    pub saved_broken: u64,
    /// Notices of this node, by target.
    pub notices: Vec<(String, NoticeFigures)>,
}

/// What one control node has counted of the notices to one target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NoticeFigures {
    /// Delivered ones.
    pub delivered: u64,
    /// Tries that failed.
    pub failed: u64,
    /// Those that were given up.
    pub dropped: u64,
    /// Ended jobs that the target has not been told of, when it was tried last.
    pub behind: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_once_at_the_first_bound_that_it_does_not_exceed() {
        let durations = Durations::default();
        [0, 1000, 1001, 400_000, 90_000_000_000]
            .map(Duration::from_micros)
            .iter()
            .for_each(|d| durations.note(*d));
        let mut found = durations.lengths();
        assert_eq!((found.counts[0], found.counts[1], found.counts[4], found.counts[13]), (2, 1, 1, 1));
        assert!((found.seconds - 90_000.402_001).abs() < 1e-6, "{}", found.seconds);
        found.add(&durations.lengths());
        assert_eq!(found.counts.iter().sum::<u64>(), 10);
    }
}
