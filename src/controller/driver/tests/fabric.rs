//! The nodes of a mesh and the units on them, without a mesh: what the driver sees of it and does to it, under the
//! control of a test. It outlives the control node's processes, as disks and other nodes do.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::controller::core::{ChildEnd, ChildId, InstanceName, JobId};
use crate::controller::driver::world::{
    ChildInput, ChildNews, ChildRequest, ChildStream, Children, Doing, Known, Mesh, NodeView, PodChild,
};
use crate::pods::place::{ClusterError, PodPlace};
use crate::rpc::OutputBound;
use crate::work::jobs::JobUnit;
use crate::work::{Leftovers, Registry};

const NO_CLUSTER: &str = "there is no cluster";

/// What a node's runner answers to a health check.
#[derive(Debug, Clone)]
pub(super) enum Health {
    /// Its size, 4 processors, and the identity of its machine.
    Good(String),
    /// This end, Detail and output.
    Says(ChildEnd, String, String),
    /// Nothing.
    Silent,
}

/// A node that is not the control node.
#[derive(Debug, Clone)]
pub(super) struct FakeNode {
    /// There is a way to it.
    pub(super) routed: bool,
    /// It answers nothing.
    pub(super) is_deaf: bool,
    /// It promises nothing of units that it does not have, as a Go node.
    pub(super) is_go: bool,
    pub(super) tls: bool,
    /// Its work types, and whether they need signatures.
    pub(super) types: Vec<(String, bool)>,
    pub(super) health: Health,
    /// How far its clock is ahead, in milliseconds.
    pub(super) skew: i64,
    advertised: i64,
}

impl FakeNode {
    pub(super) fn runner(name: &str) -> Self {
        Self {
            routed: true,
            is_deaf: false,
            is_go: false,
            tls: false,
            types: vec![("ansible-runner".into(), false)],
            health: Health::Good(format!("uuid-{name}")),
            skew: 0,
            advertised: 0,
        }
    }
}

/// A unit on the node that runs it.
#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) node: String,
    pub(super) request: ChildRequest,
    /// What it reads.
    pub(super) input: Vec<u8>,
    output: Vec<u8>,
    pub(super) end: Option<(ChildEnd, String)>,
}

/// A unit as the control node has it on its disk.
#[derive(Debug)]
struct Local {
    request: ChildRequest,
    /// `None` until its payload is durable.
    input: Option<Vec<u8>>,
    is_sent: bool,
    is_cancelled: bool,
    is_released: bool,
    output: Vec<u8>,
    end: Option<(ChildEnd, String)>,
    /// Another control node was to send it, and may yet do so.
    is_inherited: bool,
    is_missing: bool,
    in_contact: bool,
    contacts: u64,
}

impl Local {
    fn new(request: ChildRequest) -> Self {
        Self {
            request,
            input: None,
            is_sent: false,
            is_cancelled: false,
            is_released: false,
            output: Vec::new(),
            end: None,
            is_inherited: false,
            is_missing: false,
            in_contact: false,
            contacts: 0,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Units {
    pub(super) nodes: BTreeMap<String, FakeNode>,
    local: BTreeMap<String, Local>,
    pub(super) there: BTreeMap<String, Running>,
    /// Every unit that was ever started, in order.
    pub(super) started: Vec<String>,
    /// Units that their nodes have promised not to run.
    pub(super) disclaimed: BTreeSet<String>,
    /// There is no room on the control node's disk.
    pub(super) is_full: bool,
    /// The control node's process lives.
    is_up: bool,
    /// It may start, cancel and release units on other nodes.
    may_act: bool,
    /// Children that are released stay, as on a node that does not answer.
    pub(super) keeps_released: bool,
    /// How often it will fail when it looks at the mesh.
    pub(super) failures: u32,
    /// How often it will fail to follow a unit that another control node has sent.
    pub(super) adopt_failures: u32,
    /// How often there will be no room for the unit of a job that is taken over.
    pub(super) unit_failures: u32,
    /// How often it will fail to have a unit cancelled.
    pub(super) cancel_failures: u32,
    dice: u64,
}

pub(super) struct Fabric {
    units: Mutex<Units>,
    mesh_news: watch::Sender<u64>,
    unit_news: watch::Sender<u64>,
    pub(super) signs: bool,
}

/// The control node.
pub(super) const OWN: &str = "c1";

impl Fabric {
    pub(super) fn new(nodes: &[&str], signs: bool) -> Arc<Self> {
        let nodes = nodes.iter().map(|name| ((*name).to_owned(), FakeNode::runner(name))).collect();
        let units = Mutex::new(Units { nodes, dice: 7, ..Units::default() });
        Arc::new(Self { units, mesh_news: watch::Sender::new(0), unit_news: watch::Sender::new(0), signs })
    }

    /// Changes something, and everybody sees what follows from it.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Units) -> T) -> T {
        let mut units = self.units.lock();
        let result = change(&mut units);
        units.settle();
        drop(units);
        self.unit_news.send_modify(|count| *count += 1);
        self.mesh_news.send_modify(|count| *count += 1);
        result
    }

    pub(super) fn look<T>(&self, look: impl FnOnce(&Units) -> T) -> T {
        look(&self.units.lock())
    }

    /// Nodes that are reachable advertise themselves.
    pub(super) fn advertise(&self) {
        self.change(|units| {
            units.nodes.values_mut().filter(|node| node.routed).for_each(FakeNode::advertise)
        });
    }

    pub(super) fn set_routed(&self, node: &str, routed: bool) {
        self.change(|units| {
            let node = units.nodes.get_mut(node).unwrap();
            node.routed = routed;
            if routed {
                node.advertise();
            }
        });
    }

    pub(super) fn set_up(&self, is_up: bool) {
        self.change(|units| {
            (units.is_up, units.may_act) = (is_up, false);
            units.local.values_mut().for_each(|unit| unit.in_contact = false);
        });
    }

    /// The unit of a job that runs, wherever that is.
    pub(super) fn running(&self, job: i64) -> Option<String> {
        self.look(|units| units.alive(job).into_iter().next())
    }

    /// Another control node sends a unit to a node, where it runs, unless that has promised not to run it.
    pub(super) fn run(&self, unit: &str, node: &str) {
        let request = ChildRequest {
            unit: unit.to_owned(),
            node: node.into(),
            work_type: "ansible-runner".into(),
            params: String::new(),
            run_dir: None,
            signed: false,
            tls: None,
            ttl: None,
            max_stdout: OutputBound { bytes: u64::MAX, setting: "x".into() },
            pod: None,
        };
        let (input, output) = (Vec::new(), Vec::new());
        let running = Running { node: node.to_owned(), request, input, output, end: None };
        self.change(|units| {
            if units.disclaimed.contains(unit) {
                return;
            }
            units.started.push(unit.to_owned());
            units.there.insert(unit.to_owned(), running);
        });
    }

    /// A unit writes.
    pub(super) fn write(&self, unit: &str, bytes: &[u8]) {
        self.change(|units| units.there.get_mut(unit).unwrap().output.extend_from_slice(bytes));
    }

    pub(super) fn end(&self, unit: &str, end: ChildEnd, detail: &str) {
        self.change(|units| units.there.get_mut(unit).unwrap().end = Some((end, detail.to_owned())));
    }

    /// Bytes of a unit's output that have reached the control node.
    pub(super) fn delivered(&self, unit: &str) -> usize {
        self.look(|units| units.local.get(unit).map_or(0, |local| local.output.len()))
    }

    /// A unit is on the control node's disk with its payload, and was not sent.
    pub(super) fn is_unsent(&self, unit: &str) -> bool {
        let is_it = |local: &Local| local.input.is_some() && !local.is_sent && !local.is_cancelled;
        self.look(|units| units.local.get(unit).is_some_and(is_it))
    }

    /// Units here and on other nodes, those of health checks aside.
    pub(super) fn left(&self) -> Vec<String> {
        let is_job = |unit: &&String| ChildId::parse(unit).is_some();
        self.look(|units| units.local.keys().chain(units.there.keys()).filter(is_job).cloned().collect())
    }
}

impl FakeNode {
    fn advertise(&mut self) {
        let now = Timestamp::now().as_millisecond() + self.skew;
        self.advertised = if now == self.advertised { now + 1 } else { now };
    }
}

impl Units {
    fn reaches(&self, node: &str) -> bool {
        node == OWN || self.nodes.get(node).is_some_and(|node| node.routed && !node.is_deaf)
    }

    /// The units of a job that run.
    pub(super) fn alive(&self, job: i64) -> Vec<String> {
        let is_of = |unit: &str| ChildId::parse(unit).is_some_and(|child| child.job.0 == job);
        let alive = self.there.iter().filter(|(unit, running)| is_of(unit) && running.end.is_none());
        alive.map(|(unit, _)| unit.clone()).collect()
    }

    /// The control node does for its units what it can.
    fn settle(&mut self) {
        if !self.is_up {
            return;
        }
        let units: Vec<String> = self.local.keys().cloned().collect();
        for unit in units {
            self.settle_one(&unit);
        }
    }

    fn settle_one(&mut self, unit: &str) {
        let Some(mut local) = self.local.remove(unit) else { return };
        let reaches = self.reaches(local.request.node.as_str());
        let acts = self.may_act || ChildId::parse(unit).is_none();
        if local.is_released && ((reaches && acts) || !local.is_sent) {
            self.there.remove(unit);
            return;
        }
        if let Some(input) = local.input.clone().filter(|_| reaches && !local.is_released) {
            if !std::mem::replace(&mut local.in_contact, true) && local.is_sent {
                local.contacts += 1;
            }
            if !local.is_sent && local.is_cancelled {
                local.end = Some((ChildEnd::Canceled, "Canceled".into()));
            }
            if !local.is_sent && local.end.is_none() && acts {
                self.start(unit, &mut local, input);
            }
            if local.is_sent && local.end.is_none() {
                self.fetch(unit, &mut local);
            }
        }
        if !reaches {
            local.in_contact = false;
        }
        self.local.insert(unit.to_owned(), local);
    }

    fn note_cancel(&mut self, unit: &str) {
        if let Some(local) = self.local.get_mut(unit) {
            local.is_cancelled = true;
        }
    }

    fn start(&mut self, unit: &str, local: &mut Local, input: Vec<u8>) {
        let (request, node) = (local.request.clone(), local.request.node.to_string());
        local.is_sent = true;
        local.contacts += 1;
        if self.disclaimed.contains(unit) {
            local.end = Some((ChildEnd::Refused, format!("{unit} was disclaimed")));
            return;
        }
        if self.there.contains_key(unit) {
            return;
        }
        self.started.push(unit.to_owned());
        let mut running = Running { node, request, input, output: Vec::new(), end: None };
        if running.request.params == crate::controller::health::PARAMS {
            let own = Health::Good(OWN.into());
            let health = self.nodes.get(&running.node).map_or(own, |node| node.health.clone());
            (running.output, running.end) = match health {
                Health::Good(uuid) => (size(&uuid), Some((ChildEnd::Succeeded, "exit status 0".into()))),
                Health::Says(end, detail, output) => (output.into_bytes(), Some((end, detail))),
                Health::Silent => (Vec::new(), None),
            };
        }
        self.there.insert(unit.to_owned(), running);
    }

    fn fetch(&mut self, unit: &str, local: &mut Local) {
        let is_go = self.nodes.get(local.request.node.as_str()).is_some_and(|node| node.is_go);
        local.is_missing = local.is_inherited && is_go && !self.there.contains_key(unit);
        if local.is_missing {
            return;
        }
        let Some(there) = self.there.get_mut(unit) else {
            self.disclaimed.extend(local.is_inherited.then(|| unit.to_owned()));
            local.end = Some((ChildEnd::Unknown, format!("unit {unit} is gone")));
            return;
        };
        if local.is_cancelled && self.may_act && there.end.is_none() {
            there.end = Some((ChildEnd::Canceled, "Canceled".into()));
        }
        local.output.clone_from(&there.output);
        local.end.clone_from(&there.end);
    }

    fn piece(&mut self, most: usize) -> usize {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let wanted = [1, 2, 7, 40, 300, usize::MAX][(self.dice >> 33) as usize % 6];
        wanted.min(most)
    }
}

/// What a runner says of its machine; one whose name has a `+` is larger.
fn size(uuid: &str) -> Vec<u8> {
    let cpus = if uuid.contains('+') { 8 } else { 4 };
    format!(
        "{{cpu_count: {cpus}, errors: [], mem_in_bytes: 9000000000, runner_version: 2.4.3, uuid: {uuid}}}\n"
    )
    .into_bytes()
}

/// What the driver sees of the nodes.
pub(super) struct FakeMesh(pub(super) Arc<Fabric>);

impl Mesh for FakeMesh {
    fn nodes(&self) -> Doing<'_, Vec<NodeView>> {
        let fails = self.0.look(|units| units.failures > 0);
        if fails {
            self.0.change(|units| units.failures -= 1);
            panic!("it fails as the test wants it");
        }
        let own = NodeView {
            name: OWN.into(),
            routed: true,
            advertised: Some(0),
            tls: false,
            work_types: vec![("local".into(), false)],
        };
        let others = self.0.look(|units| {
            let view = |(name, node): (&String, &FakeNode)| NodeView {
                name: InstanceName::from(name.as_str()),
                routed: node.routed,
                advertised: Some(node.advertised).filter(|time| *time != 0),
                tls: node.tls,
                work_types: node.types.clone(),
            };
            units.nodes.iter().map(view).collect::<Vec<_>>()
        });
        Box::pin(async move { [own].into_iter().chain(others).collect() })
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.mesh_news.subscribe()
    }

    fn signs(&self) -> bool {
        self.0.signs
    }

    fn proves_names(&self, profile: &str) -> bool {
        profile == "strict"
    }
}

/// What the driver does to units.
pub(super) struct FakeChildren {
    pub(super) fabric: Arc<Fabric>,
    /// The node's units, of which it makes those of jobs that were submitted elsewhere.
    pub(super) registry: Registry,
}

impl Children for FakeChildren {
    fn known(&self, unit: &str) -> Known {
        self.fabric.look(|units| match units.local.get(unit).filter(|local| !local.is_released) {
            None => Known::Unknown,
            Some(Local { input: None, .. }) => Known::Unsent,
            Some(_) => Known::Here,
        })
    }

    fn detail(&self, unit: &str) -> Option<String> {
        let waits = |local: &Local| !local.is_sent && ChildId::parse(unit).is_none();
        let is_waiting = self.fabric.look(|units| units.local.get(unit).is_some_and(waits));
        is_waiting.then(|| "the way there is long".to_owned())
    }

    fn send(&self, request: ChildRequest, input: ChildInput) -> Doing<'_, Result<bool, String>> {
        Box::pin(async move {
            let unit = request.unit.clone();
            self.fabric.change(|units| {
                assert!(!units.local.contains_key(&unit), "{unit} is sent twice");
                units.local.insert(unit.clone(), Local::new(request));
            });
            // The process may end here.
            tokio::task::yield_now().await;
            let mut bytes = input.head;
            for (path, from) in input.files {
                let mut file = std::fs::File::open(path).map_err(|error| error.to_string())?;
                file.seek(SeekFrom::Start(from)).map_err(|error| error.to_string())?;
                file.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
            }
            self.fabric.change(|units| {
                if let Some(local) = units.local.get_mut(&unit) {
                    local.input = Some(bytes);
                }
            });
            Ok(true)
        })
    }

    fn adopt(&self, request: ChildRequest) -> Doing<'_, Result<bool, String>> {
        let adopted = self.fabric.change(|units| {
            if let Some(left) = units.adopt_failures.checked_sub(1) {
                units.adopt_failures = left;
                return Err("no space left on device".to_owned());
            }
            let unit = request.unit.clone();
            let input = Some(Vec::new());
            let local = Local { input, is_sent: true, is_inherited: true, ..Local::new(request) };
            units.local.entry(unit).or_insert(local);
            Ok(true)
        });
        Box::pin(async { adopted })
    }

    fn disclaim(&self, unit: String) -> Doing<'_, Result<bool, String>> {
        let is_absent = self.fabric.change(|units| {
            let is_absent = !units.there.contains_key(&unit);
            units.disclaimed.extend(is_absent.then_some(unit));
            is_absent
        });
        Box::pin(async move { Ok(is_absent) })
    }

    fn room(&self) -> Doing<'_, ()> {
        let mut news = self.fabric.unit_news.subscribe();
        Box::pin(async move {
            while self.fabric.look(|units| units.is_full) {
                let _never = news.changed().await;
            }
        })
    }

    fn follow(&self, unit: String, from: u64) -> Doing<'_, Box<dyn ChildStream>> {
        let news = self.fabric.unit_news.subscribe();
        let fabric = self.fabric.clone();
        let stream = FakeStream { fabric, news, unit, at: from as usize, told: 0, is_missing: false };
        Box::pin(async move { Box::new(stream) as Box<dyn ChildStream> })
    }

    fn cancel(&self, unit: String) -> Doing<'_, bool> {
        let is_taken = self.fabric.change(|units| match units.cancel_failures.checked_sub(1) {
            Some(left) => {
                units.cancel_failures = left;
                false
            }
            None => {
                units.note_cancel(&unit);
                true
            }
        });
        Box::pin(async move { is_taken })
    }

    fn of_job(&self, child: &ChildId) -> Vec<ChildId> {
        let all: Vec<_> =
            self.fabric.look(|units| units.local.keys().filter_map(|unit| ChildId::parse(unit)).collect());
        all.into_iter().filter(|other| other.job == child.job).collect()
    }

    fn release(&self, unit: String, _leftovers: Leftovers) -> Doing<'_, bool> {
        if self.fabric.look(|units| units.keeps_released) {
            return Box::pin(async { false });
        }
        self.fabric.change(|units| {
            if let Some(local) = units.local.get_mut(&unit) {
                local.is_released = true;
            }
        });
        Box::pin(async { true })
    }

    fn withhold(&self, unit: String) -> Doing<'_, ()> {
        self.fabric.change(|units| units.note_cancel(&unit));
        Box::pin(async {})
    }

    fn let_act(&self, may_act: bool) {
        if self.fabric.look(|units| units.may_act) != may_act {
            self.fabric.change(|units| units.may_act = may_act);
        }
    }

    fn check_pod(&self, _place: &PodPlace) -> Doing<'_, Result<(), String>> {
        Box::pin(async { Err(NO_CLUSTER.to_owned()) })
    }

    fn prepare_pod(&self, _pod: &PodChild) -> Doing<'_, Result<(), ClusterError>> {
        unreachable!("{NO_CLUSTER}")
    }

    fn delete_secret(&self, _place: PodPlace, _name: String) -> Doing<'_, Result<(), ClusterError>> {
        unreachable!("{NO_CLUSTER}")
    }

    fn job_unit(&self, unit: &str) -> Option<JobUnit> {
        self.registry.job_unit(unit)
    }

    fn adopt_job(&self, job: JobId) -> Doing<'_, Option<JobUnit>> {
        let is_full = self.fabric.change(|units| {
            let is_full = units.unit_failures > 0;
            units.unit_failures = units.unit_failures.saturating_sub(1);
            is_full
        });
        Box::pin(async move { if is_full { None } else { self.registry.adopt_job(job.0).await.ok() } })
    }
}

struct FakeStream {
    fabric: Arc<Fabric>,
    news: watch::Receiver<u64>,
    unit: String,
    at: usize,
    told: u64,
    is_missing: bool,
}

impl FakeStream {
    fn now(&mut self) -> Option<ChildNews> {
        let (unit, at, told) = (self.unit.clone(), self.at, self.told);
        let mut units = self.fabric.units.lock();
        let Some(local) = units.local.get(&unit).filter(|local| !local.is_released) else {
            let detail = format!("unit {unit} is gone");
            return Some(ChildNews::Ended { end: ChildEnd::Released, detail });
        };
        let (contacts, end) = (local.contacts, local.end.clone());
        let was_missing = std::mem::replace(&mut self.is_missing, local.is_missing);
        match (was_missing, local.is_missing) {
            (false, true) => return Some(ChildNews::Missing),
            (true, false) if end.is_none() => return Some(ChildNews::Accepted),
            (true, _) | (false, false) => {}
        }
        let rest = Bytes::copy_from_slice(local.output.get(at..).unwrap_or_default());
        if contacts > told && end.is_none() && local.in_contact && !local.is_missing {
            self.told = contacts;
            return Some(ChildNews::Accepted);
        }
        if !rest.is_empty() {
            let piece = units.piece(rest.len());
            self.at += piece;
            return Some(ChildNews::Output(rest.slice(..piece)));
        }
        end.map(|(end, detail)| ChildNews::Ended { end, detail })
    }
}

impl ChildStream for FakeStream {
    fn next(&mut self) -> Doing<'_, ChildNews> {
        Box::pin(async move {
            loop {
                self.news.mark_unchanged();
                if let Some(news) = self.now() {
                    return news;
                }
                let _never = self.news.changed().await;
            }
        })
    }
}
