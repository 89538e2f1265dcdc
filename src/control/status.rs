//! `status`: what the node knows of itself, its machine and the mesh, in the keys that AWX and clients read.
//!
//! Lists and maps are never null: clients iterate them unguarded. `Links`, `Counters` and `Tables` are sent only to
//! clients that ask for them: others would show them as something unknown. The core gives a snapshot; it is printed
//! here, on the client's own task.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::Context;
use crate::mesh::Status;
use crate::node::LinkStatus;
use crate::wire::{Cost, NodeId};

/// All fields; a request without a list of fields gets the first [`USUAL`] of them, in this order.
const FIELDS: [&str; 12] = [
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
    ENDING,
];
const USUAL: usize = 8;
/// Comes with the usual fields where there is something to tell.
const ENDING: &str = "CertificatesEnding";

/// A certificate of this node that has expired, or does so within 30 days.
#[derive(serde::Serialize)]
struct EndingCertificate {
    #[serde(rename = "File")]
    file: PathBuf,
    #[serde(rename = "NotAfter")]
    not_after: Timestamp,
}

#[derive(serde::Serialize)]
struct ConnectionLine<'a> {
    #[serde(rename = "NodeID")]
    node_id: &'a NodeId,
    #[serde(rename = "Cost")]
    cost: Cost,
}

/// What the answer is made of.
struct Answer<'a> {
    fields: Vec<&'static str>,
    context: &'a Context,
    mesh: Status,
    links: Vec<LinkStatus>,
    ending: Vec<EndingCertificate>,
}

/// The answer's line: the usual fields, or those of the given ones that exist.
pub(super) async fn answer(context: &Context, fields: Option<Vec<String>>) -> Vec<u8> {
    let ending = ending(context);
    let usual = || FIELDS[..USUAL].iter().copied().chain((!ending.is_empty()).then_some(ENDING)).collect();
    let fields = fields.map_or_else(usual, known);
    let mesh = context.node.status().await;
    let links = if fields.contains(&"Links") { context.node.links().await } else { Vec::new() };
    // None of these types can fail to be printed.
    let mut line = serde_json::to_vec(&Answer { fields, context, mesh, links, ending }).unwrap_or_default();
    line.push(b'\n');
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

impl Serialize for Answer<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(self.fields.len()))?;
        let mesh = &self.mesh;
        for field in &self.fields {
            match *field {
                "Version" => map.serialize_entry(field, self.context.version)?,
                "NodeID" => map.serialize_entry(field, self.context.node.id())?,
                "SystemCPUCount" => map.serialize_entry(field, &cpus())?,
                "SystemMemoryMiB" => map.serialize_entry(field, &memory_mib())?,
                "Connections" => map.serialize_entry(field, &connections(mesh))?,
                "RoutingTable" => map.serialize_entry(field, &mesh.routing_table)?,
                "Advertisements" => map.serialize_entry(field, &mesh.advertisements)?,
                "KnownConnectionCosts" => map.serialize_entry(field, &mesh.known_connection_costs)?,
                "Counters" => map.serialize_entry(field, &mesh.counters)?,
                "Tables" => map.serialize_entry(field, &mesh.tables)?,
                ENDING => map.serialize_entry(field, &self.ending)?,
                "Links" => map.serialize_entry(field, &self.links)?,
                _unknown => {}
            }
        }
        map.end()
    }
}

fn ending(context: &Context) -> Vec<EndingCertificate> {
    let all = context.tls.ending_soon().into_iter();
    all.map(|(file, not_after)| EndingCertificate { file, not_after }).collect()
}

fn connections(mesh: &Status) -> Vec<ConnectionLine<'_>> {
    mesh.connections.iter().map(|(node_id, &cost)| ConnectionLine { node_id, cost }).collect()
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
