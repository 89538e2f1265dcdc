//! The order of future events: by time and, at one moment, in the order in which they were added. Only the events of
//! the present slice of time are sorted, because millions of messages are on their way while a large mesh starts. What
//! an event does is the world's business.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// Long enough that sorting a slice pays, and short enough that the processor's cache holds it.
const SLICE: Duration = Duration::from_micros(100);

/// The events to come.
pub(crate) struct Agenda<T> {
    asked: u64,
    /// Everything up to the end of the present slice.
    near: BinaryHeap<Reverse<Entry<T>>>,
    slice: u128,
    later: BTreeMap<u128, Vec<Reverse<Entry<T>>>>,
}

struct Entry<T> {
    key: (Duration, u64),
    what: T,
}

impl<T> Agenda<T> {
    pub(crate) fn new() -> Self {
        Self { asked: 0, near: BinaryHeap::new(), slice: 0, later: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, when: Duration, what: T) {
        self.asked += 1;
        let entry = Reverse(Entry { key: (when, self.asked), what });
        let slice = when.as_nanos() / SLICE.as_nanos();
        if slice <= self.slice {
            self.near.push(entry);
        } else {
            self.later.entry(slice).or_default().push(entry);
        }
    }

    /// The next event, if it is due by this time.
    pub(crate) fn next(&mut self, by: Duration) -> Option<(Duration, T)> {
        if self.near.is_empty()
            && let Some((slice, entries)) = self.later.pop_first()
        {
            (self.slice, self.near) = (slice, entries.into());
        }
        if self.near.peek()?.0.key.0 > by {
            return None;
        }
        self.near.pop().map(|Reverse(entry)| (entry.key.0, entry.what))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

#[test]
fn it_goes_by_time_and_then_by_the_order_of_asking() {
    let mut agenda = Agenda::new();
    let at = Duration::from_micros;
    let mut next = |adds: &[(u64, char)], by: u64| {
        adds.iter().for_each(|&(when, what)| agenda.add(at(when), what));
        agenda.next(at(by)).map(|(when, what)| (when.as_micros(), what))
    };
    assert_eq!(next(&[(9_000, 'd'), (5_100, 'b'), (5_000, 'a'), (5_100, 'c')], 4_999), None);
    assert_eq!(next(&[], 9_000), Some((5_000, 'a')));
    assert_eq!(next(&[(5_100, 'e'), (5_050, 'f'), (20_000, 'h')], 9_000), Some((5_050, 'f')));
    assert_eq!(next(&[(9_000, 'g')], 9_000), Some((5_100, 'b')));
    let rest: Vec<char> = std::iter::from_fn(|| next(&[], 20_000)).map(|(_, what)| what).collect();
    assert_eq!(rest, ['c', 'e', 'd', 'g', 'h']);
    // In the present slice, and before the rest of that slice.
    assert_eq!(next(&[(30_500, 'j')], 30_000), None);
    assert_eq!(next(&[(30_100, 'i')], 31_000), Some((30_100, 'i')));
}
