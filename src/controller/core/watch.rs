//! When rows of a store last changed, by the observer's clock.
//!
//! No wall clock decides: a live node changes a row of its own again and again, and an observer counts how long it has
//! seen that row unchanged. Times are the observer's own and never go back. This file reads no clock.

use std::collections::BTreeMap;
use std::time::Duration;

use super::time::Time;

/// A watched row.
pub trait Watched: PartialEq {
    /// Whether this differs from the row before.
    fn is_news(&self, before: &Self) -> bool {
        self != before
    }
}

impl Watched for Time {}

/// The rows as one observer has seen them.
#[derive(Debug, Clone)]
pub struct Watch<K, V> {
    /// When the watch began, and when the observer last looked.
    looks: Option<(Time, Time)>,
    rows: BTreeMap<K, (V, Time)>,
}

impl<K, V> Default for Watch<K, V> {
    fn default() -> Self {
        Self { looks: None, rows: BTreeMap::new() }
    }
}

impl<K: Ord, V: Watched> Watch<K, V> {
    /// Notes all rows as they are now. If the last look is at least `blind` ago, the watch starts over, because the
    /// store may have been out of reach for everybody, so that nobody could change a row.
    pub fn note(&mut self, rows: impl IntoIterator<Item = (K, V)>, now: Time, blind: Duration) {
        let mut former = std::mem::take(&mut self.rows);
        let began = self.looks.filter(|(_, last)| now.since(*last) < blind).map(|(began, _)| began);
        self.looks = Some((began.unwrap_or(now), now));
        for (key, row) in rows {
            let same = former.remove(&key).filter(|(before, _)| began.is_some() && !row.is_news(before));
            self.rows.insert(key, same.unwrap_or((row, now)));
        }
    }

    /// The observer could not look: its watch starts over with the next look.
    pub fn interrupt(&mut self) {
        self.looks = None;
    }

    /// The observer has changed a row of its own.
    pub fn changed(&mut self, key: K, row: V, now: Time) {
        self.rows.insert(key, (row, now));
    }

    /// A row as it was seen last.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.rows.get(key).map(|(row, _)| row)
    }

    /// The rows as they were seen last.
    pub fn rows(&self) -> impl Iterator<Item = &V> {
        self.rows.values().map(|(row, _)| row)
    }

    /// For how long the observer has seen the row unchanged, if it is like `row` now.
    pub fn unchanged_for(&self, key: &K, row: &V, now: Time) -> Duration {
        let seen = self.rows.get(key).filter(|(seen, _)| !row.is_news(seen));
        seen.map_or(Duration::ZERO, |(_, since)| now.since(*since))
    }

    /// Whether a row has changed while the observer watched.
    pub fn has_changed(&self, key: &K) -> bool {
        let began = self.looks.map(|(began, _)| began);
        self.rows.get(key).is_some_and(|(_, since)| began.is_some_and(|began| *since > began))
    }

    /// How long this observer has watched.
    pub fn watched_for(&self, now: Time) -> Duration {
        self.looks.map_or(Duration::ZERO, |(began, _)| now.since(began))
    }
}
