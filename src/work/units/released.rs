//! The IDs of units that were released lately, so that a client that still asks for one learns what became of it. Owns how
//! many are remembered and for how long; a few bytes each, as thousands of units may be released in a second.
//! Knows nothing of units that are there.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long an ID is remembered, and how many of them at most: 1 MiB of them.
const REMEMBER: Duration = Duration::from_secs(600);
const REMEMBERED: usize = 65_536;

/// IDs with the time of their release.
#[derive(Debug)]
pub(crate) struct Released {
    hasher: RandomState,
    began: Instant,
    /// Hash and milliseconds since `began`, oldest first. A plain lock, never held across a wait.
    ids: Mutex<VecDeque<(u64, u64)>>,
}

impl Released {
    pub(crate) fn new() -> Self {
        Self { hasher: RandomState::new(), began: Instant::now(), ids: Mutex::default() }
    }

    /// Takes an ID in, and the oldest ones out.
    pub(crate) fn remember(&self, id: &str) {
        self.remember_at(id, self.began.elapsed());
    }

    /// How long ago a unit of that ID was released, if that is remembered.
    pub(crate) fn ago(&self, id: &str) -> Option<Duration> {
        self.ago_at(id, self.began.elapsed())
    }

    fn remember_at(&self, id: &str, now: Duration) {
        let (hash, now) = (self.hasher.hash_one(id), millis(now));
        let mut ids = self.ids.lock();
        let old = |&(_, at): &(u64, u64)| now.saturating_sub(at) > millis(REMEMBER);
        while ids.len() >= REMEMBERED || ids.front().is_some_and(old) {
            ids.pop_front();
        }
        ids.push_back((hash, now));
    }

    fn ago_at(&self, id: &str, now: Duration) -> Option<Duration> {
        let hash = self.hasher.hash_one(id);
        let ids = self.ids.lock();
        let (_, at) = ids.iter().rev().find(|(known, _)| *known == hash)?;
        Some(Duration::from_millis(millis(now).saturating_sub(*at))).filter(|ago| *ago <= REMEMBER)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_remembered_for_minutes_and_not_without_bound() {
        let released = Released::new();
        let at = Duration::from_secs;
        released.remember_at("a", at(1));
        released.remember_at("b", at(2));
        assert_eq!(released.ago_at("a", at(31)), Some(at(30)));
        assert_eq!(released.ago_at("c", at(31)), None);
        assert_eq!((released.ago_at("a", at(602)), released.ago_at("b", at(602))), (None, Some(at(600))));
        // Released again under the same ID: the last time counts.
        released.remember_at("b", at(603));
        assert_eq!(released.ago_at("b", at(604)), Some(at(1)));
        assert_eq!(released.ids.lock().len(), 1, "what is old goes");
        (0..REMEMBERED).for_each(|n| released.remember_at(&n.to_string(), at(604)));
        assert_eq!(released.ids.lock().len(), REMEMBERED);
        assert_eq!((released.ago_at("b", at(604)), released.ago_at("0", at(604))), (None, Some(at(0))));
    }
}
