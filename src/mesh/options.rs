//! The protocol's timers and bounds, with receptor's values as defaults.

use std::time::Duration;

use crate::wire::MAX_MESSAGE;

/// Timers and bounds of a [`super::Mesh`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Between own routing updates when nothing changes (docs/protocol.md#own-updates), at most: each is up
    /// to a tenth earlier, so that the nodes' rounds do not meet.
    pub update_interval: Duration,
    /// The same where all neighbours are meshd nodes, which find out by themselves what they have missed.
    pub relaxed_interval: Duration,
    /// Added to it per known node, so flood traffic stays constant.
    pub relaxed_per_node: Duration,
    /// Between two own updates when much changes: the first change is announced at once, the next wait this long.
    pub update_hold: Duration,
    /// Between two own updates once changes go on.
    pub update_hold_long: Duration,
    /// Until a newcomer that was heard of through a meshd neighbour is answered.
    pub answer_hold: Duration,
    /// Added to it per known node: while newcomers go on coming, each of the nodes answers, and all others hear
    /// of it.
    pub answer_per_node: Duration,
    /// Between two computations of the routes, likewise.
    pub route_hold: Duration,
    /// Between two computations of the routes once changes go on.
    pub route_hold_long: Duration,
    /// Added to it per known node.
    pub route_hold_per_node: Duration,
    /// Between advertisements of the own services when nothing changes, up to a tenth earlier.
    pub advertise_interval: Duration,
    /// Between two rounds of own advertisements when services change.
    pub advertise_hold: Duration,
    /// Until a node that has appeared is told of the own services, at most.
    pub newcomer_spread: Duration,
    /// Between two such announcements, at least, however many nodes appear.
    pub newcomer_hold: Duration,
    /// Added to both per known node.
    pub newcomer_per_node: Duration,
    /// A session on which nothing was heard for this long is closed.
    pub max_idle: Duration,
    /// Between greetings on a session whose peer has not introduced itself.
    pub greeting_interval: Duration,
    /// Greetings sent before such a session is given up.
    pub max_greetings: u32,
    /// How long a contested session has to prove that it is alive.
    pub probe_time: Duration,
    /// Between probes of a meshd neighbour.
    pub probe_interval: Duration,
    /// Between probes of one that does not answer.
    pub probe_retry: Duration,
    /// Between two updates that a receptor neighbour is told again since it has not taken them.
    pub reminder_hold: Duration,
    /// Silence after which a meshd neighbour is gone, on a link that is short and loses nothing.
    pub peer_silence: Duration,
    /// How long an unreachable node and its services are remembered.
    pub forget_time: Duration,
    /// How long an advertisement from before its node's restart holds unless it is renewed.
    pub unrenewed_time: Duration,
    /// How long the ID of an update is remembered that is passed on without being believed. All others are known
    /// by epoch and sequence.
    pub seen_time: Duration,
    /// How long a withdrawn service is remembered, so that its withdrawal is flooded once only.
    pub withdrawn_time: Duration,
    /// Nodes that may be known at once, and services; what comes beyond is ignored and counted. A single
    /// neighbour may fill four fifths of each table.
    pub max_nodes: usize,
    /// Bytes of routing updates, and of advertisements, that may be known at once.
    pub max_table_bytes: usize,
    /// Bytes that an own update or advertisement may have: well below what a link can carry.
    pub max_own_message: usize,
    /// Services that one node may advertise.
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
