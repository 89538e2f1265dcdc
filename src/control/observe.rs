//! The reading half of the control service: what this node is at the moment, as reports. The core gives a snapshot of its
//! own types; here it gets the keys that clients read, on the client's own task.

use std::collections::BTreeMap;

use crate::mesh::Status;
use crate::node::{LinkStatus, NodeHandle};
use crate::rpc::report::node::{Connection, EndingCertificate, LinkReport, NodeReport, Section};
use crate::tls::Profiles;

/// What can be seen of a node; cheap to clone.
#[derive(Clone)]
pub(crate) struct Observer {
    /// The node.
    pub node: NodeHandle,
    /// Its certificates.
    pub tls: Profiles,
    /// What a report shows as `Version`.
    pub version: &'static str,
}

impl Observer {
    /// These sections, as they are now.
    pub(crate) async fn report(&self, sections: &[Section]) -> NodeReport {
        let mesh = self.node.status().await;
        let mut report = NodeReport::default();
        for section in sections {
            match section {
                Section::Version => report.version = Some(self.version.to_owned()),
                Section::NodeId => report.node_id = Some(self.node.id().to_string()),
                Section::Cpus => report.cpus = Some(cpus()),
                Section::Memory => report.memory_mib = Some(memory_mib()),
                Section::Connections => report.connections = Some(connections(&mesh)),
                Section::Routes => report.routing_table = Some(routes(&mesh)),
                Section::Advertisements => report.advertisements = Some(mesh.advertisements.clone()),
                Section::Costs => report.known_connection_costs = Some(costs(&mesh)),
                Section::Counters => report.counters = Some(mesh.counters),
                Section::Tables => report.tables = Some(mesh.tables),
                Section::Ending => report.certificates_ending = Some(self.ending()),
                Section::Links => {
                    let links = self.node.links().await;
                    report.links = Some(links.into_iter().map(LinkReport::from).collect());
                }
            }
        }
        report
    }

    /// The sections that a client asks for by name; without a list those that every client gets.
    pub(super) fn sections(&self, asked: Option<&[String]>) -> Vec<Section> {
        let Some(asked) = asked else {
            let ending = (!self.ending().is_empty()).then_some(Section::Ending);
            return Section::USUAL.into_iter().chain(ending).collect();
        };
        // A client may ask for a great many.
        Section::ALL.into_iter().filter(|section| asked.iter().any(|asked| asked == section.name())).collect()
    }

    fn ending(&self) -> Vec<EndingCertificate> {
        let all = self.tls.ending_soon().into_iter();
        all.map(|(file, not_after)| EndingCertificate { file, not_after }).collect()
    }
}

fn connections(mesh: &Status) -> Vec<Connection> {
    let all = mesh.connections.iter();
    all.map(|(node, &cost)| Connection { node_id: node.to_string(), cost }).collect()
}

fn routes(mesh: &Status) -> BTreeMap<String, String> {
    mesh.routing_table.iter().map(|(node, via)| (node.to_string(), via.to_string())).collect()
}

fn costs(mesh: &Status) -> BTreeMap<String, BTreeMap<String, crate::wire::Cost>> {
    let from = mesh.known_connection_costs.iter();
    from.map(|(node, links)| {
        (node.to_string(), links.iter().map(|(other, &cost)| (other.to_string(), cost)).collect())
    })
    .collect()
}

impl From<LinkStatus> for LinkReport {
    fn from(link: LinkStatus) -> Self {
        Self {
            node_id: link.node_id.to_string(),
            session: link.session,
            transport: link.transport.to_owned(),
            address: link.address,
            cost: Some(link.cost),
            probed: link.probed,
            rtt: link.rtt.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            probe_loss: link.probe_loss,
            queued_bytes: link.queued_bytes,
            in_flight: link.in_flight,
            dropped: link.dropped,
            packets_in: link.packets_in,
            bytes_in: link.bytes_in,
            packets_out: link.packets_out,
            bytes_out: link.bytes_out,
            told: link.told,
        }
    }
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
