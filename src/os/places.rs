//! Places that several callers share: connections, streams, bytes of lines. Owns how many places there are, and
//! that a caller never has more of them than it leaves: a caller that takes all it can get, and keeps it, shuts
//! nobody out. It does not know what a place is for, nor how callers are told apart.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Places for callers of type `K`. Clones share them.
#[derive(Debug)]
pub(crate) struct Places<K>(Arc<PlacesInner<K>>);

#[derive(Debug)]
struct PlacesInner<K> {
    most: usize,
    // A lock rather than a task, because it is held for arithmetic only, and dropping a share must give places
    // back.
    taken: Mutex<Taken<K>>,
    given_back: Notify,
}

#[derive(Debug)]
struct Taken<K> {
    sum: usize,
    /// Callers without places are not in the map.
    by_caller: BTreeMap<K, usize>,
}

impl<K> Clone for Places<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Ord + Clone> Places<K> {
    /// One caller may have `for_one` places while no other has any; there are twice as many.
    pub(crate) fn new(for_one: usize) -> Self {
        let taken = Mutex::new(Taken { sum: 0, by_caller: BTreeMap::new() });
        Self(Arc::new(PlacesInner { most: 2 * for_one, taken, given_back: Notify::new() }))
    }

    /// One place, if the caller may have another one.
    pub(crate) fn take(&self, caller: &K) -> Option<Share<K>> {
        let mut place = self.none_yet(caller.clone());
        place.take(1).then_some(place)
    }

    /// A share without places yet.
    pub(crate) fn none_yet(&self, caller: K) -> Share<K> {
        Share { places: self.clone(), caller, count: 0 }
    }
}

/// A caller's share of the places. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Share<K: Ord + Clone> {
    places: Places<K>,
    caller: K,
    count: usize,
}

impl<K: Ord + Clone> Share<K> {
    /// How many places it holds.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Takes more places. False, without taking any, if the caller would then have more than it leaves.
    pub(crate) fn take(&mut self, more: usize) -> bool {
        let mut taken = self.places.0.taken.lock();
        let own = taken.by_caller.get(&self.caller).copied().unwrap_or_default() + more;
        let fits = own <= self.places.0.most.saturating_sub(taken.sum + more);
        if fits {
            taken.sum += more;
            taken.by_caller.insert(self.caller.clone(), own);
            self.count += more;
        }
        fits
    }

    /// Waits until the caller may have this many more places, and takes them.
    pub(crate) async fn grow(&mut self, more: usize) {
        let places = self.places.clone();
        loop {
            let given_back = places.0.given_back.notified();
            if self.take(more) {
                return;
            }
            given_back.await;
        }
    }

    /// Gives all its places back.
    pub(crate) fn give_back(&mut self) {
        let count = std::mem::take(&mut self.count);
        if count == 0 {
            return;
        }
        let mut taken = self.places.0.taken.lock();
        taken.sum -= count;
        if let Some(own) = taken.by_caller.get_mut(&self.caller) {
            *own -= count;
            if *own == 0 {
                taken.by_caller.remove(&self.caller);
            }
        }
        drop(taken);
        self.places.0.given_back.notify_waiters();
    }
}

impl<K: Ord + Clone> Drop for Share<K> {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_all_it_can_leaves_as_much_for_others() {
        let places = Places::new(100);
        let all_of = |caller| std::iter::from_fn(|| places.take(&caller)).collect::<Vec<_>>();
        let loud = all_of(1);
        assert_eq!(loud.len(), 100);
        let (second, third) = (all_of(2), all_of(3));
        assert_eq!((second.len(), third.len()), (50, 25));
        drop(loud);
        assert_eq!(all_of(2).len(), 37, "87 of its own, and 88 are left");
        drop((second, third));
        assert_eq!(all_of(4).len(), 100, "all were given back");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_goes_on_once_there_is_room() {
        let places = Places::new(10);
        let mut first = places.none_yet("a");
        first.grow(10).await;
        let mut second = places.none_yet("a");
        let wait = std::time::Duration::from_secs(1);
        assert!(tokio::time::timeout(wait, second.grow(1)).await.is_err());
        let mut other = places.none_yet("b");
        other.grow(5).await;
        first.give_back();
        tokio::time::timeout(wait, second.grow(1)).await.unwrap();
        assert_eq!((first.count(), second.count()), (0, 1));
    }
}
