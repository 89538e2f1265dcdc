//! What many meshes in one process know alike, kept once: a simulation of thousands of nodes has room for what
//! each of them knows of each other one only if the sameness costs nothing.
//!
//! Owns the sharing alone; what the shared things mean, and when two are the same, is said by whoever shares
//! them. It never forgets a name, so a node that faces strangers goes without.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::heard::Offered;
use super::saying::Saying;
use crate::wire::{NodeId, ServiceName};

/// A shelf of shared things. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Pool(Arc<Mutex<Shelves>>);

#[derive(Debug, Default)]
struct Shelves {
    names: HashSet<NodeId>,
    sayings: Shelf<NodeId, Saying>,
    offers: Shelf<(NodeId, ServiceName), Offered>,
}

impl Pool {
    /// A name in the memory that all meshes share.
    pub(super) fn name(&self, name: &NodeId) -> NodeId {
        let mut shelves = self.lock();
        if let Some(kept) = shelves.names.get(name) {
            return kept.clone();
        }
        shelves.names.insert(name.clone());
        name.clone()
    }

    /// What a node says: as somebody else keeps it, or made now.
    pub(super) fn saying(
        &self,
        node: &NodeId,
        is_it: impl Fn(&Saying) -> bool,
        make: impl FnOnce() -> Saying,
    ) -> Arc<Saying> {
        let found = self.lock().sayings.find(node, is_it);
        found.unwrap_or_else(|| {
            // Made without the lock, since its names come from here.
            let made = Arc::new(make());
            self.lock().sayings.put(node.clone(), &made, |kept| made.is_older_than(kept));
            made
        })
    }

    /// What a service is like, likewise.
    pub(super) fn offered(
        &self,
        key: &(NodeId, ServiceName),
        is_it: impl Fn(&Offered) -> bool,
        make: impl FnOnce() -> Offered,
    ) -> Arc<Offered> {
        let found = self.lock().offers.find(key, is_it);
        found.unwrap_or_else(|| {
            let made = Arc::new(make());
            self.lock().offers.put(key.clone(), &made, |kept| made.is_older_than(kept));
            made
        })
    }

    fn lock(&self) -> MutexGuard<'_, Shelves> {
        // A panic elsewhere leaves at most something unshared.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The newest of each kind, as long as anybody has it.
#[derive(Debug)]
struct Shelf<K, T>(HashMap<K, Weak<T>>);

impl<K, T> Default for Shelf<K, T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq, T> Shelf<K, T> {
    fn find(&self, key: &K, is_it: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.0.get(key)?.upgrade().filter(|kept| is_it(kept))
    }

    fn put(&mut self, key: K, made: &Arc<T>, is_older_than: impl Fn(&T) -> bool) {
        let newer = self.0.get(&key).and_then(Weak::upgrade).is_some_and(|kept| is_older_than(&kept));
        if !newer {
            self.0.insert(key, Arc::downgrade(made));
        }
    }
}
