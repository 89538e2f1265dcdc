//! A mesh and what happens to it: nodes with their links, faults in any order, jobs from submission to release. Every
//! choice comes from the seed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use meshd_machine::{self as machine, Host};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::authority::{self, Authority};
use super::client::Client;
use super::cluster::Cluster;
use super::faults::{self, Fault};
use super::history::{History, Note};
use super::jobs::{self, Job};
use super::node::{Node, Place};
use super::postgres::Postgres;
use super::transport::Transport;
use super::wire::Net;
use super::{check, groups, left, runner, schedule};
use meshd::telemetry::Log;

/// How long jobs and releases may take once all faults are over.
const HEALED: Duration = Duration::from_secs(600);

/// The work type that runs jobs.
pub(super) const WORK_TYPE: &str = "- work-command: {worktype: ansible-runner, command: ansible-runner, params: worker, allowruntimeparams: true}\n";

/// The credential of the cluster for pods.
pub(super) const CREDENTIAL: &str = "cluster";
const POD_WORK_TYPE: &str = "- work-kubernetes: {worktype: kubernetes-runtime-auth, authmethod: runtime, allowruntimeauth: true, allowruntimepod: true, allowruntimeparams: true}\n";

/// In one of this many runs the leftovers are checked, because this takes minutes of virtual time.
const LOOKED_AT: u64 = 4;
/// One in so many runs has a schedule; there faults come so many times as slowly, because a schedule has minutes.
const SCHEDULED: u64 = 12;
const SLOWLY: usize = 8;
/// How often a choice of a fault is repeated until it is compatible with the present faults.
const CHOICES: usize = 4;

/// What a run contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) controls: usize,
    pub(super) hops: usize,
    pub(super) executions: usize,
    pub(super) jobs: usize,
    pub(super) faults: usize,
    /// Whether jobs start by a schedule, and by nothing else.
    pub(super) is_scheduled: bool,
    /// By how much faults come more slowly.
    pub(super) slowly: usize,
    /// The numbers of the faults that are left out.
    pub(super) without: BTreeSet<usize>,
    /// Whether notes are printed.
    pub(super) notes: bool,
}

impl Plan {
    /// The plan of this seed.
    pub(super) fn of(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let executions = *[1, 2, 3, 3, 5, 8, 24].choose(&mut rng).unwrap();
        let is_scheduled = seed % SCHEDULED == SCHEDULED - 1;
        Self {
            seed,
            controls: if is_scheduled { 2 } else { *[1, 1, 2, 3].choose(&mut rng).unwrap() },
            hops: rng.random_range(1..=3),
            executions: if is_scheduled { 2 } else { executions },
            jobs: if is_scheduled { 0 } else { rng.random_range(5..=40) },
            faults: 100,
            is_scheduled,
            slowly: if is_scheduled { SLOWLY } else { 1 },
            without: BTreeSet::new(),
            notes: false,
        }
    }
}

/// The result of a run.
pub(super) struct Outcome {
    pub(super) hash: u64,
    pub(super) faults: usize,
    pub(super) jobs: usize,
    pub(super) took: Duration,
    /// Everything that was wrong.
    pub(super) missed: Vec<String>,
    /// The last notes.
    pub(super) tail: String,
}

pub(super) struct World {
    pub(super) nodes: Vec<RefCell<Node>>,
    pub(super) names: Vec<String>,
    /// Pairs of nodes with a link, the dialling one first.
    pub(super) links: Vec<(usize, usize)>,
    pub(super) transports: BTreeMap<(usize, usize), Transport>,
    pub(super) controls: usize,
    pub(super) hops: usize,
    /// The shared store of control nodes; in `names` and `links` its number follows those of the nodes.
    pub(super) postgres: Option<Postgres>,
    /// A cluster for pods, whose name is the last of `names`.
    pub(super) cluster: Option<Cluster>,
    pub(super) net: Net,
    pub(super) history: History,
    pub(super) rng: RefCell<SmallRng>,
    /// Whether all faults are over.
    pub(super) calm: Cell<bool>,
    /// Everything wrong that was noticed during the run.
    pub(super) missed: RefCell<Vec<String>>,
    /// Nodes with a fault that excludes other faults.
    pub(super) busy: RefCell<BTreeSet<usize>>,
    pub(super) busy_links: RefCell<BTreeSet<(usize, usize)>>,
    /// The directory of all files.
    pub(super) place: String,
    /// The number of strangers so far.
    pub(super) strangers: Cell<u32>,
    /// The authority; without it every node is admitted.
    pub(super) authority: Option<Authority>,
    pub(super) log: Log,
}

/// The host of a node.
pub(super) fn host(node: usize) -> Host {
    Host(node as u32 + 1)
}

/// Runs a plan, on this thread.
pub(super) fn run(plan: &Plan, place: &Place, log: &Log) -> Outcome {
    machine::run(plan.seed, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(live(plan, place, log)))
    })
}

async fn live(plan: &Plan, place: &Place, log: &Log) -> Outcome {
    let history = History::new(plan.notes, &place.path().display().to_string());
    runner::stand_in(&history);
    let world = Rc::new(World::new(plan, place, log, history.clone()));
    for node in &world.nodes {
        node.borrow_mut().boot(&world.log);
    }
    sleep(Duration::from_secs(5)).await;
    let stores = if world.postgres.is_some() { 1 } else { world.controls };
    for control in 0..stores {
        groups::make(&world, control).await;
    }
    let fresh = left::files(&world);
    let mut jobs: Vec<Job> = Vec::new();
    for number in 0..plan.jobs {
        jobs.push(Job::new(&world, number, &jobs));
    }
    let mut lives: Vec<_> =
        jobs.iter().map(|job| tokio::task::spawn_local(jobs::live(world.clone(), job.clone()))).collect();
    let skipped = schedule::Skipped::default();
    let watch =
        plan.is_scheduled.then(|| tokio::task::spawn_local(schedule::watch(world.clone(), skipped.clone())));
    let mut heals = Vec::new();
    let mut count = 0;
    for number in 0..plan.faults {
        let pause = world.millis(0..2400 * plan.slowly as u64);
        sleep(pause).await;
        let fault = (0..CHOICES).find_map(|_| Fault::choose(&world));
        let span = faults::span(&world);
        if let (Some(fault), false) = (fault, plan.without.contains(&number)) {
            count += 1;
            heals.push(tokio::task::spawn_local(fault.happen(world.clone(), span)));
        }
    }
    let deadline = Instant::now() + HEALED;
    for heal in heals {
        heal.await.unwrap();
    }
    world.calm.set(true);
    for (life, job) in lives.iter_mut().zip(&jobs) {
        if tokio::time::timeout_at(deadline, life).await.is_err() {
            world.miss(format!("{} has not come to its end: {}", job.tag, job.stands.borrow()));
        }
    }
    if let Some(watch) = watch {
        schedule::check(&world, &skipped).await.into_iter().for_each(|what| world.miss(what));
        watch.abort();
    }
    if !world.missed.borrow().is_empty() {
        world.tell_what_nodes_see().await;
    }
    world.nothing_is_left().await;
    let mut missed = world.missed.borrow().clone();
    if missed.is_empty() && plan.seed.is_multiple_of(LOOKED_AT) {
        missed.extend(left::check(&world, &fresh).await);
    }
    missed.extend(check::check(&history.notes(), &jobs));
    world.end().await;
    if let Some(postgres) = &world.postgres {
        postgres.end().await;
    }
    if let Some(cluster) = &world.cluster {
        cluster.end().await;
    }
    Outcome {
        hash: history.hash(),
        faults: count,
        jobs: jobs.len(),
        took: machine::now(),
        missed,
        tail: history.tail(60),
    }
}

impl World {
    fn new(plan: &Plan, place: &Place, log: &Log, history: History) -> Self {
        let mut rng = SmallRng::seed_from_u64(plan.seed);
        let count = plan.controls + plan.hops + plan.executions;
        let is_hop = |node: usize| (plan.controls..plan.controls + plan.hops).contains(&node);
        let name = |node: usize| match node {
            _ if node < plan.controls => format!("c{}", node + 1),
            _ if is_hop(node) => format!("hop{}", node + 1 - plan.controls),
            _ => format!("e{}", node + 1 - plan.controls - plan.hops),
        };
        let mut links = Vec::new();
        for node in 0..count {
            let hops = match node {
                // Each hop dials all earlier hops.
                _ if is_hop(node) => (plan.controls..node).collect(),
                _ => {
                    let all: Vec<usize> = (plan.controls..plan.controls + plan.hops).collect();
                    let many = rng.random_range(1..=2);
                    all.sample(&mut rng, many).copied().collect::<BTreeSet<_>>()
                }
            };
            links.extend(hops.into_iter().map(|hop| (node, hop)));
        }
        let is_shared = plan.controls > 1;
        let keys = if is_shared { place.signing_keys() } else { String::new() };
        let authority = rng.random_bool(0.3).then(Authority::new);
        let files = |node: usize| place.path().join(name(node));
        let mut kind = |_| if authority.is_some() { Transport::Tcp } else { Transport::choose(&mut rng) };
        let transports: BTreeMap<_, _> = links.iter().map(|link| (*link, kind(link))).collect();
        let cluster = rng.random_bool(0.5).then(|| host(count + usize::from(is_shared)));
        let config = |node: usize| {
            let mut text = authority.as_ref().map(|_| Authority::profiles(&files(node))).unwrap_or_default();
            text += &Transport::listeners(authority.is_some());
            for (link, transport) in transports.iter().filter(|(link, _)| link.0 == node) {
                text += &transport.peer(machine::address_of(host(link.1)), authority.is_some());
            }
            if node < plan.controls {
                let dir = place.path().join(name(node));
                text += &keys;
                let saved = if plan.is_scheduled {
                    format!(", jobs: '{}/jobs.d'", dir.display())
                } else {
                    String::new()
                };
                let store = if is_shared { Postgres::url(host(count)) } else { "sqlite".to_owned() };
                text += &format!(
                    "- work-controller: {{store: '{store}', discovery: enabled, runner: ansible-runner worker, rundir: '{}', lostafter: 30s, payloadretention: 50s, credentials: '{}/credentials'{saved}}}\n",
                    dir.display(),
                    dir.display()
                );
                text += if cluster.is_some() { POD_WORK_TYPE } else { "" };
            }
            if node >= plan.controls && !is_hop(node) {
                text += WORK_TYPE;
            }
            text
        };
        let nodes = (0..count).map(|node| {
            let made = Node::new(&files(node), host(node), &name(node), &config(node));
            if plan.is_scheduled && node < plan.controls {
                made.put_secret(schedule::FILE, schedule::TEXT);
            }
            if let Some(authority) = &authority {
                let (file, text) = authority.file();
                made.put(file, text);
                let (file, text) = authority.issue(&name(node), host(node), authority::LONG);
                made.put(file, &text);
            }
            if let Some(cluster) = cluster.filter(|_| node < plan.controls) {
                made.put_secret(&format!("credentials/{CREDENTIAL}.yml"), &Cluster::credential(cluster));
            }
            RefCell::new(made)
        });
        let nodes = nodes.collect();
        let mut names: Vec<String> = (0..count).map(name).collect();
        // The network comes first, because hosts can listen only once it exists.
        let net = Net::start(rng.random());
        let postgres = is_shared.then(|| {
            names.push("store".to_owned());
            links.extend((0..plan.controls).map(|control| (control, count)));
            Postgres::start(host(count), place.path().join("store"))
        });
        let cluster = cluster.map(|host| {
            links.extend((0..plan.controls).map(|control| (control, names.len())));
            names.push("cluster".to_owned());
            Cluster::start(host, rng.random(), &history)
        });
        Self {
            nodes,
            names,
            links,
            transports,
            postgres,
            cluster,
            controls: plan.controls,
            hops: plan.hops,
            net,
            history,
            rng: RefCell::new(rng),
            calm: Cell::new(false),
            missed: RefCell::default(),
            busy: RefCell::default(),
            busy_links: RefCell::default(),
            place: place.path().display().to_string(),
            strangers: Cell::new(0),
            authority,
            log: log.clone(),
        }
    }

    pub(super) fn miss(&self, what: String) {
        self.history.tell(format!("MISSED {what}"));
        self.missed.borrow_mut().push(what);
    }

    pub(super) fn millis(&self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.rng.borrow_mut().random_range(range))
    }

    pub(super) fn choose<T: Clone>(&self, all: &[T]) -> Option<T> {
        all.choose(&mut *self.rng.borrow_mut()).cloned()
    }

    pub(super) fn chance(&self, probability: f64) -> bool {
        self.rng.borrow_mut().random_bool(probability)
    }

    /// The links with this transport.
    pub(super) fn links_over(&self, transport: Transport) -> Vec<(usize, usize)> {
        self.links.iter().copied().filter(|link| self.transports.get(link) == Some(&transport)).collect()
    }

    pub(super) fn executions(&self) -> std::ops::Range<usize> {
        self.controls + self.hops..self.nodes.len()
    }

    /// A connection to a node's control socket.
    pub(super) async fn client(&self, node: usize) -> io::Result<Client> {
        let socket = self.nodes[node].borrow().socket();
        Client::connect(&socket).await
    }

    /// Asks a node over a new connection.
    pub(super) async fn ask(&self, node: usize, line: &str) -> io::Result<Value> {
        self.client(node).await?.ask_json(line).await
    }

    /// Kills a node, or its machine if it loses its power. A node that is down stays down.
    pub(super) async fn crash(&self, node: usize, loses_power: bool) {
        let crash = self.nodes[node].borrow_mut().begin_crash(loses_power);
        if let Some(crash) = crash {
            crash.finish().await;
        }
    }

    /// Ends all nodes.
    pub(super) async fn end(&self) {
        for node in 0..self.nodes.len() {
            self.crash(node, false).await;
        }
    }

    /// The number of the store among names, links and hosts.
    pub(super) fn store(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn postgres(&self) -> &Postgres {
        self.postgres.as_ref().expect("there are several control nodes")
    }

    pub(super) fn pods(&self) -> &Cluster {
        self.cluster.as_ref().expect("there is a cluster")
    }

    /// The number of the cluster for pods, among names, links and hosts.
    pub(super) fn cluster(&self) -> usize {
        self.names.len() - 1
    }

    pub(super) fn boot(&self, node: usize) {
        self.nodes[node].borrow_mut().boot(&self.log);
    }

    /// Notes what nodes see, as help to find a cause.
    async fn tell_what_nodes_see(&self) {
        for node in 0..self.nodes.len() {
            let Ok(status) = self.ask(node, "status").await else { continue };
            let [routes, costs] = ["RoutingTable", "KnownConnectionCosts"].map(|key| &status[key]);
            self.history.tell(format!("{} sees: {routes} {costs}", self.names[node]));
        }
    }

    /// Releases units of which no client was told, as an operator would who lists all units.
    async fn release_unheard(&self) {
        for node in 0..self.nodes.len() {
            let Ok(units) = self.ask(node, "work list").await else { continue };
            for unit in units.as_object().into_iter().flatten().map(|(unit, _)| unit) {
                if let Ok(answer) = self.ask(node, &format!("work release {unit}")).await {
                    self.history.tell(format!("unheard of: {answer}"));
                }
            }
        }
    }

    /// Checks that no node has a unit left, because all jobs are released.
    async fn nothing_is_left(&self) {
        let deadline = Instant::now() + HEALED;
        loop {
            let mut left: Vec<String> = self.nodes.iter().flat_map(|node| units_in(&node.borrow())).collect();
            if let Some(cluster) = &self.cluster {
                left.extend(cluster.pods().await);
            }
            if left.is_empty() {
                return;
            }
            if Instant::now() > deadline {
                return self.miss(format!("units or pods are left: {left:?}"));
            }
            self.history.tell(format!("left: {left:?}"));
            self.release_unheard().await;
            sleep(Duration::from_secs(10)).await;
        }
    }
}

/// The units in a node's directory of units.
fn units_in(node: &Node) -> Vec<String> {
    let found = std::fs::read_dir(node.units()).into_iter().flatten().flatten();
    let mut names: Vec<String> = found.map(|one| one.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| !name.starts_with('.') || name.starts_with(".trash") || name.starts_with(".release"));
    names.retain(|name| !node.is_half_made(&node.units().join(name)));
    names.sort();
    names.into_iter().map(|name| format!("{} {name}", node.name)).collect()
}

/// A note that a client saw this status.
pub(super) fn seen(tag: &str, unit: &str, status: &Value) -> Note {
    Note::Seen {
        tag: tag.to_owned(),
        unit: unit.to_owned(),
        state: status["State"].as_u64().unwrap_or(99),
        detail: status["Detail"].as_str().unwrap_or_default().to_owned(),
        size: status["StdoutSize"].as_u64().unwrap_or(0),
    }
}
