//! The connections of a listener, and which of them goes when one more comes. Owns that places are for answers: who is
//! silent, before the whole of a request or between two, has no right to keep one. It does not know what a connection
//! is, nor how callers are told apart.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The connections, of callers of type `K`.
pub(crate) struct House<K: Ord + Clone> {
    most: usize,
    // A lock and no task: held for a look or a change alone.
    guests: Arc<Mutex<Guests<K>>>,
}

struct Guests<K> {
    /// Counts connections, and when they became silent.
    next: u64,
    by_number: BTreeMap<u64, Guest<K>>,
}

struct Guest<K> {
    caller: K,
    /// Since when it is silent; the smallest for the longest.
    silent: Option<u64>,
    leave: CancellationToken,
}

/// One connection's place. It is silent at first.
pub(crate) struct Seat<K: Ord + Clone> {
    guests: Arc<Mutex<Guests<K>>>,
    number: u64,
    leave: CancellationToken,
}

/// A request that comes, or is answered.
pub(crate) struct Asking<K: Ord + Clone>(Arc<Seat<K>>);

impl<K: Ord + Clone> House<K> {
    /// Twice as many places as one caller may have while nobody else has any.
    pub(crate) fn new(for_one: usize) -> Self {
        let guests = Guests { next: 0, by_number: BTreeMap::new() };
        Self { most: 2 * for_one, guests: Arc::new(Mutex::new(guests)) }
    }

    /// A place for one more connection. A caller never has more than it leaves; where it would, silent connections leave:
    /// of the callers with the most first, and never for a caller with more.
    pub(crate) fn enter(&self, caller: K) -> Option<Arc<Seat<K>>> {
        let mut guests = self.guests.lock();
        loop {
            let mut counts: BTreeMap<&K, usize> = BTreeMap::new();
            guests.by_number.values().for_each(|guest| *counts.entry(&guest.caller).or_default() += 1);
            let own = counts.get(&caller).copied().unwrap_or_default();
            if own + guests.by_number.len() + 2 <= self.most {
                break;
            }
            let silent = guests.by_number.iter().filter_map(|(number, guest)| {
                let count = counts.get(&guest.caller).filter(|count| **count >= own)?;
                Some((*count, Reverse(guest.silent?), *number))
            });
            let (_, _, first) = silent.max()?;
            guests.by_number.remove(&first)?.leave.cancel();
        }
        let (number, leave) = (guests.tick(), CancellationToken::new());
        guests.by_number.insert(number, Guest { caller, silent: Some(number), leave: leave.clone() });
        Some(Arc::new(Seat { guests: self.guests.clone(), number, leave }))
    }
}

impl<K> Guests<K> {
    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl<K: Ord + Clone> Seat<K> {
    /// Ready when this connection is to leave.
    pub(crate) async fn left(&self) {
        self.leave.cancelled().await;
    }

    /// A request has begun; with the end of this it has been answered.
    pub(crate) fn asks(self: &Arc<Self>) -> Asking<K> {
        Asking(self.clone())
    }

    fn set_silent(&self, is_silent: bool) {
        let mut guests = self.guests.lock();
        let now = guests.tick();
        if let Some(guest) = guests.by_number.get_mut(&self.number) {
            guest.silent = is_silent.then_some(now);
        }
    }
}

impl<K: Ord + Clone> Asking<K> {
    /// It has come whole: until it is answered the connection stays.
    pub(crate) fn stays(&self) {
        self.0.set_silent(false);
    }
}

impl<K: Ord + Clone> Drop for Asking<K> {
    fn drop(&mut self) {
        self.0.set_silent(true);
    }
}

impl<K: Ord + Clone> Drop for Seat<K> {
    fn drop(&mut self) {
        self.guests.lock().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered<K: Ord + Clone>(seat: &Arc<Seat<K>>) -> Asking<K> {
        let asking = seat.asks();
        asking.stays();
        asking
    }

    #[test]
    fn who_is_silent_keeps_no_place_that_another_needs() {
        let house = House::new(4);
        // A caller's own go first, the one that has been silent longest.
        let silent: Vec<_> = (0..6).map(|_| house.enter(1).unwrap()).collect();
        let has_left: Vec<bool> = silent.iter().map(|seat| seat.leave.is_cancelled()).collect();
        assert_eq!(has_left, [true, true, false, false, false, false]);
        // One that was answered has been silent for less long.
        drop(answered(&silent[2]));
        let half = silent[3].asks();
        let more = house.enter(1).unwrap();
        assert!(silent[3].leave.is_cancelled() && !silent[2].leave.is_cancelled());
        // Others get in. Those of the largest leave for them, but for the one that is answered.
        let busy = answered(&silent[2]);
        let others: Vec<_> = (2..9).filter_map(|other| house.enter(other)).collect();
        assert_eq!(others.len(), 7);
        assert!(!silent[2].leave.is_cancelled() && more.leave.is_cancelled());
        drop((busy, half, more, silent, others));
        assert!(house.guests.lock().by_number.is_empty());
        assert!(house.enter(1).is_some());
    }

    #[test]
    fn a_caller_with_many_answers_displaces_nobody_with_fewer() {
        let house = House::new(4);
        let mine: Vec<_> = (0..4).map(|_| house.enter(1).unwrap()).collect();
        let _busy: Vec<_> = mine.iter().map(answered).collect();
        let others = [house.enter(2).unwrap(), house.enter(3).unwrap()];
        assert!(house.enter(1).is_none());
        assert!(others.iter().all(|seat| !seat.leave.is_cancelled()));
    }
}
