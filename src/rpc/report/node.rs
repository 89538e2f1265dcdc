//! What a node says of itself, its machine and the mesh, in the keys that AWX and receptor's clients read.
//!
//! A report has the sections that were asked for. Lists and maps in it are never null, because clients iterate them
//! unguarded.

#![expect(missing_docs, reason = "the keys are specified in docs/protocol.md")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Lenient;
use super::names::names;
use super::outage::{BrokenLinkReport, OutageReport};
use crate::counters::{Counters, NeighborStats, Tables};
use crate::wire::{Advertisement, Cost};

names! {
    /// A part of a node's report.
    enum Section {
        Version = "Version",
        NodeId = "NodeID",
        Cpus = "SystemCPUCount",
        Memory = "SystemMemoryMiB",
        Connections = "Connections",
        Routes = "RoutingTable",
        Advertisements = "Advertisements",
        Costs = "KnownConnectionCosts",
        /// This one and those below are ours: they are sent to clients that ask for them, as others would show them as
        /// something unknown.
        Counters = "Counters",
        Tables = "Tables",
        Links = "Links",
        Outages = "Outages",
        BrokenLinks = "BrokenLinks",
        Peers = "Peers",
        Health = "Health",
        Reload = "LastReload",
        /// Comes with the usual ones where there is something to tell.
        Ending = "CertificatesEnding",
    }
}

impl Section {
    /// The sections that every client gets.
    pub const USUAL: [Self; 8] = [
        Self::Version,
        Self::NodeId,
        Self::Cpus,
        Self::Memory,
        Self::Connections,
        Self::Routes,
        Self::Advertisements,
        Self::Costs,
    ];
}

/// Sections of what a node knows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(rename = "NodeID", skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    #[serde(rename = "SystemCPUCount", skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    #[serde(rename = "SystemMemoryMiB", skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<Vec<Connection>>,
    /// Next hop by destination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing_table: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<BTreeMap<String, Value>>>")]
    pub advertisements: Option<Vec<Arc<Advertisement>>>,
    /// Cost of every link, by its two ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, BTreeMap<String, f64>>>")]
    pub known_connection_costs: Option<BTreeMap<String, BTreeMap<String, Cost>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<Counters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tables: Option<Tables>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<Vec<LinkReport>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outages: Option<Vec<OutageReport>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken_links: Option<Vec<BrokenLinkReport>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<Vec<PeerReport>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthReport>,
    /// `None` if there was none since the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_reload: Option<ReloadReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificates_ending: Option<Vec<EndingCertificate>>,
    /// What a node of another age or make says besides.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

impl NodeReport {
    /// The links of the mesh by their [`ends`], with the cost that each end reports.
    pub fn link_costs(&self) -> BTreeMap<(&str, &str), [Option<f64>; 2]> {
        let mut links = BTreeMap::<_, [_; 2]>::new();
        for (from, costs) in self.known_connection_costs.iter().flatten() {
            for (to, cost) in costs {
                links.entry(ends(from, to)).or_default()[usize::from(from > to)] = Some(cost.get());
            }
        }
        links
    }
}

/// The ends of a link, the lesser name first.
fn ends<'a>(one: &'a str, other: &'a str) -> (&'a str, &'a str) {
    (one.min(other), one.max(other))
}

/// A certificate of the node that has expired, or does so within 30 days and a fifth of its life.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct EndingCertificate {
    pub file: PathBuf,
    pub not_after: Timestamp,
    /// Why it could not be renewed over the mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_renewed: Option<String>,
}

/// A reload of the configuration. One that failed changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ReloadReport {
    pub time: Timestamp,
    pub success: bool,
}

/// A neighbour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub struct Connection {
    #[serde(rename = "NodeID")]
    pub node_id: String,
    #[schemars(with = "f64")]
    pub cost: Cost,
}

/// A peer that the node dials, whether or not a link stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct PeerReport {
    /// What carries the link, and where it leads.
    pub address: String,
    /// The node that answered there last, if one has.
    #[serde(rename = "NodeID")]
    pub node_id: Option<String>,
    /// There is a session with that node.
    pub up: bool,
}

names! {
    /// Whether a node does its work.
    enum HealthState {
        /// Not everything that is configured works yet.
        Starting = "starting",
        Ready = "ready",
        Stopping = "stopping",
        /// The controller of this node does not reach its store.
        StoreAway = "store away",
    }
}

/// What probes are told: numbers, and no name but the node's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HealthReport {
    pub status: Lenient<HealthState>,
    pub node_id: String,
    /// Neighbours with a session.
    pub links: u64,
    /// Units that this node has, ended ones as well.
    pub work_units: u64,
    pub uptime_seconds: u64,
}

impl HealthReport {
    /// Whether the node does its work.
    pub fn is_ready(&self) -> bool {
        self.status.known() == Some(HealthState::Ready)
    }
}

/// One session with a neighbour, as it stands.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct LinkReport {
    #[serde(rename = "NodeID")]
    pub node_id: String,
    pub session: u64,
    pub transport: String,
    pub address: String,
    #[schemars(with = "Option<f64>")]
    pub cost: Option<Cost>,
    /// The neighbour answers our probes: its silence is noticed within seconds.
    pub probed: bool,
    /// Round trip in nanoseconds, if it is known.
    #[serde(rename = "RTT")]
    pub rtt: Option<u64>,
    pub probe_loss: f64,
    pub queued_bytes: u64,
    /// Bytes under way on the network, on a QUIC link.
    pub in_flight: Option<u64>,
    pub dropped: u64,
    pub packets_in: u64,
    pub bytes_in: u64,
    pub packets_out: u64,
    pub bytes_out: u64,
    /// What the neighbour sent about the mesh, and how much of that was dropped.
    pub told: NeighborStats,
}
