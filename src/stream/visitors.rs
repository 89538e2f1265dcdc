//! How many connections one node may have with a service: whoever opens them without end must neither fill this node's
//! memory nor take the room of others. Counts connections that stand: before that, nobody knows who asks.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::wire::NameHash;

/// Connections of one node with one service. A Go node has one for each of its streams, and a proxy may have as many.
pub(super) const MOST_OF_ONE_NODE: usize = 16_384;

/// The connections of a service by the node that opened them.
#[derive(Debug)]
pub(super) struct Visitors {
    most: usize,
    /// A plain lock, held for counting alone. Who has none is not in it.
    by_node: Mutex<HashMap<NameHash, usize>>,
}

/// Held for as long as a connection stands.
#[derive(Debug)]
pub(super) struct Visit {
    visitors: Arc<Visitors>,
    node: NameHash,
}

impl Visitors {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, by_node: Mutex::default() })
    }

    /// One more connection of that node; `None` when it has as many as it may have.
    pub(super) fn admit(self: &Arc<Self>, node: NameHash) -> Option<Visit> {
        match self.counts().entry(node) {
            Entry::Occupied(mut open) if *open.get() < self.most => *open.get_mut() += 1,
            Entry::Occupied(_) => return None,
            Entry::Vacant(none) => drop(none.insert(1)),
        }
        Some(Visit { visitors: self.clone(), node })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<NameHash, usize>> {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Entry::Occupied(mut open) = self.visitors.counts().entry(self.node) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_its_own_room_and_gets_it_back() {
        let visitors = Visitors::new(2);
        let (one, other) = (NameHash(1), NameHash(2));
        let first = visitors.admit(one).unwrap();
        let second = visitors.admit(one).unwrap();
        assert!(visitors.admit(one).is_none());
        let third = visitors.admit(other).expect("it has none yet");
        drop(first);
        let fourth = visitors.admit(one).expect("there is room again");
        assert!(visitors.admit(one).is_none());
        drop((second, third, fourth));
        assert!(visitors.counts().is_empty(), "who has gone is forgotten");
    }
}
