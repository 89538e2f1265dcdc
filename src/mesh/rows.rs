//! The nodes of a table in rows: what each has said, and which of its links count.
//!
//! Owns where these stand, and that the paths over the links hear of each change. Which update is believed, and
//! what it means for the links of others, is decided in `lsdb`.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::pool::Pool;
use super::saying::Saying;
use super::spf::{self, Linked, Links, Paths, Rerouted};
use super::status::LinkCosts;
use crate::wire::NodeId;

/// What is known of another node, and which neighbour told it.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) saying: Arc<Saying>,
    pub(super) told_by: NodeId,
    /// The message that tells others of it, once it was asked for.
    pub(super) printed: OnceLock<Option<Bytes>>,
}

impl Known {
    /// As this node passes it on, printed once for all who are told; `None` if it is not passed on.
    pub(super) fn message(&self, forwarder: &NodeId) -> Option<Bytes> {
        // Meshes of one process print together.
        if self.saying.pooled.is_some() {
            return self.saying.message(forwarder);
        }
        self.printed.get_or_init(|| self.saying.message(forwarder)).clone()
    }
}

impl Deref for Known {
    type Target = Saying;

    fn deref(&self) -> &Saying {
        &self.saying
    }
}

/// The rows.
#[derive(Debug)]
pub(super) struct Rows {
    /// The paths over all links. Whoever is listed has a number there.
    paths: Paths,
    /// What is known of the nodes, by that number, and of how many there is anything.
    rows: Vec<Option<Known>>,
    known: usize,
    /// All links that count, by names, once somebody has asked. It follows each change from then on.
    costs: OnceLock<LinkCosts>,
}

impl Rows {
    pub(super) fn new(own: &NodeId, pool: Option<Pool>) -> Self {
        Self { paths: Paths::new(own, pool), rows: Vec::new(), known: 0, costs: OnceLock::new() }
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
    pub(super) fn costs(&self) -> &LinkCosts {
        let listed = || self.paths.listed().map(|(node, linked)| (node, linked.names.clone()));
        self.costs.get_or_init(|| listed().collect())
    }

    /// The links of a node that count, if it is listed.
    pub(super) fn links(&self, node: &NodeId) -> Option<&Arc<Links>> {
        Some(&self.paths.links(self.paths.slot(node.as_str())?)?.names)
    }

    /// The links of a node that count are these from now on; with `None` it is no longer listed.
    pub(super) fn list(&mut self, node: &NodeId, links: Option<Arc<Links>>) {
        let linked = links.map(|links| self.paths.number(&links));
        self.list_numbered(node, linked);
    }

    /// The same with their numbers, which stand for ever.
    pub(super) fn list_numbered(&mut self, node: &NodeId, linked: Option<Arc<Linked>>) {
        if let Some(costs) = self.costs.get_mut() {
            match &linked {
                Some(linked) => costs.set(node.clone(), linked.names.clone()),
                None => costs.remove(node),
            }
        }
        let slot = self.paths.set_links(node, linked) as usize;
        spf::grow(&mut self.rows, slot + 1, None);
    }

    /// The links of a node are kept as this list, which says the same, from now on.
    pub(super) fn list_alike(&mut self, node: &NodeId, linked: &Arc<Linked>) {
        self.paths.replace_alike(node.as_str(), linked);
    }

    /// The same, where one of them is another one.
    pub(super) fn relist<T>(&mut self, node: &NodeId, change: impl FnOnce(&mut Links) -> T) {
        let mut links = self.links(node).cloned().unwrap_or_default();
        change(Arc::make_mut(&mut links));
        self.list(node, Some(links));
    }

    /// What is known of a node.
    pub(super) fn known(&self, node: &str) -> Option<&Known> {
        self.rows.get(self.paths.slot(node)? as usize)?.as_ref()
    }

    pub(super) fn known_mut(&mut self, node: &str) -> Option<&mut Known> {
        self.row_mut(node)?.as_mut()
    }

    /// Notes what a listed node has said.
    pub(super) fn put_known(&mut self, node: &NodeId, known: Known) {
        if let Some(row) = self.row_mut(node.as_str()) {
            let before = row.replace(known);
            self.known += usize::from(before.is_none());
        }
    }

    pub(super) fn take_known(&mut self, node: &NodeId) -> Option<Known> {
        let gone = self.row_mut(node.as_str())?.take();
        self.known -= usize::from(gone.is_some());
        gone
    }

    /// How many nodes are known.
    pub(super) fn len(&self) -> usize {
        self.known
    }

    /// What is known of each node, in no order that means anything, and whether it can be reached.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Known, bool)> {
        let known = (0..).zip(&self.rows).filter_map(|(slot, row)| Some((slot, row.as_ref()?)));
        known.map(|(slot, known)| (known, self.paths.reaches_slot(slot)))
    }

    fn row_mut(&mut self, node: &str) -> Option<&mut Option<Known>> {
        self.rows.get_mut(self.paths.slot(node)? as usize)
    }
}
