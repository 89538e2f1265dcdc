//! `status`: what the node knows of itself, its machine and the mesh, in the keys that AWX and clients read.
//!
//! Lists and maps are never null: clients iterate them unguarded. `Links` and `Counters` are told only to those
//! who ask for them: other clients would show them as something unknown.

use serde_json::{Map, Value, json};

use super::Context;

const LINKS: &str = "Links";
const COUNTERS: &str = "Counters";

pub(super) async fn answer(context: &Context, fields: Option<Vec<String>>) -> Value {
    let mut all = everything(context).await;
    let Some(fields) = fields else { return Value::Object(all) };
    if fields.iter().any(|field| field == COUNTERS) {
        all.insert(COUNTERS.to_owned(), json!(context.node.status().await.counters));
    }
    if fields.iter().any(|field| field == LINKS) {
        all.insert(LINKS.to_owned(), json!(context.node.links().await));
    }
    let wanted = fields.into_iter().filter_map(|field| {
        let value = all.get(&field)?.clone();
        Some((field, value))
    });
    Value::Object(wanted.collect())
}

async fn everything(context: &Context) -> Map<String, Value> {
    let mesh = context.node.status().await;
    let connections: Vec<Value> =
        mesh.connections.iter().map(|(node, cost)| json!({"NodeID": node, "Cost": cost})).collect();
    let fields = [
        ("Version", json!(context.version)),
        ("NodeID", json!(context.node.id())),
        ("SystemCPUCount", json!(cpus())),
        ("SystemMemoryMiB", json!(memory_mib())),
        ("Connections", Value::Array(connections)),
        ("RoutingTable", json!(mesh.routing_table)),
        ("Advertisements", json!(mesh.advertisements)),
        ("KnownConnectionCosts", json!(mesh.known_connection_costs)),
    ];
    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
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
