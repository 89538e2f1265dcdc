//! Finds what has changed between two reports of one node, as numbered events. Pure: it asks nobody. No node stores
//! events; a watcher finds them by comparing each report with the one before.

#![expect(missing_docs, reason = "the keys are specified in docs/troubleshooting.md")]

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::JobState;
use super::controller::{ControllerReport, InstanceReport, JobReport};
use super::enrolment::{AskingHost, EnrolmentReport, HostState};
use super::names::names;
use super::node::{NodeReport, Section};
use super::outage::OutageReport;

names! {
    /// What has happened.
    enum EventKind {
        LinkUp = "link.up",
        LinkDown = "link.down",
        /// A route leads to a node, or none does any more. Nodes that come or go together are one event.
        NodeSeen = "node.seen",
        NodeLost = "node.lost",
        /// The authority has admitted a node, or has removed it.
        NodeJoined = "node.joined",
        NodeRemoved = "node.removed",
        /// A host that asks without a token begins to wait, is approved or rejected, or has gone.
        HostState = "host.state",
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
    /// The nodes that were lost with `node`, or came back with it, if there are others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage: Option<OutageReport>,
    /// Why a job has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A node's reports of one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    pub time: Timestamp,
    pub mesh: NodeReport,
    /// The controller's report, on a control node.
    pub controller: Option<ControllerReport>,
    /// What the authority of this node knows; `None` if it could not be read, or there is none.
    pub enrolment: Option<EnrolmentReport>,
    /// `None` if they could not be read.
    pub instances: Option<Vec<InstanceReport>>,
    /// The newest jobs.
    pub jobs: Option<Vec<JobReport>>,
}

/// Most changes reported at once. More of them count as a gap.
const MOST_CHANGES: usize = 10_000;

/// What the state of an instance ends with that gets no jobs.
const DISABLED: &str = ", disabled";

/// Follows one node: keeps the last snapshot, and the number of the next event.
#[derive(Debug)]
pub struct EventLog {
    last: Snapshot,
    seq: u64,
    /// Since when no snapshot could be taken.
    lost: Option<Timestamp>,
}

impl EventLog {
    /// Numbers the changes after this snapshot from `seq`.
    pub fn new(last: Snapshot, seq: u64) -> Self {
        Self { last, seq, lost: None }
    }

    /// Notes that no snapshot could be taken. Returns whether this is news.
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
        if events.len() > MOST_CHANGES {
            let node = now.mesh.node_id.clone().unwrap_or_default();
            events = vec![MeshEvent::gap(self.seq, node, Some(self.last.time), now.time)];
        }
        self.seq += events.len() as u64;
        let last = std::mem::replace(&mut self.last, now);
        self.last.controller = self.last.controller.take().or(last.controller);
        self.last.enrolment = self.last.enrolment.take().or(last.enrolment);
        self.last.instances = self.last.instances.take().or(last.instances);
        self.last.jobs = self.last.jobs.take().or(last.jobs);
        events
    }
}

impl MeshEvent {
    /// A gap: what came and went between these times is unknown.
    pub fn gap(seq: u64, node: String, since: Option<Timestamp>, time: Timestamp) -> Self {
        let (from, to) = (since.map(|since| since.to_string()), Some(time.to_string()));
        let event = EventKind::Gap;
        Self { seq, time, node, event, peer: None, job: None, from, to, outage: None, why: None }
    }
}

impl Snapshot {
    /// The sections of a node's report that are compared.
    pub const SECTIONS: [Section; 6] = [
        Section::NodeId,
        Section::Routes,
        Section::Costs,
        Section::Outages,
        Section::Reload,
        Section::Ending,
    ];
    /// How many of the newest jobs are compared.
    pub const JOBS: u32 = 200;
}

/// The nodes that can be reached, the node itself included.
pub fn nodes(mesh: &NodeReport) -> BTreeSet<String> {
    mesh.routing_table.iter().flat_map(|routes| routes.keys().cloned()).chain(mesh.node_id.clone()).collect()
}

/// The differences between two snapshots as events, numbered from `seq`.
pub fn diff(before: &Snapshot, after: &Snapshot, seq: u64) -> Vec<MeshEvent> {
    let mut told = NewEvents { time: after.time, seq, events: Vec::new() };
    reach(&before.mesh, &after.mesh, &mut told);
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
        if one.enabled { one.node_state.clone() } else { format!("{}{DISABLED}", one.node_state) }
    };
    let by_name = |all: &Option<Vec<InstanceReport>>| -> BTreeMap<String, String> {
        all.iter().flatten().map(|one| (one.name.clone(), state(one))).collect()
    };
    if before.instances.is_some() && after.instances.is_some() {
        let (old, new) = (by_name(&before.instances), by_name(&after.instances));
        // That these are away was told once for all of them. What is done to them by hand is news.
        let lost = together(&after.mesh);
        let is_disabled = |state: Option<&String>| state.is_some_and(|state| state.ends_with(DISABLED));
        let is_told = |name: &&String| {
            lost.contains(name.as_str()) && is_disabled(old.get(*name)) == is_disabled(new.get(*name))
        };
        let names = old.keys().chain(new.keys()).collect::<BTreeSet<_>>();
        for name in names.into_iter().filter(|name| !is_told(name)) {
            told.change(name, EventKind::InstanceState, None, old.get(name), new.get(name));
        }
    }
    enrolment(before, after, &mut told);
    jobs(before, after, &mut told);
    told.events
}

/// Compares who can be reached, and by which links. Nodes that are lost or come back together are told of in one event,
/// which stands for their links as well.
fn reach(before: &NodeReport, after: &NodeReport, told: &mut NewEvents) {
    fn links(mesh: &NodeReport) -> BTreeSet<(&str, &str)> {
        mesh.link_costs().into_keys().collect()
    }
    let (old, new) = (links(before), links(after));
    let (were_lost, are_lost) = (together(before), together(after));
    for ((a, b), kind) in changes(&old, &new, EventKind::LinkDown, EventKind::LinkUp) {
        let lost = if kind == EventKind::LinkDown { &are_lost } else { &were_lost };
        if !lost.contains(a) && !lost.contains(b) {
            told.tell(a, kind, |event| event.peer = Some((*b).to_owned()));
        }
    }
    let (old, new) = (nodes(before), nodes(after));
    let [gone, came] =
        [(&old, &new), (&new, &old)].map(|(one, other)| one.difference(other).collect::<BTreeSet<_>>());
    for (kind, mut left, mesh) in [(EventKind::NodeLost, gone, after), (EventKind::NodeSeen, came, before)] {
        for outage in mesh.outages.iter().flatten() {
            let Some(part) = outage.part(|node| left.contains(node)) else { continue };
            // Perhaps not all of them come back. Of a loss the whole is told, even if it has only grown.
            let told_of = if kind == EventKind::NodeLost { outage.clone() } else { part };
            told_of.nodes().for_each(|node| _ = left.remove(node));
            let first = told_of.nodes().next().cloned().unwrap_or_default();
            let several = Some(told_of).filter(|outage| outage.nodes().nth(1).is_some());
            told.tell(&first, kind, |event| event.outage = several);
        }
        left.into_iter().for_each(|node| told.tell(node, kind, |_| ()));
    }
}

/// The nodes that are out of reach together with others.
fn together(mesh: &NodeReport) -> BTreeSet<&str> {
    let outages = mesh.outages.iter().flatten().filter(|outage| outage.nodes().nth(1).is_some());
    outages.flat_map(OutageReport::nodes).map(String::as_str).collect()
}

/// Compares what the authority knew with what it knows. A host that was decided about leaves without an event.
fn enrolment(before: &Snapshot, after: &Snapshot, told: &mut NewEvents) {
    let (Some(before), Some(after)) = (&before.enrolment, &after.enrolment) else { return };
    let nodes =
        |report: &EnrolmentReport| report.nodes.iter().map(|one| one.node.clone()).collect::<BTreeSet<_>>();
    for (node, kind) in changes(&nodes(before), &nodes(after), EventKind::NodeRemoved, EventKind::NodeJoined)
    {
        told.tell(node, kind, |_| ());
    }
    // Several hosts may give themselves one name.
    let hosts = |report: &EnrolmentReport| -> BTreeMap<_, _> {
        let state = |host: &AskingHost| host.state.to_string();
        report.hosts.iter().map(|host| ((host.node.clone(), host.fingerprint.clone()), state(host))).collect()
    };
    let (old, new) = (hosts(before), hosts(after));
    for host in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        let (old, new) = (old.get(host), new.get(host));
        if new.is_some() || old.is_some_and(|old| old == HostState::Waits.name()) {
            told.change(&host.0, EventKind::HostState, None, old, new);
        }
    }
}

/// Compares the jobs in both snapshots, and reports new ones. A missing job is ignored, because it may only be too old
/// for the list.
fn jobs(before: &Snapshot, after: &Snapshot, told: &mut NewEvents) {
    let Some(old) = &before.jobs else { return };
    let old: BTreeMap<i64, &JobReport> = old.iter().map(|job| (job.id, job)).collect();
    let oldest = old.keys().next().copied().unwrap_or_default();
    // Reversed, because the list has the newest job first.
    for job in after.jobs.iter().flatten().rev().filter(|job| job.id >= oldest) {
        let was = old.get(&job.id);
        let owner = job.controller_node.clone().unwrap_or_default();
        let (from, to) = (was.map(|was| was.state.to_string()), job.state.to_string());
        if from.as_ref() != Some(&to) {
            let has_failed = matches!(job.state.known(), Some(JobState::Failed | JobState::Error));
            let why = Some(&job.explanation).filter(|why| has_failed && !why.is_empty()).cloned();
            told.tell(&owner, EventKind::JobState, |event| {
                (event.job, event.from, event.to, event.why) = (Some(job.id), from, Some(to), why);
            });
        }
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

/// The elements that only one of the sets has.
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
        let (peer, job, from, to, outage, why) = (None, None, None, None, None, None);
        let mut event = MeshEvent { seq, time, node, event, peer, job, from, to, outage, why };
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
            enrolment: None,
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
    fn a_hop_with_all_that_hangs_on_it_is_one_event_when_it_is_lost_and_one_when_it_is_back() {
        let mesh = |links: serde_json::Value, routes: serde_json::Value, outages: serde_json::Value| {
            read(&json!({"NodeID": "a", "RoutingTable": routes, "KnownConnectionCosts": links, "Outages": outages}))
                .unwrap()
        };
        let instances = |state: &str, e2: bool| {
            let one =
                |name: &str, enabled: bool| json!({"name": name, "node_state": state, "enabled": enabled});
            Some(vec![read(&one("e1", true)).unwrap(), read(&one("e2", e2)).unwrap()])
        };
        let all = json!({"hop": "hop", "e1": "hop", "e2": "hop"});
        let whole = mesh(
            json!({"a": {"hop": 1}, "hop": {"e1": 1, "e2": 1}, "e2": {"e1": 1}}),
            all.clone(),
            json!([]),
        );
        let outage = json!({"lost": ["hop"], "behind": ["e1", "e2"], "links": [["a", "hop"]], "since": "2026-11-27T13:35:00Z"});
        let lost = mesh(json!({"hop": {"e1": 1, "e2": 1}}), json!({}), json!([outage]));
        let at = |mesh: &NodeReport, instances| Snapshot { mesh: mesh.clone(), instances, ..snapshot(1) };
        let told = |before: &Snapshot, after: &Snapshot| {
            let shown = diff(before, after, 0).into_iter().map(|event| {
                let outage = event.outage.map(|outage| outage.names()).unwrap_or_default();
                format!("{} {} {outage}", event.event, event.node)
            });
            shown.collect::<Vec<_>>()
        };
        let (before, after) =
            (at(&whole, instances("ready", true)), at(&lost, instances("unavailable", true)));
        assert_eq!(told(&before, &after), ["node.lost hop hop and 2 nodes behind it"]);
        let disabled = at(&lost, instances("unavailable", false));
        assert_eq!(told(&after, &disabled), ["instance.state e2 "], "somebody did that");
        // One of them is not back yet, and is out of reach for itself now.
        let rest = json!([{"lost": ["e2"], "behind": [], "links": [["hop", "e2"]]}]);
        let back = mesh(json!({"a": {"hop": 1}, "hop": {"e1": 1}}), json!({"hop": "hop", "e1": "hop"}), rest);
        let back = at(&back, instances("unavailable", true));
        assert_eq!(told(&after, &back), ["link.down e2 ", "node.seen hop hop and 1 node behind it"]);
        let whole = at(&whole, instances("unavailable", true));
        assert_eq!(
            told(&back, &whole),
            ["link.up e1 ", "link.up e2 ", "node.seen e2 "],
            "a single node is told of with its links"
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
    fn hosts_ask_are_decided_about_and_join_where_the_authority_is() {
        let seen = |hosts: serde_json::Value, nodes: &[&str]| {
            let nodes: Vec<_> = nodes.iter().map(|node| json!({"node": node})).collect();
            let report = json!({"authority": true, "hosts": hosts, "nodes": nodes});
            Snapshot { enrolment: Some(read(&report).unwrap()), ..snapshot(2) }
        };
        let host = |key: &str, state: &str| json!({"node": "e9", "fingerprint": key, "state": state});
        let told = |before: &Snapshot, after: &Snapshot| -> Vec<(String, String)> {
            let words = |event: MeshEvent| {
                let [from, to] = [event.from, event.to].map(Option::unwrap_or_default);
                (event.event.to_string(), format!("{} {from}>{to}", event.node))
            };
            diff(before, after, 0).into_iter().map(words).collect()
        };
        let event = |kind: &str, words: &str| (kind.to_owned(), words.to_owned());
        let none = seen(json!([]), &["a"]);
        let two = seen(json!([host("A", "waits"), host("B", "waits")]), &["a"]);
        assert_eq!(told(&none, &two), vec![event("host.state", "e9 >waits"); 2]);
        let decided = seen(json!([host("A", "approved"), host("B", "rejected")]), &["a", "e9"]);
        assert_eq!(
            told(&two, &decided),
            [
                event("node.joined", "e9 >"),
                event("host.state", "e9 waits>approved"),
                event("host.state", "e9 waits>rejected")
            ]
        );
        assert_eq!(told(&decided, &none), [event("node.removed", "e9 >")]);
        assert_eq!(told(&two, &none), vec![event("host.state", "e9 waits>"); 2]);
        // An authority that could not be read has lost nobody.
        let unread = snapshot(2);
        assert!(told(&two, &unread).is_empty() && told(&unread, &two).is_empty());
        let mut log = EventLog::new(two, 0);
        assert!(log.add(unread).is_empty());
        assert_eq!(log.add(decided).len(), 3);
    }

    #[test]
    fn too_many_changes_at_once_are_a_gap() {
        let mut log = EventLog::new(Snapshot::default(), 7);
        let mut many = snapshot(2);
        let routes = many.mesh.routing_table.as_mut().unwrap();
        routes.extend((0..=MOST_CHANGES).map(|n| (n.to_string(), "hop".to_owned())));
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
