//! The IDs of routing updates that are passed on without being believed: each is passed on once.
//!
//! All other updates are recognised by epoch and sequence, so their IDs need not be remembered. Bounded by age and by
//! number: forgetting an ID early only lets its update flood once more.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use super::Tick;
use crate::wire::NameHash;

/// Most IDs kept; about 2.5 MB.
const MOST_IDS: usize = 65_536;

/// A memory of update IDs.
#[derive(Debug)]
pub(super) struct UpdateIds {
    keep: Duration,
    ids: HashSet<u64>,
    order: VecDeque<(Tick, u64)>,
}

impl UpdateIds {
    /// Remembers each ID for `keep`.
    pub(super) fn new(keep: Duration) -> Self {
        Self { keep, ids: HashSet::new(), order: VecDeque::new() }
    }

    /// IDs remembered at the moment.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Notes `id`; false if it was noted already.
    pub(super) fn insert(&mut self, id: &str, now: Tick) -> bool {
        while let Some(&(when, old)) = self.order.front() {
            if now.since(when) < self.keep && self.order.len() < MOST_IDS {
                break;
            }
            self.order.pop_front();
            self.ids.remove(&old);
        }
        let key = update_key(id);
        let new = self.ids.insert(key);
        if new {
            self.order.push_back((now, key));
        }
        new
    }
}

/// An ID of 8 bytes is its own key. Other lengths, which a peer may make up, are hashed.
pub(super) fn update_key(id: &str) -> u64 {
    <[u8; 8]>::try_from(id.as_bytes()).map_or_else(|_| NameHash::of(id).0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_counts_once_until_it_is_old() {
        let mut seen = UpdateIds::new(Duration::from_secs(10));
        assert!(seen.insert("abcdefgh", Tick::default()));
        assert!(!seen.insert("abcdefgh", Tick::at(Duration::from_secs(9))));
        assert!(seen.insert("a longer one", Tick::at(Duration::from_secs(9))));
        assert!(seen.insert("abcdefgh", Tick::at(Duration::from_secs(10))));
    }

    #[test]
    fn a_flood_of_ids_does_not_grow_it_without_bound() {
        let mut seen = UpdateIds::new(Duration::from_secs(3600));
        for i in 0..3 * MOST_IDS {
            seen.insert(&format!("{i:08}"), Tick::default());
        }
        assert!(seen.ids.len() <= MOST_IDS && seen.order.len() <= MOST_IDS);
    }
}
