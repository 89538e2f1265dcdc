//! `meshctl status --links`: every link to a neighbour, with what it carries. Receptor nodes do not report this.

use std::time::Duration;

use crate::cli::exit::{Exit, Failure};
use crate::cli::{Context, table};
use crate::rpc::report::node::{LinkReport, Section};
use crate::rpc::request::Request;

pub(super) async fn run(context: &Context) -> Result<Exit, Failure> {
    let fields = [Section::Links, Section::Counters].map(|section| section.to_string()).to_vec();
    let answer = context.client.command(&Request::Status { fields: Some(fields) }).await?;
    let Some(links) = super::read(&answer)?.links else {
        return Err(Failure::new(Exit::Failed, "this node does not tell of its links: it is no meshd"));
    };
    if context.output.json {
        context.output.value(&answer)?;
        return Ok(Exit::Success);
    }
    context.output.line(&render(&links))?;
    Ok(Exit::Success)
}

fn render(links: &[LinkReport]) -> String {
    let rows = links.iter().map(|link| {
        [
            link.node_id.clone(),
            format!("{} {}", link.transport, link.address),
            link.cost.map_or_else(|| "-".to_owned(), |cost| cost.get().to_string()),
            link.rtt.map_or_else(|| "-".to_owned(), |ns| format!("{:.2?}", Duration::from_nanos(ns))),
            format!("{:.0} %", link.probe_loss * 100.0),
            table::size(link.queued_bytes),
            link.in_flight.map_or_else(|| "-".to_owned(), table::size),
            link.dropped.to_string(),
            format!("{} ({})", table::size(link.bytes_in), link.packets_in),
            format!("{} ({})", table::size(link.bytes_out), link.packets_out),
            (link.told.updates + link.told.advertisements).to_string(),
            (link.told.refused + link.told.malformed).to_string(),
        ]
    });
    table::render(
        [
            "NODE",
            "LINK",
            "COST",
            "RTT",
            "LOSS",
            "QUEUED",
            "IN FLIGHT",
            "DROPPED",
            "IN (PACKETS)",
            "OUT (PACKETS)",
            "TOLD",
            "BAD",
        ],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rpc::report;

    #[test]
    fn links_are_laid_out_and_what_is_missing_is_shown_as_nothing() {
        let links: Vec<LinkReport> = report::read(&json!([
            {"NodeID": "hop", "Transport": "tcp", "Address": "10.0.0.1:27199", "Cost": 1.5, "RTT": 1_234_000,
             "ProbeLoss": 0.25, "QueuedBytes": 2048, "InFlight": 4096, "Dropped": 7, "PacketsIn": 10, "BytesIn": 999,
             "PacketsOut": 11, "BytesOut": 1_048_576,
             "Told": {"Updates": 5, "Advertisements": 2, "Malformed": 3, "Refused": 1}},
            {"NodeID": "old", "RTT": null}]))
        .unwrap();
        let text = render(&links);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect())
            .collect();
        let hop = [
            "hop",
            "tcp 10.0.0.1:27199",
            "1.5",
            "1.23ms",
            "25 %",
            "2.0 KiB",
            "4.0 KiB",
            "7",
            "999 B (10)",
            "1.0 MiB (11)",
            "7",
            "4",
        ];
        assert_eq!(rows[1], hop);
        assert_eq!(rows[2][3], "0 %", "{text}");
    }
}
