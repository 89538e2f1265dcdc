//! Random histories: jobs are submitted, accepted, written, ended and cancelled, nodes fall silent, return, forget and
//! are declared dead, and the control node is killed at any point. Afterwards jobs, units and outputs must agree.
//!
//! `DRIVER_SEEDS` sets how many histories there are, `DRIVER_SEED` the first one.

use std::collections::{BTreeMap, BTreeSet};

use super::streams::{process, whole};
use super::*;
use crate::controller::core::{ChildId, JobId};
use crate::controller::driver::shown::unit_state;
use serde_json::{Value, json};

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

const NODES: [&str; 3] = ["e1", "e2", "e3"];

struct Submitted {
    units: Vec<String>,
    retries: u64,
    unconfirmed: bool,
}

struct History {
    site: Site,
    dice: Dice,
    jobs: BTreeMap<JobId, Submitted>,
    /// What each child writes in all, and how many of these bytes it has written.
    scripts: BTreeMap<String, (Vec<u8>, usize)>,
    /// What each child has written.
    wrote: BTreeMap<String, Vec<u8>>,
    /// Children on nodes that were silent for long: a final status that had arrived decides, and later output is
    /// missing.
    given_up: BTreeSet<String>,
    finals: BTreeMap<JobId, JobState>,
    /// How many attempts a job had when no other could follow any more.
    closed: BTreeMap<JobId, usize>,
    told: Vec<String>,
}

impl History {
    fn begin(seed: u64) -> Self {
        Self {
            site: Site::ready(&NODES),
            dice: Dice(seed),
            jobs: BTreeMap::new(),
            scripts: BTreeMap::new(),
            wrote: BTreeMap::new(),
            given_up: BTreeSet::new(),
            finals: BTreeMap::new(),
            closed: BTreeMap::new(),
            told: Vec::new(),
        }
    }

    fn tell(&mut self, what: String) {
        self.told.push(what);
    }

    fn step(&mut self) {
        match self.dice.below(24) {
            0..4 => self.submit(),
            4..12 => self.write(),
            12..14 => self.end_badly(),
            14 => self.cancel(),
            15 => self.cut(),
            16..18 => self.heal(),
            18 => self.forget(),
            19 => self.declare_dead(),
            20 => self.restart(),
            21 => self.lose_time(),
            22 => self.strange_cancel(),
            _ => {
                let ms = self.dice.below(2_000) as u64;
                self.site.pass(Duration::from_millis(ms));
            }
        }
        self.check();
    }

    fn submit(&mut self) {
        if self.jobs.len() >= 8 {
            return;
        }
        let retries = [0, 0, 1, 2][self.dice.below(4)];
        let unconfirmed = retries > 0 && self.dice.below(3) == 0;
        let mut header: Value = json!({"forks": self.dice.below(5), "priority": self.dice.below(3)});
        if retries > 0 {
            let on = [json!(["lost"]), json!(["lost", "error", "failed"])][self.dice.below(2)].clone();
            header["retry"] = json!({"max": retries, "on": on, "unconfirmed": unconfirmed});
        }
        let (unit, job) = self.site.submit(header);
        self.tell(format!(
            "job {job} with {retries} retries{}",
            if unconfirmed { ", unconfirmed" } else { "" }
        ));
        self.jobs.insert(job, Submitted { units: vec![unit], retries, unconfirmed });
    }

    fn pick(&mut self, from: Vec<String>) -> Option<String> {
        if from.is_empty() { None } else { Some(from[self.dice.below(from.len())].clone()) }
    }

    fn alive(&self) -> Vec<String> {
        let alive = |job: &JobId| self.site.fabric.look(|units| units.alive(job.0));
        self.jobs.keys().flat_map(alive).collect()
    }

    /// A child writes up to any byte, and ends with the last one.
    fn write(&mut self) {
        let alive = self.alive();
        let Some(unit) = self.pick(alive) else { return };
        let (lines, status) =
            (self.dice.below(6) as u64, ["successful", "successful", "failed"][self.dice.below(3)]);
        let (script, at) = self.scripts.entry(unit.clone()).or_insert_with(|| (whole(lines, status), 0));
        let (script, from) = (script.clone(), *at);
        let to = (from + 1 + self.dice.below(script.len())).min(script.len());
        self.put(&unit, &script[from..to]);
        if to == script.len() {
            self.end(&unit, ChildEnd::Succeeded);
        } else {
            self.scripts.insert(unit, (script, to));
        }
    }

    fn put(&mut self, unit: &str, bytes: &[u8]) {
        self.tell(format!("{unit} writes {} bytes", bytes.len()));
        self.wrote.entry(unit.to_owned()).or_default().extend_from_slice(bytes);
        self.site.fabric.write(unit, bytes);
    }

    fn end(&mut self, unit: &str, end: ChildEnd) {
        self.site.fabric.end(unit, end, "exit status");
        self.tell(format!("{unit} ends: {end:?}"));
    }

    fn end_badly(&mut self) {
        let alive = self.alive();
        let Some(unit) = self.pick(alive).filter(|_| self.dice.below(3) == 0) else { return };
        self.end(&unit, ChildEnd::Failed);
    }

    fn strange_cancel(&mut self) {
        let alive = self.alive();
        let Some(unit) = self.pick(alive).filter(|_| self.dice.below(3) == 0) else { return };
        self.end(&unit, ChildEnd::Canceled);
    }

    fn cancel(&mut self) {
        let all: Vec<String> = self.jobs.values().flat_map(|job| job.units.clone()).collect();
        let Some(unit) = self.pick(all).filter(|_| self.dice.below(2) == 0) else { return };
        self.tell(format!("cancel {unit}"));
        self.site.cancel_unit(&unit);
    }

    fn cut(&mut self) {
        let node = NODES[self.dice.below(3)];
        self.tell(format!("{node} falls silent"));
        self.site.fabric.set_routed(node, false);
    }

    fn heal(&mut self) {
        let node = NODES[self.dice.below(3)];
        self.tell(format!("{node} is back"));
        self.site.fabric.set_routed(node, true);
    }

    /// A silent node is reinstalled and forgets its units.
    fn forget(&mut self) {
        let silent = self.site.fabric.look(|units| {
            units.nodes.iter().filter(|(_, node)| !node.routed).map(|(name, _)| name.clone()).collect()
        });
        let Some(node) = self.pick(silent) else { return };
        self.tell(format!("{node} forgets its units"));
        self.drop_units(&node);
    }

    /// Drops a node's units. Nobody ever gets what they wrote after the node fell silent.
    fn drop_units(&mut self, node: &str) {
        for (unit, wrote) in &mut self.wrote {
            if self.site.fabric.look(|units| units.there.get(unit).is_some_and(|it| it.node == node)) {
                wrote.truncate(self.site.fabric.delivered(unit));
            }
        }
        self.site.fabric.change(|units| units.there.retain(|_, running| running.node != node));
    }

    /// An operator declares a silent node dead, and the node is dead.
    fn declare_dead(&mut self) {
        let known: BTreeSet<String> =
            self.site.instances().iter().map(|one| one.instance.name.to_string()).collect();
        let silent = self.site.fabric.look(|units| {
            let silent = units.nodes.iter().filter(|(name, node)| !node.routed && known.contains(*name));
            silent.map(|(name, _)| name.clone()).collect()
        });
        let Some(node) = self.pick(silent) else { return };
        self.tell(format!("{node} is declared dead"));
        self.drop_units(&node);
        self.site.declare_dead(&node);
    }

    fn restart(&mut self) {
        self.tell("the control node is killed".to_owned());
        self.site.kill();
        self.site.boot();
    }

    fn lose_time(&mut self) {
        let span = [20, 70, 200][self.dice.below(3)];
        self.tell(format!("{span} s pass"));
        let silent = self.site.fabric.look(|units| {
            let silent = units
                .there
                .iter()
                .filter(|(_, it)| units.nodes.get(&it.node).is_some_and(|node| !node.routed));
            silent.map(|(unit, _)| unit.clone()).collect::<Vec<_>>()
        });
        self.given_up.extend(silent);
        self.site.pass(seconds(span));
    }

    /// Checks what holds at every moment.
    fn check(&mut self) {
        let started: Vec<String> = self.site.fabric.look(|units| units.started.clone());
        let unique: BTreeSet<&String> = started.iter().collect();
        assert_eq!(unique.len(), started.len(), "a unit started twice: {:#?}", self.told);
        for job in self.site.jobs() {
            let id = job.row.id;
            let of_job = started
                .iter()
                .filter(|unit| ChildId::parse(unit).is_some_and(|child| child.job == id))
                .count();
            let submitted = &self.jobs[&id];
            assert!(of_job as u64 <= submitted.retries + 1, "{of_job} starts of {id}: {:#?}", self.told);
            let alive = self.site.fabric.look(|units| units.alive(id.0));
            assert!(alive.len() <= 1 || submitted.unconfirmed, "{alive:?} at a time: {:#?}", self.told);
            if let Some(state) = self.finals.get(&id) {
                assert_eq!(*state, job.row.state, "a final state changed: {:#?}", self.told);
            }
            if job.row.state.is_final() {
                self.finals.insert(id, job.row.state);
            }
            if job.row.state.is_final() || job.row.cancel_requested {
                // An attempt that is already on its way may still start, but no other follows.
                let attempts = job.job.attempts.len();
                let before = *self.closed.entry(id).or_insert(attempts);
                assert_eq!(before, attempts, "an attempt after success or a saved cancel: {:#?}", self.told);
            }
        }
    }

    /// All nodes come back, and every child comes to its end.
    fn wind_up(&mut self) {
        for node in NODES {
            self.site.fabric.set_routed(node, true);
        }
        for _ in 0..200 {
            for unit in self.alive() {
                let (script, at) =
                    self.scripts.get(&unit).cloned().unwrap_or_else(|| (whole(2, "successful"), 0));
                self.put(&unit, &script[at..]);
                self.end(&unit, ChildEnd::Succeeded);
            }
            self.site.pass(seconds(1));
            self.check();
            let jobs = self.site.jobs();
            let is_swept = jobs.iter().all(|job| job.job.attempts.iter().all(|attempt| attempt.swept));
            if self.finals.len() == self.jobs.len() && is_swept && self.site.fabric.left().is_empty() {
                return self.judge();
            }
        }
        panic!("something is left: {:#?} {:#?} {:#?}", self.site.jobs(), self.site.fabric.left(), self.told);
    }

    /// Checks what holds in the end.
    fn judge(&self) {
        for (id, submitted) in &self.jobs {
            let job = self.site.job(*id);
            let wanted = unit_state(job.row.state);
            for unit in &submitted.units {
                let shown = self.site.unit(unit).expect("its unit is there");
                assert_eq!(shown.state, wanted, "{job:#?}");
                let output = self.site.output(unit);
                let last = job.job.attempts.last();
                let is_given_up = last.is_some_and(|last| self.given_up.contains(&last.unit.to_string()));
                let wrote =
                    last.and_then(|last| self.wrote.get(&last.unit.to_string())).cloned().unwrap_or_default();
                if submitted.retries > 0 {
                    let (_, _, end) = process(&output);
                    assert!(
                        is_given_up || matches!(end, "eof" | "empty"),
                        "{end}: {} {:#?}",
                        text(&output),
                        self.told
                    );
                } else if job.row.state == JobState::Successful && !is_given_up {
                    assert!(
                        output == wrote,
                        "{} is not {} {:#?} {job:#?}",
                        text(&output),
                        text(&wrote),
                        self.told
                    );
                } else {
                    assert!(
                        wrote.starts_with(&output),
                        "{} is not of {} {:#?}",
                        text(&output),
                        text(&wrote),
                        self.told
                    );
                }
                // If the child was killed after its final status, the output lacks what `process` could not read.
                let is_whole = wrote.ends_with(b"{\"eof\":true}\n") && !is_given_up;
                if job.row.state == JobState::Successful && is_whole {
                    assert!(
                        output.ends_with(&wrote),
                        "{} {} {:#?} {job:#?}",
                        text(&output),
                        text(&wrote),
                        self.told
                    );
                }
            }
        }
        let loads = self.site.run(self.site.driver().store.overview()).unwrap().loads.instances;
        assert!(loads.iter().all(|load| (load.consumed, load.jobs) == (0, 0)), "{loads:?}");
        let units: BTreeSet<String> = self.site.units().into_iter().collect();
        let known: BTreeSet<String> = self.jobs.values().flat_map(|job| job.units.clone()).collect();
        assert_eq!(units, known, "no unit without job, no job without unit");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_history_ends_as_it_must() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (first, count) = (number("DRIVER_SEED", 1), number("DRIVER_SEEDS", 6));
    for seed in first..first + count {
        println!("DRIVER_SEED={seed}");
        let mut history = History::begin(seed);
        for _ in 0..80 {
            history.step();
        }
        history.wind_up();
    }
}
