//! Which units of a work type run, and which wait in order for one of its slots, if the number of units that may run at
//! once is bounded. Does not know how a unit starts or ends. A unit that is cancelled just as it gets a slot still gets
//! the slot, and its start then finds that it has ended.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::work::unit::UnitId;
use crate::work::units::Entry;

/// The queues of all types.
#[derive(Debug, Default)]
pub(crate) struct TypeQueues {
    /// A blocking lock, held only for map operations and never across an await.
    by_type: Mutex<BTreeMap<String, TypeQueue>>,
}

#[derive(Debug, Default)]
struct TypeQueue {
    running: BTreeMap<UnitId, Arc<Entry>>,
    waiting: VecDeque<Arc<Entry>>,
}

impl TypeQueues {
    /// Asks for a slot, and says whether the unit has one. If not, the unit waits until [`Self::leave`] or
    /// [`Self::review`] returns it.
    pub(crate) fn enter(&self, work_type: &str, slots: u32, entry: &Arc<Entry>) -> bool {
        self.with(work_type, |queue| {
            let free = queue.running.len() < slots as usize && queue.waiting.is_empty();
            match free || queue.has_slot(entry) {
                true => drop(queue.running.insert(entry.id.clone(), entry.clone())),
                false => queue.waiting.push_back(entry.clone()),
            }
            queue.has_slot(entry)
        })
    }

    /// Notes that a unit runs, even if no slot was free.
    pub(crate) fn occupy(&self, work_type: &str, entry: &Arc<Entry>) {
        self.with(work_type, |queue| queue.running.insert(entry.id.clone(), entry.clone()));
    }

    /// Gives up a unit's slot. Returns the units that have got a slot by that.
    pub(crate) fn leave(&self, work_type: &str, slots: u32, entry: &Arc<Entry>) -> Vec<Arc<Entry>> {
        self.with(work_type, |queue| {
            // Another unit may have the same ID by now, so the entries are compared.
            if queue.has_slot(entry) {
                queue.running.remove(&entry.id);
            }
            queue.fill(slots)
        })
    }

    /// Removes an ended unit from the waiting ones. A unit with a slot keeps it until [`Self::leave`].
    pub(crate) fn forget(&self, work_type: &str, gone: &Arc<Entry>) {
        self.with(work_type, |queue| queue.waiting.retain(|entry| !Arc::ptr_eq(entry, gone)));
    }

    /// Notes that the numbers of slots have changed. Returns the units that have got a slot by that.
    pub(crate) fn review(&self, slots: impl Fn(&str) -> u32) -> Vec<Arc<Entry>> {
        let mut queues = self.by_type.lock();
        queues.iter_mut().flat_map(|(work_type, queue)| queue.fill(slots(work_type))).collect()
    }

    fn with<T>(&self, work_type: &str, act: impl FnOnce(&mut TypeQueue) -> T) -> T {
        let mut queues = self.by_type.lock();
        act(queues.entry(work_type.to_owned()).or_default())
    }
}

impl TypeQueue {
    fn has_slot(&self, entry: &Arc<Entry>) -> bool {
        self.running.get(&entry.id).is_some_and(|running| Arc::ptr_eq(running, entry))
    }

    fn fill(&mut self, slots: u32) -> Vec<Arc<Entry>> {
        let mut next = Vec::new();
        while self.running.len() < slots as usize {
            let Some(entry) = self.waiting.pop_front() else { break };
            self.running.insert(entry.id.clone(), entry.clone());
            next.push(entry);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::status::{Extra, Status};
    use crate::work::store::UnitDir;

    fn entry(id: &str) -> Arc<Entry> {
        Entry::new(id.parse().unwrap(), UnitDir::at("/nonexistent".as_ref()), Status::new("t", Extra::None))
    }

    #[test]
    fn slots_are_given_in_order() {
        let queues = TypeQueues::default();
        let [a, b, c, d] = ["a", "b", "c", "d"].map(entry);
        assert!(queues.enter("t", 2, &a) && queues.enter("t", 2, &b));
        assert!(!queues.enter("t", 2, &c) && !queues.enter("t", 2, &d));
        assert!(queues.enter("other", 2, &c), "types do not wait for each other");
        let names = |next: Vec<Arc<Entry>>| next.iter().map(|e| e.id.to_string()).collect::<Vec<_>>();
        assert_eq!(names(queues.leave("t", 2, &b)), ["c"]);
        assert!(names(queues.leave("t", 2, &b)).is_empty(), "leaving twice frees one place");
        assert!(names(queues.leave("t", 2, &entry("c"))).is_empty(), "another unit that had the same ID");
        assert!(queues.enter("t", 2, &c), "who has a place keeps it");
        queues.occupy("t", &b);
        assert!(names(queues.leave("t", 2, &a)).is_empty(), "more run than have slots");
        assert_eq!(names(queues.leave("t", 2, &b)), ["d"]);
        let [e, f] = ["e", "f"].map(entry);
        assert!(!queues.enter("t", 2, &e) && !queues.enter("t", 2, &f));
        assert_eq!(names(queues.review(|_| 3)), ["e"], "a place more");
        assert_eq!(names(queues.review(|_| u32::MAX)), ["f"], "no bound any more");
        assert!(!queues.enter("t", 1, &a) && !queues.enter("t", 1, &b));
        let held = Arc::strong_count(&a);
        queues.forget("t", &a);
        assert_eq!(Arc::strong_count(&a), held - 1, "a unit that was cancelled is not kept");
        assert_eq!(names(queues.review(|_| u32::MAX)), ["b"]);
    }
}
