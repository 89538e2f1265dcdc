//! 500 nodes and 25,000 jobs in virtual time, with nodes that are lost and return: capacity is used, and
//! every job ends as it should.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::*;

const NODES: usize = 500;
const JOBS: i64 = 25_000;
const CONTROLS: usize = 4;
/// Time between passes, in milliseconds; a job takes about thirty times as long.
const STEP: i64 = 2000;

/// A small generator with the same numbers in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ends(usize, AttemptNo),
    Lost(usize),
    Back(usize, bool),
}

struct Simulation {
    instances: Vec<Instance>,
    groups: Vec<Group>,
    jobs: Vec<Job>,
    /// The queue by number, as from the store.
    queue: Vec<PendingJob>,
    active: BTreeSet<usize>,
    events: BinaryHeap<Reverse<(i64, Event)>>,
    cut: BTreeSet<usize>,
    /// Attempts that ended on a node while it did not answer.
    unread: BTreeMap<usize, Vec<(usize, AttemptNo)>>,
    dice: Dice,
    now: Time,
    /// Capacity and its use, summed over the passes that left a backlog.
    offered: u64,
    used: u64,
    passes: u32,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let controls: Vec<String> = (1..=CONTROLS).map(|at| format!("c{at}")).collect();
        let nodes: Vec<String> = (0..NODES).map(|at| format!("e{at}")).collect();
        let mut instances: Vec<_> = controls.iter().map(|name| control(name, 3_000)).collect();
        instances.extend(nodes.iter().map(|name| execution(name, 8 + dice.below(33) as u32)));
        let names = |all: &[String]| all.iter().map(|name| named(name)).collect::<Vec<_>>();
        let groups: Vec<_> = [("controlplane", names(&controls)), ("default", names(&nodes))]
            .into_iter()
            .map(|(name, list)| group(name, &list.iter().map(InstanceName::as_str).collect::<Vec<_>>()))
            .collect();
        let jobs: Vec<_> = (1..=JOBS)
            .map(|id| Job {
                retry: Retry { max: (id % 2) as u32, ..Retry::default() },
                ..Job::new(JobId(id), JobKind::Job, 1 + dice.below(6) as u32, START)
            })
            .collect();
        let queue = jobs
            .iter()
            .map(|job| PendingJob {
                holders: vec![named(&controls[job.id.0 as usize % CONTROLS])],
                ..queued(job)
            })
            .collect();
        for instance in &mut instances {
            let sighting = Sighting { routed: true, arrived: START, beat: 0 };
            instance.seen = controls.iter().map(|control| (named(control), sighting)).collect();
        }
        let mut events = BinaryHeap::new();
        for _ in 0..300 {
            let at = START.0 + dice.below(1_000_000) as i64;
            events.push(Reverse((at, Event::Lost(CONTROLS + dice.below(NODES as u64) as usize))));
        }
        Self {
            instances,
            groups,
            jobs,
            queue,
            active: BTreeSet::new(),
            events,
            cut: BTreeSet::new(),
            unread: BTreeMap::new(),
            dice,
            now: START,
            offered: 0,
            used: 0,
            passes: 0,
        }
    }

    fn run(&mut self) {
        while !(self.queue.is_empty() && self.active.is_empty() && self.events.is_empty()) {
            assert!(self.now.0 < START.0 + 10_000_000, "{} jobs wait", self.queue.len());
            self.now = Time(self.now.0 + STEP);
            while let Some(Reverse((at, event))) = self.events.peek().copied().filter(|e| e.0.0 <= self.now.0)
            {
                self.events.pop();
                match event {
                    Event::Ends(job, n) => self.end(job, n),
                    Event::Lost(node) => self.lose(node, at),
                    Event::Back(node, crashed) => self.bring_back(node, crashed),
                }
            }
            self.pass();
        }
    }

    /// A node falls silent for a while: half of these nodes crash, the others are only cut off.
    fn lose(&mut self, node: usize, at: i64) {
        if !self.cut.insert(node) {
            return;
        }
        self.instances[node].on_lost();
        let (away, crashed) = (100_000 + self.dice.below(100_000) as i64, self.dice.below(2) == 0);
        self.events.push(Reverse((at + away, Event::Back(node, crashed))));
        for (job, n) in self.open_on(node) {
            self.drive(job, |driven, now| driven.on_lost(n, now));
        }
    }

    /// The node returns, and the owner asks for the results of its attempts.
    fn bring_back(&mut self, node: usize, crashed: bool) {
        self.cut.remove(&node);
        self.instances[node].node_state = NodeState::Ready;
        let ended = self.unread.remove(&node).unwrap_or_default();
        for (job, n) in self.open_on(node) {
            let is_final = self.jobs[job].state.is_final();
            let interrupted = evidence(Some(FinalStatus::Canceled));
            self.drive(job, |driven, now| match (crashed, is_final) {
                (true, _) => driven.on_unknown(n, now).unwrap(),
                (false, _) if ended.contains(&(job, n)) => {}
                (false, true) => driven.on_ended(n, &interrupted, now).unwrap(),
                (false, false) => driven.on_accepted(n, now).unwrap(),
            });
        }
        ended.into_iter().for_each(|(job, n)| self.end(job, n));
    }

    fn open_on(&self, node: usize) -> Vec<(usize, AttemptNo)> {
        let name = &self.instances[node].name;
        let open = |job: &usize| {
            let attempts = self.jobs[*job].attempts.iter();
            let here = attempts.filter(|attempt| attempt.is_open() && attempt.depends_on_node(name));
            here.map(|attempt| (*job, attempt.n)).collect::<Vec<_>>()
        };
        self.active.iter().flat_map(open).collect()
    }

    fn end(&mut self, job: usize, n: AttemptNo) {
        let name = self.jobs[job].attempt(n).and_then(|attempt| attempt.node.clone()).expect("it was placed");
        let node =
            self.instances.iter().position(|instance| instance.name == name).expect("it is registered");
        if self.cut.contains(&node) {
            self.unread.entry(node).or_default().push((job, n));
            return;
        }
        let good = evidence(Some(FinalStatus::Successful));
        self.drive(job, |driven, now| driven.on_ended(n, &good, now).unwrap());
    }

    fn drive(&mut self, job: usize, event: impl FnOnce(&mut Driven<'_>, Time)) {
        let fence = self.jobs[job].fence.clone().expect("it was placed");
        let was_final = self.jobs[job].state;
        event(&mut self.jobs[job].driven_by(&fence).expect("the present fence"), self.now);
        assert!(!was_final.is_final() || self.jobs[job].state == was_final, "a terminal state changed");
        if self.jobs[job].claims().is_empty() {
            self.active.remove(&job);
        }
        let at = self.queue.binary_search_by_key(&self.jobs[job].id, |queued| queued.id);
        match (self.jobs[job].state, at) {
            (JobState::Pending, Ok(at)) => self.queue[at].hold = self.jobs[job].hold(),
            (JobState::Pending, Err(at)) => {
                let again = PendingJob { holders: vec![fence.owner], ..queued(&self.jobs[job]) };
                self.queue.insert(at, again);
            }
            (_, Ok(at)) => _ = self.queue.remove(at),
            (_, Err(_)) => {}
        }
    }

    fn pass(&mut self) {
        for (at, instance) in self.instances.iter_mut().enumerate() {
            let is_seen = !self.cut.contains(&at);
            instance.seen.values_mut().for_each(|sighting| sighting.routed = is_seen);
        }
        let claims: Vec<Claim> = self.active.iter().flat_map(|&job| self.jobs[job].claims()).collect();
        let scene = Scene { now: self.now, ..scene(&self.instances, &self.groups, &claims) };
        let decisions = pass(&scene, &self.queue);
        self.judge(&scene, &decisions);
        let mut placements = Vec::new();
        let mut waits_for_room = false;
        for decision in decisions {
            match decision {
                Decision::Place(place) => placements.push(place),
                Decision::Wait(_, Waiting::Groups(_)) => waits_for_room = true,
                Decision::Wait(_, Waiting::Hold(Hold::Attempt { .. })) => {}
                other => panic!("{other:?}"),
            }
        }
        let mut placed = BTreeSet::new();
        for place in placements {
            let job = place.job.0 as usize - 1;
            let unit = child_id(place.job, self.jobs[job].next_attempt());
            let fence = Fence { owner: place.owner.clone(), epoch: Epoch(1) };
            let n = self.jobs[job].place(&place, unit, fence.clone(), self.now).expect("it can be placed");
            self.jobs[job].driven_by(&fence).unwrap().on_accepted(n, self.now).unwrap();
            self.active.insert(job);
            placed.insert(place.job);
            let ends = self.now.0 + 20_000 + self.dice.below(80_000) as i64;
            self.events.push(Reverse((ends, Event::Ends(job, n))));
        }
        self.queue.retain(|queued| !placed.contains(&queued.id));
        let claims: Vec<Claim> = self.active.iter().flat_map(|&job| self.jobs[job].claims()).collect();
        let loads = Loads::sum(&self.instances, &self.groups, &claims);
        for load in &loads.instances {
            assert!(load.consumed <= load.capacity || load.capacity == 0, "over capacity: {load:?}");
        }
        if waits_for_room {
            self.passes += 1;
            self.offered +=
                loads.instances[CONTROLS..].iter().map(|load| u64::from(load.capacity)).sum::<u64>();
            self.used += loads.instances[CONTROLS..]
                .iter()
                .map(|load| u64::from(load.consumed.min(load.capacity)))
                .sum::<u64>();
        }
    }

    /// No job was skipped that fits where a later one was placed, or that fits after the pass.
    fn judge(&self, scene: &Scene<'_>, decisions: &[Decision]) {
        let loads = Loads::sum(scene.instances, scene.groups, scene.claims);
        let mut left: BTreeMap<&InstanceName, u32> = BTreeMap::new();
        for (instance, load) in self.instances.iter().zip(&loads.instances).skip(CONTROLS) {
            left.insert(&instance.name, load.remaining());
        }
        let mut smallest_waiting = u32::MAX;
        for decision in decisions {
            match decision {
                Decision::Place(place) => {
                    let most = *left.values().max().expect("there are nodes");
                    assert!(most < smallest_waiting, "{} was placed where an earlier job fitted", place.job);
                    let node = place.execution_node.as_ref().expect("there are no container groups");
                    let here = left.get_mut(node).expect("it is a node");
                    let impact = self.jobs[place.job.0 as usize - 1].impact;
                    assert_eq!(*here, most, "the roomiest node");
                    *here = here.checked_sub(impact).expect("nothing here is larger than a node");
                }
                Decision::Wait(job, Waiting::Groups(_)) => {
                    smallest_waiting = smallest_waiting.min(self.jobs[job.0 as usize - 1].impact);
                }
                Decision::Wait(_, _) | Decision::Fail(_, _) => {}
            }
        }
        assert!(left.values().all(|left| *left < smallest_waiting), "something that waits fits");
    }
}

fn queued(job: &Job) -> PendingJob {
    PendingJob {
        priority: (job.id.0 % 3) as i8,
        hold: job.hold(),
        ..pending(job.id.0, job.impact, &["default"])
    }
}

#[test]
fn five_hundred_nodes_are_used_and_25_000_jobs_end() {
    let mut simulation = Simulation::new(14);
    simulation.run();
    let used = simulation.used as f64 / simulation.offered as f64;
    let ended = |state| simulation.jobs.iter().filter(|job| job.state == state).count();
    let (good, lost) = (ended(JobState::Successful), ended(JobState::Failed));
    let retried = simulation.jobs.iter().filter(|job| job.attempts.len() > 1).count();
    let passes = simulation.passes;
    println!(
        "used {:.2} % in {passes} passes with a backlog; {good} successful, {lost} lost, {retried} retried",
        used * 100.0
    );
    assert_eq!(good + lost, JOBS as usize, "every job has one end");
    assert!(lost > 0 && retried > 0, "nodes were lost under their jobs");
    let open =
        simulation.jobs.iter().flat_map(|job| &job.attempts).filter(|attempt| attempt.is_open()).count();
    assert_eq!(open, 0, "and nothing of them is left");
    assert!(passes > 200, "there was a backlog");
    assert!(used >= 0.95, "{used}");
}
