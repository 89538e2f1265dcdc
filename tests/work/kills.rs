//! Starts units on another node over a hop, and kills one of the three daemons between any two steps: a unit that was
//! said to be durable is there and ends, nothing runs twice, and nothing stays. `KILLS` sets the number of kills (20),
//! `KILLS_SEED` the first seed.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::Value;

use crate::harness::bytes;
use crate::three::{NAMES, Three};
use crate::until::{LIMIT, until};

/// Starts that are under way when a daemon is killed.
const AT_ONCE: usize = 4;
/// A start takes less than this, so a kill may also come after it.
const STEPS: Duration = Duration::from_millis(50);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// How far a submission came, as far as its client knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    Nothing,
    /// The unit's ID.
    Created,
    /// That the unit is durable, and is started or will be.
    Taken,
}

/// A job that notes each run.
struct Job {
    unit: String,
    runs: PathBuf,
    payload: Vec<u8>,
}

impl Job {
    fn request(&self) -> String {
        Three::request(&self.unit, &format!("echo >>{}; cat", self.runs.display()))
    }

    fn runs(&self) -> usize {
        std::fs::read(&self.runs).map_or(0, |runs| runs.len())
    }
}

/// Submits a job, until that is done or nobody answers any more. Returns what was said last.
fn submit(socket: &Path, request: &str, payload: &[u8]) -> Said {
    let mut said = Said::Nothing;
    let mut talk = || {
        let mut client = BufReader::new(UnixStream::connect(socket).ok()?);
        client.get_ref().set_read_timeout(Some(LIMIT)).ok()?;
        let mut line = String::new();
        client.read_line(&mut line).ok()?;
        client.get_mut().write_all(format!("{request}\n").as_bytes()).ok()?;
        line.clear();
        client.read_line(&mut line).ok()?;
        if !line.starts_with("Work unit created with ID ") {
            return None;
        }
        said = Said::Created;
        client.get_mut().write_all(payload).ok()?;
        client.get_mut().shutdown(Shutdown::Write).ok()?;
        line.clear();
        client.read_line(&mut line).ok()?;
        let is_taken = ["Job Started", "Job Submitted"].iter().any(|result| line.contains(result));
        // A line that is cut off does not count.
        (is_taken && line.ends_with('\n')).then(|| said = Said::Taken)
    };
    let _how_far = talk();
    said
}

/// The status of a unit on near; `None` if it is not there.
fn status(three: &Three, unit: &str) -> Option<Value> {
    serde_json::from_str(&three.near().ask(&format!("work status {unit}"))).ok()
}

fn units(three: &Three, node: usize) -> usize {
    let list: Value = serde_json::from_str(&three.nodes[node].ask("work list")).unwrap();
    list.as_object().unwrap().len()
}

/// Checks what became of a job. Returns whether it ran.
fn check(three: &Three, job: &Job, said: Said, seed: u64) -> bool {
    let unit = &job.unit;
    let ended = || {
        let status = status(three, unit);
        status.as_ref().is_none_or(|status| status["State"].as_u64() > Some(1)).then_some(status)
    };
    let deadline = Instant::now() + LIMIT;
    let end = loop {
        match ended() {
            Some(end) => break end,
            None => assert!(Instant::now() < deadline, "seed {seed}: {said:?}: {:?}", status(three, unit)),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let has_succeeded = end.as_ref().is_some_and(|end| end["State"] == 2);
    match said {
        Said::Nothing => {}
        Said::Created => assert!(end.is_some(), "seed {seed}: {unit} is lost"),
        Said::Taken => assert!(has_succeeded, "seed {seed}: {unit} was taken: {end:?}"),
    }
    if has_succeeded {
        let line = format!(r#"{{"command":"work","subcommand":"results","unitid":"{unit}","startpos":0}}"#);
        let (mut output, streaming) = three.near().converse(&line);
        assert!(streaming.starts_with("Streaming"), "seed {seed}: {streaming}");
        let mut all = Vec::new();
        output.read_to_end(&mut all).unwrap();
        assert!(all == job.payload, "seed {seed}: {} bytes of {}", all.len(), job.payload.len());
    }
    assert!(job.runs() <= 1, "seed {seed}: {unit} ran {} times: {end:?}", job.runs());
    assert!(job.runs() == 1 || !has_succeeded, "seed {seed}: {unit} never ran: {end:?}");
    // No other unit can get the ID while this job's unit is there.
    if end.is_some() {
        let again = three.near().ask(&job.request());
        assert!(again.contains("is in use") || again.contains("already"), "seed {seed}: {again}");
        three.near().ask(&format!("work release {unit}"));
    }
    has_succeeded
}

fn kill_amid_starts(three: &mut Three, seed: u64) -> (usize, usize, usize) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let jobs: Vec<Job> = (0..AT_ONCE)
        .map(|one| {
            let length = match rng.random_range(0..3) {
                0 => 0,
                1 => rng.random_range(0..2000),
                // Longer than what is written in one go.
                _ => rng.random_range(0..300_000),
            };
            let unit = format!("kill{seed}x{one}");
            Job { runs: three.path().join(&unit), unit, payload: bytes(length) }
        })
        .collect();
    let (victim, after) = (rng.random_range(0..NAMES.len()), rng.random_range(0..STEPS.as_micros() as u64));
    let socket = three.path().join("near/s");
    let said: Vec<Said> = std::thread::scope(|scope| {
        let start = |job: &Job| submit(&socket, &job.request(), &job.payload);
        let submitting: Vec<_> = jobs.iter().map(|job| scope.spawn(move || start(job))).collect();
        // The seed decides at which step the kill comes.
        std::thread::sleep(Duration::from_micros(after));
        three.nodes[victim].restart();
        submitting.into_iter().map(|job| job.join().unwrap()).collect()
    });
    three.meet();
    let ran = jobs.iter().zip(&said).filter(|(job, said)| check(three, job, **said, seed)).count();
    for node in [0, 2] {
        until(&format!("seed {seed}: nothing is left on {}", NAMES[node]), || {
            (units(three, node) == 0).then_some(())
        });
    }
    // Nothing has run later, after the units were gone.
    for job in &jobs {
        assert!(job.runs() <= 1, "seed {seed}: {} ran {} times", job.unit, job.runs());
    }
    let count = |wanted| said.iter().filter(|said| **said == wanted).count();
    (count(Said::Taken), count(Said::Created), ran)
}

#[test]
fn a_daemon_that_is_killed_between_any_two_steps_of_a_start_loses_nothing_and_runs_nothing_twice() {
    let (first, kills) = (number("KILLS_SEED", 1), number("KILLS", 20));
    let begun = Instant::now();
    let mut three = Three::start();
    let (mut taken, mut created, mut ran) = (0, 0, 0);
    for seed in first..first + kills {
        let (more_taken, more_created, more_ran) = kill_amid_starts(&mut three, seed);
        (taken, created, ran) = (taken + more_taken, created + more_created, ran + more_ran);
    }
    println!(
        "{kills} kills from seed {first} in {:?}: {} starts, {taken} taken, {created} broken off, {ran} ran to their end",
        begun.elapsed(),
        kills as usize * AT_ONCE
    );
    assert!(taken > 0, "no start was answered");
    assert!(three.far().ask("work list") == "{}\n" && three.near().ask("work list") == "{}\n");
}
