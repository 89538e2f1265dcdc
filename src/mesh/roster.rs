//! Numbers for the names in a table, so that what is computed often need not compare texts.
//!
//! Owns which name has which number and how often each is used: one that nobody uses any more is given away
//! again. What a number stands for beyond its name is its user's business.

use std::collections::HashMap;

use crate::wire::{NameHash, NodeId};

/// A name's number, below [`Roster::len`].
pub(super) type Slot = u32;

/// The names and their numbers.
#[derive(Debug, Default)]
pub(super) struct Roster {
    index: HashMap<NodeId, Slot>,
    entries: Vec<Option<Entry>>,
    free: Vec<Slot>,
}

#[derive(Debug)]
struct Entry {
    name: NodeId,
    hash: NameHash,
    uses: u32,
}

impl Roster {
    /// One above the greatest number that was ever given.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The number of a name, if it has one.
    pub(super) fn find(&self, name: &str) -> Option<Slot> {
        self.index.get(name).copied()
    }

    /// The number of a name, used once more from now on.
    pub(super) fn take(&mut self, name: &NodeId) -> Slot {
        if let Some(slot) = self.find(name.as_str()) {
            if let Some(entry) = &mut self.entries[slot as usize] {
                entry.uses += 1;
            }
            return slot;
        }
        let entry = Some(Entry { name: name.clone(), hash: name.hash(), uses: 1 });
        // A table holds far fewer names than 32 bits count.
        let slot = self.free.pop().unwrap_or(self.entries.len() as Slot);
        match self.entries.get_mut(slot as usize) {
            Some(vacant) => *vacant = entry,
            None => self.entries.push(entry),
        }
        self.index.insert(name.clone(), slot);
        slot
    }

    /// One use less; true if the number stands for nobody from now on.
    pub(super) fn release(&mut self, slot: Slot) -> bool {
        let Some(entry) = &mut self.entries[slot as usize] else { return false };
        entry.uses -= 1;
        if entry.uses > 0 {
            return false;
        }
        self.index.remove(&entry.name);
        self.entries[slot as usize] = None;
        self.free.push(slot);
        true
    }

    /// The name behind a number.
    pub(super) fn name(&self, slot: Slot) -> Option<&NodeId> {
        Some(&self.entries.get(slot as usize)?.as_ref()?.name)
    }

    /// The same as it stands in a header.
    pub(super) fn hash(&self, slot: Slot) -> Option<NameHash> {
        Some(self.entries.get(slot as usize)?.as_ref()?.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_away_again_once_nobody_uses_it() {
        let [a, b, c] = ["a", "b", "c"].map(|name| NodeId::new(name).unwrap());
        let mut roster = Roster::default();
        let (first, second) = (roster.take(&a), roster.take(&b));
        assert_eq!(roster.take(&a), first);
        assert!(!roster.release(first), "it was taken twice");
        assert!(roster.release(first));
        assert_eq!((roster.find("a"), roster.find("b")), (None, Some(second)));
        assert_eq!((roster.take(&c), roster.len()), (first, 2));
        assert_eq!((roster.name(first), roster.hash(first)), (Some(&c), Some(c.hash())));
    }
}
