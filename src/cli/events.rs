//! `meshctl events`: what changes in the mesh and on its controller, one event a line, until interrupted. Owns the
//! words for people.

use std::time::Duration;

use clap::Args;
use jiff::tz::TimeZone;
use serde_json::json;

use super::CliContext;
use super::exit::{Exit, Failure};
use super::output::Interrupts;
use super::snapshot::SnapshotWatcher;
use super::terminal::one_line;
use super::times::zoned;
use crate::rpc::report::events::{EventKind, EventLog, MeshEvent};

#[derive(Debug, Args)]
pub(super) struct Events {
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.1..=3600.0).contains(number));
    number.ok_or_else(|| format!("{text:?} is not a number of seconds from 0.1 to 3600"))
}

impl Events {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let mut watcher = SnapshotWatcher::new(&context.client);
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
                        context.output.note(&format!("meshctl: {error}; events go on once the node answers"));
                    }
                    continue;
                }
            };
            for event in &events {
                match context.output.json {
                    true => context.output.value_line(&json!(event))?,
                    false => context.output.line(&line(event, context.output.now().time_zone()))?,
                }
            }
        }
    }
}

fn line(event: &MeshEvent, zone: &TimeZone) -> String {
    let MeshEvent { node, event: kind, peer, job, from, to, .. } = event;
    let time = zoned(event.time, zone);
    if let Some(outage) = &event.outage {
        let what = if *kind == EventKind::NodeLost { outage.what() } else { outage.names() };
        return one_line(&format!("{time} {kind} {what}"));
    }
    let job = job.map(|job| format!(" job {job}")).unwrap_or_default();
    let why = event.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    let peer = peer.as_ref().map(|peer| format!(" - {peer}")).unwrap_or_default();
    let change = match (from, to) {
        (None, None) => String::new(),
        (None, Some(to)) => format!(": {to}"),
        (Some(from), None) => format!(": {from}, gone"),
        (Some(from), Some(to)) => format!(": {from} -> {to}"),
    };
    one_line(&format!("{time} {kind} {node}{peer}{job}{change}{why}").replace("  ", " "))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::rpc::report::events::Snapshot;
    use crate::rpc::report::read;

    fn snapshot(second: i64, routes: serde_json::Value, jobs: Option<&str>) -> Snapshot {
        let job = |state| json!({"id": 7, "state": state, "controller_node": "a", "explanation": format!("it is {state}")});
        let jobs = jobs.map(|state| vec![read(&job(state)).unwrap()]);
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
        let lines: Vec<String> = events.iter().map(|event| line(event, &TimeZone::UTC)).collect();
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
    fn nodes_that_are_lost_together_are_one_line() {
        let all = json!({"hop": "hop", "e1": "hop", "e2": "hop"});
        let mut lost = snapshot(2, json!({}), None);
        lost.mesh.outages = Some(vec![read(&json!({"lost": ["hop"], "behind": ["e1", "e2"]})).unwrap()]);
        let mut log = EventLog::new(snapshot(1, all.clone(), None), 0);
        let lines: Vec<String> = [lost, snapshot(3, all, None)]
            .into_iter()
            .flat_map(|now| log.add(now))
            .map(|event| line(&event, &TimeZone::UTC))
            .collect();
        let expected = [
            "1970-01-01T00:00:02Z node.lost hop is out of reach; 2 nodes behind it",
            "1970-01-01T00:00:03Z node.seen hop and 2 nodes behind it",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn what_a_store_that_was_away_has_missed_is_told_when_it_is_back() {
        let mut log = EventLog::new(snapshot(1, json!({}), Some("running")), 0);
        assert!(log.add(snapshot(2, json!({}), None)).is_empty());
        let events = log.add(snapshot(3, json!({}), Some("failed")));
        assert_eq!(
            line(&events[0], &TimeZone::UTC),
            "1970-01-01T00:00:03Z job.state a job 7: running -> failed: it is failed"
        );
    }
}
