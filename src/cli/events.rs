//! `meshctl events`: what changes in the mesh and on its controller, one event a line, until it is interrupted. Owns the
//! words for people.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::Context;
use super::exit::{Exit, Failure};
use super::output::Interrupts;
use super::snapshot::Watcher;
use crate::rpc::report::events::{EventLog, MeshEvent};

#[derive(Debug, Args)]
pub(super) struct Events {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.1..=3600.0).contains(number));
    number.ok_or_else(|| format!("{text:?} is no number of seconds from 0.1 to 3600"))
}

impl Events {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let mut watcher = Watcher::new(&context.client);
        let mut interrupts = Interrupts::new();
        let mut log = EventLog::new(watcher.look().await?, 0);
        context.output.note(&format!("Watching {}", context.client.address()));
        loop {
            tokio::select! {
                failure = interrupts.next() => return Err(failure),
                () = tokio::time::sleep(Duration::from_secs_f64(self.interval)) => {}
            }
            let events = match watcher.look().await {
                Ok(now) => log.add(now),
                Err(error) => {
                    if log.miss() {
                        context.output.note(&format!("meshctl: {error}; events go on when it answers"));
                    }
                    continue;
                }
            };
            for event in &events {
                match context.output.json {
                    true => context.output.value_line(&json!(event))?,
                    false => context.output.line(&line(event))?,
                }
            }
        }
    }
}

fn line(event: &MeshEvent) -> String {
    let MeshEvent { time, node, event: kind, peer, job, from, to, .. } = event;
    let job = job.map(|job| format!(" job {job}")).unwrap_or_default();
    let peer = peer.as_ref().map(|peer| format!(" - {peer}")).unwrap_or_default();
    let change = match (from, to) {
        (None, None) => String::new(),
        (None, Some(to)) => format!(": {to}"),
        (Some(from), None) => format!(": {from}, gone"),
        (Some(from), Some(to)) => format!(": {from} -> {to}"),
    };
    format!("{time:.0} {kind} {node}{peer}{job}{change}").replace("  ", " ")
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::rpc::report::events::Snapshot;
    use crate::rpc::report::read;

    fn snapshot(second: i64, routes: serde_json::Value, jobs: Option<&str>) -> Snapshot {
        let jobs =
            jobs.map(|state| vec![read(&json!({"id": 7, "state": state, "controller_node": "a"})).unwrap()]);
        let mesh = read(&json!({"NodeID": "a", "RoutingTable": routes})).unwrap();
        Snapshot { time: Timestamp::from_second(second).unwrap(), mesh, jobs, ..Snapshot::default() }
    }

    #[test]
    fn a_gap_is_told_before_what_has_changed_within_it_and_numbers_go_on() {
        let mut log = EventLog::new(snapshot(1, json!({"b": "b"}), None), 0);
        assert!(log.add(snapshot(2, json!({"b": "b"}), None)).is_empty());
        assert_eq!(log.add(snapshot(3, json!({}), None))[0].seq, 0);
        log.miss();
        log.miss();
        let events = log.add(snapshot(60, json!({"b": "b"}), None));
        let lines: Vec<String> = events.iter().map(line).collect();
        assert_eq!(
            lines,
            [
                "1970-01-01T00:01:00Z gap a: 1970-01-01T00:00:03Z -> 1970-01-01T00:01:00Z",
                "1970-01-01T00:01:00Z node.seen b"
            ]
        );
        assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2]);
        assert!(log.add(snapshot(61, json!({"b": "b"}), None)).is_empty());
    }

    #[test]
    fn what_a_store_that_was_away_has_missed_is_told_when_it_is_back() {
        let mut log = EventLog::new(snapshot(1, json!({}), Some("running")), 0);
        assert!(log.add(snapshot(2, json!({}), None)).is_empty());
        let events = log.add(snapshot(3, json!({}), Some("failed")));
        assert_eq!(line(&events[0]), "1970-01-01T00:00:03Z job.state a job 7: running -> failed");
    }
}
