//! The reading half of the control service: reports of this node's current state. The core gives a snapshot of its own
//! types; this file turns it into the keys that clients read, on the client's task. Refuses to know who reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::health::{ControllerSeen, ControllerWatch, ProcessLife};
use super::sink::SinkCounters;
use crate::counters::Tables;
use crate::mesh::{Break, MeshStatus, NodeOutage};
use crate::node::{LinkStatus, NodeHandle};
use crate::rpc::report::Lenient;
use crate::rpc::report::node::{
    Connection, EndingCertificate, HealthReport, HealthState, LinkReport, NodeReport, PeerReport, Section,
};
use crate::rpc::report::outage::{BrokenLinkReport, OutageReport};
use crate::tls::Profiles;
use crate::wire::NodeId;
use crate::work::Registry;
use crate::work::jobs::Operations;

/// Sections whose size depends on other nodes.
const LARGE: [Section; 7] = [
    Section::Connections,
    Section::Routes,
    Section::Advertisements,
    Section::Costs,
    Section::Links,
    Section::Outages,
    Section::BrokenLinks,
];
/// Bytes of tables below which a report of them is made on the client's own task.
const SMALL: u64 = 64 << 10;
/// Bytes of one route in a report, about.
const ENTRY: u64 = 100;

/// Reads a node's state; cheap to clone.
#[derive(Clone)]
pub(crate) struct Observer {
    /// The node.
    pub node: NodeHandle,
    /// Its certificates.
    pub tls: Profiles,
    /// What a report shows as `Version`.
    pub version: &'static str,
    /// Its units.
    pub work: Registry,
    /// The life of its process.
    pub life: ProcessLife,
    /// How its `events-sink` stands.
    pub sink: Arc<SinkCounters>,
    /// Its controller, if it has one.
    controller: Option<Arc<ControllerWatch>>,
}

impl Observer {
    pub(crate) fn new(
        node: NodeHandle,
        tls: Profiles,
        version: &'static str,
        work: Registry,
        life: ProcessLife,
        controller: Option<Arc<dyn Operations>>,
    ) -> Self {
        let controller = controller.map(|controller| Arc::new(ControllerWatch::new(controller)));
        Self { node, tls, version, work, life, sink: Arc::default(), controller }
    }

    /// The state and counters of the controller, at most a second old; `None` if the node has no controller.
    pub(crate) async fn controller(&self) -> Option<ControllerSeen> {
        match &self.controller {
            Some(controller) => Some(controller.look().await),
            None => None,
        }
    }

    /// Whether the node does its work.
    pub(crate) async fn health(&self) -> HealthReport {
        let phase = match (self.life.phase(), self.controller().await) {
            (HealthState::Ready, Some((controller, _))) if !controller.store.up => HealthState::StoreAway,
            (phase, _) => phase,
        };
        HealthReport {
            status: Lenient::Known(phase),
            node_id: self.node.id().to_string(),
            links: self.node.links().await.len() as u64,
            work_units: self.work.count() as u64,
            uptime_seconds: self.life.uptime().as_secs(),
        }
    }

    /// A snapshot of what these sections report.
    pub(crate) async fn look(&self, sections: &[Section]) -> MeshOverview {
        let mesh = self.node.status().await;
        let (mut report, mut reasons) = (NodeReport::default(), BTreeMap::new());
        for section in sections {
            match section {
                Section::Version => report.version = Some(self.version.to_owned()),
                Section::NodeId => report.node_id = Some(self.node.id().to_string()),
                Section::Cpus => report.cpus = Some(cpus()),
                Section::Memory => report.memory_mib = Some(memory_mib()),
                Section::Advertisements => report.advertisements = Some(mesh.advertisements.clone()),
                Section::Connections | Section::Routes | Section::Costs | Section::Outages => {}
                Section::BrokenLinks => reasons = self.node.lost().await,
                Section::Counters => report.counters = Some(mesh.counters),
                Section::Tables => report.tables = Some(mesh.tables),
                Section::Peers => report.peers = Some(self.peers(&mesh)),
                Section::Health => report.health = Some(self.health().await),
                Section::Reload => report.last_reload = self.life.last_reload(),
                Section::Ending => report.certificates_ending = Some(self.ending()),
                Section::Links => {
                    let links = self.node.links().await;
                    report.links = Some(links.into_iter().map(LinkReport::from).collect());
                }
            }
        }
        let own = self.node.id().clone();
        MeshOverview { own, mesh, reasons, report, sections: sections.to_vec() }
    }

    fn peers(&self, mesh: &MeshStatus) -> Vec<PeerReport> {
        let here: BTreeSet<_> = mesh.connections.keys().collect();
        let dials = self.node.dials().into_iter();
        dials
            .map(|dial| PeerReport {
                up: dial.node_id.as_ref().is_some_and(|node| here.contains(node)),
                address: dial.address,
                node_id: dial.node_id.map(|node| node.to_string()),
            })
            .collect()
    }

    /// The sections that a client asks for by name; without a list, the usual ones.
    pub(super) fn sections(&self, asked: Option<&[String]>) -> Vec<Section> {
        let Some(asked) = asked else {
            let ending = (!self.ending().is_empty()).then_some(Section::Ending);
            return Section::USUAL.into_iter().chain(ending).collect();
        };
        // Each section once: a client may send a long list.
        Section::ALL.into_iter().filter(|section| asked.iter().any(|asked| asked == section.name())).collect()
    }

    /// The certificates that have to be renewed.
    pub(super) fn ending(&self) -> Vec<EndingCertificate> {
        let (all, not_renewed) = (self.tls.ending_soon().into_iter(), self.tls.renewal_failure());
        all.map(|(file, not_after)| EndingCertificate { file, not_after, not_renewed: not_renewed.clone() })
            .collect()
    }
}

/// A snapshot that a report is made from. Taking it is cheap, because its large parts are shared with the core.
pub(crate) struct MeshOverview {
    own: NodeId,
    mesh: MeshStatus,
    /// Why links of this node have ended.
    reasons: BTreeMap<NodeId, String>,
    /// All sections that are not made from `mesh`.
    report: NodeReport,
    sections: Vec<Section>,
}

impl MeshOverview {
    /// Whether making its report here is faster than handing it to another thread.
    pub(super) fn is_small(&self) -> bool {
        let Tables { node_bytes, service_bytes, routes, .. } = self.mesh.tables;
        !LARGE.iter().any(|large| self.sections.contains(large))
            || node_bytes + service_bytes + routes * ENTRY < SMALL
    }

    /// The report with the sections that were asked for.
    pub(crate) fn report(&self) -> NodeReport {
        let (mesh, is_asked) = (&self.mesh, |section| self.sections.contains(&section));
        NodeReport {
            connections: is_asked(Section::Connections).then(|| connections(mesh)),
            routing_table: is_asked(Section::Routes).then(|| routes(mesh)),
            known_connection_costs: is_asked(Section::Costs).then(|| costs(mesh)),
            outages: is_asked(Section::Outages)
                .then(|| mesh.outages(&self.own).into_iter().map(OutageReport::from).collect()),
            broken_links: is_asked(Section::BrokenLinks)
                .then(|| broken_links(&self.own, mesh, &self.reasons)),
            ..self.report.clone()
        }
    }

    /// The report as a line of JSON. Printing cannot fail with these types.
    pub(super) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(&self.report()).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

fn connections(mesh: &MeshStatus) -> Vec<Connection> {
    let all = mesh.connections.iter();
    all.map(|(node, &cost)| Connection { node_id: node.to_string(), cost }).collect()
}

fn routes(mesh: &MeshStatus) -> BTreeMap<String, String> {
    mesh.routing_table.iter().map(|(node, via)| (node.to_string(), via.to_string())).collect()
}

fn costs(mesh: &MeshStatus) -> BTreeMap<String, BTreeMap<String, crate::wire::Cost>> {
    let from = mesh.known_connection_costs.iter();
    from.map(|(node, links)| {
        (node.to_string(), links.iter().map(|(other, &cost)| (other.to_string(), cost)).collect())
    })
    .collect()
}

/// The broken links, by their ends.
pub(crate) fn broken_links(
    own: &NodeId,
    mesh: &MeshStatus,
    reasons: &BTreeMap<NodeId, String>,
) -> Vec<BrokenLinkReport> {
    let report = |(a, b, link): (&NodeId, &NodeId, &Break)| {
        let neighbour = [(a, b), (b, a)].into_iter().find(|(one, _)| *one == own);
        let why = neighbour.and_then(|(_, neighbour)| reasons.get(neighbour).cloned());
        BrokenLinkReport { a: a.to_string(), b: b.to_string(), since: link.since, why }
    };
    mesh.each_broken_link().map(report).collect()
}

impl From<NodeOutage> for OutageReport {
    fn from(outage: NodeOutage) -> Self {
        let names = |nodes: Vec<NodeId>| nodes.iter().map(ToString::to_string).collect();
        let links = outage.links.iter().map(|ends| ends.each_ref().map(ToString::to_string)).collect();
        Self { lost: names(outage.lost), behind: names(outage.behind), links, since: outage.since }
    }
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
