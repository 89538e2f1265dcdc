//! Units on a disk that fails, through every sequence of changes that the engine makes of the pure state machine's
//! events, with the journal and without: what was acknowledged survives a power loss at any moment, no status is ever
//! half there, and none moves back. `STORE_SEEDS` says how many rows of events (400), `STORE_SEED` the first of them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::RULES;
use super::disk::{Disk, Durability, EXIT_RECORD, Make, make_unit, replace_status, write_file};
use super::journal::{Change, Log, NewStatus, PREFIX, Sizes, Update, replay};
use super::model::{Fault, Model, files, units};
use crate::work::status::{CommandExtra, Extra, Status};
use crate::work::unit::{Event, State};

const ROOT: &str = "/units";
/// So little that logs are full, and settle in either way, within a row of events.
const SIZES: Sizes = Sizes { grow: 512, limit: 1500, one_by_one: 2 };

/// One unit, and what a client was told of it.
struct Unit {
    path: PathBuf,
    /// Every status that was to be on disk, in order, with whether it was said to be durable.
    written: Vec<(Status, bool)>,
    /// Statuses that a daemon was about to put when it was killed: the log may have them.
    begun: Vec<Status>,
    payload: Vec<u8>,
    payload_acknowledged: bool,
    /// Its acceptance was acknowledged.
    accepted: bool,
    /// Its removal was begun: it may be there or not.
    removed: bool,
    /// It was removed, and is not to come back.
    gone: bool,
    /// A runner has it: the daemon writes its status no more.
    handed_over: bool,
    /// It has run on another node, and its statuses are the daemon's alone.
    is_remote: bool,
}

impl Unit {
    fn new(number: u32, is_remote: bool) -> Self {
        Self {
            path: Path::new(ROOT).join(format!("unit{number:04}")),
            written: vec![(Status::new("t", Extra::Command(CommandExtra::default())), false)],
            begun: Vec::new(),
            payload: Vec::new(),
            payload_acknowledged: false,
            accepted: false,
            removed: false,
            gone: false,
            handed_over: false,
            is_remote,
        }
    }

    fn name(&self) -> String {
        self.path.file_name().unwrap().to_str().unwrap().to_owned()
    }

    fn now(&self) -> &Status {
        &self.written[self.written.len() - 1].0
    }

    /// The place in the row of the last status that is sure to be there.
    fn surest(&self) -> usize {
        self.written.iter().rposition(|(_, durable)| *durable).unwrap_or(0)
    }

    /// What becomes of the last status.
    fn note(&mut self, durable: bool) {
        let last = self.written.len() - 1;
        self.written[last].1 |= durable;
        if durable {
            self.begun.clear();
        }
    }
}

/// A daemon's journal on a disk.
struct Node {
    log: Log<Model>,
}

impl Node {
    fn start(disk: Model) -> Self {
        let root = Path::new(ROOT);
        let logs = files(&disk, &root.join(PREFIX));
        let generation = replay(&disk, root, &logs, &RULES).unwrap();
        Self { log: Log::new(disk, root.to_owned(), SIZES, RULES, generation) }
    }

    fn disk(&self) -> &Model {
        &self.log.disk
    }

    /// The machine loses its power, or the daemon alone is killed; and starts again.
    fn restart(self, lost_power: bool) -> Self {
        let mut disk = self.log.disk;
        if lost_power {
            disk.power_loss()
        } else {
            disk.go_on()
        }
        Self::start(disk)
    }

    /// The daemon is killed and another one, which knows of no journal, removes units; then perhaps the power is lost.
    fn lend(self, removed: &[PathBuf], lost_power: bool) -> Self {
        let mut disk = self.log.disk;
        disk.go_on();
        removed.iter().for_each(|unit| disk.remove_all(unit).unwrap());
        disk.sync_dir(Path::new(ROOT)).unwrap();
        if lost_power {
            disk.power_loss();
        }
        Self::start(disk)
    }
}

/// What the engine does with a unit next, as far as the disk is concerned: the change to be committed, if there is one,
/// is of the last status.
fn step(disk: &Model, unit: &mut Unit, rng: &mut SmallRng) -> Option<Update> {
    let ask = |unit: &Unit, change| Some(Update { unit: unit.name(), change });
    if !unit.payload_acknowledged {
        unit.payload = (0..rng.random_range(0..40)).map(|_| rng.random()).collect();
        return ask(unit, Change::File("stdin", unit.payload.clone()));
    }
    let size = unit.now().life.stdout_size;
    let event = match rng.random_range(0..9) {
        0 => Event::PayloadComplete,
        1 => Event::Queued(rng.random_range(1..5)),
        2 => Event::Started(rng.random_range(2..99_999)),
        3 => Event::Waiting("no route ".repeat(rng.random_range(1..30))),
        4 => Event::Reported(State::Running, "Running".into(), size + 7),
        5 => Event::Reported(State::Succeeded, "exit status 0".into(), size + 1),
        6 => Event::RunnerVanished { cancelled: rng.random(), killed: 1, left: None, stdout_size: size },
        7 => Event::CancelledEarly,
        _ => Event::Restarted,
    };
    let mut next = unit.now().clone();
    if next.life.apply(&event) {
        let output = write_output(disk, unit, &next).ok()?;
        let (line, is_final) = (next.to_line(), next.life.state.is_final());
        let by_runner = !unit.is_remote && next.life.state > State::Pending;
        unit.written.push((next, false));
        if !by_runner {
            return ask(unit, Change::Status(NewStatus { line, output, from_exit_record: false }));
        }
        unit.handed_over = true;
        if !is_final {
            let _ = replace_status(disk, &(), &unit.path, &line, Durability::Deferred);
            return None;
        }
        // No client learns of it before the daemon has adopted it.
        write_file(disk, &unit.path.join(EXIT_RECORD), &line).ok()?;
        return ask(unit, Change::Status(NewStatus { line, output, from_exit_record: true }));
    }
    if rng.random_bool(0.3) {
        unit.removed = true;
        disk.remove_all(&unit.path).ok()?;
        return ask(unit, Change::Gone);
    }
    None
}

/// The output that a final status tells of, as a command has written it.
fn write_output(disk: &Model, unit: &Unit, status: &Status) -> io::Result<u64> {
    if !status.life.state.is_final() || status.life.stdout_size == 0 {
        return Ok(0);
    }
    let mut file = disk.make(&unit.path.join("stdout"), Make::Emptied)?;
    let mut output = &*vec![1; status.life.stdout_size as usize];
    while !output.is_empty() {
        output = &output[disk.write(&mut file, output)?..];
    }
    Ok(status.life.stdout_size)
}

/// What a daemon that starts now finds is what its clients were told, or later.
fn check(disk: &Model, unit: &Unit, seed: u64) {
    let found = disk.contents(&unit.path.join("status"));
    assert!(!unit.gone || found.is_none(), "seed {seed}: {} is back", unit.path.display());
    let told = unit.accepted && !unit.removed;
    let Some(found) = found else {
        assert!(!told, "seed {seed}: {} is gone", unit.path.display());
        return;
    };
    let status = match Status::parse(&found) {
        Ok(status) => status,
        // Of what nobody was told anything may be left, and counts as none.
        Err(_) if !told => return,
        Err(error) => panic!("seed {seed}: {} is damaged: {error}: {found:?}", unit.path.display()),
    };
    if told {
        let possible = unit.written[unit.surest()..].iter().map(|(written, _)| written);
        assert!(
            possible.chain(&unit.begun).any(|written| *written == status),
            "seed {seed}: {} went back to {status:?}",
            unit.path.display()
        );
        let (last, durable) = &unit.written[unit.written.len() - 1];
        if *durable && last.life.state.is_final() && last.life.stdout_size > 0 {
            let stdout = disk.contents(&unit.path.join("stdout")).unwrap_or_default();
            // More is not told of.
            let told = vec![1; last.life.stdout_size as usize];
            assert!(stdout.starts_with(&told), "seed {seed}: the output is {stdout:?}, not {told:?}");
        }
        if unit.payload_acknowledged {
            let stdin = disk.contents(&unit.path.join("stdin"));
            assert_eq!(stdin.as_ref(), Some(&unit.payload), "seed {seed}: the payload");
        }
    }
}

/// A few changes at a time, and what came of them.
fn turn(node: &mut Node, all: &mut Vec<Unit>, rng: &mut SmallRng) {
    let mut asks = Vec::new();
    let mut of: Vec<usize> = Vec::new();
    for _ in 0..rng.random_range(1..4) {
        if rng.random_bool(0.25) || all.is_empty() {
            let unit = Unit::new(all.len() as u32, rng.random());
            asks.push(Update { unit: unit.name(), change: Change::Make(unit.now().to_line()) });
            of.push(all.len());
            all.push(unit);
            continue;
        }
        let chosen = rng.random_range(0..all.len());
        // A unit has one writer at a time.
        if all[chosen].accepted && !all[chosen].removed && !of.contains(&chosen) {
            let ask = step(node.disk(), &mut all[chosen], rng);
            of.extend(ask.iter().map(|_| chosen));
            asks.extend(ask);
        }
    }
    let outcomes = node.log.commit(&asks);
    for ((ask, chosen), outcome) in asks.iter().zip(of).zip(outcomes) {
        let unit = &mut all[chosen];
        match &ask.change {
            Change::Make(_) => {
                unit.accepted = outcome.is_ok();
                unit.note(outcome.is_ok());
            }
            Change::File(..) => unit.payload_acknowledged = outcome.is_ok(),
            Change::Status(_) => unit.note(outcome.is_ok()),
            Change::Gone => unit.gone = outcome.is_ok(),
        }
    }
    if node.log.is_full() || rng.random_bool(0.1) {
        // It is tried again before the next change.
        let _ = node.log.checkpoint();
    }
}

/// A row of events over a few units, with these faults; gives the number of operations on the disk.
fn run(seed: u64, faults: BTreeMap<u32, Fault>) -> u32 {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut node = Node::start(Model::new(Path::new(ROOT), faults, SmallRng::seed_from_u64(seed ^ 0x5eed)));
    let mut all: Vec<Unit> = Vec::new();
    for _ in 0..14 {
        turn(&mut node, &mut all, &mut rng);
        // Without a crash, what a reader sees is whole at every moment.
        if !node.disk().has_crashed() {
            all.iter().for_each(|unit| check(node.disk(), unit, seed));
        }
    }
    let operations = node.disk().operations();
    for _ in 0..2 {
        node = match rng.random_bool(0.3) {
            true => {
                let taken = all.iter_mut().filter(|unit| unit.accepted && !unit.removed);
                let taken = taken.filter(|_| rng.random_bool(0.3));
                let taken = taken.map(|unit| {
                    (unit.removed, unit.gone) = (true, true);
                    unit.path.clone()
                });
                let taken: Vec<_> = taken.collect();
                node.lend(&taken, rng.random())
            }
            false => node.restart(rng.random_bool(0.7)),
        };
        all.iter().for_each(|unit| check(node.disk(), unit, seed));
        for unit in all.iter_mut().filter(|unit| unit.accepted && !unit.removed) {
            // It goes on from what is there.
            let found = node.disk().contents(&unit.path.join("status"));
            let found = Status::parse(&found.unwrap()).unwrap();
            match unit.written.iter().rposition(|(written, _)| *written == found) {
                Some(at) => unit.begun.extend(unit.written.drain(at + 1..).map(|(written, _)| written)),
                None => unit.written.push((found, false)),
            }
        }
        for _ in 0..3 {
            turn(&mut node, &mut all, &mut rng);
            all.iter().for_each(|unit| check(node.disk(), unit, seed));
        }
    }
    node = node.restart(true);
    all.iter().for_each(|unit| check(node.disk(), unit, seed));
    // With the directory that they are in.
    assert!(units(node.disk()).len() <= all.len() + 1);
    operations
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn a_daemon_that_is_killed_leaves_no_half_of_a_status_in_a_new_unit() {
    let (root, unit) = (Path::new(ROOT), Path::new(ROOT).join("unit0001"));
    let line = Status::new("t", Extra::None).to_line();
    for at in 0.. {
        let crash = BTreeMap::from([(at, Fault::Crash)]);
        let mut disk = Model::new(root, crash, SmallRng::seed_from_u64(1));
        let made = make_unit(&disk, &unit, &line);
        if made.is_ok() {
            assert!(at > 5, "{at} operations");
            return;
        }
        disk.go_on();
        let left = disk.contents(&unit.join("status"));
        assert!(left.as_ref().is_none_or(|left| *left == line), "operation {at}: {left:?}");
    }
}

#[test]
fn whatever_fails_what_was_told_is_true() {
    let (first, seeds) = (number("STORE_SEED", 1), number("STORE_SEEDS", 400));
    for seed in first..first + seeds {
        let operations = run(seed, BTreeMap::new());
        let mut rng = SmallRng::seed_from_u64(!seed);
        // A power loss before each operation, and so after each.
        for at in 0..operations {
            run(seed, BTreeMap::from([(at, Fault::Crash)]));
        }
        for _ in 0..8 {
            let faults = (0..rng.random_range(1..4)).map(|_| {
                let fault = match rng.random_range(0..4) {
                    0 => Fault::Full(rng.random_range(1..20)),
                    1 => Fault::Broken,
                    2 => Fault::Short,
                    _ => Fault::Crash,
                };
                (rng.random_range(0..operations), fault)
            });
            run(seed, faults.collect());
        }
    }
}
