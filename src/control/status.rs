//! `status`: what the node knows of itself, its machine and the mesh, in the keys that AWX and clients read.
//!
//! Lists and maps are never null: clients iterate them unguarded. `Links`, `Counters` and `Tables` are told only
//! to those who ask for them: other clients would show them as something unknown. The large tables are printed as they
//! stand, and only if they are asked for: a mesh of a thousand nodes has a megabyte of them.

use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use super::Context;
use crate::mesh::Status;
use crate::wire::{Cost, NodeId};

/// What everybody is told, in this order.
const USUAL: [&str; 8] = [
    "Version",
    "NodeID",
    "SystemCPUCount",
    "SystemMemoryMiB",
    "Connections",
    "RoutingTable",
    "Advertisements",
    "KnownConnectionCosts",
];

#[derive(Serialize)]
struct Connection<'a> {
    #[serde(rename = "NodeID")]
    node_id: &'a NodeId,
    #[serde(rename = "Cost")]
    cost: Cost,
}

/// The answer's line: all that is usual, or the given fields as far as there are such.
pub(super) async fn answer(context: &Context, fields: Option<Vec<String>>) -> String {
    let mesh = context.node.status().await;
    let fields = fields.unwrap_or_else(|| USUAL.map(str::to_owned).to_vec());
    let mut told: Vec<(String, Box<RawValue>)> = Vec::new();
    for field in fields {
        if told.iter().all(|(known, _)| *known != field)
            && let Some(value) = value(context, &mesh, &field).await
        {
            told.push((field, value));
        }
    }
    line(&told)
}

async fn value(context: &Context, mesh: &Status, field: &str) -> Option<Box<RawValue>> {
    let value = match field {
        "Version" => to_raw_value(context.version),
        "NodeID" => to_raw_value(context.node.id()),
        "SystemCPUCount" => to_raw_value(&cpus()),
        "SystemMemoryMiB" => to_raw_value(&memory_mib()),
        "Connections" => to_raw_value(&connections(mesh)),
        "RoutingTable" => to_raw_value(&mesh.routing_table),
        "Advertisements" => to_raw_value(&mesh.advertisements),
        "KnownConnectionCosts" => to_raw_value(&mesh.known_connection_costs),
        "Counters" => to_raw_value(&mesh.counters),
        "Tables" => to_raw_value(&mesh.tables),
        "Links" => to_raw_value(&context.node.links().await),
        _unknown => return None,
    };
    // None of these types can fail to be printed.
    value.ok()
}

fn connections(mesh: &Status) -> Vec<Connection<'_>> {
    mesh.connections.iter().map(|(node_id, &cost)| Connection { node_id, cost }).collect()
}

fn line(told: &[(String, Box<RawValue>)]) -> String {
    let mut text = Vec::new();
    // Writing to memory cannot fail, and keys are strings.
    let _written = serde_json::Serializer::new(&mut text).collect_map(told.iter().map(|(k, v)| (k, v)));
    text.push(b'\n');
    String::from_utf8(text).unwrap_or_default()
}

/// Processors that this process may run on; at least 1.
fn cpus() -> u32 {
    rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count()).max(1)
}

/// The machine's memory in MiB.
fn memory_mib() -> u64 {
    let info = rustix::system::sysinfo();
    // The kernel's counter has the width of a machine word.
    #[allow(clippy::useless_conversion, reason = "its type differs between targets")]
    let total = u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit));
    total / (1024 * 1024)
}
