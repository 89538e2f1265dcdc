//! What many meshes in one process know alike, kept once: a simulation of thousands of nodes has room for what
//! each of them knows of each other one only if the sameness costs nothing.
//!
//! Owns the sharing alone; what the shared things mean, and when two are the same, is said by whoever shares
//! them. It never forgets a name, so a node that faces strangers goes without.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::readings::Readings;
use super::roster::Names;
use super::saying::Saying;
use super::service_table::Offered;
use crate::wire::{NodeId, ServiceName};

/// A shelf of shared things. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Pool(Arc<Mutex<Shelves>>);

#[derive(Debug, Default)]
struct Shelves {
    names: Names,
    sayings: Shelf<NodeId, Saying>,
    offers: Shelf<(NodeId, ServiceName), Offered>,
    readings: Readings,
}

impl Pool {
    /// The names that all meshes share, and their numbers.
    pub(super) fn roster<T>(&self, ask: impl FnOnce(&mut Names) -> T) -> T {
        ask(&mut self.lock().names)
    }

    /// A name in the memory that all meshes share.
    pub(super) fn name(&self, name: &NodeId) -> NodeId {
        self.roster(|names| {
            let slot = names.find_or_add(name);
            names.name(slot).unwrap_or(name).clone()
        })
    }

    /// What has been read before.
    pub(super) fn readings<T>(&self, ask: impl FnOnce(&mut Readings) -> T) -> T {
        ask(&mut self.lock().readings)
    }

    /// True if it is the same shelf.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
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
            self.lock().sayings.put(node.clone(), &made);
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
            self.lock().offers.put(key.clone(), &made);
            made
        })
    }

    fn lock(&self) -> MutexGuard<'_, Shelves> {
        // A panic elsewhere leaves at most something unshared.
        self.0.lock()
    }
}

/// How many versions of a thing there is room for: while news spreads, some meshes are behind.
const VERSIONS: usize = 4;

/// The latest of each kind, as long as anybody has them.
#[derive(Debug)]
struct Shelf<K, T>(HashMap<K, VecDeque<Weak<T>>>);

impl<K, T> Default for Shelf<K, T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq, T> Shelf<K, T> {
    fn find(&self, key: &K, is_it: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.0.get(key)?.iter().rev().filter_map(Weak::upgrade).find(|kept| is_it(kept))
    }

    fn put(&mut self, key: K, made: &Arc<T>) {
        let versions = self.0.entry(key).or_default();
        if versions.len() >= VERSIONS {
            versions.pop_front();
        }
        versions.push_back(Arc::downgrade(made));
    }
}
