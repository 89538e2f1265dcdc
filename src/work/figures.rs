//! What is counted of units, for operators: how many there are, and how long those wait and run whose start this process saw.
//! Nothing is decided by it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Registry;
use super::jobs::CONTROLLER;
use super::status::REMOTE;
use super::unit::State;
use crate::counters::{Durations, Lengths};

/// Work types whose times are counted apart: a reload may bring others, and none is forgotten.
const TYPES: usize = 256;
/// What the units of all further types are counted as, and those whose type is not configured any more.
const OTHER: &str = "other";

/// How long the units of one type wait and run.
#[derive(Debug, Default)]
struct Times {
    start: Durations,
    succeeded: Durations,
    failed: Durations,
    canceled: Durations,
}

/// The same of all types. Locked to find the type's.
#[derive(Debug, Default)]
pub(crate) struct Timings(Mutex<BTreeMap<Box<str>, Arc<Times>>>);

impl Timings {
    fn of(&self, work_type: &str) -> Arc<Times> {
        let mut all = self.0.lock();
        let work_type = if all.len() < TYPES || all.contains_key(work_type) { work_type } else { OTHER };
        match all.get(work_type) {
            Some(times) => times.clone(),
            None => all.entry(work_type.into()).or_default().clone(),
        }
    }
}

/// Measures one unit, from its creation to its end.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    timings: Arc<Timings>,
    created: Instant,
    started: Option<Instant>,
}

impl Stopwatch {
    /// A unit is made now.
    pub(crate) fn start(timings: Arc<Timings>) -> Self {
        Self { timings, created: Instant::now(), started: None }
    }

    /// The unit shows this state. A short job's may be its end before anybody has seen it run.
    pub(crate) fn note(&mut self, work_type: &str, state: State) {
        let now = Instant::now();
        let has_run = self.started.is_some() || matches!(state, State::Running | State::Succeeded);
        if !has_run {
            return;
        }
        let times = self.timings.of(work_type);
        let started = *self.started.get_or_insert_with(|| {
            times.start.note(now - self.created);
            now
        });
        match state {
            State::Pending | State::Running => {}
            State::Succeeded => times.succeeded.note(now - started),
            State::Failed => times.failed.note(now - started),
            State::Canceled => times.canceled.note(now - started),
        }
    }
}

/// What is counted of units, by work types: configured ones, `remote`, `controller`, and `other`.
#[derive(Debug, Default)]
pub struct WorkFigures {
    /// Units that there are.
    pub units: BTreeMap<(String, State), u64>,
    /// From the creation of a unit to the start of its command.
    pub start: BTreeMap<String, Lengths>,
    /// From there to its end, by the final state.
    pub run: BTreeMap<(String, State), Lengths>,
    /// Bytes of output that the units of a controller's jobs have.
    pub job_output: u64,
    /// Free bytes of the disk under the data directory, and those that are to stay free.
    pub disk: Option<(u64, u64)>,
    /// Requests to Kubernetes: verb, answer's code, number.
    pub kubernetes: Vec<(&'static str, String, u64)>,
}

impl Registry {
    /// What is counted at the moment.
    pub async fn figures(&self) -> WorkFigures {
        let mut figures = WorkFigures {
            disk: self.disk().await,
            kubernetes: self.kubernetes_calls(),
            ..WorkFigures::default()
        };
        let known: BTreeSet<String> =
            self.type_names().into_iter().chain([REMOTE, CONTROLLER].map(str::to_owned)).collect();
        let name = |work_type: &str| known.get(work_type).map_or(OTHER, String::as_str);
        let mut units: BTreeMap<(&str, State), u64> = BTreeMap::new();
        for entry in self.units.all() {
            let status = entry.status();
            *units.entry((name(&status.work_type), status.life.state)).or_default() += 1;
            if status.work_type == CONTROLLER {
                figures.job_output += status.life.stdout_size;
            }
        }
        figures.units =
            units.into_iter().map(|((kind, state), count)| ((kind.to_owned(), state), count)).collect();
        for (kind, times) in self.units.timings().0.lock().iter() {
            let kind = name(kind);
            figures.start.entry(kind.to_owned()).or_default().add(&times.start.lengths());
            for (state, durations) in [
                (State::Succeeded, &times.succeeded),
                (State::Failed, &times.failed),
                (State::Canceled, &times.canceled),
            ] {
                let lengths = durations.lengths();
                if lengths.counts.iter().any(|count| *count > 0) {
                    figures.run.entry((kind.to_owned(), state)).or_default().add(&lengths);
                }
            }
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn count(lengths: Lengths) -> (u64, f64) {
        (lengths.counts.iter().sum(), lengths.seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_unit_counts_once_when_it_starts_and_once_when_it_ends() {
        let timings = Arc::new(Timings::default());
        let mut unit = Stopwatch::start(timings.clone());
        unit.note("t", State::Pending);
        tokio::time::advance(Duration::from_secs(2)).await;
        unit.note("t", State::Running);
        unit.note("t", State::Running);
        tokio::time::advance(Duration::from_secs(3)).await;
        unit.note("t", State::Failed);
        // One that never ran, and one whose run nobody saw.
        Stopwatch::start(timings.clone()).note("t", State::Canceled);
        let mut short = Stopwatch::start(timings.clone());
        tokio::time::advance(Duration::from_secs(1)).await;
        short.note("t", State::Succeeded);
        let times = timings.of("t");
        assert_eq!(count(times.start.lengths()), (2, 3.0));
        assert_eq!(count(times.failed.lengths()), (1, 3.0));
        assert_eq!(count(times.succeeded.lengths()), (1, 0.0));
        assert_eq!(count(times.canceled.lengths()), (0, 0.0));
    }

    #[test]
    fn the_number_of_types_is_bounded() {
        let timings = Timings::default();
        for n in 0..10 * TYPES {
            timings.of(&format!("t{n}")).start.note(Duration::ZERO);
        }
        assert_eq!(timings.0.lock().len(), TYPES + 1);
        assert_eq!(count(timings.of(OTHER).start.lengths()).0 as usize, 9 * TYPES);
    }
}
