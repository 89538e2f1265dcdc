//! The protocol's timers and bounds, with receptor's values as defaults.

use std::time::Duration;

use crate::wire::MAX_MESSAGE;

/// Timers and bounds of a [`super::Mesh`].
#[derive(Debug, Clone)]
pub struct Options {
    /// The longest time between own routing updates when nothing changes (docs/protocol.md#own-updates): each
    /// comes up to a tenth earlier, so that the rounds of different nodes do not coincide.
    pub update_interval: Duration,
    /// The same if all neighbours are meshd nodes, which notice by themselves what they have missed.
    pub relaxed_interval: Duration,
    /// Added to `relaxed_interval` per reachable node, so that flood traffic stays constant.
    pub relaxed_per_node: Duration,
    /// Between two own updates when much changes: the first change is announced at once, later ones wait this long.
    pub update_hold: Duration,
    /// Between two own updates while changes go on.
    pub update_hold_long: Duration,
    /// How long the answer to a newcomer waits that was heard of through a meshd neighbour.
    pub answer_hold: Duration,
    /// Added to `answer_hold` per known node: each node answers newcomers, and all other nodes receive each
    /// answer.
    pub answer_per_node: Duration,
    /// Between two computations of the routes when much changes.
    pub route_hold: Duration,
    /// Between two computations of the routes while changes go on.
    pub route_hold_long: Duration,
    /// Added to `route_hold_long` per reachable node.
    pub route_hold_per_node: Duration,
    /// Between advertisements of the own services when nothing changes, up to a tenth earlier.
    pub advertise_interval: Duration,
    /// Between two rounds of own advertisements when services change.
    pub advertise_hold: Duration,
    /// The longest time until a node that has appeared is told of our services.
    pub newcomer_spread: Duration,
    /// The shortest time between two such announcements, however many nodes appear.
    pub newcomer_hold: Duration,
    /// Added to `newcomer_spread` and `newcomer_hold` per known node.
    pub newcomer_per_node: Duration,
    /// A session on which nothing was heard for this long is closed.
    pub max_idle: Duration,
    /// Between greetings on a session whose peer has not introduced itself.
    pub greeting_interval: Duration,
    /// Greetings sent before such a session is closed.
    pub max_greetings: u32,
    /// How long a contested session has to prove that it is alive.
    pub probe_time: Duration,
    /// Between probes of a meshd neighbour.
    pub probe_interval: Duration,
    /// Between probes of a meshd neighbour that does not answer.
    pub probe_retry: Duration,
    /// Between two updates that a neighbour is sent again because it has not taken them.
    pub reminder_hold: Duration,
    /// Silence after which a meshd neighbour counts as gone, on a short link that loses nothing.
    pub peer_silence: Duration,
    /// How long an unreachable node and its services are remembered.
    pub forget_time: Duration,
    /// How long an advertisement from before its node's restart holds without being renewed.
    pub unrenewed_time: Duration,
    /// How long the ID of an update that is passed on without being believed is remembered. All other updates are
    /// recognised by epoch and sequence.
    pub seen_time: Duration,
    /// How long a withdrawn service is remembered, so that its withdrawal is flooded only once; likewise a forgotten
    /// node.
    pub withdrawn_time: Duration,
    /// Most nodes that may be known at once, and most services; more are ignored and counted. A single neighbour
    /// may fill four fifths of each table.
    pub max_nodes: usize,
    /// Most bytes of routing updates, and of advertisements, that may be stored at once.
    pub max_table_bytes: usize,
    /// Most bytes of an own update or advertisement: below what a link can carry.
    pub max_own_message: usize,
    /// Most services that one node may advertise.
    pub max_services_per_node: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            update_interval: Duration::from_secs(10),
            relaxed_interval: Duration::from_secs(60),
            relaxed_per_node: Duration::from_millis(100),
            update_hold: Duration::from_millis(100),
            update_hold_long: Duration::from_millis(500),
            answer_hold: Duration::from_secs(1),
            answer_per_node: Duration::from_millis(10),
            route_hold: Duration::from_millis(20),
            route_hold_long: Duration::from_millis(200),
            route_hold_per_node: Duration::from_micros(50),
            advertise_interval: Duration::from_secs(60),
            advertise_hold: Duration::from_millis(100),
            newcomer_spread: Duration::from_millis(500),
            newcomer_hold: Duration::from_secs(5),
            newcomer_per_node: Duration::from_millis(10),
            max_idle: Duration::from_secs(21),
            greeting_interval: Duration::from_secs(1),
            max_greetings: 11,
            probe_time: Duration::from_secs(2),
            probe_interval: Duration::from_millis(1_300),
            probe_retry: Duration::from_millis(350),
            reminder_hold: Duration::from_millis(100),
            peer_silence: Duration::from_millis(2_750),
            forget_time: Duration::from_secs(600),
            unrenewed_time: Duration::from_secs(180),
            seen_time: Duration::from_secs(3600),
            withdrawn_time: Duration::from_secs(600),
            max_nodes: 65_536,
            max_table_bytes: 128 << 20,
            max_own_message: MAX_MESSAGE / 10 * 9,
            max_services_per_node: 1_024,
        }
    }
}
