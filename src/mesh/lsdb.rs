//! The link-state table: which node has links to which, as routing updates tell it.
//!
//! Decides which update is news; keeps what each node has said last, so that a new neighbour can be told
//! all at once; remembers for a while what it was told to forget, so that a late echo does not bring it
//! back. Knows nothing of sessions.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use super::pool::Pool;
use super::quota::Shares;
use super::rows::{Known, Rows};
use super::saying::{Pooled, Saying};
use super::spf::{Linked, Links, Paths, Rerouted};
use super::status::LinkCosts;
use super::{Options, Tick};
use crate::wire::{Cost, NameHash, NodeId, RoutingUpdate};

/// What a link counts beyond its bytes in an update: the name at its end has a number, a hash, and places in several
/// tables.
const PER_LINK: usize = 100;
/// Forgotten nodes that are remembered: at most this many.
const MOST_FORGOTTEN: usize = 16_384;

/// The last that was known of a node before it was forgotten, and when that was.
#[derive(Debug)]
struct Forgotten {
    epoch: u64,
    sequence: u64,
    since: Tick,
}

/// How long a correction holds: a node that is really there gives the next one before. One that was made up must not
/// keep its victim from being believed.
const DISTRUST: Duration = Duration::from_secs(30);

/// An epoch that is not believed.
#[derive(Debug)]
struct Distrust {
    epoch: u64,
    since: Tick,
}

/// What an update told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Older than, or the same as, what is known.
    Nothing,
    /// Of another node with the same name: for that name's owner to hear, not for us to believe.
    Distrusted,
    /// There is no room for it, or none for what this neighbour tells.
    NoRoom,
    /// Accepted.
    Update {
        /// The node was unknown before.
        new_node: bool,
        /// It has begun a new life, or its first one that we hear of.
        new_life: bool,
        /// Links were added, removed or changed their cost.
        links_changed: bool,
    },
}

/// The table.
#[derive(Debug)]
pub(super) struct LinkTable {
    own: NodeId,
    remember: Duration,
    rows: Rows,
    /// Who has told of how many of them, and the size of those updates.
    nodes: Shares,
    bytes: Shares,
    /// Of known nodes, those whose names another one uses: what that one said may still be on its way, and would be
    /// believed again.
    distrusted: BTreeMap<NodeId, Distrust>,
    pool: Option<Pool>,
    forgotten: BTreeMap<NodeId, Forgotten>,
    /// The names of all known nodes in order, once somebody has asked since the last one came or went.
    order: OnceLock<Arc<[NodeId]>>,
}

impl LinkTable {
    pub(super) fn new(own: NodeId, options: &Options) -> Self {
        Self {
            rows: Rows::new(&own, options.pool.clone()),
            own,
            remember: options.withdrawn_time,
            nodes: Shares::new(options.max_nodes),
            bytes: Shares::new(options.max_table_bytes),
            distrusted: BTreeMap::new(),
            pool: options.pool.clone(),
            forgotten: BTreeMap::new(),
            order: OnceLock::new(),
        }
    }

    /// Known links: from, to, cost.
    pub(super) fn costs(&self) -> &LinkCosts {
        self.rows.costs()
    }

    /// The name behind a hash, if it is listed.
    pub(super) fn name_of(&self, hash: NameHash) -> Option<NodeId> {
        self.paths().name_of(hash)
    }

    /// How many names are listed, the own one included.
    pub(super) fn names(&self) -> usize {
        self.paths().names()
    }

    /// The links of this node.
    pub(super) fn own_links(&self) -> Option<&Arc<Links>> {
        self.rows.links(&self.own)
    }

    /// The first hops, as they were computed last.
    pub(super) fn paths(&self) -> &Paths {
        self.rows.paths()
    }

    /// Computes the paths anew where the links have changed; says which lead elsewhere now.
    pub(super) fn recompute_paths(&mut self) -> Vec<Rerouted> {
        self.rows.recompute_paths()
    }

    /// True if an update of that version tells nothing: the table has it, or a newer one.
    pub(super) fn is_stale(&self, node: &str, version: (u64, u64), now: Tick) -> bool {
        !self.distrusts(node, version.0, now)
            && self.rows.known(node).is_some_and(|known| version <= known.version())
    }

    fn distrusts(&self, node: &str, epoch: u64, now: Tick) -> bool {
        let distrust = self.distrusted.get(node).filter(|distrust| now.since(distrust.since) < DISTRUST);
        distrust.is_some_and(|distrust| distrust.epoch == epoch)
    }

    /// Takes another node's update of `size` bytes, by the rules of docs/protocol.md#flooding.
    pub(super) fn apply(
        &mut self,
        node: &NodeId,
        update: &RoutingUpdate,
        size: usize,
        teller: &NodeId,
        now: Tick,
    ) -> News {
        let before = self.rows.known(node.as_str());
        let version = (update.epoch, update.sequence);
        let size = size + update.connections.len() * PER_LINK;
        let size_before = before.map_or(0, |known| known.size);
        let full = !self.bytes.admits(teller, size, size_before)
            || !self.nodes.admits(teller, 1, usize::from(before.is_some()));
        match before {
            Some(_) if self.distrusts(node.as_str(), update.epoch, now) => return News::Distrusted,
            Some(known) if version <= known.version() => return News::Nothing,
            None if self.is_echo(node, version) => return News::Nothing,
            Some(_) | None if full => return News::NoRoom,
            Some(_) | None => {}
        }
        let (new_node, new_life) = (before.is_none(), before.is_none_or(|known| known.epoch != update.epoch));
        let saying = self.saying(node, update, size);
        let node = saying.node.clone();
        let links_changed = self.set_links(&saying);
        self.remove(&node);
        self.nodes.add(teller, 1);
        self.bytes.add(teller, saying.size);
        self.forgotten.remove(&node);
        if new_node {
            self.order.take();
        }
        let told_by = self.known_name(teller);
        self.rows.put_known(&node, Known { saying, told_by, printed: OnceLock::new() });
        News::Update { new_node, new_life, links_changed }
    }

    fn remove(&mut self, node: &NodeId) -> Option<Known> {
        let gone = self.rows.take_known(node)?;
        self.nodes.remove(&gone.told_by, 1);
        self.bytes.remove(&gone.told_by, gone.size);
        Some(gone)
    }

    /// What an update says, in few copies: most name what is known already.
    fn saying(&self, node: &NodeId, update: &RoutingUpdate, size: usize) -> Arc<Saying> {
        let make = || self.new_saying(node, update, size);
        match &self.pool {
            Some(pool) => pool.saying(node, |kept| kept.is_of(update), make),
            None => Arc::new(make()),
        }
    }

    fn new_saying(&self, node: &NodeId, update: &RoutingUpdate, size: usize) -> Saying {
        let before = self.rows.known(node.as_str());
        let same = before.filter(|known| *known.links == *update.connections);
        let links = match (same, &self.pool) {
            // Others take the update as read, with these very links.
            (_, Some(_)) => update.connections.clone(),
            (Some(known), None) => known.links.clone(),
            (None, None) => {
                let links = update.connections.iter().map(|(to, cost)| (self.known_name(to), *cost));
                Arc::new(links.collect())
            }
        };
        let pooled = self.pool.as_ref().map(|pool| {
            let number = || pool.roster(|names| Linked::new(&links, |to| names.find_or_add(to)));
            let linked = same.and_then(|known| Some(known.pooled.as_ref()?.linked.clone()));
            Pooled::new(linked.unwrap_or_else(number))
        });
        Saying {
            node: before.map_or_else(|| self.known_name(node), |known| known.node.clone()),
            hash: before.map_or_else(|| node.hash(), |known| known.hash),
            epoch: update.epoch,
            sequence: update.sequence,
            update_id: Some(update.update_id.as_str().into()),
            links,
            pooled,
            size,
        }
    }

    /// A name in the memory that holds it already, if one does.
    pub(super) fn known_name(&self, name: &NodeId) -> NodeId {
        let listed = self.paths().slot(name.as_str()).and_then(|slot| self.paths().name(slot));
        match (listed, &self.pool) {
            (Some(listed), _) => listed,
            (None, Some(pool)) => pool.name(name),
            (None, None) => name.clone(),
        }
    }

    /// The links that a node tells count from now on; false if they did before.
    fn set_links(&mut self, saying: &Saying) -> bool {
        let (node, said) = (&saying.node, &saying.links);
        let before = self.rows.links(node).cloned();
        let alike =
            |pooled: &Pooled| before.as_ref().is_some_and(|before| Arc::ptr_eq(before, &pooled.linked.names));
        if saying.pooled.as_deref().is_some_and(alike) {
            return false;
        }
        if before.as_ref() == Some(said) {
            if let Some(pooled) = &saying.pooled {
                // Of lists that say the same, the one that all meshes have is kept.
                self.rows.list_alike(node, &pooled.linked);
            }
            return false;
        }
        let before = before.unwrap_or_default();
        match &saying.pooled {
            Some(pooled) => self.rows.list_numbered(node, Some(pooled.linked.clone())),
            None => self.rows.list(node, Some(said.clone())),
        }
        // A link that one end no longer lists is gone, whatever the other end last said. A link that it
        // does not list yet stays: the other end was faster. Links of this node are its own to judge.
        let own = self.own.clone();
        for end in before.keys().filter(|to| !said.contains_key(*to) && **to != own) {
            if self.rows.links(end).is_some_and(|links| links.contains_key(node)) {
                self.rows.relist(end, |links| links.remove(node));
            }
        }
        // One that comes back is what its other end has gone on saying, and need not say again.
        for end in said.keys().filter(|to| !before.contains_key(*to)) {
            let cost = self.rows.known(end.as_str()).and_then(|known| known.links.get(node)).copied();
            if let Some(cost) = cost
                && self.rows.links(end).is_none_or(|links| !links.contains_key(node))
            {
                self.rows.relist(end, |links| links.insert(node.clone(), cost));
            }
        }
        true
    }

    /// The newest updates of all nodes by name, as messages that this node passes on. Those that would not fit under
    /// its name are left out.
    pub(super) fn messages(&self, wanted: impl Fn(&NodeId) -> bool) -> impl Iterator<Item = Bytes> {
        let known = self.rows.iter().map(|(known, _)| known);
        let mut known: Vec<&Known> = known.filter(|known| wanted(&known.node)).collect();
        known.sort_unstable_by(|a, b| a.node.cmp(&b.node));
        known.into_iter().filter_map(|known| known.message(&self.own))
    }

    /// The newest update of a node, as a message that this node passes on; `None` if it is not told any further, or
    /// would not fit under this node's name.
    pub(super) fn message(&self, node: &NodeId) -> Option<Bytes> {
        self.rows.known(node.as_str())?.message(&self.own)
    }

    /// All known nodes, by name.
    pub(super) fn names_in_order(&self) -> Arc<[NodeId]> {
        let sorted = || {
            let mut names: Vec<NodeId> = self.rows.iter().map(|(known, _)| known.node.clone()).collect();
            names.sort_unstable();
            names.into()
        };
        // A process of many meshes has no memory for as many lists.
        if self.pool.is_some() { sorted() } else { self.order.get_or_init(sorted).clone() }
    }

    /// The nodes that can be reached: hash, and epoch and sequence.
    pub(super) fn versions(&self) -> impl Iterator<Item = (NameHash, [u64; 2])> {
        let reachable = self.rows.iter().filter(|(_, reachable)| *reachable);
        reachable.map(|(known, _)| (known.hash, [known.epoch, known.sequence]))
    }

    /// Epoch and sequence of a node.
    pub(super) fn version_of(&self, node: &NodeId) -> Option<[u64; 2]> {
        self.rows.known(node.as_str()).map(|known| [known.epoch, known.sequence])
    }

    /// When the present life of a node began, by its own clock.
    pub(super) fn born(&self, node: &NodeId) -> Option<Timestamp> {
        let seconds = self.rows.known(node.as_str())?.epoch >> 24;
        Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
    }

    /// A node says that what is known of it stems from another one with its name: if so, it is believed.
    pub(super) fn correct(&mut self, node: &NodeId, update: &RoutingUpdate, now: Tick) {
        let Some(known) = self.rows.known_mut(node.as_str()) else { return };
        if known.epoch == update.suspected_duplicate {
            known.printed.take();
            let known = Arc::make_mut(&mut known.saying);
            (known.epoch, known.sequence) = (update.epoch, update.sequence);
            // The links are the other one's.
            (known.update_id, known.pooled) = (None, None);
        }
        if known.epoch == update.epoch {
            let distrust = Distrust { epoch: update.suspected_duplicate, since: now };
            self.distrusted.insert(node.clone(), distrust);
        }
    }

    /// A session with `peer` stands: links both ways.
    pub(super) fn connect(&mut self, peer: &NodeId, cost: Cost) {
        let own = self.own.clone();
        self.rows.relist(&own, |links| links.insert(peer.clone(), cost));
        self.rows.relist(peer, |links| links.insert(own.clone(), cost));
    }

    /// The session with `peer` is gone: no link either way. If nothing else is known of the peer, it is
    /// forgotten: it may have made its name up.
    pub(super) fn disconnect(&mut self, peer: &NodeId) {
        let own = self.own.clone();
        self.rows.relist(&own, |links| links.remove(peer));
        if self.knows(peer) {
            self.rows.relist(peer, |links| links.remove(&own));
        } else {
            self.rows.list(peer, None);
        }
    }

    /// Nodes known, bytes of their updates, nodes remembered as forgotten.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.rows.len(), self.bytes.total(), self.forgotten.len())
    }

    /// True if another node has said something of itself.
    pub(super) fn knows(&self, node: &NodeId) -> bool {
        self.rows.known(node.as_str()).is_some()
    }

    /// Forgets a node; what it has said so far is not believed again when somebody repeats it.
    pub(super) fn forget(&mut self, node: &NodeId, now: Tick) {
        let Some(known) = self.remove(node) else { return };
        let (epoch, sequence) = (known.epoch, known.sequence);
        self.distrusted.remove(node);
        self.order.take();
        self.rows.list(node, None);
        if self.forgotten.len() >= MOST_FORGOTTEN {
            self.forgotten.retain(|_, gone| now.since(gone.since) < self.remember);
            if self.forgotten.len() >= MOST_FORGOTTEN {
                self.forgotten.pop_first();
            }
        }
        self.forgotten.insert(node.clone(), Forgotten { epoch, sequence, since: now });
    }

    /// A node that comes back says something newer, or, with its clock set back, begins another epoch.
    fn is_echo(&self, node: &NodeId, (epoch, sequence): (u64, u64)) -> bool {
        self.forgotten.get(node).is_some_and(|gone| gone.epoch == epoch && sequence <= gone.sequence)
    }
}
