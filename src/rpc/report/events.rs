//! What has changed between two reports of one node, as events. Pure: it asks nobody, and numbers what it finds. Events are
//! nowhere kept for those who do not watch: who watches compares what is with what was.

#![expect(missing_docs, reason = "the keys are specified in docs/troubleshooting.md")]

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::controller::{ControllerReport, InstanceReport, JobReport};
use super::names::names;
use super::node::{NodeReport, Section};

names! {
    /// What has happened.
    enum EventKind {
        LinkUp = "link.up",
        LinkDown = "link.down",
        /// A route leads to a node, or none does any more.
        NodeSeen = "node.seen",
        NodeLost = "node.lost",
        InstanceState = "instance.state",
        JobState = "job.state",
        /// Another control node drives a job.
        OwnerTakeover = "owner.takeover",
        StoreUp = "store.up",
        StoreDown = "store.down",
        /// The node has read its configuration again, or has failed to.
        Reload = "reload",
        /// A certificate of the node has expired, or does so within 30 days.
        CertExpires = "cert.expires",
        /// Nothing was seen for a while: what came and went within it is not told.
        Gap = "gap",
    }
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MeshEvent {
    /// Rises by one with each event that one watcher sees.
    pub seq: u64,
    pub time: Timestamp,
    /// Whom it concerns: an end of a link, a node, the control node of a job.
    pub node: String,
    pub event: EventKind,
    /// The other end of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<i64>,
    /// What was, and what is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// A node's reports of one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    pub time: Timestamp,
    pub mesh: NodeReport,
    /// Of a control node.
    pub controller: Option<ControllerReport>,
    /// `None` where they could not be read.
    pub instances: Option<Vec<InstanceReport>>,
    /// The newest ones.
    pub jobs: Option<Vec<JobReport>>,
}

/// Changes that are told at once. More of them are a gap.
const MOST: usize = 10_000;

/// Follows one node: what was seen last, and how many events there were.
#[derive(Debug)]
pub struct EventLog {
    last: Snapshot,
    seq: u64,
    /// Since when nothing is seen.
    lost: Option<Timestamp>,
}

impl EventLog {
    /// Numbers what changes after this snapshot from `seq`.
    pub fn new(last: Snapshot, seq: u64) -> Self {
        Self { last, seq, lost: None }
    }

    /// Nothing was seen. Says whether that is news.
    pub fn miss(&mut self) -> bool {
        let is_news = self.lost.is_none();
        self.lost.get_or_insert(self.last.time);
        is_news
    }

    /// The events up to this snapshot, after a gap if there was one. What could not be read now is compared again later.
    pub fn add(&mut self, now: Snapshot) -> Vec<MeshEvent> {
        let mut events = Vec::new();
        if let Some(since) = self.lost.take() {
            let node = now.mesh.node_id.clone().unwrap_or_default();
            events.push(MeshEvent::gap(self.seq, node, Some(since), now.time));
        }
        events.extend(diff(&self.last, &now, self.seq + events.len() as u64));
        if events.len() > MOST {
            let node = now.mesh.node_id.clone().unwrap_or_default();
            events = vec![MeshEvent::gap(self.seq, node, Some(self.last.time), now.time)];
        }
        self.seq += events.len() as u64;
        let last = std::mem::replace(&mut self.last, now);
        self.last.controller = self.last.controller.take().or(last.controller);
        self.last.instances = self.last.instances.take().or(last.instances);
        self.last.jobs = self.last.jobs.take().or(last.jobs);
        events
    }
}

impl MeshEvent {
    /// What came and went between these times is not told.
    pub fn gap(seq: u64, node: String, since: Option<Timestamp>, time: Timestamp) -> Self {
        let (from, to) = (since.map(|since| since.to_string()), Some(time.to_string()));
        Self { seq, time, node, event: EventKind::Gap, peer: None, job: None, from, to }
    }
}

impl Snapshot {
    /// What of a node's report events are told of.
    pub const SECTIONS: [Section; 5] =
        [Section::NodeId, Section::Routes, Section::Costs, Section::Reload, Section::Ending];
    /// Jobs that are looked at, the newest ones.
    pub const JOBS: u32 = 200;
}

/// The nodes that can be reached, the node itself included.
pub fn nodes(mesh: &NodeReport) -> BTreeSet<String> {
    mesh.routing_table.iter().flat_map(|routes| routes.keys().cloned()).chain(mesh.node_id.clone()).collect()
}

/// What is otherwise in the later of two snapshots, numbered from `seq`.
pub fn diff(before: &Snapshot, after: &Snapshot, seq: u64) -> Vec<MeshEvent> {
    let mut told = NewEvents { time: after.time, seq, events: Vec::new() };
    fn links(snapshot: &Snapshot) -> BTreeSet<(&str, &str)> {
        snapshot.mesh.link_costs().into_keys().collect()
    }
    let (old, new) = (links(before), links(after));
    for ((a, b), kind) in changes(&old, &new, EventKind::LinkDown, EventKind::LinkUp) {
        told.tell(a, kind, |event| event.peer = Some((*b).to_owned()));
    }
    let (old, new) = (nodes(&before.mesh), nodes(&after.mesh));
    for (node, kind) in changes(&old, &new, EventKind::NodeLost, EventKind::NodeSeen) {
        told.tell(node, kind, |_| ());
    }
    let own = after.mesh.node_id.clone().unwrap_or_default();
    if let Some(reload) = after.mesh.last_reload.filter(|_| after.mesh.last_reload != before.mesh.last_reload)
    {
        let outcome = if reload.success { "successful" } else { "failed" };
        told.tell(&own, EventKind::Reload, |event| event.to = Some(outcome.to_owned()));
    }
    let ending = |snapshot: &Snapshot| -> BTreeMap<String, Timestamp> {
        let all = snapshot.mesh.certificates_ending.iter().flatten();
        all.map(|one| (one.file.display().to_string(), one.not_after)).collect()
    };
    let known = ending(before);
    for (file, end) in ending(after).iter().filter(|(file, end)| known.get(*file) != Some(end)) {
        told.change(&own, EventKind::CertExpires, None, Some(file), Some(&end.to_string()));
    }
    if let (Some(old), Some(new)) = (&before.controller, &after.controller)
        && old.store.up != new.store.up
    {
        told.tell(&own, if new.store.up { EventKind::StoreUp } else { EventKind::StoreDown }, |_| ());
    }
    let state = |one: &InstanceReport| {
        if one.enabled { one.node_state.clone() } else { format!("{}, disabled", one.node_state) }
    };
    let by_name = |all: &Option<Vec<InstanceReport>>| -> BTreeMap<String, String> {
        all.iter().flatten().map(|one| (one.name.clone(), state(one))).collect()
    };
    if before.instances.is_some() && after.instances.is_some() {
        let (old, new) = (by_name(&before.instances), by_name(&after.instances));
        for name in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            told.change(name, EventKind::InstanceState, None, old.get(name), new.get(name));
        }
    }
    jobs(before, after, &mut told);
    told.events
}

/// Of those in both, and of new ones. One that is missing may only be too old for the list.
fn jobs(before: &Snapshot, after: &Snapshot, told: &mut NewEvents) {
    let Some(old) = &before.jobs else { return };
    let old: BTreeMap<i64, &JobReport> = old.iter().map(|job| (job.id, job)).collect();
    let oldest = old.keys().next().copied().unwrap_or_default();
    // Newest first in the list.
    for job in after.jobs.iter().flatten().rev().filter(|job| job.id >= oldest) {
        let was = old.get(&job.id);
        let owner = job.controller_node.clone().unwrap_or_default();
        let (from, to) = (was.map(|was| was.state.to_string()), job.state.to_string());
        told.change(&owner, EventKind::JobState, Some(job.id), from.as_ref(), Some(&to));
        if let Some(former) = was.and_then(|was| was.controller_node.as_ref()) {
            told.change(
                &owner,
                EventKind::OwnerTakeover,
                Some(job.id),
                Some(former),
                job.controller_node.as_ref(),
            );
        }
    }
}

/// What is in one set alone.
fn changes<'a, T: Ord>(
    old: &'a BTreeSet<T>,
    new: &'a BTreeSet<T>,
    gone: EventKind,
    came: EventKind,
) -> impl Iterator<Item = (&'a T, EventKind)> {
    let gone = old.difference(new).map(move |one| (one, gone));
    gone.chain(new.difference(old).map(move |one| (one, came)))
}

struct NewEvents {
    time: Timestamp,
    seq: u64,
    events: Vec<MeshEvent>,
}

impl NewEvents {
    fn tell(&mut self, node: &str, event: EventKind, more: impl FnOnce(&mut MeshEvent)) {
        let (seq, time, node) = (self.seq, self.time, node.to_owned());
        self.seq += 1;
        let mut event = MeshEvent { seq, time, node, event, peer: None, job: None, from: None, to: None };
        more(&mut event);
        self.events.push(event);
    }

    fn change(
        &mut self,
        node: &str,
        event: EventKind,
        job: Option<i64>,
        from: Option<&String>,
        to: Option<&String>,
    ) {
        if from != to {
            let more =
                |event: &mut MeshEvent| (event.job, event.from, event.to) = (job, from.cloned(), to.cloned());
            self.tell(node, event, more);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rpc::report::read;

    fn snapshot(second: i64) -> Snapshot {
        Snapshot {
            time: Timestamp::from_second(second).unwrap(),
            mesh: read(&json!({
                "NodeID": "a", "RoutingTable": {"hop": "hop", "e1": "hop"},
                "KnownConnectionCosts": {"a": {"hop": 1.0}, "hop": {"a": 1.0, "e1": 1.0}, "e1": {"hop": 1.0}}}))
            .unwrap(),
            controller: Some(read(&json!({"node": "a", "store": {"kind": "sqlite", "up": true}})).unwrap()),
            instances: Some(vec![read(&json!({"name": "e1", "node_state": "ready", "enabled": true})).unwrap()]),
            jobs: Some(vec![
                read(&json!({"id": 8, "state": "running", "controller_node": "a"})).unwrap(),
                read(&json!({"id": 7, "state": "running", "controller_node": "a"})).unwrap(),
            ]),
        }
    }

    /// Events without their time, as JSON.
    fn told(change: impl FnOnce(&mut Snapshot)) -> Vec<serde_json::Value> {
        let (before, mut after) = (snapshot(1), snapshot(2));
        change(&mut after);
        let events = diff(&before, &after, 5);
        assert!(events.iter().all(|event| event.time == after.time));
        assert!(events.iter().map(|event| event.seq).eq(5..5 + events.len() as u64));
        let shown = events.iter().map(|event| serde_json::to_value(event).unwrap());
        shown
            .map(|mut event| {
                event.as_object_mut().unwrap().retain(|key, _| !["seq", "time"].contains(&key.as_str()));
                event
            })
            .collect()
    }

    #[test]
    fn the_same_again_is_no_event() {
        assert_eq!(told(|_| ()), Vec::<serde_json::Value>::new());
    }

    #[test]
    fn links_and_nodes_come_and_go() {
        let events = told(|after| {
            after.mesh.routing_table =
                Some([("hop".to_owned(), "hop".to_owned()), ("e2".to_owned(), "hop".to_owned())].into());
            let costs = after.mesh.known_connection_costs.as_mut().unwrap();
            costs.remove("e1");
            costs.get_mut("hop").unwrap().remove("e1");
        });
        assert_eq!(
            json!(events),
            json!([
                {"node": "e1", "event": "link.down", "peer": "hop"},
                {"node": "e1", "event": "node.lost"},
                {"node": "e2", "event": "node.seen"}])
        );
    }

    #[test]
    fn of_a_controller_store_instances_jobs_and_their_owners() {
        let events = told(|after| {
            after.controller.as_mut().unwrap().store.up = false;
            after.instances.as_mut().unwrap()[0].enabled = false;
            let jobs = after.jobs.as_mut().unwrap();
            jobs[0] = read(&json!({"id": 8, "state": "successful", "controller_node": "a"})).unwrap();
            jobs[1] = read(&json!({"id": 7, "state": "running", "controller_node": "b"})).unwrap();
            jobs.insert(0, read(&json!({"id": 9, "state": "pending", "controller_node": "a"})).unwrap());
        });
        assert_eq!(
            json!(events),
            json!([
                {"node": "a", "event": "store.down"},
                {"node": "e1", "event": "instance.state", "from": "ready", "to": "ready, disabled"},
                {"node": "b", "event": "owner.takeover", "job": 7, "from": "a", "to": "b"},
                {"node": "a", "event": "job.state", "job": 8, "from": "running", "to": "successful"},
                {"node": "a", "event": "job.state", "job": 9, "to": "pending"}])
        );
    }

    #[test]
    fn too_many_changes_at_once_are_a_gap() {
        let mut log = EventLog::new(Snapshot::default(), 7);
        let mut many = snapshot(2);
        let routes = many.mesh.routing_table.as_mut().unwrap();
        routes.extend((0..=MOST).map(|n| (n.to_string(), "hop".to_owned())));
        let mut later = many.clone();
        let events = log.add(many);
        assert!(events.len() == 1 && events[0].event == EventKind::Gap && events[0].seq == 7, "{events:?}");
        later.controller.as_mut().unwrap().store.up = false;
        let events = log.add(later);
        assert!(events.len() == 1 && events[0].event == EventKind::StoreDown && events[0].seq == 8);
    }

    #[test]
    fn what_could_not_be_read_is_not_gone() {
        let events = told(|after| (after.controller, after.instances, after.jobs) = (None, None, None));
        assert_eq!(events, Vec::<serde_json::Value>::new());
        let first = Snapshot::default();
        assert!(diff(&Snapshot { mesh: snapshot(1).mesh, ..first }, &snapshot(2), 0).is_empty());
    }

    #[test]
    fn each_reload_is_told_once_and_a_new_start_is_none() {
        let reloaded = |second: i64, at: &str, success: bool| {
            let mut snapshot = snapshot(second);
            snapshot.mesh.last_reload = Some(read(&json!({"Time": at, "Success": success})).unwrap());
            snapshot
        };
        let outcomes = |before: &Snapshot, after: &Snapshot| -> Vec<_> {
            let events = diff(before, after, 0).into_iter();
            events.map(|event| (event.node, event.event, event.to.unwrap_or_default())).collect()
        };
        let told = |outcome: &str| vec![("a".to_owned(), EventKind::Reload, outcome.to_owned())];
        let failed = reloaded(2, "2026-11-26T12:00:00Z", false);
        let again = reloaded(3, "2026-11-26T12:00:00.5Z", false);
        let followed = reloaded(4, "2026-11-26T12:00:01Z", true);
        assert_eq!(outcomes(&snapshot(1), &failed), told("failed"));
        assert_eq!(outcomes(&failed, &failed), []);
        assert_eq!(outcomes(&failed, &again), told("failed"));
        assert_eq!(outcomes(&again, &followed), told("successful"));
        assert_eq!(outcomes(&followed, &snapshot(5)), []);
    }

    #[test]
    fn a_certificate_that_begins_to_end_is_told_once() {
        let ending = |snapshot: &mut Snapshot| {
            let ends = json!([{"File": "/e.crt", "NotAfter": "2026-12-01T00:00:00Z"}]);
            snapshot.mesh.certificates_ending = Some(read(&ends).unwrap());
        };
        let events = told(ending);
        assert_eq!(
            json!(events),
            json!([{"node": "a", "event": "cert.expires", "from": "/e.crt", "to": "2026-12-01T00:00:00Z"}])
        );
        let (mut before, mut after) = (snapshot(1), snapshot(2));
        ending(&mut before);
        ending(&mut after);
        assert!(diff(&before, &after, 0).is_empty());
    }
}
