//! Locks by ID: only one submission at a time may give a chosen ID to a unit. Knows nothing of units.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::OwnedMutexGuard;

use crate::work::unit::UnitId;

/// The locks of IDs that are being given to units.
#[derive(Debug, Default)]
pub(crate) struct IdLocks {
    /// A plain lock, held for map operations alone and never across a wait.
    locks: Mutex<BTreeMap<UnitId, Arc<tokio::sync::Mutex<()>>>>,
}

/// The right to give one ID to a unit.
pub(crate) struct IdLock<'a> {
    ids: &'a IdLocks,
    id: UnitId,
    held: Option<OwnedMutexGuard<()>>,
}

impl IdLocks {
    /// Waits for the right to give an ID.
    pub(crate) async fn lock(&self, id: &UnitId) -> IdLock<'_> {
        let mut lock = IdLock { ids: self, id: id.clone(), held: None };
        let mutex = self.locks().entry(id.clone()).or_default().clone();
        lock.held = Some(mutex.lock_owned().await);
        lock
    }

    fn locks(&self) -> MutexGuard<'_, BTreeMap<UnitId, Arc<tokio::sync::Mutex<()>>>> {
        self.locks.lock()
    }
}

impl Drop for IdLock<'_> {
    fn drop(&mut self) {
        let mut locks = self.ids.locks();
        drop(self.held.take());
        // Each task that waits holds a clone.
        if locks.get(&self.id).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_at_a_time_and_nothing_is_kept() {
        let ids = IdLocks::default();
        let [a, b] = ["a", "b"].map(|id| UnitId::chosen(id).unwrap());
        let first = ids.lock(&a).await;
        let _other = ids.lock(&b).now_or_never().expect("IDs do not wait for each other");
        let mut second = Box::pin(ids.lock(&a));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        drop(second.await);
        assert!(Box::pin(ids.lock(&a)).now_or_never().is_some());
        assert_eq!(ids.locks().len(), 1, "only what is held");
    }
}
