//! Turns a status report into text for people. Pure: the time is an argument.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::{Timestamp, Zoned};

use crate::cli::table::{self, count};
use crate::cli::terminal::one_line;
use crate::cli::times;
use crate::rpc::report::node::NodeReport;
use crate::wire::{Advertisement, ConnType, Cost};

const INDENT: &str = "  ";

/// Most outages in a summary.
const OUTAGES: usize = 20;

/// The whole report, or its summary, in lines of this width; sections without rows are left out.
pub(crate) fn render(
    report: &NodeReport,
    socket: &str,
    width: usize,
    now: &Zoned,
    is_summary: bool,
) -> String {
    let page = Page { report, width, now };
    let most = if is_summary { OUTAGES } else { usize::MAX };
    let first = [Some(page.header(socket)), page.outages(most), page.certificates(), page.connections()];
    let rest = match is_summary {
        true => vec![Some("meshctl status --all shows each node, route, service and work type".to_owned())],
        false => {
            vec![page.known_nodes(), page.routes(), page.services(), page.work_types(), page.extra()]
        }
    };
    first.into_iter().chain(rest).flatten().collect::<Vec<_>>().join("\n\n")
}

struct Page<'a> {
    report: &'a NodeReport,
    width: usize,
    now: &'a Zoned,
}

impl Page<'_> {
    fn header(&self, socket: &str) -> String {
        let report = self.report;
        let memory = report.memory_mib.unwrap_or_default().saturating_mul(1 << 20);
        [
            format!("Node      {}", report.node_id.as_deref().unwrap_or_default()),
            format!("Socket    {socket}"),
            format!("Version   {}", report.version.as_deref().unwrap_or_default()),
            format!(
                "Machine   {}, {} memory",
                count(report.cpus.unwrap_or_default(), "CPU"),
                table::size(memory)
            ),
            self.reach(),
        ]
        .join("\n")
    }

    /// How much there is in the mesh.
    fn reach(&self) -> String {
        let report = self.report;
        let lost = report.outages.iter().flatten().map(|outage| outage.nodes().count()).sum::<usize>();
        let lost = if lost > 0 { format!(", {lost} out of reach") } else { String::new() };
        format!(
            "Mesh      {} reachable{lost}, {}, {}",
            count(report.routing_table.as_ref().map_or(0, BTreeMap::len), "node"),
            count(report.connections.as_ref().map_or(0, Vec::len), "neighbour"),
            count(self.all().count(), "service")
        )
    }

    fn certificates(&self) -> Option<String> {
        let rows = self.report.certificates_ending.iter().flatten().map(|one| {
            let left = one.not_after.duration_since(self.now.timestamp());
            let days =
                if left.is_negative() { "EXPIRED".to_owned() } else { (left.as_hours() / 24).to_string() };
            let why = one.not_renewed.clone().unwrap_or_default();
            [one.file.display().to_string(), times::zoned(one.not_after, self.now.time_zone()), days, why]
        });
        let headings = ["FILE", "ENDS", "DAYS LEFT", "NOT RENEWED BECAUSE"];
        self.section("Certificates to renew", headings, rows.collect())
    }

    /// What is out of reach, a line for each outage, the largest first.
    fn outages(&self, most: usize) -> Option<String> {
        let mut outages: Vec<_> = self.report.outages.iter().flatten().collect();
        outages.sort_by_key(|outage| Reverse(outage.nodes().count()));
        let more = outages.len().saturating_sub(most);
        let lines = outages
            .iter()
            .take(most)
            .map(|outage| one_line(&outage.told(|since| times::zoned(since, self.now.time_zone()))));
        let lines = lines.chain((more > 0).then(|| format!("and {more} more"))).collect::<Vec<_>>();
        (!lines.is_empty()).then(|| format!("Out of reach\n{}", indented(&lines.join("\n"))))
    }

    fn section<const N: usize>(
        &self,
        title: &str,
        headings: [&str; N],
        rows: Vec<[String; N]>,
    ) -> Option<String> {
        let rows = Some(rows).filter(|rows| !rows.is_empty())?;
        let table = table::wrapped(headings, rows, self.width - INDENT.len());
        Some(format!("{title}\n{}", indented(&table)))
    }

    fn connections(&self) -> Option<String> {
        let links = self.report.connections.iter().flatten();
        let rows = links.map(|link| [link.node_id.clone(), link.cost.get().to_string()]);
        self.section("Connections", ["NODE", "COST"], rows.collect())
    }

    fn known_nodes(&self) -> Option<String> {
        let links = |costs: &BTreeMap<String, Cost>| {
            costs.iter().map(|(node, cost)| format!("{node}: {}", cost.get())).collect::<Vec<_>>().join(", ")
        };
        let nodes = self.report.known_connection_costs.iter().flatten();
        let rows = nodes.map(|(node, costs)| [node.clone(), links(costs)]);
        self.section("Known nodes", ["NODE", "CONNECTED TO"], rows.collect())
    }

    fn routes(&self) -> Option<String> {
        let rows = self.report.routing_table.iter().flatten().map(|(node, via)| [node.clone(), via.clone()]);
        self.section("Routes", ["NODE", "VIA"], rows.collect())
    }

    fn services(&self) -> Option<String> {
        let mut services: Vec<&Advertisement> = self.all().collect();
        services.sort_by(|a, b| (&a.node_id, &a.service).cmp(&(&b.node_id, &b.service)));
        let rows = services.into_iter().map(|service| {
            [
                service.node_id.to_string(),
                service.service.to_string(),
                connection_type(service.conn_type),
                age(service.time, self.now.timestamp()),
                tags(service.tags.as_ref()),
            ]
        });
        self.section("Services", ["NODE", "SERVICE", "TYPE", "AGE", "TAGS"], rows.collect())
    }

    /// Every service that is offered.
    fn all(&self) -> impl Iterator<Item = &Advertisement> {
        self.report.advertisements.iter().flatten().map(|service| &**service)
    }

    fn work_types(&self) -> Option<String> {
        let mut nodes: BTreeMap<&str, [Vec<&str>; 2]> = BTreeMap::new();
        for service in self.all() {
            for work in service.work_commands.iter().flatten() {
                let names = &mut nodes.entry(service.node_id.as_str()).or_default()[usize::from(work.secure)];
                if !names.contains(&work.work_type.as_str()) {
                    names.push(&work.work_type);
                }
            }
        }
        let list = |names: Vec<&str>| if names.is_empty() { "-".to_owned() } else { names.join(", ") };
        let rows =
            nodes.into_iter().map(|(node, [open, signed])| [node.to_owned(), list(open), list(signed)]);
        self.section("Work types", ["NODE", "OPEN", "SIGNED ONLY"], rows.collect())
    }

    fn extra(&self) -> Option<String> {
        let rows = self.report.extra.iter().map(|(key, value)| [key.clone(), value.to_string()]);
        self.section("Also reported", ["KEY", "VALUE"], rows.collect())
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("{INDENT}{line}")).collect::<Vec<_>>().join("\n")
}

fn connection_type(conn_type: ConnType) -> String {
    match conn_type {
        ConnType::DATAGRAM => "Datagram".to_owned(),
        ConnType::STREAM => "Stream".to_owned(),
        ConnType::STREAM_TLS => "StreamTLS".to_owned(),
        ConnType(other) => format!("type {other}"),
    }
}

fn tags(tags: Option<&BTreeMap<String, String>>) -> String {
    let Some(tags) = tags.filter(|tags| !tags.is_empty()) else { return "-".to_owned() };
    tags.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ")
}

/// The age of an advertisement, by its sender's clock. A clock that is ahead is shown, because such an advertisement
/// outlives its service.
fn age(time: Timestamp, now: Timestamp) -> String {
    match times::since(time, now) {
        seconds @ 0.. => times::span(seconds.unsigned_abs()),
        seconds => format!("clock {} ahead", times::span(seconds.unsigned_abs())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::rpc::report;

    const NOW: &str = "2026-01-01T00:01:05+00:00[UTC]";

    fn rendered(answer: Value) -> String {
        render(&report::read(&answer).unwrap(), "unix:/s", 80, &NOW.parse().unwrap(), false)
    }

    #[test]
    fn a_whole_mesh_is_laid_out() {
        let text = rendered(json!({
            "NodeID": "control", "Version": "1.2", "SystemCPUCount": 2, "SystemMemoryMiB": 3900,
            "Connections": [{"NodeID": "hop", "Cost": 1}],
            "RoutingTable": {"hop": "hop", "execution": "hop"},
            "KnownConnectionCosts": {"control": {"hop": 1}, "hop": {"control": 1, "execution": 1.5}},
            "Advertisements": [
                {"NodeID": "execution", "Service": "control", "Time": "2026-01-01T00:00:00Z", "ConnType": 1,
                 "Tags": {"type": "Control Service"},
                 "WorkCommands": [{"WorkType": "sh", "Secure": false}, {"WorkType": "run", "Secure": true}]},
                {"NodeID": "control", "Service": "x", "Time": "2026-01-01T00:02:05.5+00:00", "ConnType": 0,
                 "Tags": null, "WorkCommands": null}],
            "Uptime": "5m"}));
        let expected = "\
Node      control
Socket    unix:/s
Version   1.2
Machine   2 CPUs, 3.8 GiB memory
Mesh      2 nodes reachable, 1 neighbour, 2 services

Connections
  NODE  COST
  hop   1

Known nodes
  NODE     CONNECTED TO
  control  hop: 1
  hop      control: 1, execution: 1.5

Routes
  NODE       VIA
  execution  hop
  hop        hop

Services
  NODE       SERVICE  TYPE      AGE                TAGS
  control    x        Datagram  clock 1m00s ahead  -
  execution  control  Stream    1m05s              type=Control Service

Work types
  NODE       OPEN  SIGNED ONLY
  execution  sh    run

Also reported
  KEY     VALUE
  Uptime  \"5m\"";
        assert_eq!(text, expected);
    }

    #[test]
    fn of_a_large_mesh_a_summary_tells_what_is_out_of_reach_and_the_own_links() {
        let outage = |node: &str, behind: usize| {
            let behind: Vec<String> = (0..behind).map(|number| format!("e{number}")).collect();
            json!({"lost": [node], "behind": behind, "links": [["a", node]], "since": "2026-01-01T00:00:00Z"})
        };
        let singles = (0..30).map(|number| outage(&format!("n{number:02}"), 0));
        let outages: Vec<Value> = singles.chain([outage("hop\u{1b}", 33)]).collect();
        let report = report::read(&json!({"NodeID": "a", "Connections": [{"NodeID": "hop2", "Cost": 1}],
            "RoutingTable": {"hop2": "hop2"}, "KnownConnectionCosts": {"a": {"hop2": 1}}, "Outages": outages}));
        let text = render(&report.unwrap(), "unix:/s", 80, &NOW.parse().unwrap(), true);
        let lines: Vec<&str> = text.lines().skip(4).collect();
        assert_eq!(lines[0], "Mesh      1 node reachable, 64 out of reach, 1 neighbour, 0 services");
        assert_eq!(
            lines[2..4],
            ["Out of reach", "  hop\u{fffd} is out of reach since 2026-01-01T00:00:00Z; 33 nodes behind it"]
        );
        assert_eq!(
            lines[22..26],
            ["  n18 is out of reach since 2026-01-01T00:00:00Z", "  and 11 more", "", "Connections"]
        );
        assert_eq!(lines[29..], ["meshctl status --all shows each node, route, service and work type"]);
        assert!(!text.contains("Routes") && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn certificates_that_end_are_told_first() {
        let text = rendered(json!({"NodeID": "a", "CertificatesEnding": [
            {"File": "/a.crt", "NotAfter": "2026-01-11T00:02:00Z"}, {"File": "/b.crt", "NotAfter": "2025-12-31T00:00:00Z"}]}));
        let rows: Vec<_> =
            text.lines().skip(6).map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(rows[2], ["/a.crt", "2026-01-11T00:02:00Z", "10"], "{text}");
        assert_eq!(rows[3], ["/b.crt", "2025-12-31T00:00:00Z", "EXPIRED"], "{text}");
    }

    #[test]
    fn a_lonely_node_that_says_null_has_no_empty_tables() {
        let text = rendered(json!({"NodeID": "a", "Version": "1", "Connections": null, "RoutingTable": {},
            "Advertisements": null, "KnownConnectionCosts": null}));
        assert_eq!(text.lines().count(), 5, "{text}");
    }
}
