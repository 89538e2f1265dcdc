//! The metrics of a node: which families there are, and how reports become their series. docs/monitoring.md says what
//! each means. Owns the labels: the number of neighbours is bounded here, other names come from the configuration or
//! the store.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::exposition::{Exposition, Family};
use super::process;
use crate::control::{Context, SinkCounters};
use crate::counters::{ControllerCounters, Counters, Tables};
use crate::node::Queues;
use crate::rpc::report::controller::ControllerReport;
use crate::rpc::report::node::{LinkReport, NodeReport, PeerReport, Section};
use crate::rpc::report::outage::OutageReport;
use crate::work::WorkFigures;

/// The most neighbours with series of their own; the values of the others are summed.
const PEERS: usize = 256;
/// The most outages with series of their own, the largest first.
const OUTAGES: usize = 20;
/// The label of the sum.
const OTHER: &str = "other";

/// What one scrape tells.
#[derive(Default)]
struct Scrape {
    report: NodeReport,
    queues: Queues,
    sink: Arc<SinkCounters>,
    certificates: Vec<(&'static str, String, Timestamp)>,
    work: WorkFigures,
    controller: Option<(ControllerReport, Option<ControllerCounters>)>,
    since: Timestamp,
}

/// Gathers what one scrape tells; the function prints it.
pub(super) async fn page(context: &Context) -> impl Fn() -> Vec<u8> + Send + Sync + use<> {
    let sections = [
        Section::Version,
        Section::Counters,
        Section::Tables,
        Section::Links,
        Section::Peers,
        Section::Outages,
        Section::Reload,
    ];
    let observer = &context.observer;
    let told = Scrape {
        report: observer.look(&sections).await.report(),
        queues: context.node.queues(),
        sink: observer.sink.clone(),
        certificates: context.tls.ends(),
        work: observer.work.figures().await,
        controller: observer.controller().await,
        since: observer.life.since(),
    };
    move || text(&told).into_bytes()
}

/// Families that others can make large come last, because series beyond the bound are left out.
fn text(told: &Scrape) -> String {
    let mut page = Exposition::new();
    build(&mut page, &told.report);
    process::write(&mut page, told.since);
    queues(&mut page, told.queues);
    sink(&mut page, &told.sink);
    outages(&mut page, told.report.outages.as_deref().unwrap_or_default());
    mesh(&mut page, told.report.counters.unwrap_or_default(), told.report.tables.unwrap_or_default());
    trust(&mut page, told);
    if let Some((report, figures)) = &told.controller {
        figures.iter().for_each(|figures| controller(&mut page, figures));
        instances(&mut page, report);
    }
    links(&mut page, &told.report);
    work(&mut page, &told.work);
    page.finish()
}

fn queues(page: &mut Exposition, queues: Queues) {
    let Queues { core, service_bytes, service_dropped } = queues;
    page.gauge("meshd_node_waiting_messages", "Messages waiting for the protocol's task.").put(&[], core);
    page.gauge("meshd_node_service_queued_bytes", "Bytes that wait for services of this node.")
        .put(&[], service_bytes);
    page.counter(
        "meshd_node_service_dropped_total",
        "Datagrams that a service of this node had no room for.",
    )
    .put(&[], service_dropped);
}

fn sink(page: &mut Exposition, sink: &SinkCounters) {
    let SinkCounters { sent, lost, waiting, .. } = sink;
    page.counter("meshd_sink_sent_total", "Lines sent to the receiver of events.")
        .put(&[], sent.load(Relaxed));
    page.counter("meshd_sink_lost_total", "Lines for which the buffer of events had no room.")
        .put(&[], lost.load(Relaxed));
    page.gauge("meshd_sink_waiting_bytes", "Bytes of events that wait on disk.")
        .put(&[], waiting.load(Relaxed));
}

fn build(page: &mut Exposition, report: &NodeReport) {
    let version = report.version.as_deref().unwrap_or_default();
    page.gauge("meshd_build_info", "The version that runs; the value is 1.").put(&[("version", version)], 1);
}

/// The links by neighbours. A configured peer without a session is down; its address is its label until a node has
/// answered there.
fn links(page: &mut Exposition, report: &NodeReport) {
    let links = report.links.as_deref().unwrap_or_default();
    let down = down(report.peers.as_deref().unwrap_or_default(), links);
    let count = "Links: sessions with neighbours, and configured peers without one.";
    let mut family = page.gauge("meshd_links", count);
    family.put(&[("state", "up")], links.len()).put(&[("state", "down")], down.len());

    let (own, rest) = links.split_at(links.len().min(PEERS));
    let (own_down, rest_down) = down.split_at(down.len().min(PEERS));
    let mut family = page.gauge("meshd_link_up", "Whether there is a session with a neighbour.");
    family.put_each("peer", own_down.iter().map(|peer| (peer, 0)));
    family.put_each("peer", own.iter().map(|link| (&link.node_id, 1)));
    if !rest.is_empty() || !rest_down.is_empty() {
        family.put(&[("peer", OTHER)], rest.len());
    }

    let rtts = own.iter().filter_map(|link| Some((&link.node_id, link.rtt? as f64 / 1e9)));
    page.gauge("meshd_link_rtt_seconds", "Round trip to a neighbour.").put_each("peer", rtts);
    page.gauge("meshd_link_loss_ratio", "Share of a link's latest probes that were not answered.")
        .put_each("peer", own.iter().map(|link| (&link.node_id, link.probe_loss)));
    let mut family = page.gauge("meshd_link_queued_bytes", "Bytes that wait to be sent on a link.");
    each(&mut family, own, rest, |link| link.queued_bytes);
    for (name, help, value) in COUNTED {
        let mut family = page.counter(name, help);
        each(&mut family, own, rest, value);
    }
}

type MetricCount = fn(&LinkReport) -> u64;

/// The counters of each session; a new session of the same neighbour begins at 0.
const COUNTED: [(&str, &str, MetricCount); 7] = [
    ("meshd_link_received_bytes_total", "Bytes received on a link.", |link| link.bytes_in),
    ("meshd_link_sent_bytes_total", "Bytes sent on a link.", |link| link.bytes_out),
    ("meshd_link_received_messages_total", "Messages received on a link.", |link| link.packets_in),
    ("meshd_link_sent_messages_total", "Messages sent on a link.", |link| link.packets_out),
    ("meshd_link_dropped_total", "Datagrams that a link's queue had no room for.", |link| link.dropped),
    ("meshd_link_updates_total", "Routing updates and advertisements that a neighbour has sent.", |link| {
        link.told.updates + link.told.advertisements
    }),
    ("meshd_link_bad_messages_total", "Messages of a neighbour that were refused or malformed.", |link| {
        link.told.refused + link.told.malformed
    }),
];

/// A value of each link, and the sum for the links without series of their own.
fn each(
    family: &mut Family<'_>,
    own: &[LinkReport],
    rest: &[LinkReport],
    value: impl Fn(&LinkReport) -> u64,
) {
    family.put_each("peer", own.iter().map(|link| (&link.node_id, value(link))));
    if !rest.is_empty() {
        family.put(&[("peer", OTHER)], rest.iter().map(value).sum::<u64>());
    }
}

/// The labels of configured peers without a session, each once.
fn down<'a>(peers: &'a [PeerReport], links: &[LinkReport]) -> Vec<&'a str> {
    let here: BTreeSet<&str> = links.iter().map(|link| link.node_id.as_str()).collect();
    let name = |peer: &'a PeerReport| peer.node_id.as_deref().unwrap_or(&peer.address);
    let down: BTreeSet<&str> = peers.iter().map(name).filter(|name| !here.contains(name)).collect();
    down.into_iter().collect()
}

/// The nodes out of reach, by the lost node that is the cause.
fn outages(page: &mut Exposition, outages: &[OutageReport]) {
    let mut largest: Vec<_> = outages.iter().map(|outage| (outage.nodes().count(), outage)).collect();
    largest.sort_by_key(|(count, _)| Reverse(*count));
    let named = largest.iter().take(OUTAGES);
    let help = "Nodes out of reach, the lost one included, by the lost node that is the cause.";
    let mut family = page.gauge("meshd_mesh_out_of_reach", help);
    family.put_each(
        "lost",
        named.map(|(count, outage)| (outage.lost.first().map_or("", String::as_str), count)),
    );
    let rest: usize = largest.iter().skip(OUTAGES).map(|(count, _)| count).sum();
    if rest > 0 {
        family.put(&[("lost", OTHER)], rest);
    }
}

/// What the core counts. The kinds are the names of the report in snake case.
fn mesh(page: &mut Exposition, counters: Counters, tables: Tables) {
    page.gauge("meshd_mesh_routes", "Nodes to which there is a route.").put(&[], tables.routes);
    page.counter("meshd_mesh_events_total", "Events in the mesh, by kind.").put_each("kind", kinds(counters));
    page.gauge("meshd_mesh_table_size", "What this node remembers of the mesh, by kind.")
        .put_each("kind", kinds(tables));
}

/// The numbers of a report, with their names in snake case.
fn kinds(report: impl Serialize) -> Vec<(String, u64)> {
    let Ok(Value::Object(numbers)) = serde_json::to_value(report) else { return Vec::new() };
    let snake = |key: &str| {
        let words = key.char_indices().flat_map(|(at, letter)| {
            let gap = letter.is_ascii_uppercase() && at > 0;
            gap.then_some('_').into_iter().chain([letter.to_ascii_lowercase()])
        });
        words.collect::<String>()
    };
    numbers.iter().filter_map(|(key, number)| Some((snake(key), number.as_u64()?))).collect()
}

fn trust(page: &mut Exposition, told: &Scrape) {
    let success = told.report.last_reload.is_none_or(|reload| reload.success);
    page.gauge("meshd_config_last_reload_successful", "Whether the configuration in the files is in force.")
        .put(&[], u8::from(success));
    let help = "When a certificate of this node expires, in seconds since 1970.";
    let mut family = page.gauge("meshd_certificate_not_after_seconds", help);
    for (directive, profile, end) in &told.certificates {
        family.put(&[("kind", directive), ("profile", profile)], end.as_second());
    }
}

fn work(page: &mut Exposition, figures: &WorkFigures) {
    let mut family = page.gauge("meshd_work_units", "Units of work that this node has.");
    for ((kind, state), count) in &figures.units {
        family.put(&[("type", kind), ("state", state.name())], count);
    }
    let help = "From the creation of a unit to the start of its command.";
    let mut family = page.histogram("meshd_work_start_seconds", help);
    for (kind, lengths) in &figures.start {
        family.put_lengths(&[("type", kind)], lengths);
    }
    let mut family =
        page.histogram("meshd_work_run_seconds", "From the start of a unit's command to its end.");
    for ((kind, state), lengths) in &figures.run {
        family.put_lengths(&[("type", kind), ("state", state.name())], lengths);
    }
    if let Some((free, reserve)) = figures.disk {
        page.gauge("meshd_work_disk_free_bytes", "Free bytes of the disk under the data directory.")
            .put(&[], free);
        page.gauge("meshd_work_disk_reserve_bytes", "Bytes of that disk that have to stay free.")
            .put(&[], reserve);
    }
    let (pieces, bytes) = figures.pieces;
    page.gauge("meshd_work_cache_pieces", "Pieces of payloads that are kept for the next ones.")
        .put(&[], pieces as u64);
    page.gauge("meshd_work_cache_bytes", "Bytes of the disk that they take.").put(&[], bytes);
    let (sent, saved) = figures.carried;
    page.counter("meshd_work_payload_bytes_total", "Bytes of payloads to nodes that keep pieces of them.")
        .put(&[("how", "sent")], sent)
        .put(&[("how", "saved")], saved);
    let mut family =
        page.counter("meshd_kubernetes_requests_total", "Requests to Kubernetes, by what was answered.");
    for (verb, code, count) in &figures.kubernetes {
        family.put(&[("verb", verb), ("code", code)], count);
    }
    page.gauge("meshd_controller_output_bytes", "Bytes of output that this node has of jobs.")
        .put(&[], figures.job_output);
}

fn controller(page: &mut Exposition, figures: &ControllerCounters) {
    let mut family = page.gauge("meshd_controller_jobs", "Jobs that have not ended, of all control nodes.");
    for (state, kind, count) in &figures.jobs {
        family.put(&[("state", state), ("kind", kind)], count);
    }
    let help = "Jobs that have ended, as their units on this node have shown.";
    let mut family = page.counter("meshd_controller_jobs_finished_total", help);
    for (kind, state, count) in &figures.finished {
        family.put(&[("kind", kind), ("state", state)], count);
    }
    page.gauge(
        "meshd_controller_pending_oldest_seconds",
        "How long the oldest job that is not placed has waited.",
    )
    .put(&[], figures.oldest_pending);
    page.histogram(
        "meshd_controller_start_delay_seconds",
        "From the submission of a job to its start, for jobs that have ended.",
    )
    .put_lengths(&[], &figures.start_delay);
    page.histogram("meshd_controller_pass_seconds", "How long passes take.").put_lengths(&[], &figures.pass);
    page.histogram("meshd_controller_store_seconds", "How long transactions of the store take.")
        .put_lengths(&[("op", "read")], &figures.reads)
        .put_lengths(&[("op", "write")], &figures.writes);
    for (name, help, value) in [
        (
            "meshd_controller_takeovers_total",
            "Lost control nodes whose jobs this one has distributed.",
            figures.takeovers,
        ),
        (
            "meshd_controller_fenced_writes_total",
            "Writes of this node that the store refused because another node owns what they change.",
            figures.fenced,
        ),
        ("meshd_controller_events_total", "Events of jobs that have ended.", figures.events),
    ] {
        page.counter(name, help).put(&[], value);
    }
    page.gauge("meshd_controller_orphans", "Units that seem to belong to no job.").put(&[], figures.orphans);
    page.gauge("meshd_controller_payload_bytes", "Bytes of payload that this node keeps of jobs.")
        .put(&[], figures.payload_bytes);
    page.gauge("meshd_controller_saved_jobs", "Saved jobs of this node, broken ones among them.")
        .put(&[], figures.saved);
    page.gauge("meshd_controller_saved_jobs_broken", "Files of saved jobs with which something is wrong.")
        .put(&[], figures.saved_broken);
    let mut family =
        page.counter("meshd_controller_notices_total", "Notices by target, and what came of them.");
    for (target, notices) in &figures.notices {
        for (result, count) in
            [("delivered", notices.delivered), ("failed", notices.failed), ("dropped", notices.dropped)]
        {
            family.put(&[("target", target), ("result", result)], count);
        }
    }
    let help = "Ended jobs that a target has not been told of, when this node tried it last.";
    let mut family = page.gauge("meshd_controller_notices_behind", help);
    for (target, notices) in &figures.notices {
        family.put(&[("target", target)], notices.behind);
    }
}

/// What all control nodes share. While the store is away, only `meshd_controller_store_up` has a value.
fn instances(page: &mut Exposition, report: &ControllerReport) {
    let up = u8::from(report.store.up);
    page.gauge("meshd_controller_store_up", "Whether the controller reaches its store.").put(&[], up);
    let mut instances: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for node in &report.nodes {
        *instances.entry((&node.node_type, &node.node_state)).or_default() += 1;
    }
    let mut family = page.gauge("meshd_controller_instances", "Instances, by their types and states.");
    for ((kind, state), count) in instances {
        family.put(&[("type", kind), ("state", state)], count);
    }
    let (groups, nodes) = (&report.groups, &report.nodes);
    page.gauge("meshd_controller_capacity", "Capacity of a group.")
        .put_each("group", groups.iter().map(|group| (&group.name, group.capacity)));
    page.gauge("meshd_controller_consumed", "Capacity of a group that is in use.")
        .put_each("group", groups.iter().map(|group| (&group.name, group.consumed)));
    page.gauge("meshd_controller_instance_capacity", "Capacity of an instance.")
        .put_each("instance", nodes.iter().map(|node| (&node.node, node.capacity)));
    page.gauge("meshd_controller_instance_consumed", "Capacity of an instance that is in use.")
        .put_each("instance", nodes.iter().map(|node| (&node.node, node.consumed)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Lengths;
    use crate::rpc::UnitState;
    use crate::rpc::report::controller::{GroupSummary, NodeSummary};

    fn link(node: impl ToString) -> LinkReport {
        LinkReport { node_id: node.to_string(), bytes_in: 10, rtt: Some(1_500_000), ..LinkReport::default() }
    }

    fn shown(found: Vec<LinkReport>, peers: Vec<PeerReport>) -> String {
        let report = NodeReport { links: Some(found), peers: Some(peers), ..NodeReport::default() };
        let mut page = Exposition::new();
        links(&mut page, &report);
        page.finish()
    }

    #[test]
    fn a_configured_peer_that_is_down_is_shown_by_the_node_that_answered_last_or_by_its_address() {
        let peer = |address: &str, node: Option<&str>, up| PeerReport {
            address: address.to_owned(),
            node_id: node.map(str::to_owned),
            up,
        };
        let peers = vec![
            peer("tcp a:1", Some("a"), true),
            peer("tcp b:1", Some("b"), false),
            peer("tcp c:1", None, false),
        ];
        let text = shown(vec![link("a"), link("guest")], peers);
        for (label, value) in [("a", 1), ("b", 0), ("tcp c:1", 0), ("guest", 1)] {
            assert!(
                text.contains(&format!("meshd_link_up{{peer=\"{label}\"}} {value}\n")),
                "{label}: {text}"
            );
        }
        assert!(text.contains("meshd_links{state=\"up\"} 2\nmeshd_links{state=\"down\"} 2\n"), "{text}");
        assert!(text.contains("meshd_link_rtt_seconds{peer=\"a\"} 0.0015\n"), "{text}");
        assert!(!text.contains("rtt_seconds{peer=\"b\"}"), "{text}");
    }

    #[test]
    fn a_lost_hop_is_one_series_with_all_behind_it() {
        let outage = |number: usize| OutageReport {
            lost: vec![format!("hop{number}")],
            behind: (0..number).map(|n| n.to_string()).collect(),
            ..OutageReport::default()
        };
        let mut page = Exposition::new();
        outages(&mut page, &(0..23).map(outage).collect::<Vec<_>>());
        let text = page.finish();
        let series: Vec<&str> =
            text.lines().filter(|line| line.starts_with("meshd_mesh_out_of_reach{")).collect();
        assert_eq!(series.len(), OUTAGES + 1);
        assert_eq!(series[0], "meshd_mesh_out_of_reach{lost=\"hop22\"} 23");
        assert_eq!(series[OUTAGES], "meshd_mesh_out_of_reach{lost=\"other\"} 6");
    }

    #[test]
    fn neighbours_beyond_the_bound_are_summed() {
        let text = shown((0..10_000).map(link).collect(), Vec::new());
        assert!(text.contains("meshd_link_received_bytes_total{peer=\"other\"} 97440\n"));
        assert!(text.contains("meshd_link_up{peer=\"other\"} 9744\n"));
        let by_name = text.lines().filter(|line| line.starts_with("meshd_link_up{")).count();
        assert_eq!(by_name, PEERS + 1);
    }

    #[test]
    fn whatever_others_do_a_scrape_is_bounded() {
        let hostile = |n: usize| format!("\"\n\\{{{n}}}{}", "ü".repeat(300));
        let many = 30_000;
        let group = |n| GroupSummary { name: hostile(n), ..GroupSummary::default() };
        let node = |n| NodeSummary { node: hostile(n), node_type: hostile(n), ..NodeSummary::default() };
        let controller = ControllerReport {
            groups: (0..many).map(group).collect(),
            nodes: (0..many).map(node).collect(),
            ..ControllerReport::default()
        };
        let jobs = (0..many).map(|n| (hostile(n), hostile(n), 1)).collect();
        let mut work = WorkFigures::default();
        for n in 0..many {
            work.units.insert((hostile(n), UnitState::Failed), 1);
            work.run.insert((hostile(n), UnitState::Failed), Lengths::default());
            work.kubernetes.push(("get", hostile(n), 1));
        }
        let peers = (0..many).map(|n| PeerReport { address: hostile(n), ..PeerReport::default() });
        let told = Scrape {
            report: NodeReport {
                links: Some((0..many).map(|n| link(hostile(n))).collect()),
                peers: Some(peers.collect()),
                ..NodeReport::default()
            },
            certificates: (0..many).map(|n| ("tls-server", hostile(n), Timestamp::UNIX_EPOCH)).collect(),
            work,
            controller: Some((
                controller,
                Some(ControllerCounters { jobs, ..ControllerCounters::default() }),
            )),
            ..Scrape::default()
        };
        let text = super::text(&told);
        let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(series.len(), 20_000);
        assert!(text.len() < 20_000 * 1500, "{} bytes", text.len());
        assert!(series.contains(&"meshd_config_last_reload_successful 1"));
        let left_out = series.last().unwrap().strip_prefix("meshd_series_left_out ").unwrap();
        assert!(left_out.parse::<u64>().unwrap() > 100_000, "{left_out}");
    }
}
