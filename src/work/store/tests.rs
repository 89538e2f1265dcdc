//! Units on a disk that fails, through every sequence of writes that the engine makes of the pure state machine's
//! events: what was acknowledged survives a power loss at any moment, no status is ever half there, and none moves
//! back. `STORE_SEEDS` says how many rows of events (400), `STORE_SEED` the first of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::disk::{Disk, add_payload, make_unit, replace_status};
use super::model::{Fault, Model, units};
use crate::work::status::{CommandExtra, Extra, Status};
use crate::work::unit::{Event, State};

const ROOT: &str = "/units";

/// One unit, and what a client was told of it.
struct Unit {
    path: PathBuf,
    /// Every status that was to be on disk, in order, with whether it was said to be durable.
    written: Vec<(Status, bool)>,
    payload: Vec<u8>,
    payload_acknowledged: bool,
    /// Its acceptance was acknowledged.
    accepted: bool,
    /// Its removal was begun: it may be there or not.
    removed: bool,
}

impl Unit {
    fn new(number: u32) -> Self {
        Self {
            path: Path::new(ROOT).join(format!("unit{number:04}")),
            written: vec![(Status::new("t", Extra::Command(CommandExtra::default())), false)],
            payload: Vec::new(),
            payload_acknowledged: false,
            accepted: false,
            removed: false,
        }
    }

    fn now(&self) -> &Status {
        &self.written[self.written.len() - 1].0
    }

    /// The place in the row of the last status that is sure to be there.
    fn surest(&self) -> usize {
        self.written.iter().rposition(|(_, durable)| *durable).unwrap_or(0)
    }
}

/// What the engine does with a unit next, as far as the disk is concerned.
fn step(disk: &Model, unit: &mut Unit, rng: &mut SmallRng) {
    if !unit.payload_acknowledged {
        let piece: Vec<u8> = (0..rng.random_range(0..40)).map(|_| rng.random()).collect();
        let last = rng.random_bool(0.6);
        let mut stdin = disk.make(&unit.path.join("stdin"), super::disk::Make::Emptied);
        if let Ok(stdin) = &mut stdin {
            unit.payload = piece;
            let added = add_payload(disk, stdin, &unit.payload, last);
            unit.payload_acknowledged = last && added.is_ok();
        }
        return;
    }
    let size = unit.now().life.stdout_size;
    let event = match rng.random_range(0..9) {
        0 => Event::PayloadComplete,
        1 => Event::Queued(rng.random_range(1..5)),
        2 => Event::Started(rng.random_range(2..99_999)),
        3 => Event::Waiting("no route ".repeat(rng.random_range(1..30))),
        4 => Event::Reported(State::Running, "Running".into(), size + 7),
        5 => Event::Reported(State::Succeeded, "exit status 0".into(), size + 1),
        6 => Event::RunnerVanished { cancelled: rng.random(), killed: 1, stdout_size: size },
        7 => Event::CancelledEarly,
        _ => Event::Restarted,
    };
    let mut next = unit.now().clone();
    if next.life.apply(&event) {
        let durable = rng.random_bool(0.5);
        let Ok(output) = output_of(disk, unit, &next) else { return };
        unit.written.push((next.clone(), false));
        let written = replace_status(disk, &unit.path, &next.to_line(), output.as_ref(), durable);
        let last = unit.written.len() - 1;
        unit.written[last].1 = durable && written.is_ok();
    } else if rng.random_bool(0.3) {
        unit.removed = true;
        let _ = disk.remove_all(&unit.path);
    }
}

/// The output that a final status tells of, as a command has written it.
fn output_of(disk: &Model, unit: &Unit, status: &Status) -> std::io::Result<Option<usize>> {
    if !status.life.state.is_final() || status.life.stdout_size == 0 {
        return Ok(None);
    }
    let mut file = disk.make(&unit.path.join("stdout"), super::disk::Make::Emptied)?;
    let mut output = &*vec![1; status.life.stdout_size as usize];
    while !output.is_empty() {
        output = &output[disk.write(&mut file, output)?..];
    }
    Ok(Some(file))
}

fn accept(disk: &Model, number: u32) -> Unit {
    let mut unit = Unit::new(number);
    let line = unit.now().to_line();
    let made = make_unit(disk, &unit.path, &line, || disk.sync_dir(Path::new(ROOT)));
    unit.accepted = made.is_ok();
    unit.written[0].1 = unit.accepted;
    unit
}

/// What a daemon that starts now finds is what its clients were told, or later.
fn check(disk: &Model, unit: &Unit, seed: u64) {
    let found = disk.read(&unit.path.join("status"));
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
        let possible = &unit.written[unit.surest()..];
        assert!(
            possible.iter().any(|(written, _)| *written == status),
            "seed {seed}: {} went back to {status:?}",
            unit.path.display()
        );
        if status.life.state.is_final() && status.life.stdout_size > 0 {
            let stdout = disk.read(&unit.path.join("stdout")).unwrap_or_default();
            assert_eq!(stdout, vec![1; status.life.stdout_size as usize], "seed {seed}: the output");
        }
        if unit.payload_acknowledged {
            let stdin = disk.read(&unit.path.join("stdin"));
            assert_eq!(stdin.as_ref(), Some(&unit.payload), "seed {seed}: the payload");
        }
    }
}

/// A row of events over a few units, with these faults; gives the number of operations on the disk.
fn run(seed: u64, faults: BTreeMap<u32, Fault>) -> u32 {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut disk = Model::new(faults, SmallRng::seed_from_u64(seed ^ 0x5eed));
    let mut all: Vec<Unit> = Vec::new();
    for number in 0..30 {
        if rng.random_bool(0.2) || all.is_empty() {
            all.push(accept(&disk, number));
        } else {
            let chosen = rng.random_range(0..all.len());
            if all[chosen].accepted && !all[chosen].removed {
                step(&disk, &mut all[chosen], &mut rng);
            }
        }
        // Without a crash, what a reader sees is whole at every moment.
        if !disk.has_crashed() {
            all.iter().for_each(|unit| check(&disk, unit, seed));
        }
    }
    let operations = disk.operations();
    disk.power_loss();
    all.iter().for_each(|unit| check(&disk, unit, seed));
    for unit in all.iter_mut().filter(|unit| unit.accepted && !unit.removed) {
        // It goes on from what is there.
        let found = disk.read(&unit.path.join("status")).map(|found| Status::parse(&found).unwrap());
        unit.written = vec![(found.unwrap(), true)];
        step(&disk, unit, &mut rng);
    }
    disk.power_loss();
    all.iter().for_each(|unit| check(&disk, unit, seed));
    assert!(units(&disk).len() <= all.len() + 1);
    operations
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
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
