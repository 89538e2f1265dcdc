//! The nodes of a table in rows: what each has said, and which of its links count.
//!
//! Owns where these stand, and that the paths over the links hear of each change. Which update is believed, and
//! what it means for the links of others, is decided in `links`.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use super::paths::{LinkCosts, Paths, Rerouted};
use super::saying::Saying;
use crate::wire::{Cost, NodeId};

/// What is known of another node, and which neighbour told it.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) saying: Arc<Saying>,
    pub(super) told_by: NodeId,
}

impl Deref for Known {
    type Target = Saying;

    fn deref(&self) -> &Saying {
        &self.saying
    }
}

/// A node of the table.
#[derive(Debug, Default)]
struct Row {
    known: Option<Known>,
    /// Its links as they count; `None` if it is not listed.
    links: Option<Arc<Links>>,
}

/// One node's links: to whom, and the cost.
pub(super) type Links = BTreeMap<NodeId, Cost>;

/// The rows.
#[derive(Debug)]
pub(super) struct Rows {
    /// The paths over all links. Whoever is listed has a number there.
    paths: Paths,
    /// The nodes, by that number.
    rows: Vec<Row>,
    /// How many of them are known.
    known: usize,
    /// All links that count, by names, once somebody has asked.
    costs: OnceLock<Arc<LinkCosts>>,
}

impl Rows {
    pub(super) fn new(own: &NodeId) -> Self {
        Self { paths: Paths::new(own), rows: Vec::new(), known: 0, costs: OnceLock::new() }
    }

    /// The paths, as they were computed last.
    pub(super) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Computes the paths anew where the links have changed; says which lead elsewhere now.
    pub(super) fn recompute_paths(&mut self) -> Vec<Rerouted> {
        self.paths.recompute()
    }

    /// Known links: from, to, cost.
    pub(super) fn costs(&self) -> &Arc<LinkCosts> {
        let listed = |(slot, row): (u32, &Row)| Some((self.paths.name(slot)?.clone(), row.links.clone()?));
        self.costs.get_or_init(|| Arc::new((0..).zip(&self.rows).filter_map(listed).collect()))
    }

    /// The links of a node that count, if it is listed.
    pub(super) fn links(&self, node: &NodeId) -> Option<&Arc<Links>> {
        self.row(node.as_str())?.links.as_ref()
    }

    /// The links of a node that count are these from now on; with `None` it is no longer listed.
    pub(super) fn list(&mut self, node: &NodeId, links: Option<Arc<Links>>) {
        self.costs.take();
        let slot = self.paths.set_links(node, links.as_deref()) as usize;
        if self.rows.len() <= slot {
            self.rows.resize_with(slot + 1, Row::default);
        }
        self.rows[slot].links = links;
    }

    /// The same, where one of them is another one.
    pub(super) fn relist<T>(&mut self, node: &NodeId, change: impl FnOnce(&mut Links) -> T) {
        let before = self.row_mut(node.as_str()).and_then(|row| row.links.take());
        let mut links = before.unwrap_or_default();
        change(Arc::make_mut(&mut links));
        self.list(node, Some(links));
    }

    /// What is known of a node.
    pub(super) fn known(&self, node: &str) -> Option<&Known> {
        self.row(node)?.known.as_ref()
    }

    pub(super) fn known_mut(&mut self, node: &str) -> Option<&mut Known> {
        self.row_mut(node)?.known.as_mut()
    }

    /// Notes what a listed node has said.
    pub(super) fn put_known(&mut self, node: &NodeId, known: Known) {
        if let Some(row) = self.row_mut(node.as_str()) {
            let before = row.known.replace(known);
            self.known += usize::from(before.is_none());
        }
    }

    pub(super) fn take_known(&mut self, node: &NodeId) -> Option<Known> {
        let gone = self.row_mut(node.as_str())?.known.take();
        self.known -= usize::from(gone.is_some());
        gone
    }

    /// How many nodes are known.
    pub(super) fn len(&self) -> usize {
        self.known
    }

    /// What is known of each node, in no order that means anything, and whether it can be reached.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Known, bool)> {
        let known = (0..).zip(&self.rows).filter_map(|(slot, row)| Some((slot, row.known.as_ref()?)));
        known.map(|(slot, known)| (known, self.paths.reaches_slot(slot)))
    }

    fn row(&self, node: &str) -> Option<&Row> {
        self.rows.get(self.paths.slot(node)? as usize)
    }

    fn row_mut(&mut self, node: &str) -> Option<&mut Row> {
        self.rows.get_mut(self.paths.slot(node)? as usize)
    }
}
