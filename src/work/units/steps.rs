//! When a unit took its steps, noted here, and what the node that runs it told of its own: for who asks for them, and for what
//! is counted of its type. In memory only: of units that have not ended, and of the last ones that this daemon received. Owns
//! that each step is noted once, and the bounds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::rpc::report::unit::{StepTimes, UnitStep};
use crate::wire::NodeId;
use crate::work::figures::Timings;
use crate::work::unit::State;

/// Ended units whose times are kept.
const MOST_UNITS: usize = 1000;

/// The times that are kept, the oldest first. Plain locks, here and below, held for a look-up alone.
#[derive(Debug, Default)]
pub(super) struct KeptSteps {
    last: Mutex<VecDeque<Arc<Mutex<Noted>>>>,
    pub(super) timings: Arc<Timings>,
}

/// Those of one unit.
#[derive(Debug)]
pub(super) enum Steps {
    /// It has not ended.
    Noting(Arc<Mutex<Noted>>),
    /// For as long as they are kept. An earlier daemon's are not.
    Kept(Weak<Mutex<Noted>>),
}

#[derive(Debug)]
pub(super) struct Noted {
    timings: Arc<Timings>,
    received: Instant,
    /// Microseconds since then.
    own: BTreeMap<UnitStep, u64>,
    there: Option<StepTimes>,
}

impl KeptSteps {
    /// Begins to note the steps of a unit.
    pub(super) fn begin(&self, received: Instant) -> Steps {
        let (timings, own) = (self.timings.clone(), BTreeMap::from([(UnitStep::Received, 0)]));
        let noted = Arc::new(Mutex::new(Noted { timings, received, own, there: None }));
        let mut last = self.last.lock();
        last.push_back(noted.clone());
        if last.len() > MOST_UNITS {
            last.pop_front();
        }
        Steps::Noting(noted)
    }
}

impl Default for Steps {
    fn default() -> Self {
        Self::Kept(Weak::new())
    }
}

impl Steps {
    /// The unit takes a step, unless it has taken it before.
    pub(super) fn note(&self, step: UnitStep) {
        self.with(|noted| noted.note(step));
    }

    /// The unit shows a state.
    pub(super) fn show(&mut self, work_type: &str, state: State) {
        self.with(|noted| noted.show(work_type, state));
        if let Self::Noting(noted) = self
            && state.is_final()
        {
            *self = Self::Kept(Arc::downgrade(noted));
        }
    }

    /// Keeps what the node that runs the unit has told last of its own. One that tells nothing takes nothing back.
    pub(super) fn hear(&self, there: Vec<StepTimes>) {
        if let Some(its_own) = there.into_iter().next() {
            self.with(|noted| noted.there = Some(its_own));
        }
    }

    /// Those of this node, then those of the one that runs it.
    pub(super) fn all(&self, own: &NodeId) -> Vec<StepTimes> {
        let all = |noted: &mut Noted| {
            let here = StepTimes { node: own.clone(), microseconds: noted.own.clone() };
            std::iter::once(here).chain(noted.there.clone()).collect()
        };
        self.with(all).unwrap_or_default()
    }

    fn with<T>(&self, look: impl FnOnce(&mut Noted) -> T) -> Option<T> {
        match self {
            Self::Noting(noted) => Some(look(&mut noted.lock())),
            Self::Kept(noted) => Some(look(&mut noted.upgrade()?.lock())),
        }
    }
}

impl Noted {
    /// When the unit took a step: now, if that is the first time.
    fn note(&mut self, step: UnitStep) -> Option<Duration> {
        let since = self.received.elapsed();
        let is_first = !self.own.contains_key(&step);
        self.own.entry(step).or_insert(since.as_micros().try_into().unwrap_or(u64::MAX));
        is_first.then_some(since)
    }

    fn show(&mut self, work_type: &str, state: State) {
        if state == State::Pending {
            return;
        }
        let started = self.own.get(&UnitStep::Started).map(|&micros| Duration::from_micros(micros));
        let step = if state.is_final() { UnitStep::Ended } else { UnitStep::Started };
        if let Some(now) = self.note(step) {
            self.timings.note(work_type, state, started, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_noted_once_and_what_is_heard_is_bounded() {
        let (kept, own) = (KeptSteps::default(), NodeId::new("n1").unwrap());
        let told = |name: &str, number| {
            vec![StepTimes { node: NodeId::new(name).unwrap(), microseconds: BTreeMap::new() }; number]
        };
        let earlier = Steps::default();
        earlier.note(UnitStep::Durable);
        earlier.hear(told("n2", 1));
        assert!(earlier.all(&own).is_empty(), "an earlier daemon received it");
        let mut steps = kept.begin(Instant::now());
        steps.note(UnitStep::Durable);
        let first = steps.all(&own);
        assert_eq!((first.len(), first[0].microseconds[&UnitStep::Received]), (1, 0));
        for _ in 0..1000 {
            steps.note(UnitStep::Durable);
        }
        assert_eq!(steps.all(&own), first);
        steps.hear(told("n2", 1000));
        steps.hear(Vec::new());
        assert_eq!(steps.all(&own)[1..], told("n2", 1));
        steps.hear(told("n3", 1));
        assert_eq!(steps.all(&own)[1..], told("n3", 1));
        for _ in 0..MOST_UNITS {
            drop(kept.begin(Instant::now()));
        }
        assert!(!steps.all(&own).is_empty(), "it has not ended");
        steps.show("t", State::Failed);
        assert!(steps.all(&own).is_empty(), "so many have come since");
    }

    #[tokio::test(start_paused = true)]
    async fn the_states_of_a_unit_are_steps_and_those_of_an_ended_one_are_kept_for_a_while() {
        let (kept, own) = (KeptSteps::default(), NodeId::new("n1").unwrap());
        let mut steps = kept.begin(Instant::now());
        for state in [State::Pending, State::Running, State::Running, State::Failed, State::Failed] {
            steps.show("t", state);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let taken = &steps.all(&own)[0].microseconds;
        let expected =
            [(UnitStep::Received, 0), (UnitStep::Started, 1_000_000), (UnitStep::Ended, 3_000_000)];
        assert_eq!(*taken, BTreeMap::from(expected));
    }
}
