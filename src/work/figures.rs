//! What is counted of units, for operators: how many there are, and how long the units that this process received wait
//! and run. Decides nothing, and looks at no unit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::unit::State;
use crate::counters::{Durations, Lengths};

/// The most work types whose times are counted separately: each reload may bring others, and none is forgotten.
const TYPES: usize = 256;
/// The name for units of all further types, and for units whose type is not configured any more.
pub(super) const OTHER: &str = "other";

/// How long the units of one type wait and run.
#[derive(Debug, Default)]
struct Times {
    start: Durations,
    succeeded: Durations,
    failed: Durations,
    canceled: Durations,
}

/// The times of all types. Locked only to find those of a type.
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

    /// Notes that a unit runs for the first time, or has ended, `now` after it was received. A short job may end before
    /// anybody has seen it run. A unit that never ran does not count.
    fn note(&self, work_type: &str, state: State, started: Option<Duration>, now: Duration) {
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

    /// Adds the times to `figures`, each under the name that its type has there.
    pub(crate) fn add_to<'a>(&self, figures: &mut WorkFigures, name: impl Fn(&str) -> &'a str) {
        for (kind, times) in self.0.lock().iter() {
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
    }
}

/// Measures how long a unit that this process has received waits and runs.
#[derive(Debug)]
pub(crate) struct UnitTimer {
    timings: Arc<Timings>,
    received: Instant,
    /// How long after that it was first seen to run.
    started: Option<Duration>,
}

impl UnitTimer {
    pub(crate) fn new(timings: &Arc<Timings>, received: Instant) -> Self {
        Self { timings: timings.clone(), received, started: None }
    }

    /// Notes a state of the unit. Must not be called after its end.
    pub(crate) fn show(&mut self, work_type: &str, state: State) {
        if state == State::Pending || (state == State::Running && self.started.is_some()) {
            return;
        }
        let now = self.received.elapsed();
        self.timings.note(work_type, state, self.started, now);
        self.started.get_or_insert(now);
    }
}

/// What is counted of units, by work types: configured ones, `remote`, `controller`, and `other`.
#[derive(Debug, Default)]
pub struct WorkFigures {
    /// The number of units.
    pub units: BTreeMap<(String, State), u64>,
    /// From the reception of a unit to the start of its command.
    pub start: BTreeMap<String, Lengths>,
    /// From the start of its command to the end of a unit, by the final state.
    pub run: BTreeMap<(String, State), Lengths>,
    /// Bytes of output that the units of a controller's jobs have.
    pub job_output: u64,
    /// Free bytes of the disk under the data directory, and those that are to stay free.
    pub disk: Option<(u64, u64)>,
    /// Pieces that are kept of payloads, and their bytes.
    pub pieces: (usize, u64),
    /// Bytes sent of payloads in pieces, and bytes that need not be sent, since the daemon started.
    pub carried: (u64, u64),
    /// Requests to Kubernetes: verb, answer's code, number.
    pub kubernetes: Vec<(&'static str, String, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(lengths: Lengths) -> (u64, f64) {
        (lengths.counts.iter().sum(), lengths.seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_unit_counts_once_when_it_starts_and_once_when_it_ends() {
        let timings = Arc::new(Timings::default());
        let show = async |states: &[(State, u64)]| {
            let mut unit = UnitTimer::new(&timings, Instant::now());
            for (state, seconds) in states {
                tokio::time::advance(Duration::from_secs(*seconds)).await;
                unit.show("t", *state);
            }
        };
        show(&[(State::Pending, 1), (State::Running, 1), (State::Running, 1), (State::Failed, 2)]).await;
        // A unit that never ran, and one that nobody saw run.
        show(&[(State::Canceled, 1)]).await;
        show(&[(State::Succeeded, 1)]).await;
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
