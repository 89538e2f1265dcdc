//! What is counted of units, for operators: how many there are, and how long those wait and run whose start this process saw.
//! Nothing is decided by it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

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

    /// A unit shows for the first time that it runs, or has ended, so long after it was received. A short job's end may come
    /// before anybody has seen it run; one that never ran counts for nothing.
    pub(super) fn note(&self, work_type: &str, state: State, started: Option<Duration>, now: Duration) {
        if started.is_none() && !matches!(state, State::Running | State::Succeeded) {
            return;
        }
        let times = self.of(work_type);
        let started = started.unwrap_or_else(|| {
            times.start.note(now);
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
    /// From the reception of a unit to the start of its command.
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
    use super::*;

    fn count(lengths: Lengths) -> (u64, f64) {
        (lengths.counts.iter().sum(), lengths.seconds)
    }

    #[test]
    fn a_unit_counts_once_when_it_starts_and_once_when_it_ends() {
        let (timings, at) = (Timings::default(), Duration::from_secs);
        timings.note("t", State::Running, None, at(2));
        timings.note("t", State::Failed, Some(at(2)), at(5));
        // One that never ran, and one whose run nobody saw.
        timings.note("t", State::Canceled, None, at(1));
        timings.note("t", State::Succeeded, None, at(1));
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
