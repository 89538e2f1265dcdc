//! Many runs, each in a process of its own. Two runs of a seed must be the same. A failing run is repeated with fewer
//! faults and jobs, as few as still make it fail.

use std::collections::BTreeSet;
use std::io::{Read as _, Seek as _};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::node::{self, Place};
use super::world::{self, Outcome, Plan};

/// The seeds of an ordinary run of the tests, the last of them with a schedule, and how many of them are run twice.
const SEEDS: std::ops::Range<u64> = 1..12;
const TWICE: u64 = 2;
/// How often a failing run is repeated with fewer faults and jobs.
const SHRINKS: usize = 60;
/// A run that takes longer hangs, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(900);
/// The beginning of the line that a run prints at its end.
const WORD: &str = "OUTCOME ";

/// The plan of a run by the command line.
pub(super) fn plan<'a>(seed: &str, value: impl Fn(&str) -> Option<&'a str>, notes: bool) -> Plan {
    let number = |name: &str, usual: usize| value(name).map_or(usual, |it| it.parse().expect("a number"));
    let plan = Plan::of(seed.parse().expect("a number"));
    let without =
        value("--without").into_iter().flat_map(|list| list.split(',')).filter_map(|one| one.parse().ok());
    Plan {
        controls: number("--controls", plan.controls),
        jobs: number("--jobs", plan.jobs),
        faults: number("--faults", plan.faults),
        slowly: number("--slowly", plan.slowly),
        without: without.collect(),
        notes,
        ..plan
    }
}

/// One run, in this process.
pub(super) fn one(plan: &Plan, log: Option<&str>) -> ExitCode {
    let place = Place::new();
    let level = log.and_then(|name| name.parse().ok()).unwrap_or(tracing::level_filters::LevelFilter::OFF);
    println!("{plan:?}");
    let Outcome { hash, faults, jobs, took, missed, tail } = world::run(plan, &place, &node::log(level));
    if !missed.is_empty() && !plan.notes {
        println!("{tail}");
    }
    missed.iter().for_each(|what| println!("MISSED {what}"));
    let seconds = took.as_secs();
    println!("{WORD}hash={hash:016x} faults={faults} jobs={jobs} seconds={seconds} missed={}", missed.len());
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What a run in a child process printed.
struct Said {
    text: String,
    word: Option<String>,
}

impl Said {
    fn number(&self, of: &str) -> u64 {
        let word = self.word.as_deref().unwrap_or_default();
        let found = word.split(' ').find_map(|part| part.strip_prefix(of)?.strip_prefix('=')?.parse().ok());
        found.unwrap_or_default()
    }

    fn is_well(&self) -> bool {
        self.word.as_deref().is_some_and(|word| word.ends_with("missed=0"))
    }
}

fn options(plan: &Plan) -> Vec<String> {
    let mut options = vec!["--one".to_owned(), plan.seed.to_string()];
    options.extend([
        "--jobs".to_owned(),
        plan.jobs.to_string(),
        "--faults".to_owned(),
        plan.faults.to_string(),
    ]);
    if !plan.without.is_empty() {
        let without: Vec<String> = plan.without.iter().map(ToString::to_string).collect();
        options.extend(["--without".to_owned(), without.join(",")]);
    }
    options
}

fn child(plan: &Plan) -> Said {
    let own = std::env::current_exe().expect("a path of our own");
    let mut output = tempfile::tempfile().expect("a file");
    let copy = || output.try_clone().expect("a descriptor");
    let run =
        Command::new(own).args(options(plan)).stdin(Stdio::null()).stdout(copy()).stderr(copy()).spawn();
    let (mut run, begun) = (run.expect("a process"), Instant::now());
    while run.try_wait().expect("a child of ours").is_none() {
        if begun.elapsed() > LIMIT {
            run.kill().expect("a child of ours");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut bytes = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut bytes)).expect("what it has written");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let word = text.lines().find_map(|line| line.strip_prefix(WORD)).map(str::to_owned);
    Said { text, word }
}

/// Runs as many seeds as the tests have time for.
pub(super) fn some(seeds: Option<&str>) -> ExitCode {
    let seeds = match seeds.and_then(|seeds| seeds.split_once("..")) {
        Some((from, to)) => from.parse().expect("a number")..to.parse().expect("a number"),
        None => SEEDS,
    };
    let begun = Instant::now();
    let twice = seeds.start..seeds.start + TWICE;
    let counts = Counts::default();
    let failures = side_by_side(seeds.clone(), |seed| {
        let said = child(&Plan::of(seed));
        if twice.contains(&seed) && child(&Plan::of(seed)).word != said.word {
            return Err(format!("seed {seed} gives two histories: {:?}", said.word));
        }
        counts.add(&said);
        judge(seed, said)
    });
    for failure in &failures {
        println!("{failure}");
    }
    println!("{} in {} s", counts.text(), begun.elapsed().as_secs());
    let (good, bad) = (seeds.count() - failures.len(), failures.len());
    let word = if bad == 0 { "ok" } else { "FAILED" };
    // In the form of cargo's own harness.
    println!(
        "test result: {word}. {good} passed; {bad} failed; 0 ignored; 0 measured; 0 filtered out; finished in {:.2}s",
        begun.elapsed().as_secs_f64()
    );
    if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs without end, and prints each failure.
pub(super) fn forever(from: Option<&str>) -> ExitCode {
    let from = from.map_or(1000, |from| from.parse().expect("a number"));
    let counts = Counts::default();
    let begun = Instant::now();
    let _never = side_by_side(from..u64::MAX, |seed| {
        let said = child(&Plan::of(seed));
        counts.add(&said);
        if seed % 20 == 0 {
            println!("seed {seed}: {} in {} s", counts.text(), begun.elapsed().as_secs());
        }
        let judged = judge(seed, said);
        if let Err(failure) = &judged {
            println!("{failure}");
        }
        judged
    });
    ExitCode::FAILURE
}

/// Sums over all runs.
#[derive(Default)]
struct Counts {
    faults: AtomicU64,
    jobs: AtomicU64,
    seconds: AtomicU64,
}

impl Counts {
    fn add(&self, said: &Said) {
        for (count, of) in [(&self.faults, "faults"), (&self.jobs, "jobs"), (&self.seconds, "seconds")] {
            count.fetch_add(said.number(of), Ordering::Relaxed);
        }
    }

    fn text(&self) -> String {
        let [faults, jobs, seconds] =
            [&self.faults, &self.jobs, &self.seconds].map(|count| count.load(Ordering::Relaxed));
        format!("{faults} faults, {jobs} jobs, {:.1} simulated hours", seconds as f64 / 3600.0)
    }
}

/// Runs all seeds, one on each processor at a time. Returns what failed.
fn side_by_side(seeds: std::ops::Range<u64>, run: impl Fn(u64) -> Result<(), String> + Sync) -> Vec<String> {
    let (next, failures) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if let Err(failure) = run(seed) {
                        failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Judges a run. For a failed run, returns the smallest version that fails in the same way.
fn judge(seed: u64, said: Said) -> Result<(), String> {
    if said.is_well() {
        return Ok(());
    }
    let (plan, said) = shrink(Plan::of(seed), said);
    let options = options(&plan).join(" ");
    Err(format!("{}\nrepeat it: cargo test --test whole -- {options} --notes", said.text))
}

fn shrink(mut least: Plan, mut said: Said) -> (Plan, Said) {
    let begun = Instant::now();
    let mut tries = 0;
    let mut is_less = |plan: Plan, least: &mut Plan, said: &mut Said| {
        tries += 1;
        if tries > SHRINKS || begun.elapsed() > Duration::from_secs(300) {
            return false;
        }
        let again = child(&plan);
        let fails = !again.is_well();
        if fails {
            (*least, *said) = (plan, again);
        }
        fails
    };
    let mut size = least.faults.div_ceil(2);
    while size > 0 {
        let left: Vec<usize> = (0..least.faults).filter(|fault| !least.without.contains(fault)).collect();
        for some in left.chunks(size) {
            let mut without: BTreeSet<usize> = least.without.clone();
            without.extend(some);
            is_less(Plan { without, ..least.clone() }, &mut least, &mut said);
        }
        size /= 2;
    }
    while least.jobs > 1 && is_less(Plan { jobs: least.jobs * 3 / 4, ..least.clone() }, &mut least, &mut said)
    {
    }
    (least, said)
}
