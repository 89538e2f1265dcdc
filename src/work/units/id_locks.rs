//! IDs that clients have chosen and that are being given to units: one submission of an ID at a time.
//! Knows nothing of the units that have them.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::OwnedMutexGuard;

use crate::work::unit::UnitId;

/// The IDs.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// A plain lock, held for map operations alone and never across a wait.
    turns: Mutex<BTreeMap<UnitId, Arc<tokio::sync::Mutex<()>>>>,
}

/// The right to give one ID to a unit.
pub(crate) struct Turn<'a> {
    names: &'a Names,
    id: UnitId,
    held: Option<OwnedMutexGuard<()>>,
}

impl Names {
    /// Waits for the turn with an ID.
    pub(crate) async fn turn(&self, id: &UnitId) -> Turn<'_> {
        let mut turn = Turn { names: self, id: id.clone(), held: None };
        let lock = self.turns().entry(id.clone()).or_default().clone();
        turn.held = Some(lock.lock_owned().await);
        turn
    }

    fn turns(&self) -> MutexGuard<'_, BTreeMap<UnitId, Arc<tokio::sync::Mutex<()>>>> {
        self.turns.lock()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.names.turns();
        drop(self.held.take());
        // Whoever waits holds a clone.
        if turns.get(&self.id).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            turns.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_at_a_time_and_nothing_is_kept() {
        let names = Names::default();
        let [a, b] = ["a", "b"].map(|id| UnitId::chosen(id).unwrap());
        let first = names.turn(&a).await;
        let _other = names.turn(&b).now_or_never().expect("IDs do not wait for each other");
        let mut second = Box::pin(names.turn(&a));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        drop(second.await);
        assert!(Box::pin(names.turn(&a)).now_or_never().is_some());
        assert_eq!(names.turns().len(), 1, "only what is held");
    }
}
