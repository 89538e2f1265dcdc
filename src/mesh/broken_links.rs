//! Links that have counted and do not count any more, since when: what is left of the topology when something breaks.
//!
//! A link is broken until it counts again or one of its ends is forgotten. If both ends can still be reached, it is
//! dropped after the time to forget, because somebody may have removed it on purpose. Only links that both ends have
//! listed get here, so nobody can invent one alone. Knows nothing of routes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::quota::TableQuota;
use super::{Now, Tick};
use crate::wire::NodeId;

/// Most broken links between other nodes. Two neighbours that make nodes up can break any number.
const MOST: usize = 16_384;

/// Broken links by each of their ends: the other end, and since when.
pub type Breaks = BTreeMap<NodeId, BTreeMap<NodeId, Break>>;

/// When a link broke.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Break {
    /// By the clock of this node.
    pub since: Timestamp,
    noted: Tick,
    /// The neighbour that told of it; `None` for a link of this node.
    told_by: Option<NodeId>,
}

/// The broken links.
#[derive(Debug)]
pub(super) struct BrokenLinks {
    by_end: Arc<Breaks>,
    /// How many each neighbour has told of.
    told: TableQuota,
    own: usize,
}

impl BrokenLinks {
    pub(super) fn new() -> Self {
        Self { by_end: Arc::default(), told: TableQuota::new(MOST), own: 0 }
    }

    pub(super) fn by_end(&self) -> &Arc<Breaks> {
        &self.by_end
    }

    pub(super) fn len(&self) -> usize {
        self.told.total() + self.own
    }

    /// A link has broken. If the table has no room for it, it is not remembered.
    pub(super) fn note(&mut self, ends: [&NodeId; 2], told_by: Option<&NodeId>, now: Now) {
        if told_by.is_some_and(|neighbour| !self.told.admits(neighbour, 1, 0)) {
            return;
        }
        self.mend(ends);
        match told_by {
            Some(neighbour) => self.told.add(neighbour, 1),
            None => self.own += 1,
        }
        let broken = Break { since: now.wall, noted: now.tick, told_by: told_by.cloned() };
        let by_end = Arc::make_mut(&mut self.by_end);
        for (one, other) in [(0, 1), (1, 0)] {
            by_end.entry(ends[one].clone()).or_default().insert(ends[other].clone(), broken.clone());
        }
    }

    /// A link counts again, or is not of interest any more.
    pub(super) fn mend(&mut self, ends: [&NodeId; 2]) {
        // Looked up first, because a change copies the table while a snapshot holds it.
        if !self.by_end.get(ends[0]).is_some_and(|others| others.contains_key(ends[1])) {
            return;
        }
        let by_end = Arc::make_mut(&mut self.by_end);
        let mut gone = None;
        for (one, other) in [(0, 1), (1, 0)] {
            let Some(others) = by_end.get_mut(ends[one]) else { continue };
            gone = others.remove(ends[other]);
            if others.is_empty() {
                by_end.remove(ends[one]);
            }
        }
        match gone.map(|broken| broken.told_by) {
            Some(Some(neighbour)) => self.told.remove(&neighbour, 1),
            Some(None) => self.own -= 1,
            None => {}
        }
    }

    /// A node is forgotten, and its links with it.
    pub(super) fn forget(&mut self, node: &NodeId) {
        let others: Vec<NodeId> = self.by_end.get(node).into_iter().flat_map(|o| o.keys()).cloned().collect();
        others.iter().for_each(|other| self.mend([node, other]));
    }

    /// Drops links that broke `keep` ago and whose ends can both be reached. Returns when the next one is due.
    pub(super) fn expire(
        &mut self,
        keep: Duration,
        now: Tick,
        reaches: impl Fn(&NodeId) -> bool,
    ) -> Option<Tick> {
        let (mut due, mut next) = (Vec::new(), None::<Tick>);
        for (one, others) in self.by_end.iter().filter(|(one, _)| reaches(one)) {
            for (other, broken) in others.iter().filter(|(other, _)| *one < **other && reaches(other)) {
                let end = broken.noted + keep;
                if end <= now {
                    due.push([one.clone(), other.clone()]);
                } else {
                    next = Some(next.map_or(end, |next| next.min(end)));
                }
            }
        }
        due.iter().for_each(|[one, other]| self.mend([one, other]));
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: impl AsRef<str>) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn second(second: u64) -> Now {
        let wall = Timestamp::from_second(second as i64).unwrap();
        Now { tick: Tick::at(Duration::from_secs(second)), wall }
    }

    #[test]
    fn a_neighbour_that_makes_links_up_leaves_room_for_those_of_others_and_for_our_own() {
        let (mut links, liar) = (BrokenLinks::new(), node("liar"));
        for number in 0..2 * MOST {
            links.note([&node(format!("x{number}")), &node("y")], Some(&liar), second(1));
        }
        let told = links.len();
        assert!(told < MOST * 9 / 10, "{told}");
        links.note([&node("a"), &node("b")], Some(&node("honest")), second(1));
        (0..10).for_each(|number| links.note([&node("own"), &node(format!("b{number}"))], None, second(1)));
        assert_eq!(links.len(), told + 11);
        links.forget(&node("y"));
        links.forget(&node("own"));
        links.mend([&node("b"), &node("a")]);
        assert_eq!((links.len(), links.by_end().len()), (0, 0));
    }

    #[test]
    fn between_reachable_nodes_it_lasts_for_a_while_and_to_an_absent_one_until_that_is_forgotten() {
        let mut links = BrokenLinks::new();
        let keep = Duration::from_secs(600);
        links.note([&node("a"), &node("b")], None, second(10));
        links.note([&node("b"), &node("c")], Some(&node("b")), second(20));
        links.note([&node("a"), &node("gone")], None, second(10));
        let mut expire = |now: u64| {
            let next = links.expire(keep, second(now).tick, |node| node.as_str() != "gone");
            (links.len(), next.map(|tick| tick.since_origin().as_secs()))
        };
        assert_eq!(expire(30), (3, Some(610)));
        assert_eq!(expire(610), (2, Some(620)));
        assert_eq!(expire(10_000), (1, None));
        links.forget(&node("gone"));
        assert_eq!(links.len(), 0);
    }
}
