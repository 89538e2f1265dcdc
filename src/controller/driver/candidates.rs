//! Nodes that discovery found and no operator has enabled or added yet. Anybody who can join the mesh can invent node
//! names, so candidates are kept only in memory, and only up to a limit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::controller::core::{InstanceName, NodeType, Offer, Time};

/// How many candidates are remembered at most.
const MOST_CANDIDATES: usize = 1_000;

/// A node that could become an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its ID.
    pub name: InstanceName,
    /// The type that it would have.
    pub node_type: NodeType,
    /// How it offers to run jobs.
    pub offer: Offer,
    /// When it was last seen, by the store's clock.
    pub seen: Time,
}

/// The candidates of this control node.
#[derive(Debug, Default)]
pub(super) struct OwnCandidates(BTreeMap<InstanceName, Candidate>);

impl OwnCandidates {
    /// Adds the candidates that are seen now, and removes those that are registered by now. If there are too many,
    /// keeps those seen most recently. Of those seen at the same time, known candidates come first, so that invented
    /// names do not displace real nodes.
    pub(super) fn note(&mut self, seen: Vec<Candidate>, registered: &BTreeSet<InstanceName>) {
        let mut all: BTreeMap<InstanceName, (bool, Candidate)> =
            std::mem::take(&mut self.0).into_iter().map(|(name, one)| (name, (true, one))).collect();
        for one in seen {
            let is_known = all.contains_key(&one.name);
            all.insert(one.name.clone(), (is_known, one));
        }
        let mut all: Vec<_> = all.into_values().filter(|(_, one)| !registered.contains(&one.name)).collect();
        all.sort_by_key(|(is_known, one)| (Reverse(one.seen), !is_known));
        all.truncate(MOST_CANDIDATES);
        self.0 = all.into_iter().map(|(_, one)| (one.name.clone(), one)).collect();
    }

    /// Forgets all candidates, because discovery is off.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn get(&self, name: &InstanceName) -> Option<Candidate> {
        self.0.get(name).cloned()
    }

    /// All of them, by name.
    pub(super) fn list(&self) -> Vec<Candidate> {
        self.0.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: &str, seen: i64) -> Candidate {
        let (node_type, offer) = (NodeType::Execution, Offer::default());
        Candidate { name: name.into(), node_type, offer, seen: Time(seen) }
    }

    fn names(names: &[&str]) -> BTreeSet<InstanceName> {
        names.iter().map(|name| (*name).into()).collect()
    }

    #[test]
    fn invented_names_are_bounded_and_drive_nobody_out_who_is_seen() {
        let mut candidates = OwnCandidates::default();
        candidates.note(vec![candidate("real", 1), candidate("gone", 1), candidate("taken", 1)], &names(&[]));
        let mut seen: Vec<Candidate> = (0..5_000).map(|at| candidate(&format!("invented{at}"), 2)).collect();
        seen.push(candidate("real", 2));
        candidates.note(seen, &names(&["taken"]));
        assert_eq!(candidates.list().len(), MOST_CANDIDATES);
        assert_eq!(candidates.get(&"real".into()), Some(candidate("real", 2)));
        for other in ["gone", "taken"] {
            assert_eq!(candidates.get(&other.into()), None, "{other}");
        }
        candidates.note(vec![candidate("late", 3)], &names(&[]));
        assert!(candidates.get(&"late".into()).is_some() && candidates.list().len() == MOST_CANDIDATES);
        candidates.clear();
        assert!(candidates.list().is_empty());
    }
}
