//! What this process knows of its own lease and of other control nodes' leases, by its own clock. Does not ask the
//! store, and decides nothing about jobs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::controller::core::{Fence, InstanceName, Lease, LeaseTimes, LeaseWatch, Tenure, Time};
use crate::os::machine_clock::MachineClock;

pub(super) struct OwnLease {
    fence: ArcSwap<Fence>,
    clock: MachineClock,
    /// `None` before the first heartbeat of a lease.
    tenure: watch::Sender<Option<Tenure>>,
    /// The leases that heartbeats have read. Locked only to read or note them.
    all: Mutex<LeaseWatch>,
    /// The store has lost its last commits, and this lease is to be renewed under a new fence.
    has_gone_back: AtomicBool,
    /// Why this process has no lease and does not expect one.
    halted: Mutex<Option<String>>,
}

impl OwnLease {
    pub(super) fn new(fence: Fence) -> Self {
        Self {
            fence: ArcSwap::from_pointee(fence),
            clock: MachineClock::start(),
            tenure: watch::Sender::new(None),
            all: Mutex::default(),
            has_gone_back: AtomicBool::new(false),
            halted: Mutex::default(),
        }
    }

    /// The fence with which this node writes to the store.
    pub(super) fn fence(&self) -> Fence {
        Fence::clone(&self.fence.load())
    }

    pub(super) fn now(&self) -> Time {
        Time(i64::try_from(self.clock.elapsed().as_millis()).unwrap_or(i64::MAX))
    }

    /// Changes when the lease is renewed or ends.
    pub(super) fn renewals(&self) -> watch::Receiver<Option<Tenure>> {
        self.tenure.subscribe()
    }

    pub(super) fn may_act(&self, times: &LeaseTimes) -> bool {
        self.tenure.borrow().is_some_and(|tenure| tenure.may_act(self.now(), times))
    }

    /// How long this node may still act, if the lease was ever renewed.
    pub(super) fn time_left(&self, times: &LeaseTimes) -> Option<Duration> {
        let tenure = *self.tenure.borrow();
        tenure.map(|tenure| times.blind().saturating_sub(self.now().since(tenure.renewed)))
    }

    /// Notes all leases that a heartbeat has read, and this node's own, which it has renewed. Returns whether the store
    /// has lost its last commits. If so, nothing may be done until there is a new lease.
    pub(super) fn note(&self, all: Vec<Lease>, own: Lease, times: &LeaseTimes) -> bool {
        let now = self.now();
        let mut known = self.all.lock();
        let went_back = known.note(all, now, times);
        known.renewed(own, now);
        self.has_gone_back.fetch_or(went_back, Ordering::Relaxed);
        went_back
    }

    /// Renews the right to act, counted from the moment at which the heartbeat was sent.
    pub(super) fn renew(&self, sent: Time) {
        self.tenure.send_replace(Some(Tenure { renewed: sent }));
    }

    /// Notes that a heartbeat failed, so that the time since the last one does not count as anybody's silence.
    pub(super) fn interrupt(&self) {
        self.all.lock().interrupt();
    }

    /// The leases of others that have not changed for too long.
    pub(super) fn lost(&self, times: &LeaseTimes) -> Vec<Lease> {
        self.all.lock().lost(self.now(), times)
    }

    /// The control nodes that this one has seen alive.
    pub(super) fn alive(&self) -> BTreeSet<InstanceName> {
        self.all.lock().alive()
    }

    /// Notes that the store has lost commits, although no lease shows it.
    pub(super) fn note_lost_commits(&self) {
        self.has_gone_back.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_gone_back(&self) -> bool {
        self.has_gone_back.load(Ordering::Relaxed)
    }

    /// Begins a new lease.
    pub(super) fn replace(&self, fence: Fence) {
        self.fence.store(Arc::new(fence));
        self.has_gone_back.store(false, Ordering::Relaxed);
        *self.halted.lock() = None;
    }

    /// Ends the right to act, because the lease is somebody else's or has ended.
    pub(super) fn end(&self) {
        self.tenure.send_replace(None);
    }

    pub(super) fn halt(&self, why: String) {
        *self.halted.lock() = Some(why);
    }

    pub(super) fn halted(&self) -> Option<String> {
        self.halted.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: LeaseTimes =
        LeaseTimes { heartbeat: Duration::from_secs(1), owner_lost_after: Duration::from_secs(3) };

    fn lease(beat: i64) -> Lease {
        let started = Lease::start(None, "c1".into(), 7, &TIMES);
        Lease { beat, ..started }
    }

    #[test]
    fn it_acts_once_it_is_renewed_and_not_with_a_store_that_has_gone_back() {
        let own = OwnLease::new(lease(1).fence());
        assert!(!own.may_act(&TIMES) && own.time_left(&TIMES).is_none());
        assert!(!own.note(vec![lease(5)], lease(6), &TIMES));
        own.renew(own.now());
        assert!(own.may_act(&TIMES) && own.time_left(&TIMES).is_some_and(|left| !left.is_zero()));
        assert!(own.note(vec![lease(4)], lease(5), &TIMES), "a count that went back");
        assert!(own.has_gone_back());
        own.end();
        assert!(!own.may_act(&TIMES));
        own.replace(lease(9).fence());
        assert!(!own.has_gone_back() && !own.may_act(&TIMES), "the new one was not renewed yet");
    }
}
