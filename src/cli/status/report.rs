//! The shape of a node's `status` answer, read leniently: nodes of other ages and makes leave things out, say null
//! for empty, or add what we do not know.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// A `status` answer.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Report {
    /// The node's ID.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// The node's version.
    pub version: String,
    /// Number of processors.
    #[serde(rename = "SystemCPUCount")]
    pub cpus: u64,
    /// Memory of the machine in MiB.
    #[serde(rename = "SystemMemoryMiB")]
    pub memory: u64,
    /// Neighbours.
    pub connections: Vec<Connection>,
    /// Next hop by destination.
    pub routing_table: BTreeMap<String, String>,
    /// Services in the mesh.
    pub advertisements: Vec<Service>,
    /// Cost of every link, by its two ends.
    pub known_connection_costs: BTreeMap<String, BTreeMap<String, f64>>,
    /// Certificates that have expired, or do so soon.
    pub certificates_ending: Vec<EndingCertificate>,
    /// What else the node says.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// A certificate of the node.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct EndingCertificate {
    /// Its file.
    pub file: String,
    /// Its end.
    pub not_after: Timestamp,
}

/// A link to a neighbour.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Connection {
    /// The neighbour.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// Cost of the link.
    pub cost: f64,
}

/// An advertised service.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Service {
    /// Who offers it.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// Its name.
    pub service: String,
    /// When the offer was made, by the offering node's clock.
    pub time: Option<Timestamp>,
    /// 0 datagram, 1 stream, 2 stream with the user's TLS.
    pub conn_type: u64,
    /// Free-form description.
    pub tags: BTreeMap<String, String>,
    /// Work types.
    pub work_commands: Vec<WorkType>,
}

/// A kind of work that a node accepts.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct WorkType {
    /// Its name.
    pub work_type: String,
    /// True if submissions must be signed.
    #[serde(default)]
    pub secure: bool,
}

/// Leaves out every member that is null, so that "empty" has one spelling.
pub(crate) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => members
            .into_iter()
            .filter(|(_, member)| !member.is_null())
            .map(|(key, member)| (key, without_nulls(member)))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        scalar @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => scalar,
    }
}
