//! When units took their steps, noted here, and what the nodes that run them told of their own. In memory only, of the last
//! units that this daemon received. Owns that each step is noted once, and the bounds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use crate::rpc::report::unit::{StepTimes, UnitStep};
use crate::wire::NodeId;

/// Units whose times are kept.
const MOST_UNITS: usize = 1000;

/// The times that are kept, the oldest first. Plain locks, here and below, held for a look-up alone.
#[derive(Debug, Default)]
pub(crate) struct KeptSteps(Mutex<VecDeque<Arc<Mutex<Noted>>>>);

/// Those of one unit, for as long as they are kept.
#[derive(Debug, Default)]
pub(crate) struct Steps(OnceLock<Weak<Mutex<Noted>>>);

#[derive(Debug)]
pub(super) struct Noted {
    received: Instant,
    own: BTreeMap<UnitStep, u64>,
    there: Option<StepTimes>,
}

impl KeptSteps {
    /// Begins to note the steps of a unit.
    pub(crate) fn begin(&self, steps: &Steps, received: Instant) {
        let own = BTreeMap::from([(UnitStep::Received, 0)]);
        let noted = Arc::new(Mutex::new(Noted { received, own, there: None }));
        steps.0.get_or_init(|| Arc::downgrade(&noted));
        let mut kept = self.0.lock();
        kept.push_back(noted);
        if kept.len() > MOST_UNITS {
            kept.pop_front();
        }
    }
}

impl Steps {
    /// The unit takes a step, unless it has taken it before.
    pub(crate) fn note(&self, step: UnitStep) {
        self.with(|noted| {
            let since = noted.received.elapsed().as_micros();
            noted.own.entry(step).or_insert(since.try_into().unwrap_or(u64::MAX));
        });
    }

    /// Keeps what the node that runs the unit has told last of its own. One that tells nothing takes nothing back.
    pub(crate) fn hear(&self, there: Vec<StepTimes>) {
        if let Some(its_own) = there.into_iter().next() {
            self.with(|noted| noted.there = Some(its_own));
        }
    }

    /// Those of this node, then those of the one that runs it.
    pub(crate) fn all(&self, own: &NodeId) -> Vec<StepTimes> {
        let all = |noted: &mut Noted| {
            let here = StepTimes { node: own.clone(), microseconds: noted.own.clone() };
            std::iter::once(here).chain(noted.there.clone()).collect()
        };
        self.with(all).unwrap_or_default()
    }

    fn with<T>(&self, look: impl FnOnce(&mut Noted) -> T) -> Option<T> {
        let noted = self.0.get()?.upgrade()?;
        let mut noted = noted.lock();
        Some(look(&mut noted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_noted_once_and_what_is_heard_is_bounded() {
        let (kept, steps, own) = (KeptSteps::default(), Steps::default(), NodeId::new("n1").unwrap());
        let told = |name: &str, number| {
            vec![StepTimes { node: NodeId::new(name).unwrap(), microseconds: BTreeMap::new() }; number]
        };
        steps.note(UnitStep::Durable);
        steps.hear(told("n2", 1));
        assert!(steps.all(&own).is_empty(), "an earlier daemon received it");
        kept.begin(&steps, Instant::now());
        steps.note(UnitStep::Durable);
        let first = steps.all(&own);
        assert_eq!((first.len(), first[0].microseconds[&UnitStep::Received]), (1, 0));
        for _ in 0..1000 {
            steps.note(UnitStep::Durable);
        }
        assert_eq!(steps.all(&own), first);
        steps.note(UnitStep::Ended);
        assert!(
            steps.all(&own)[0].microseconds[&UnitStep::Ended] >= first[0].microseconds[&UnitStep::Durable]
        );
        steps.hear(told("n2", 1000));
        steps.hear(Vec::new());
        assert_eq!(steps.all(&own)[1..], told("n2", 1));
        steps.hear(told("n3", 1));
        assert_eq!(steps.all(&own)[1..], told("n3", 1));
        for _ in 0..MOST_UNITS {
            assert!(!steps.all(&own).is_empty());
            kept.begin(&Steps::default(), Instant::now());
        }
        assert!(steps.all(&own).is_empty(), "so many have come since");
    }
}
