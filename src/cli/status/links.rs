//! `meshctl status --links`: every link to a neighbour, with what it carries. Receptor nodes do not report this.

use std::time::Duration;

use serde::Deserialize;

use crate::cli::exit::{Exit, Failure};
use crate::cli::{Context, table};
use crate::rpc::CallError;
use crate::rpc::request::Request;

/// A link as a node reports it; missing fields count as nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct LinkRow {
    #[serde(rename = "NodeID")]
    node_id: String,
    transport: String,
    address: String,
    cost: f64,
    #[serde(rename = "RTT")]
    rtt: Option<u64>,
    probe_loss: f64,
    queued_bytes: u64,
    in_flight: Option<u64>,
    dropped: u64,
    packets_in: u64,
    bytes_in: u64,
    packets_out: u64,
    bytes_out: u64,
    #[serde(rename = "Told")]
    stats: NeighborStats,
}

/// What the neighbour has sent about the mesh.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct NeighborStats {
    updates: u64,
    advertisements: u64,
    refused: u64,
    malformed: u64,
}

pub(super) async fn run(context: &Context) -> Result<Exit, Failure> {
    let fields = ["Links", "Counters"].map(str::to_owned).to_vec();
    let answer = context.client.command(&Request::Status { fields: Some(fields) }).await?;
    let Some(links) = answer.get("Links") else {
        return Err(Failure::new(Exit::Failed, "this node does not tell of its links: it is no meshd"));
    };
    if context.output.json {
        context.output.value(&answer)?;
        return Ok(Exit::Success);
    }
    let links = Vec::<LinkRow>::deserialize(links)
        .map_err(|error| CallError::Protocol { question: "status", answer: error.to_string() })?;
    context.output.line(&render(&links))?;
    Ok(Exit::Success)
}

fn render(links: &[LinkRow]) -> String {
    let rows = links.iter().map(|link| {
        [
            link.node_id.clone(),
            format!("{} {}", link.transport, link.address),
            link.cost.to_string(),
            link.rtt.map_or_else(|| "-".to_owned(), |ns| format!("{:.2?}", Duration::from_nanos(ns))),
            format!("{:.0} %", link.probe_loss * 100.0),
            table::size(link.queued_bytes),
            link.in_flight.map_or_else(|| "-".to_owned(), table::size),
            link.dropped.to_string(),
            format!("{} ({})", table::size(link.bytes_in), link.packets_in),
            format!("{} ({})", table::size(link.bytes_out), link.packets_out),
            (link.stats.updates + link.stats.advertisements).to_string(),
            (link.stats.refused + link.stats.malformed).to_string(),
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

    #[test]
    fn links_are_laid_out_and_what_is_missing_is_shown_as_nothing() {
        let links: Vec<LinkRow> = serde_json::from_value(json!([
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
