//! The protocol's timers and bounds, with receptor's values as defaults.

use std::time::Duration;

/// What a [`super::Mesh`] may be told at birth about its timing and its bounds.
#[derive(Debug, Clone)]
pub struct Options {
    /// Between own routing updates when nothing changes (contract section 3).
    pub update_interval: Duration,
    /// Between two own updates when much changes: the first change is told at once, the next wait this long.
    pub update_hold: Duration,
    /// Between two computations of the routes, likewise.
    pub route_hold: Duration,
    /// Between advertisements of the own services when nothing changes.
    pub advertise_interval: Duration,
    /// Between two rounds of own advertisements when services change.
    pub advertise_hold: Duration,
    /// A session on which nothing was heard for this long is closed.
    pub max_idle: Duration,
    /// Between greetings on a session whose peer has not introduced itself.
    pub greeting_interval: Duration,
    /// Greetings sent before such a session is given up.
    pub max_greetings: u32,
    /// How long a contested session has to show that it lives.
    pub probe_time: Duration,
    /// How long an update's ID is remembered.
    pub seen_time: Duration,
    /// How long a withdrawn service is remembered, so that its withdrawal is flooded once only.
    pub withdrawn_time: Duration,
    /// Nodes that may be known at once; what comes beyond is ignored and counted.
    pub max_nodes: usize,
    /// Services that one node may advertise.
    pub max_services_per_node: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            update_interval: Duration::from_secs(10),
            update_hold: Duration::from_millis(100),
            route_hold: Duration::from_millis(20),
            advertise_interval: Duration::from_secs(60),
            advertise_hold: Duration::from_millis(100),
            max_idle: Duration::from_secs(21),
            greeting_interval: Duration::from_secs(1),
            max_greetings: 11,
            probe_time: Duration::from_secs(2),
            seen_time: Duration::from_secs(3600),
            withdrawn_time: Duration::from_secs(600),
            max_nodes: 65_536,
            max_services_per_node: 1_024,
        }
    }
}
