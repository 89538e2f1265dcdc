//! The connections of a listener, and which of them leaves when a further one comes. Owns that places are for
//! answers: a silent connection, before the end of a request or between two, has no right to keep its place. It
//! does not know what a connection is, nor how callers are told apart.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The connections, of callers of type `K`.
pub(crate) struct House<K: Ord + Clone> {
    most: usize,
    // A lock rather than a task, because it is held for a look or a change only.
    guests: Arc<Mutex<Guests<K>>>,
}

struct Guests<K> {
    /// The last number given to a connection, or to a moment at which one became silent.
    next: u64,
    by_number: BTreeMap<u64, Guest<K>>,
}

struct Guest<K> {
    caller: K,
    /// The moment when it became silent; the smallest number is the longest silence. `None` while it may not be
    /// displaced.
    silent: Option<u64>,
    leave: CancellationToken,
}

/// One connection's place. It is silent at first.
pub(crate) struct Seat<K: Ord + Clone> {
    guests: Arc<Mutex<Guests<K>>>,
    number: u64,
    leave: CancellationToken,
}

/// A request that is being received or answered.
pub(crate) struct Asking<K: Ord + Clone>(Arc<Seat<K>>);

impl<K: Ord + Clone> House<K> {
    /// One caller may have `for_one` places while no other has any; there are twice as many.
    pub(crate) fn new(for_one: usize) -> Self {
        let guests = Guests { next: 0, by_number: BTreeMap::new() };
        Self { most: 2 * for_one, guests: Arc::new(Mutex::new(guests)) }
    }

    /// A place for a further connection. A caller never has more places than it leaves free or to others. To keep
    /// this true, silent connections leave, those of the callers with the most first, but none of a caller with
    /// fewer than this one.
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
    /// Waits until this connection has to leave.
    pub(crate) async fn left(&self) {
        self.leave.cancelled().await;
    }

    /// A request has begun. Dropping the result means that it has been answered.
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
    /// The request has come whole, so the connection stays until it is answered.
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
        // A caller's own connections leave first, beginning with the longest silence.
        let silent: Vec<_> = (0..6).map(|_| house.enter(1).unwrap()).collect();
        let has_left: Vec<bool> = silent.iter().map(|seat| seat.leave.is_cancelled()).collect();
        assert_eq!(has_left, [true, true, false, false, false, false]);
        // An answered connection has been silent for a shorter time.
        drop(answered(&silent[2]));
        let half = silent[3].asks();
        let more = house.enter(1).unwrap();
        assert!(silent[3].leave.is_cancelled() && !silent[2].leave.is_cancelled());
        // Others get in. Connections of the largest caller leave for them, except the one whose request is being
        // answered.
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
