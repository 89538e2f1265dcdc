//! Simulates the nodes of a mesh and the units on them, under the control of a test. Outlives the control node's
//! processes, as disks and other nodes do.

mod children;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

pub(super) use self::children::FakeChildren;
use crate::controller::core::{ChildEnd, ChildId, InstanceName};
use crate::controller::driver::world::{ChildRequest, MeshView, NodeView};
use crate::rpc::OutputBound;
use crate::work::jobs::Act;

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
    /// There is a route to it.
    pub(super) routed: bool,
    /// It answers nothing.
    pub(super) is_deaf: bool,
    /// Like a Go node, it makes no promises about units that it does not have.
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

/// A unit as the control node has it: on its disk if it runs there, else in memory.
#[derive(Debug)]
struct Local {
    request: ChildRequest,
    /// `None` until its payload is durable.
    input: Option<Vec<u8>>,
    is_sent: bool,
    is_cancelled: bool,
    is_released: bool,
    output: Vec<u8>,
    /// How many bytes of `output` somebody has read.
    handed: usize,
    end: Option<(ChildEnd, String)>,
    /// Another control node was to send it and may still do so.
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
            handed: 0,
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
    /// The control node may start, cancel and release units on other nodes.
    may_act: bool,
    /// Children that are released stay, as on a node that does not answer.
    pub(super) keeps_released: bool,
    /// Nodes that have answered nothing for long.
    pub(super) unanswering: BTreeSet<String>,
    /// How many more looks at the mesh will fail.
    pub(super) failures: u32,
    /// How many more adoptions of units that another control node has sent will fail.
    pub(super) adopt_failures: u32,
    /// For how many more jobs that are taken over there is no room for a unit.
    pub(super) unit_failures: u32,
    /// How many more cancels of a unit will fail.
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

    /// Changes something, and lets everybody see the consequences.
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

    /// The process has ended and forgets attempts on other nodes, because nothing of them is on this node's disk.
    pub(super) fn forget_elsewhere(&self) {
        self.change(|units| units.local.retain(|_, unit| unit.request.node.as_str() == OWN));
    }

    /// The unit of a job that runs, wherever that is.
    pub(super) fn running(&self, job: i64) -> Option<String> {
        self.look(|units| units.alive(job).into_iter().next())
    }

    /// Another control node sends a unit to a node, which runs it unless the node has promised not to.
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
            far: None,
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

    /// The control node gives up a unit of which nothing was sent.
    pub(super) fn give_up(&self, unit: &str, detail: &str) {
        self.change(|units| {
            units.local.get_mut(unit).unwrap().end = Some((ChildEnd::Unsent, detail.to_owned()));
        });
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

    /// Units here and on other nodes, except those of health checks.
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

    /// The control node does all that it can now do for its units.
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

    /// The ID under which a unit is looked for on its node, if this is not the unit's own ID.
    pub(super) fn looked_for_as(&self, unit: &str) -> Option<&str> {
        self.local.get(unit)?.request.far.as_ref().map(|far| far.id.as_str())
    }

    /// Nothing is left of a unit anywhere.
    pub(super) fn lose(&mut self, unit: &str) {
        self.local.remove(unit);
        self.there.remove(unit);
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

/// What a runner says of its machine. A machine whose name contains a `+` is larger.
fn size(uuid: &str) -> Vec<u8> {
    let cpus = if uuid.contains('+') { 8 } else { 4 };
    format!(
        "{{cpu_count: {cpus}, errors: [], mem_in_bytes: 9000000000, runner_version: 2.4.3, uuid: {uuid}}}\n"
    )
    .into_bytes()
}

/// What the driver sees of the nodes.
pub(super) struct FakeMesh(pub(super) Arc<Fabric>);

impl MeshView for FakeMesh {
    fn nodes(&self) -> Act<'_, Vec<NodeView>> {
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
