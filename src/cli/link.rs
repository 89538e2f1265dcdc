//! `meshctl link`: what a link with a neighbour carries.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::completion::nodes;
use super::exit::{Exit, Failure};
use super::{CliContext, table};
use crate::rpc::CallError;
use crate::rpc::report::{self, link::LinkTestReport};
use crate::rpc::request::{LinkTest, MOST_MB, MOST_SECONDS, Request};

#[derive(Debug, Subcommand)]
pub(super) enum LinkVerb {
    /// Measure the round trip and rate of the link with a neighbour, with data that the neighbour discards
    Test(Test),
}

#[derive(Debug, Args)]
pub(super) struct Test {
    /// Neighbour of the node, as meshctl status names it
    #[arg(add = nodes())]
    neighbour: String,
    /// At most this many seconds each way
    #[arg(long, default_value_t = LinkTest::SECONDS, value_parser = clap::value_parser!(u64).range(1..=MOST_SECONDS))]
    seconds: u64,
    /// At most this many megabytes each way
    #[arg(long, default_value_t = LinkTest::MB, value_parser = clap::value_parser!(u64).range(1..=MOST_MB))]
    mb: u64,
}

impl LinkVerb {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let Self::Test(Test { neighbour: node, seconds, mb }) = self;
        let test = Request::LinkTest(LinkTest { node, seconds, mb });
        let answer = context.client.long_command(&test).await?;
        let report = report::read(&answer)
            .map_err(|error| CallError::Protocol { question: "link test", answer: error.to_string() })?;
        context.output.answer(&answer, || render(&report))
    }
}

fn render(report: &LinkTestReport) -> String {
    let time = |nanos: Option<u64>| match nanos {
        Some(nanos) => format!("{:.1?}", Duration::from_nanos(nanos)),
        None => "no answer".to_owned(),
    };
    let way = |way: &report::link::WayReport| {
        let (size, time) = (table::size(way.bytes), Duration::from_nanos(way.time));
        format!("{:.2} MB/s ({size} in {time:.1?})", way.rate as f64 / 1e6)
    };
    let (rtt, busy, longest) = (time(report.rtt), time(report.busy_rtt), time(report.busy_rtt_max));
    let rows = [
        ("Link", format!("{} over {} {}", report.node_id, report.transport, report.address)),
        ("Round trip", format!("{rtt}; beside the bytes {busy}, {longest} at most")),
        ("Lost probes", format!("{:.0} %", report.probe_loss * 100.0)),
        ("Out", way(&report.out)),
        ("Back", way(&report.back)),
    ];
    rows.map(|(what, value)| format!("{what:<12} {value}")).join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_is_shown_for_people_and_what_is_missing_too() {
        let report: LinkTestReport = report::read(&json!({
            "NodeID": "far", "Transport": "quic", "Address": "10.0.0.1:27199", "RTT": 100_200_000, "BusyRTT": 150_000_000,
            "BusyRTTMax": 180_000_000, "ProbeLoss": 0.25, "Out": {"Bytes": 10_485_760, "Time": 4_000_000_000_u64,
            "Rate": 2_621_440}, "Back": {}}))
        .unwrap();
        let text = render(&report);
        assert_eq!(
            text,
            "Link         far over quic 10.0.0.1:27199\n\
             Round trip   100.2ms; beside the bytes 150.0ms, 180.0ms at most\n\
             Lost probes  25 %\n\
             Out          2.62 MB/s (10.0 MiB in 4.0s)\n\
             Back         0.00 MB/s (0 B in 0.0ns)"
        );
        assert!(render(&LinkTestReport::default()).contains("no answer"));
    }
}
