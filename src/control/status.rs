//! `status`: what the node knows of itself, its machine and the mesh, in the keys that AWX and clients read.
//!
//! Lists and maps are never null: clients iterate them unguarded. `Links`, `Counters` and `Tables` are told only
//! to those who ask for them: other clients would show them as something unknown. The large tables are printed only
//! if they are asked for, and anew only where they have changed: a mesh of a thousand nodes has a megabyte of them.

use serde::Serialize;

use super::Context;
use crate::mesh::{Entry, Listing, Status};
use crate::wire::{Cost, NodeId};

/// All there are, in the order in which everybody is told the first [`USUAL`] of them.
const FIELDS: [&str; 11] = [
    "Version",
    "NodeID",
    "SystemCPUCount",
    "SystemMemoryMiB",
    "Connections",
    "RoutingTable",
    "Advertisements",
    "KnownConnectionCosts",
    "Counters",
    "Tables",
    "Links",
];
const USUAL: usize = 8;

#[derive(Serialize)]
struct Connection<'a> {
    #[serde(rename = "NodeID")]
    node_id: &'a NodeId,
    #[serde(rename = "Cost")]
    cost: Cost,
}

/// The answer's line: all that is usual, or the given fields as far as there are such.
pub(super) async fn answer(context: &Context, fields: Option<Vec<String>>) -> Vec<u8> {
    let fields = fields.map_or_else(|| FIELDS[..USUAL].to_vec(), known);
    let mesh = context.node.status().await;
    let mut line = b"{".to_vec();
    for field in fields {
        if line.len() > 1 {
            line.push(b',');
        }
        print(field, &mut line);
        line.push(b':');
        print_value(context, &mesh, field, &mut line).await;
    }
    line.extend_from_slice(b"}\n");
    line
}

/// Each known field once, in the order in which they were asked for. A client may ask for a great many.
fn known(asked: Vec<String>) -> Vec<&'static str> {
    let mut wanted = Vec::with_capacity(FIELDS.len());
    for asked in asked {
        let Some(&field) = FIELDS.iter().find(|field| **field == asked) else { continue };
        if !wanted.contains(&field) {
            wanted.push(field);
        }
    }
    wanted
}

async fn print_value(context: &Context, mesh: &Status, field: &str, line: &mut Vec<u8>) {
    match field {
        "Version" => print(context.version, line),
        "NodeID" => print(context.node.id(), line),
        "SystemCPUCount" => print(&cpus(), line),
        "SystemMemoryMiB" => print(&memory_mib(), line),
        "Connections" => print(&connections(mesh), line),
        "RoutingTable" => print_listing(*b"{}", &mesh.routing_table, line),
        "Advertisements" => print_listing(*b"[]", &mesh.advertisements, line),
        "KnownConnectionCosts" => print_listing(*b"{}", &mesh.known_connection_costs, line),
        "Counters" => print(&mesh.counters, line),
        "Tables" => print(&mesh.tables, line),
        "Links" => print(&context.node.links().await, line),
        _unknown => {}
    }
}

fn print(value: &(impl Serialize + ?Sized), line: &mut Vec<u8>) {
    // Writing to memory cannot fail, and none of these types can fail to be printed.
    let _written = serde_json::to_writer(line, value);
}

fn print_listing<K: Ord, V: Entry<K>>([open, close]: [u8; 2], listing: &Listing<K, V>, line: &mut Vec<u8>) {
    line.push(open);
    listing.print(line);
    line.push(close);
}

fn connections(mesh: &Status) -> Vec<Connection<'_>> {
    mesh.connections.iter().map(|(node_id, &cost)| Connection { node_id, cost }).collect()
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
