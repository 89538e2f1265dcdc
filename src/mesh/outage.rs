//! What is out of reach, and why: names the lost nodes that others hang on. Pure: computed from the last known topology,
//! which is the links that count and those that have broken.
//!
//! Nodes out of reach that are still linked to each other, as far as anybody knows, are one outage. Those of them whose
//! links to the reachable part have broken are lost, all others are behind them: whatever is wrong with the others
//! cannot be seen before the lost ones are back. Whether a lost node or its link is down cannot be seen either. A node
//! that has another way is reachable, and so in no outage.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::broken_links::Breaks;
use super::status::{Hops, LinkCosts};
use crate::wire::NodeId;

/// What breaks within this time breaks together. A node that is stopped ends its links one after the other, and still
/// tells of the first ones; one that dies is noticed within some seconds.
const TOGETHER: SignedDuration = SignedDuration::from_secs(5);

/// Some nodes that are out of reach together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOutage {
    /// The nearest of them: links from here to them have broken. Empty if this node has never seen how they were linked.
    pub lost: Vec<NodeId>,
    /// The others.
    pub behind: Vec<NodeId>,
    /// The broken links to them: the nearer end and the lost one. The nearer end is out of reach itself if it was lost
    /// later than what is behind it.
    pub links: Vec<[NodeId; 2]>,
    /// When the last of these links broke.
    pub since: Option<Timestamp>,
}

/// The outages as `own` sees them, by their names. Takes time in proportion to the nodes and links.
pub(super) fn outages(own: &NodeId, links: &LinkCosts, reachable: &Hops, broken: &Breaks) -> Vec<NodeOutage> {
    let is_away = |node: &NodeId| node != own && !reachable.contains_key(node);
    let islands = Islands::of(links.keys().filter(|node| is_away(node)), links);
    let mut found: Vec<NodeOutage> = Vec::new();
    let mut is_found = vec![false; islands.nodes.len()];
    // Goes outward over the broken links, each node with the outage that it is in. An island behind another one was lost
    // before that: otherwise nobody would know of the broken link between them.
    let mut nearer: Vec<(&NodeId, Option<usize>)> =
        broken.keys().filter(|node| !is_away(node)).map(|node| (node, None)).collect();
    while !nearer.is_empty() {
        let mut next = BTreeMap::<usize, Vec<BrokenTo<'_>>>::new();
        for (near, outage) in nearer {
            for (far, link) in broken.get(near).into_iter().flatten() {
                if let Some(&island) = islands.of.get(far).filter(|island| !is_found[**island]) {
                    let since = link.since;
                    next.entry(island).or_default().push(BrokenTo { ends: [near, far], since, outage });
                }
            }
        }
        nearer = Vec::new();
        for (island, links) in next {
            is_found[island] = true;
            let nodes = &islands.nodes[island];
            let is_one = |at: &usize| links.iter().any(|link| found[*at].took_along(link));
            let outage = links.iter().filter_map(|link| link.outage).find(is_one);
            let outage = outage.unwrap_or(found.len());
            match found.get_mut(outage) {
                Some(known) => known.behind.extend(nodes.iter().copied().cloned()),
                None => found.push(NodeOutage::of(nodes, &links)),
            }
            nearer.extend(nodes.iter().map(|node| (*node, Some(outage))));
        }
    }
    let never_linked = islands.nodes.iter().zip(is_found).filter(|(_, is_found)| !is_found);
    found.extend(never_linked.map(|(nodes, _)| NodeOutage::of(nodes, &[])));
    found.iter_mut().for_each(|outage| outage.behind.sort());
    found.sort_by(|a, b| a.nodes().next().cmp(&b.nodes().next()));
    found
}

/// A broken link from a nearer node, with the outage that this node is in itself.
struct BrokenTo<'a> {
    ends: [&'a NodeId; 2],
    since: Timestamp,
    outage: Option<usize>,
}

impl NodeOutage {
    fn of(nodes: &[&NodeId], broken: &[BrokenTo<'_>]) -> Self {
        let lost: BTreeSet<&NodeId> = broken.iter().map(|link| link.ends[1]).collect();
        let behind = nodes.iter().filter(|node| !lost.contains(*node)).copied().cloned().collect();
        let mut links: Vec<[NodeId; 2]> = broken.iter().map(|link| link.ends.map(NodeId::clone)).collect();
        links.sort();
        let since = broken.iter().map(|link| link.since).max();
        Self { lost: lost.into_iter().cloned().collect(), behind, links, since }
    }

    /// Whether this link, which begins in it, broke with it.
    fn took_along(&self, link: &BrokenTo<'_>) -> bool {
        self.since.is_some_and(|since| since.duration_since(link.since) <= TOGETHER)
    }

    /// All nodes in it, the lost ones first.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        self.lost.iter().chain(&self.behind)
    }
}

/// Nodes that are out of reach, in groups that are linked among themselves.
struct Islands<'a> {
    nodes: Vec<Vec<&'a NodeId>>,
    of: BTreeMap<&'a NodeId, usize>,
}

impl<'a> Islands<'a> {
    fn of(away: impl Iterator<Item = &'a NodeId>, links: &'a LinkCosts) -> Self {
        let mut left: BTreeSet<&NodeId> = away.collect();
        let mut islands = Self { nodes: Vec::new(), of: BTreeMap::new() };
        while let Some(first) = left.pop_first() {
            let mut nodes = vec![first];
            let mut seen = 0;
            while let Some(&node) = nodes.get(seen) {
                islands.of.insert(node, islands.nodes.len());
                let others = links.get(node).into_iter().flat_map(|links| links.keys());
                nodes.extend(others.filter_map(|other| left.take(&other)));
                seen += 1;
            }
            islands.nodes.push(nodes);
        }
        islands
    }
}

#[cfg(test)]
mod tests;
