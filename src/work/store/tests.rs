//! Units on a disk that fails, with random sequences of the changes that the engine makes for unit events: what was
//! acknowledged survives a power loss at any moment, no reader sees half a status, and no status goes back.
//! `STORE_SEEDS` is the number of sequences (default 400), `STORE_SEED` the first seed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::disk::{
    Disk, Durability, EXIT_RECORD, Flush, Make, NEW_STATUS, NewStatus, adopt_exit_record, finish_unit,
    make_unit, move_away, put_file, replace_status, unmake_unit, write_all,
};
use super::model::{Fault, Model};
use super::unit_dir::QUEUED;
use crate::work::status::{CommandExtra, Extra, Status};
use crate::work::unit::{State, UnitEvent};

const ROOT: &str = "/units";

/// One unit, and what a client was told of it.
struct Unit {
    path: PathBuf,
    /// Every status that was to be written, in order, and whether its write was reported as durable.
    written: Vec<(Status, bool)>,
    payload: Vec<u8>,
    payload_acknowledged: bool,
    /// The mark that it is queued, once its write has succeeded.
    mark: Option<Vec<u8>>,
    /// Its acceptance was acknowledged.
    accepted: bool,
    /// Its removal was begun, so that it may be there or not.
    removed: bool,
    /// Its removal succeeded: it must not come back.
    gone: bool,
    /// It runs on another node, so that only the daemon writes its status.
    is_remote: bool,
}

impl Unit {
    fn new(number: u32, is_remote: bool) -> Self {
        Self {
            path: Path::new(ROOT).join(format!("unit{number:04}")),
            written: vec![(Status::new("t", Extra::Command(CommandExtra::default())), false)],
            payload: Vec::new(),
            payload_acknowledged: false,
            mark: None,
            accepted: false,
            removed: false,
            gone: false,
            is_remote,
        }
    }

    fn now(&self) -> &Status {
        &self.written[self.written.len() - 1].0
    }

    /// The index of the last status that was reported as durable: the status on disk is this one or a later one.
    fn surest(&self) -> usize {
        self.written.iter().rposition(|(_, durable)| *durable).unwrap_or(0)
    }

    /// Notes whether the last status was written durably.
    fn note(&mut self, written: io::Result<()>) {
        let last = self.written.len() - 1;
        self.written[last].1 |= written.is_ok();
    }
}

/// Does to the disk what the engine would do next with a unit.
fn step(disk: &Model, unit: &mut Unit, rng: &mut SmallRng) {
    if unit.payload.is_empty() {
        unit.payload = some_bytes(rng);
        unit.payload_acknowledged = write_payload(disk, unit).is_ok();
        return;
    }
    let size = unit.now().life.stdout_size;
    let event = match rng.random_range(0..9) {
        0 => UnitEvent::PayloadComplete,
        1 => UnitEvent::Queued(rng.random_range(1..5)),
        2 => UnitEvent::Started(rng.random_range(2..99_999)),
        3 => UnitEvent::Waiting("no route ".repeat(rng.random_range(1..30))),
        4 => UnitEvent::Reported(State::Running, "Running".into(), size + 7),
        5 => UnitEvent::Reported(State::Succeeded, "exit status 0".into(), size + 1),
        6 => UnitEvent::RunnerVanished { cancelled: rng.random(), killed: 1, left: None, stdout_size: size },
        7 => UnitEvent::CancelledEarly,
        _ => UnitEvent::Restarted,
    };
    let mut next = unit.now().clone();
    if next.life.apply(&event) {
        let counts_output = next.life.state.is_final() && next.life.stdout_size > 0;
        if counts_output && write_output(disk, unit, next.life.stdout_size).is_err() {
            return;
        }
        let (new, is_final) = (NewStatus { line: next.to_line(), counts_output }, next.life.state.is_final());
        let by_runner = !unit.is_remote && next.life.state > State::Pending;
        unit.written.push((next, false));
        let replace = |durability| replace_status(disk, &None, &unit.path, &new, &|| Ok(()), durability);
        let written = match (by_runner, is_final) {
            (false, _) => replace(Durability::Durable),
            (true, true) => leave_exit_record(disk, unit, &new.line)
                .and_then(|()| adopt_exit_record(disk, &unit.path, counts_output)),
            // No client is told of this write, so it need not be durable.
            (true, false) => return drop(replace(Durability::Deferred)),
        };
        return unit.note(written);
    }
    if rng.random_bool(0.3) {
        unit.removed = true;
        let trash = Path::new(ROOT).join(format!("trash{}", unit.path.file_name().unwrap().display()));
        unit.gone = move_away(disk, &unit.path, &trash).is_ok();
        let _ = disk.remove_all(&trash);
    } else if unit.mark.is_none() {
        let mark = rng.random_range(0..u64::MAX).to_string().into_bytes();
        unit.mark = put_file(disk, &unit.path, QUEUED, &mark).is_ok().then_some(mark);
    }
}

fn write_payload(disk: &Model, unit: &Unit) -> io::Result<()> {
    let mut stdin = disk.open(&unit.path.join("stdin"))?;
    write_all(disk, &mut stdin, &unit.payload)?;
    disk.sync(&[Flush::File(&stdin)])
}

/// Makes a unit, with its payload if it has one.
fn make(disk: &Model, unit: &Unit) -> io::Result<()> {
    let made = make_unit(disk, &unit.path, &unit.now().to_line())?;
    let finish = || {
        let mut stdin = disk.open(&unit.path.join("stdin"))?;
        write_all(disk, &mut stdin, &unit.payload)?;
        finish_unit(disk, &unit.path, &made, Some(&stdin).filter(|_| !unit.payload.is_empty()))
    };
    finish().inspect_err(|_| unmake_unit(disk, &unit.path))
}

fn some_bytes(rng: &mut SmallRng) -> Vec<u8> {
    (0..rng.random_range(1..40)).map(|_| rng.random()).collect()
}

fn leave_exit_record(disk: &Model, unit: &Unit, line: &[u8]) -> io::Result<()> {
    write_all(disk, &mut disk.make(&unit.path.join(EXIT_RECORD), Make::Emptied)?, line)
}

/// Writes the output that a final status counts, as a command would.
fn write_output(disk: &Model, unit: &Unit, size: u64) -> io::Result<()> {
    let mut file = disk.make(&unit.path.join("stdout"), Make::Emptied)?;
    write_all(disk, &mut file, &vec![1; size as usize])
}

/// Checks that a daemon that starts now would find what clients were told, or a later state.
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
        // If nobody was told of the unit, its status may be damaged. The draft's name tells a restart to clear it away.
        Err(_) if !told => {
            let draft = disk.contents(&unit.path.join(NEW_STATUS));
            return assert!(
                draft.is_some(),
                "seed {seed}: {} looks like a damaged unit",
                unit.path.display()
            );
        }
        Err(error) => panic!("seed {seed}: {} is damaged: {error}: {found:?}", unit.path.display()),
    };
    if told {
        let mut possible = unit.written[unit.surest()..].iter();
        assert!(
            possible.any(|(written, _)| *written == status),
            "seed {seed}: {} went back to {status:?}",
            unit.path.display()
        );
        let (last, durable) = &unit.written[unit.written.len() - 1];
        if *durable && last.life.state.is_final() && last.life.stdout_size > 0 {
            let stdout = disk.contents(&unit.path.join("stdout")).unwrap_or_default();
            // There may be more output than the status counts.
            let told = vec![1; last.life.stdout_size as usize];
            assert!(stdout.starts_with(&told), "seed {seed}: the output is {stdout:?}, not {told:?}");
        }
        if unit.payload_acknowledged {
            let stdin = disk.contents(&unit.path.join("stdin"));
            assert_eq!(stdin.as_ref(), Some(&unit.payload), "seed {seed}: the payload");
        }
        if let Some(mark) = &unit.mark {
            let queued = disk.contents(&unit.path.join(QUEUED));
            assert_eq!(queued.as_ref(), Some(mark), "seed {seed}: the mark of the queue");
        }
    }
}

/// Makes a new unit, or changes one, and notes what succeeded.
fn turn(disk: &Model, all: &mut Vec<Unit>, rng: &mut SmallRng) {
    if rng.random_bool(0.25) || all.is_empty() {
        let mut unit = Unit::new(all.len() as u32, rng.random());
        if rng.random_bool(0.3) {
            unit.payload = some_bytes(rng);
        }
        let made = make(disk, &unit);
        unit.accepted = made.is_ok();
        unit.payload_acknowledged = made.is_ok() && !unit.payload.is_empty();
        unit.note(made);
        return all.push(unit);
    }
    let chosen = rng.random_range(0..all.len());
    if all[chosen].accepted && !all[chosen].removed {
        step(disk, &mut all[chosen], rng);
    }
}

/// Runs a sequence of events over a few units, with these faults. Returns the number of disk operations before the
/// first restart.
fn run(seed: u64, faults: BTreeMap<u32, Fault>) -> u32 {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut disk = Model::new(Path::new(ROOT), faults, SmallRng::seed_from_u64(seed ^ 0x5eed));
    let mut all: Vec<Unit> = Vec::new();
    for _ in 0..28 {
        turn(&disk, &mut all, &mut rng);
        // Until there is a crash, a reader sees whole files at every moment.
        if !disk.has_crashed() {
            all.iter().for_each(|unit| check(&disk, unit, seed));
        }
    }
    let operations = disk.operations();
    for _ in 0..2 {
        // Either only the daemon is killed, or the machine loses power.
        if rng.random_bool(0.3) {
            disk.go_on();
        } else {
            disk.power_loss();
        }
        all.iter().for_each(|unit| check(&disk, unit, seed));
        for unit in all.iter_mut().filter(|unit| unit.accepted && !unit.removed) {
            // The next daemon goes on from the status that it finds.
            let found = disk.contents(&unit.path.join("status"));
            let found = Status::parse(&found.unwrap()).unwrap();
            let at = unit.written.iter().rposition(|(written, _)| *written == found).unwrap();
            unit.written.truncate(at + 1);
        }
        for _ in 0..6 {
            turn(&disk, &mut all, &mut rng);
            all.iter().for_each(|unit| check(&disk, unit, seed));
        }
    }
    disk.power_loss();
    all.iter().for_each(|unit| check(&disk, unit, seed));
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
fn no_status_tells_of_all_of_a_payload_that_a_power_loss_has_cut() {
    let (root, unit) = (Path::new(ROOT), Path::new(ROOT).join("unit0001"));
    let mut status = Status::new("t", Extra::None);
    status.life.apply(&UnitEvent::PayloadAwaited);
    let awaiting = status.to_line();
    status.life.apply(&UnitEvent::PayloadComplete);
    let whole = NewStatus { line: status.to_line(), counts_output: false };
    for (at, seed) in (0..30).flat_map(|at| (0..20).map(move |seed| (at, seed))) {
        let crash = BTreeMap::from([(at, Fault::Crash)]);
        let mut disk = Model::new(root, crash, SmallRng::seed_from_u64(seed));
        let go_on = || {
            let made = make_unit(&disk, &unit, &awaiting)?;
            finish_unit(&disk, &unit, &made, None)?;
            let mut stdin = disk.open(&unit.join("stdin"))?;
            write_all(&disk, &mut stdin, b"the payload")?;
            let first = || disk.sync(&[Flush::File(&stdin)]);
            replace_status(&disk, &None, &unit, &whole, &first, Durability::Durable)
        };
        let done = go_on();
        assert!(done.is_err() || at > 12, "{at} operations");
        disk.power_loss();
        if disk.contents(&unit.join("status")).is_some_and(|found| found == whole.line) {
            assert_eq!(
                disk.contents(&unit.join("stdin")).as_deref(),
                Some(&b"the payload"[..]),
                "crash at {at}"
            );
        } else {
            assert!(done.is_err());
        }
    }
}

#[test]
fn a_status_that_a_plugin_and_a_power_loss_have_damaged_is_not_taken_for_a_new_unit_s() {
    let (root, unit) = (Path::new(ROOT), Path::new(ROOT).join("unit0001"));
    for seed in 0..50 {
        let mut disk = Model::new(root, BTreeMap::new(), SmallRng::seed_from_u64(seed));
        let made = make_unit(&disk, &unit, &Status::new("t", Extra::None).to_line()).unwrap();
        finish_unit(&disk, &unit, &made, None).unwrap();
        // A runner does this before it starts a plugin.
        disk.sync(&[Flush::Dir(&unit)]).unwrap();
        let mut status = disk.make(&unit.join("status"), Make::Emptied).unwrap();
        write_all(&disk, &mut status, b"a plugin's").unwrap();
        disk.power_loss();
        assert_eq!(disk.contents(&unit.join(NEW_STATUS)), None, "seed {seed}");
    }
}

#[test]
fn whatever_fails_what_was_told_is_true() {
    let (first, seeds) = (number("STORE_SEED", 1), number("STORE_SEEDS", 150));
    for seed in first..first + seeds {
        let operations = run(seed, BTreeMap::new());
        let mut rng = SmallRng::seed_from_u64(!seed);
        // A power loss before every operation, and therefore also after every operation but the last.
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
