//! The IDs of units that were released lately, so that a client that still asks for one learns what became of it. Owns
//! how many are remembered and for how long. Each takes a few bytes, because thousands of units may be released in a
//! second. If there are too many, the oldest of the caller with the most are forgotten. Knows nothing of units that
//! exist.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::quota::Account;
use crate::work::Submitter;

/// How long an ID is remembered, and how many at most: they take 1 MiB.
const REMEMBER: Duration = Duration::from_secs(600);
const REMEMBERED: usize = 65_536;

/// Hash and milliseconds since `began`, oldest first.
type Ids = VecDeque<(u64, u64)>;

/// IDs with the time of their release.
#[derive(Debug)]
pub(crate) struct Released {
    hasher: RandomState,
    began: Instant,
    /// IDs by caller. A plain lock, never held across a wait.
    ids: Mutex<HashMap<Option<Account>, Ids>>,
}

impl Released {
    pub(crate) fn new() -> Self {
        Self { hasher: RandomState::new(), began: Instant::now(), ids: Mutex::default() }
    }

    /// Remembers an ID of a caller, and forgets the oldest ones.
    pub(crate) fn remember(&self, id: &str, of: Submitter) {
        self.remember_at(id, of, self.began.elapsed());
    }

    /// How long ago a unit of that ID was released, if that is remembered.
    pub(crate) fn ago(&self, id: &str) -> Option<Duration> {
        self.ago_at(id, self.began.elapsed())
    }

    fn remember_at(&self, id: &str, of: Submitter, now: Duration) {
        let (hash, now) = (self.hasher.hash_one(id), millis(now));
        let mut ids = self.ids.lock();
        let old = |&(_, at): &(u64, u64)| now.saturating_sub(at) > millis(REMEMBER);
        ids.retain(|_, theirs| {
            while theirs.front().is_some_and(old) {
                theirs.pop_front();
            }
            !theirs.is_empty()
        });
        if ids.values().map(VecDeque::len).sum::<usize>() >= REMEMBERED
            && let Some(most) = ids.values_mut().max_by_key(|theirs| theirs.len())
        {
            most.pop_front();
        }
        ids.entry(Account::of(of)).or_default().push_back((hash, now));
    }

    fn ago_at(&self, id: &str, now: Duration) -> Option<Duration> {
        let hash = self.hasher.hash_one(id);
        let ids = self.ids.lock();
        let at = ids.values().flatten().filter(|(known, _)| *known == hash).map(|(_, at)| at).max()?;
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
        let remember = |id: &str, now| released.remember_at(id, Submitter::Operator, now);
        remember("a", at(1));
        remember("b", at(2));
        assert_eq!(released.ago_at("a", at(31)), Some(at(30)));
        assert_eq!(released.ago_at("c", at(31)), None);
        assert_eq!((released.ago_at("a", at(602)), released.ago_at("b", at(602))), (None, Some(at(600))));
        // Released again under the same ID: the last time counts.
        remember("b", at(603));
        assert_eq!(released.ago_at("b", at(604)), Some(at(1)));
        let count = || released.ids.lock().values().map(VecDeque::len).sum::<usize>();
        assert_eq!(count(), 1, "what is old goes");
        (0..REMEMBERED).for_each(|n| remember(&n.to_string(), at(604)));
        assert_eq!(count(), REMEMBERED);
        assert_eq!((released.ago_at("b", at(604)), released.ago_at("0", at(604))), (None, Some(at(0))));
    }

    #[test]
    fn who_has_most_released_pushes_out_nobody_else() {
        use crate::wire::NameHash;
        let released = Released::new();
        let node = |hash, certified| Submitter::Node { node: NameHash(hash), certified };
        let callers = [node(1, true), node(2, true), node(3, false), Submitter::Operator];
        let now = Duration::ZERO;
        for (n, caller) in callers.into_iter().enumerate() {
            released.remember_at(&format!("{n}"), caller, now);
        }
        // All nodes that prove no name count as one caller.
        (0..REMEMBERED).for_each(|n| released.remember_at(&format!("x{n}"), node(1, true), now));
        (0..REMEMBERED).for_each(|n| released.remember_at(&format!("y{n}"), node(n as u64, false), now));
        let last = REMEMBERED - 1;
        for id in ["1", "3", &format!("x{last}"), &format!("y{last}")] {
            assert_eq!(released.ago_at(id, now), Some(now), "{id}");
        }
        assert_eq!(
            (released.ago_at("0", now), released.ago_at("2", now)),
            (None, None),
            "the oldest of the most"
        );
        let sizes: Vec<_> = released.ids.lock().values().map(VecDeque::len).collect();
        assert!(
            sizes.iter().sum::<usize>() == REMEMBERED && sizes.iter().all(|size| *size <= REMEMBERED / 2)
        );
    }
}
