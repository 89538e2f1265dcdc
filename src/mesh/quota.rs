//! How much of a bounded table each neighbour has filled, or each host: one that makes things up must not keep out
//! what others tell of.
//!
//! A neighbour may hold up to four times what is still free. So a single one gets no more than four fifths of
//! a table, whatever it tells, and the less others have told the surer they find room. What is in the table is
//! its owner's business.

use std::collections::BTreeMap;

use crate::wire::NodeId;

/// What a neighbour may hold, as a multiple of what is free.
const GREED: usize = 4;

/// Who has filled how much of a table.
#[derive(Debug)]
pub(super) struct Shares<K = NodeId> {
    most: usize,
    total: usize,
    by: BTreeMap<K, usize>,
}

impl<K: Ord + Clone> Shares<K> {
    /// An empty table with room for `most`, in whatever unit.
    pub(super) fn new(most: usize) -> Self {
        Self { most, total: 0, by: BTreeMap::new() }
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Whether `teller` may put `amount` in where `before` is taken out.
    pub(super) fn admits(&self, teller: &K, amount: usize, before: usize) -> bool {
        let held = self.by.get(teller).copied().unwrap_or(0);
        let free = self.most.saturating_sub(self.total);
        // What does not grow is let in: the table holds it already.
        amount <= before || (amount - before <= free && held + amount <= GREED * (free + before))
    }

    /// Notes that `teller` has put that much in.
    pub(super) fn add(&mut self, teller: &K, amount: usize) {
        self.total += amount;
        match self.by.get_mut(teller) {
            Some(held) => *held += amount,
            None => drop(self.by.insert(teller.clone(), amount)),
        }
    }

    /// Notes that this much of what `teller` has put in was taken out.
    pub(super) fn remove(&mut self, teller: &K, amount: usize) {
        self.total -= amount;
        if let Some(held) = self.by.get_mut(teller) {
            *held -= amount;
            if *held == 0 {
                self.by.remove(teller);
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

    fn fill(shares: &mut Shares, teller: &NodeId, amount: usize) -> usize {
        let mut taken = 0;
        while shares.admits(teller, amount, 0) {
            shares.add(teller, amount);
            taken += amount;
        }
        taken
    }

    #[test]
    fn one_neighbour_cannot_fill_a_table() {
        let mut shares = Shares::new(1_000);
        assert_eq!(fill(&mut shares, &node("greedy"), 1), 800);
        assert_eq!(fill(&mut shares, &node("second"), 1), 160);
        assert!(shares.admits(&node("modest"), 10, 0), "there is room for whoever has told little");
        assert!(shares.admits(&node("greedy"), 1, 1), "what is there may change");
    }

    #[test]
    fn what_is_taken_out_is_free_again() {
        let mut shares = Shares::new(100);
        let (a, b) = (node("a"), node("b"));
        fill(&mut shares, &a, 10);
        assert!(!shares.admits(&a, 10, 0));
        shares.remove(&a, 80);
        assert_eq!((shares.total(), shares.by.len()), (0, 0));
        assert!(shares.admits(&b, 80, 0) && !shares.admits(&b, 110, 0));
    }
}
