//! How much of a bounded table each neighbour, or each host, has filled: a neighbour that makes things up must not
//! crowd out the reports of others.
//!
//! A neighbour may hold up to four times what is still free. So a single neighbour gets at most four fifths of a table,
//! and a neighbour that has used little finds room. Knows nothing of what the table contains.

use std::collections::BTreeMap;

use crate::wire::NodeId;

/// How much a neighbour may hold, as a multiple of the free room.
const GREED: usize = 4;

/// Who has filled how much of a table.
#[derive(Debug)]
pub(super) struct TableQuota<K = NodeId> {
    most: usize,
    total: usize,
    by: BTreeMap<K, usize>,
}

impl<K: Ord + Clone> TableQuota<K> {
    /// An empty table with room for `most`, in whatever unit.
    pub(super) fn new(most: usize) -> Self {
        Self { most, total: 0, by: BTreeMap::new() }
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Whether `holder` may put `amount` in where `before` is taken out.
    pub(super) fn admits(&self, holder: &K, amount: usize, before: usize) -> bool {
        let held = self.by.get(holder).copied().unwrap_or(0);
        let free = self.most.saturating_sub(self.total);
        // An entry that does not grow is let in, because it needs no more room.
        amount <= before || (amount - before <= free && held + amount <= GREED * (free + before))
    }

    /// Notes that `holder` has put in `amount`.
    pub(super) fn add(&mut self, holder: &K, amount: usize) {
        self.total += amount;
        match self.by.get_mut(holder) {
            Some(held) => *held += amount,
            None => drop(self.by.insert(holder.clone(), amount)),
        }
    }

    /// Notes that `amount` of `holder`'s share was taken out.
    pub(super) fn remove(&mut self, holder: &K, amount: usize) {
        self.total -= amount;
        if let Some(held) = self.by.get_mut(holder) {
            *held -= amount;
            if *held == 0 {
                self.by.remove(holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn fill(quota: &mut TableQuota, holder: &NodeId, amount: usize) -> usize {
        let mut taken = 0;
        while quota.admits(holder, amount, 0) {
            quota.add(holder, amount);
            taken += amount;
        }
        taken
    }

    #[test]
    fn one_neighbour_cannot_fill_a_table() {
        let mut quota = TableQuota::new(1_000);
        assert_eq!(fill(&mut quota, &node("greedy"), 1), 800);
        assert_eq!(fill(&mut quota, &node("second"), 1), 160);
        assert!(quota.admits(&node("modest"), 10, 0), "there is room for one that has used little");
        assert!(quota.admits(&node("greedy"), 1, 1), "what is there may change");
    }

    #[test]
    fn what_is_taken_out_is_free_again() {
        let mut quota = TableQuota::new(100);
        let (a, b) = (node("a"), node("b"));
        fill(&mut quota, &a, 10);
        assert!(!quota.admits(&a, 10, 0));
        quota.remove(&a, 80);
        assert_eq!((quota.total(), quota.by.len()), (0, 0));
        assert!(quota.admits(&b, 80, 0) && !quota.admits(&b, 110, 0));
    }
}
