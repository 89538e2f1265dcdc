//! `meshctl status --links`: every link to a neighbour, with what it carries, and what is broken in the mesh. Receptor
//! nodes do not report this.

use std::time::Duration;

use crate::cli::CliContext;
use crate::cli::exit::{Exit, Failure};
use crate::cli::table::{Column, Layout, above_zero, always, given, said, size, telling, wide};
use crate::cli::terminal::one_line;
use crate::cli::times::zoned;
use crate::rpc::report::node::{LinkReport, Section};
use crate::rpc::report::outage::{BrokenLinkReport, OutageReport};
use crate::rpc::request::Request;

const COLUMNS: &[Column<LinkReport>] = &[
    always("NODE", |link, _| link.node_id.clone()),
    always("LINK", |link, _| format!("{} {}", link.transport, link.address)),
    always("RTT", |link, _| {
        link.rtt.map_or_else(String::new, |ns| format!("{:.2?}", Duration::from_nanos(ns)))
    }),
    always("IN", |link, _| size(link.bytes_in)),
    always("OUT", |link, _| size(link.bytes_out)),
    telling("LOSS", |link, _| format!("{:.0} %", link.probe_loss * 100.0)),
    telling("COST", |link, _| link.cost.map_or_else(String::new, |cost| cost.get().to_string())),
    telling("QUEUED", |link, _| size(link.queued_bytes)),
    telling("DROPPED", |link, _| above_zero(link.dropped)),
    wide("IN FLIGHT", |link, _| link.in_flight.map_or_else(String::new, size)),
    wide("PACKETS IN", |link, _| link.packets_in.to_string()),
    wide("PACKETS OUT", |link, _| link.packets_out.to_string()),
    wide("TOLD", |link, _| (link.told.updates + link.told.advertisements).to_string()),
    wide("BAD", |link, _| (link.told.refused + link.told.malformed).to_string()),
];

const BROKEN: &[Column<BrokenLinkReport>] = &[
    always("BROKEN LINK", |link, _| format!("{} - {}", link.a, link.b)),
    always("SINCE", |link, now| zoned(link.since, now.time_zone())),
    said("WHY", |link, _| given(&link.why)),
];

pub(super) async fn run(context: &CliContext, layout: Layout) -> Result<Exit, Failure> {
    let sections = [Section::Links, Section::Counters, Section::Outages, Section::BrokenLinks];
    let fields = sections.map(|section| section.to_string()).to_vec();
    let answer = context.client.command(&Request::Status { fields: Some(fields) }).await?;
    let mesh = super::read(&answer)?;
    let Some(links) = mesh.links else {
        return Err(Failure::new(
            Exit::Failed,
            "this node does not report its links: it is not a meshd node",
        ));
    };
    if context.output.json {
        context.output.value(&answer)?;
    } else {
        context.output.list("links", &links, COLUMNS, layout)?;
        if !context.output.quiet {
            let broken = mesh.broken_links.unwrap_or_default();
            if !broken.is_empty() {
                context.output.line("")?;
                context.output.list("broken links", &broken, BROKEN, layout)?;
            }
            let outages = mesh.outages.unwrap_or_default();
            let now = context.output.now();
            let told = |outage: &OutageReport| one_line(&outage.told(|since| zoned(since, now.time_zone())));
            let lines: Vec<String> = outages.iter().map(told).collect();
            if !lines.is_empty() {
                context.output.line(&format!("\n{}", lines.join("\n")))?;
            }
        }
    }
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::table;
    use crate::rpc::report;
    use jiff::Zoned;

    #[test]
    fn links_are_laid_out_and_what_is_missing_is_shown_as_nothing() {
        let links: Vec<LinkReport> = report::read(&json!([
            {"NodeID": "hop", "Transport": "tcp", "Address": "10.0.0.1:27199", "Cost": 1.5, "RTT": 1_234_000,
             "ProbeLoss": 0.25, "QueuedBytes": 2048, "InFlight": 4096, "Dropped": 7, "PacketsIn": 10, "BytesIn": 999,
             "PacketsOut": 11, "BytesOut": 1_048_576,
             "Told": {"Updates": 5, "Advertisements": 2, "Malformed": 3, "Refused": 1}},
            {"NodeID": "old", "RTT": null}]))
        .unwrap();
        let text = table::list(&links, COLUMNS, Layout::default(), 100, &Zoned::now());
        let expected = "\
NODE  LINK                RTT     IN     OUT      LOSS  COST  QUEUED   DROPPED
hop   tcp 10.0.0.1:27199  1.23ms  999 B  1.0 MiB  25 %  1.5   2.0 KiB  7
old                               0 B    0 B      0 %         0 B";
        assert_eq!(text, expected);
    }
}
