//! Numbers for the names in a table, so that what is computed often need not compare texts.
//!
//! Owns which name has which number and how often each is used: one that nobody uses any more is given away
//! again, except where all meshes of a process share their numbers. What a number stands for beyond its name is
//! its user's business.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::hash::BuildHasherDefault;

use super::forwarding::HashIsKey;
use super::pool::Pool;
use crate::wire::{NameHash, NodeId};

/// A name's number, below [`Roster::len`].
pub(super) type Slot = u32;

/// The names of one mesh and their numbers.
#[derive(Debug)]
pub(super) enum Roster {
    /// Its own ones, each as long as it is used.
    Own(Box<Names>),
    /// Those of all meshes that share a pool, which stand for ever.
    Shared(Pool),
}

impl Roster {
    pub(super) fn new(pool: Option<Pool>) -> Self {
        pool.map_or_else(|| Self::Own(Box::default()), Self::Shared)
    }

    /// One above the greatest number that was ever given.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Own(names) => names.len(),
            Self::Shared(pool) => pool.roster(|names| names.len()),
        }
    }

    /// The number of a name, if it has one.
    pub(super) fn find(&self, name: &str) -> Option<Slot> {
        match self {
            Self::Own(names) => names.find(name),
            Self::Shared(pool) => pool.roster(|names| names.find(name)),
        }
    }

    /// The same by what stands in a header.
    pub(super) fn find_hash(&self, hash: NameHash) -> Option<Slot> {
        match self {
            Self::Own(names) => names.find_hash(hash),
            Self::Shared(pool) => pool.roster(|names| names.find_hash(hash)),
        }
    }

    /// The number of a name, used once more from now on.
    pub(super) fn take(&mut self, name: &NodeId) -> Slot {
        match self {
            Self::Own(names) => names.take(name),
            Self::Shared(pool) => pool.roster(|names| names.find_or_add(name)),
        }
    }

    /// One use less; true if the number stands for nobody from now on.
    pub(super) fn release(&mut self, slot: Slot) -> bool {
        match self {
            Self::Own(names) => names.release(slot),
            Self::Shared(_) => false,
        }
    }

    /// The name behind a number.
    pub(super) fn name(&self, slot: Slot) -> Option<NodeId> {
        match self {
            Self::Own(names) => names.name(slot).cloned(),
            Self::Shared(pool) => pool.roster(|names| names.name(slot).cloned()),
        }
    }

    /// The same as it stands in a header.
    pub(super) fn hash(&self, slot: Slot) -> Option<NameHash> {
        match self {
            Self::Own(names) => names.hash(slot),
            Self::Shared(pool) => pool.roster(|names| names.hash(slot)),
        }
    }
}

/// Names and their numbers.
#[derive(Debug, Default)]
pub(super) struct Names {
    index: HashMap<NodeId, Slot>,
    by_hash: HashMap<NameHash, Slot, BuildHasherDefault<HashIsKey>>,
    entries: Vec<Option<Entry>>,
    free: Vec<Slot>,
}

#[derive(Debug)]
struct Entry {
    name: NodeId,
    hash: NameHash,
    uses: u32,
}

impl Names {
    fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn find(&self, name: &str) -> Option<Slot> {
        self.index.get(name).copied()
    }

    pub(super) fn find_hash(&self, hash: NameHash) -> Option<Slot> {
        self.by_hash.get(&hash).copied()
    }

    /// The number of a name that is never given away.
    pub(super) fn find_or_add(&mut self, name: &NodeId) -> Slot {
        self.find(name.as_str()).unwrap_or_else(|| self.take(name))
    }

    fn take(&mut self, name: &NodeId) -> Slot {
        if let Some(slot) = self.find(name.as_str()) {
            if let Some(entry) = &mut self.entries[slot as usize] {
                entry.uses += 1;
            }
            return slot;
        }
        let hash = name.hash();
        let entry = Some(Entry { name: name.clone(), hash, uses: 1 });
        // A table holds far fewer names than 32 bits count.
        let slot = self.free.pop().unwrap_or(self.entries.len() as Slot);
        match self.entries.get_mut(slot as usize) {
            Some(vacant) => *vacant = entry,
            None => self.entries.push(entry),
        }
        self.index.insert(name.clone(), slot);
        // Of two names with one hash, whoever was there first keeps it.
        self.by_hash.entry(hash).or_insert(slot);
        slot
    }

    fn release(&mut self, slot: Slot) -> bool {
        let Some(entry) = &mut self.entries[slot as usize] else { return false };
        entry.uses -= 1;
        if entry.uses > 0 {
            return false;
        }
        self.index.remove(&entry.name);
        if let Place::Occupied(place) = self.by_hash.entry(entry.hash)
            && *place.get() == slot
        {
            place.remove();
        }
        self.entries[slot as usize] = None;
        self.free.push(slot);
        true
    }

    pub(super) fn name(&self, slot: Slot) -> Option<&NodeId> {
        Some(&self.entries.get(slot as usize)?.as_ref()?.name)
    }

    fn hash(&self, slot: Slot) -> Option<NameHash> {
        Some(self.entries.get(slot as usize)?.as_ref()?.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_away_again_once_nobody_uses_it() {
        let [a, b, c] = ["a", "b", "c"].map(|name| NodeId::new(name).unwrap());
        let mut roster = Roster::new(None);
        let (first, second) = (roster.take(&a), roster.take(&b));
        assert_eq!(roster.take(&a), first);
        assert!(!roster.release(first), "it was taken twice");
        assert!(roster.release(first));
        assert_eq!((roster.find("a"), roster.find("b")), (None, Some(second)));
        assert_eq!((roster.find_hash(a.hash()), roster.find_hash(b.hash())), (None, Some(second)));
        assert_eq!((roster.take(&c), roster.len()), (first, 2));
        assert_eq!((roster.name(first), roster.hash(first)), (Some(c.clone()), Some(c.hash())));
    }

    #[test]
    fn meshes_that_share_a_pool_give_a_name_the_same_number_for_ever() {
        let [a, b] = ["a", "b"].map(|name| NodeId::new(name).unwrap());
        let pool = Pool::default();
        let [mut one, mut other] = [(); 2].map(|()| Roster::new(Some(pool.clone())));
        let (first, second) = (one.take(&a), other.take(&b));
        assert_ne!(first, second);
        assert_eq!((other.take(&a), one.find("b")), (first, Some(second)));
        assert!(!one.release(first) && !other.release(first));
        assert_eq!((one.name(first), one.find_hash(a.hash()), one.len()), (Some(a), Some(first), 2));
    }
}
