//! The link-state database: each node's latest list of its links, which of these links count, and the routes that were
//! computed from them.
//!
//! Decides which update is news. Keeps each node's latest update, so that a new neighbour can be sent all of them.
//! Remembers forgotten nodes for a while, so that a late echo does not bring them back. Its digest follows each
//! change. Knows nothing of sessions.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use super::anti_entropy::Digest;
use super::broken_links::{Breaks, BrokenLinks};
use super::quota::TableQuota;
use super::spf::{ComputedRoutes, RouteComputation};
use super::status::{Hops, LinkCosts, Links};
use super::{Now, Options, Tick};
use crate::counters::Tables;
use crate::wire::routing::UpdateHead;
use crate::wire::{Cost, NameHash, NodeId, RoutingUpdate};

/// Bytes that a link counts beyond those in its update, because its end's name stands in several tables.
const PER_LINK: usize = 100;
/// Most forgotten nodes that are remembered.
const MOST_FORGOTTEN: usize = 16_384;

/// How long a correction holds. A real node repeats it in time; a forged correction must not keep others from believing
/// its victim for longer.
const DISTRUST: Duration = Duration::from_secs(30);
/// Most distrusted epochs of one node; the oldest is dropped first. A node corrects as many at once.
const MOST_DISTRUSTED: usize = 16;

/// How far the epochs of one run may be apart: a suspected node takes later epochs (docs/protocol.md#epochs).
const OF_ONE_RUN: u64 = 1 << 20;

/// Epoch and sequence of an update.
type Version = (u64, u64);

/// A link-state advertisement: a node's latest update.
#[derive(Debug)]
struct Lsa {
    version: Version,
    /// Its links as the node listed them. Only those count that the other end lists as well.
    links: Arc<Links>,
    /// The update as this node passes it on; `None` if it does not fit under this node's name.
    message: Option<Bytes>,
    /// The part of `message` that lists the links.
    written: Bytes,
    /// Bytes that it counts in the quota.
    size: usize,
    /// The neighbour that passed it on.
    heard_from: NodeId,
}

impl Lsa {
    /// True if this wins over `update`. Of two updates with one version, all nodes believe the same one, so that it
    /// reaches the node in whose name it is.
    fn outdoes(&self, update: &RoutingUpdate) -> bool {
        let version = (update.epoch, update.sequence);
        version < self.version || (version == self.version && *update.connections <= *self.links)
    }
}

/// The latest known version of a forgotten node, and when it was forgotten.
#[derive(Debug)]
struct ForgottenNode {
    version: Version,
    since: Tick,
}

/// A distrusted epoch.
#[derive(Debug)]
struct Distrust {
    epoch: u64,
    since: Tick,
}

/// What is new in an update.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Older than, or the same as, what is known.
    Nothing,
    /// Of a distrusted epoch, so perhaps another node's with the same name: passed on for the owner to hear, not
    /// believed.
    Distrusted,
    /// The tables have no room for it, or this neighbour's share is used up.
    NoRoom,
    /// Accepted.
    Update {
        /// The node was unknown before.
        new_node: bool,
        /// It has restarted, or is heard of for the first time.
        new_run: bool,
        /// Links were added, removed or changed their cost.
        links_changed: bool,
    },
}

/// The database.
#[derive(Debug)]
pub(super) struct Lsdb {
    own: NodeId,
    remember: Duration,
    lsas: BTreeMap<NodeId, Lsa>,
    /// The links that count, from either end. Shared with snapshots and computations: a change copies the table while
    /// one of them holds it.
    links: Arc<LinkCosts>,
    /// The links that counted, and do not any more.
    broken: BrokenLinks,
    /// The names in `links` by hash. If two names share a hash, it stands for the first.
    by_hash: HashMap<NameHash, NodeId, BuildHasherDefault<IdentityHasher>>,
    /// The first hop towards each reachable node, as it was computed last.
    hops: Arc<Hops>,
    /// The versions of the reachable nodes.
    digest: Digest,
    /// How many updates each neighbour has passed on, and their bytes.
    nodes: TableQuota,
    bytes: TableQuota,
    /// Distrusted epochs of known nodes whose names others use: updates of these epochs may still be on their way, and
    /// would be believed again.
    distrusted: BTreeMap<NodeId, VecDeque<Distrust>>,
    forgotten: BTreeMap<NodeId, ForgottenNode>,
}

impl Lsdb {
    pub(super) fn new(own: NodeId, options: &Options) -> Self {
        Self {
            own,
            remember: options.withdrawn_time,
            lsas: BTreeMap::new(),
            links: Arc::default(),
            broken: BrokenLinks::new(),
            by_hash: HashMap::default(),
            hops: Arc::default(),
            digest: Digest::default(),
            nodes: TableQuota::new(options.max_nodes),
            bytes: TableQuota::new(options.max_table_bytes),
            distrusted: BTreeMap::new(),
            forgotten: BTreeMap::new(),
        }
    }

    /// The links that count: from, to, cost.
    pub(super) fn links(&self) -> &Arc<LinkCosts> {
        &self.links
    }

    /// The links that counted, and do not any more.
    pub(super) fn broken(&self) -> &Arc<Breaks> {
        self.broken.by_end()
    }

    /// Drops broken links between nodes that can be reached, once they are `keep` old. Returns when to do so next.
    pub(super) fn expire_broken(&mut self, keep: Duration, now: Tick) -> Option<Tick> {
        let (own, hops) = (&self.own, &self.hops);
        self.broken.expire(keep, now, |node| node == own || hops.contains_key(node))
    }

    /// The links of this node.
    pub(super) fn own_links(&self) -> Option<&Arc<Links>> {
        self.links.get(&self.own)
    }

    /// The listed name that has this hash.
    pub(super) fn name_of(&self, hash: NameHash) -> Option<&NodeId> {
        self.by_hash.get(&hash)
    }

    /// Each reachable node with the neighbour towards it.
    pub(super) fn hops(&self) -> &Arc<Hops> {
        &self.hops
    }

    /// How many nodes can be reached.
    pub(super) fn reachable(&self) -> u32 {
        u32::try_from(self.hops.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn reaches(&self, node: &NodeId) -> bool {
        self.hops.contains_key(node)
    }

    /// The computation of the routes over the links as they stand.
    pub(super) fn route_computation(&self) -> RouteComputation {
        RouteComputation { origin: self.own.clone(), links: self.links.clone(), before: self.hops.clone() }
    }

    /// Takes over the routes that a computation found.
    pub(super) fn set_routes(&mut self, computed: &ComputedRoutes) {
        self.hops = computed.hops.clone();
        for node in computed.gained.iter().chain(&computed.lost) {
            if let Some(lsa) = self.lsas.get(node) {
                self.digest.toggle(node.hash(), lsa.version.into());
            }
        }
    }

    /// The digest of the reachable nodes' versions.
    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    /// True if an update is no news: the table has it, or a newer one. Compares what it says, not its ID, because an
    /// altered update may keep the ID.
    pub(super) fn is_old(&self, head: &UpdateHead<'_>, now: Tick) -> bool {
        let version = (head.epoch, head.sequence);
        let has = |known: &Lsa| {
            version < known.version
                || (version == known.version && known.written == head.connections.get().as_bytes())
        };
        !self.distrusts(&head.node_id, head.epoch, now) && self.lsas.get(&*head.node_id).is_some_and(has)
    }

    /// The update that is believed of a node, as a message, if it is newer than `version`.
    pub(super) fn newer(&self, node: &str, version: Version) -> Option<Bytes> {
        let known = self.lsas.get(node)?;
        known.message.clone().filter(|_| version < known.version)
    }

    /// True if an update loses against the one that is believed of the same node.
    pub(super) fn outdoes(&self, update: &RoutingUpdate, now: Tick) -> bool {
        let node = update.node_id.as_ref().filter(|node| !self.distrusts(node.as_str(), update.epoch, now));
        node.and_then(|node| self.lsas.get(node)).is_some_and(|known| known.outdoes(update))
    }

    fn distrusts(&self, node: &str, epoch: u64, now: Tick) -> bool {
        let is_that = |other: &Distrust| other.epoch == epoch && now.since(other.since) < DISTRUST;
        self.distrusted.get(node).is_some_and(|others| others.iter().any(is_that))
    }

    /// Takes another node's update of `size` bytes, by the rules of docs/protocol.md#flooding.
    pub(super) fn apply(&mut self, node: &NodeId, update: &RoutingUpdate, size: usize, now: Now) -> News {
        let before = self.lsas.get(node);
        let is_known_run = before.is_some_and(|known| is_same_run(known.version.0, update.epoch))
            || self
                .distrusted
                .get(node)
                .into_iter()
                .flatten()
                .any(|other| is_same_run(other.epoch, update.epoch));
        let from = &update.forwarding_node;
        let version = (update.epoch, update.sequence);
        let size = size + update.connections.len() * PER_LINK;
        let full = !self.bytes.admits(from, size, before.map_or(0, |known| known.size))
            || !self.nodes.admits(from, 1, usize::from(before.is_some()));
        match before {
            Some(_) if self.distrusts(node.as_str(), update.epoch, now.tick) => return News::Distrusted,
            Some(known) if known.outdoes(update) => return News::Nothing,
            None if self.is_echo(node, version) => return News::Nothing,
            Some(_) | None if full => return News::NoRoom,
            Some(_) | None => {}
        }
        let new_node = before.is_none();
        let links = match before {
            Some(known) if *known.links == *update.connections => known.links.clone(),
            _ => Arc::new(update.connections.iter().map(|(to, cost)| (self.intern(to), *cost)).collect()),
        };
        let node = self.intern(node);
        let forwarded = RoutingUpdate { forwarding_node: self.own.clone(), ..update.clone() };
        let message = forwarded.message().ok();
        let lsa = Lsa {
            version,
            links: links.clone(),
            written: message.as_ref().and_then(written_links).unwrap_or_default(),
            message,
            size,
            heard_from: self.intern(from),
        };
        let links_changed = self.set_links(&node, &links, from, now);
        self.remove(&node);
        self.forgotten.remove(&node);
        self.put(node, lsa);
        News::Update { new_node, new_run: !is_known_run, links_changed }
    }

    fn put(&mut self, node: NodeId, lsa: Lsa) {
        self.nodes.add(&lsa.heard_from, 1);
        self.bytes.add(&lsa.heard_from, lsa.size);
        self.toggle(&node, lsa.version);
        self.lsas.insert(node, lsa);
    }

    fn remove(&mut self, node: &NodeId) -> Option<Lsa> {
        let gone = self.lsas.remove(node)?;
        self.toggle(node, gone.version);
        self.nodes.remove(&gone.heard_from, 1);
        self.bytes.remove(&gone.heard_from, gone.size);
        Some(gone)
    }

    /// A version has come or gone.
    fn toggle(&mut self, node: &NodeId, version: Version) {
        if self.hops.contains_key(node) {
            self.digest.toggle(node.hash(), version.into());
        }
    }

    /// The same name, sharing the memory of the copy in `links` if there is one.
    fn intern(&self, name: &NodeId) -> NodeId {
        self.links.get_key_value(name).map_or_else(|| name.clone(), |(listed, _)| listed.clone())
    }

    /// A node lists these links from now on, says a neighbour; false if the same links count as before.
    fn set_links(&mut self, node: &NodeId, said: &Arc<Links>, told_by: &NodeId, now: Now) -> bool {
        let is_listed = self.links.contains_key(node);
        let before = self.links.get(node).cloned().unwrap_or_default();
        let counted = if before == *said { said.clone() } else { self.counted(node, said) };
        if is_listed && before == counted {
            return false;
        }
        let own = self.own.clone();
        self.list(node, counted.clone());
        for end in before.keys().filter(|to| !counted.contains_key(*to) && **to != own) {
            self.relist(end, |links| links.remove(node));
            self.broken.note([node, end], Some(told_by), now);
        }
        for (end, cost) in counted.iter().filter(|(to, cost)| before.get(*to) != Some(*cost) && **to != own) {
            self.relist(end, |links| links.insert(node.clone(), *cost));
            self.broken.mend([node, end]);
        }
        true
    }

    /// The links of a node that count: those that both ends list, because nobody may get on a path by claiming a link
    /// alone. Each counts at the larger of both costs. For links with this node, our own list decides.
    fn counted(&self, node: &NodeId, said: &Arc<Links>) -> Arc<Links> {
        let of_both = |(to, cost): (&NodeId, &Cost)| {
            let theirs = *self.lsas.get(to).filter(|_| to != node)?.links.get(node)?;
            Some((to.clone(), if theirs > *cost { theirs } else { *cost }))
        };
        let mut counted: Links = said.iter().filter_map(of_both).collect();
        if let Some(cost) = self.own_links().and_then(|links| links.get(node)) {
            counted.insert(self.own.clone(), *cost);
        }
        if counted == **said { said.clone() } else { counted.into() }
    }

    /// These links of a node count from now on.
    fn list(&mut self, node: &NodeId, links: Arc<Links>) {
        if let Some(listed) = Arc::make_mut(&mut self.links).get_mut(node) {
            *listed = links;
            return;
        }
        self.by_hash.entry(node.hash()).or_insert_with(|| node.clone());
        Arc::make_mut(&mut self.links).insert(node.clone(), links);
    }

    /// Changes a node's links that count.
    fn relist<T>(&mut self, node: &NodeId, change: impl FnOnce(&mut Links) -> T) {
        let mut links = self.links.get(node).cloned().unwrap_or_default();
        change(Arc::make_mut(&mut links));
        self.list(node, links);
    }

    /// The node is no longer listed, nor linked to any other.
    fn unlist(&mut self, node: &NodeId) {
        let gone = Arc::make_mut(&mut self.links).remove(node).unwrap_or_default();
        gone.keys().for_each(|end| self.relist(end, |links| links.remove(node)));
        if self.name_of(node.hash()) == Some(node) {
            self.by_hash.remove(&node.hash());
        }
        self.broken.forget(node);
    }

    /// The newest updates of all nodes whose names sort after `last`, or of all if it is `None`, as messages that this
    /// node passes on.
    pub(super) fn messages_after(&self, last: Option<&NodeId>) -> impl Iterator<Item = (&NodeId, Bytes)> {
        let after = (last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let known = self.lsas.range::<NodeId, _>(after);
        known.filter_map(|(node, lsa)| Some((node, lsa.message.clone()?)))
    }

    /// The newest update of a node, as a message that this node passes on.
    pub(super) fn message(&self, node: &NodeId) -> Option<Bytes> {
        self.lsas.get(node)?.message.clone()
    }

    /// When a node started, by its own clock.
    pub(super) fn start_of(&self, node: &NodeId) -> Option<Timestamp> {
        let seconds = self.lsas.get(node)?.version.0 >> 24;
        Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
    }

    /// A node says that epoch `suspected_duplicate` in its name is another node's. If that epoch is believed here, the
    /// node's own replaces it. If an epoch later than its own is believed, that update is returned: the node has not
    /// heard of it, or would have named it.
    pub(super) fn correct(&mut self, node: &NodeId, update: &RoutingUpdate, now: Tick) -> Option<Bytes> {
        let mut lsa = self.remove(node)?;
        if lsa.version.0 == update.suspected_duplicate {
            lsa.version = (update.epoch, update.sequence);
            // The links stay the other node's until the next update. A new neighbour is sent the epoch that is
            // believed: it may be the node itself, and this correction made up.
            let heard =
                RoutingUpdate { forwarding_node: self.own.clone(), suspected_duplicate: 0, ..update.clone() };
            lsa.message = heard.message().ok();
            lsa.written = Bytes::new();
        }
        if lsa.version.0 == update.epoch {
            // Epochs corrected earlier stay distrusted, because their updates may still be on their way.
            let others = self.distrusted.entry(node.clone()).or_default();
            others.retain(|other| other.epoch != update.suspected_duplicate);
            others.push_back(Distrust { epoch: update.suspected_duplicate, since: now });
            if others.len() > MOST_DISTRUSTED {
                others.pop_front();
            }
        }
        let later = lsa.message.clone().filter(|_| lsa.version.0 > update.epoch);
        self.put(node.clone(), lsa);
        later
    }

    /// A session with `peer` is established: links both ways.
    pub(super) fn connect(&mut self, peer: &NodeId, cost: Cost) {
        let own = self.own.clone();
        self.relist(&own, |links| links.insert(peer.clone(), cost));
        self.relist(peer, |links| links.insert(own.clone(), cost));
        self.broken.mend([&own, peer]);
    }

    /// The session with `peer` is gone: no link either way. If the peer has no update in the table, it is
    /// forgotten, because it may have made its name up.
    pub(super) fn disconnect(&mut self, peer: &NodeId, now: Now) {
        let own = self.own.clone();
        self.relist(&own, |links| links.remove(peer));
        if self.knows(peer) {
            self.relist(peer, |links| links.remove(&own));
            self.broken.note([&own, peer], None, now);
        } else {
            self.unlist(peer);
        }
    }

    /// How many nodes' updates are known.
    pub(super) fn len(&self) -> usize {
        self.lsas.len()
    }

    /// Notes how much is remembered.
    pub(super) fn measure(&self, tables: &mut Tables) {
        tables.nodes = self.lsas.len() as u64;
        tables.node_bytes = self.bytes.total() as u64;
        tables.forgotten = self.forgotten.len() as u64;
        tables.broken_links = self.broken.len() as u64;
        tables.names = (self.links.len() + usize::from(self.own_links().is_none())) as u64;
    }

    /// True if an update of another node is known.
    pub(super) fn knows(&self, node: &NodeId) -> bool {
        self.lsas.contains_key(node)
    }

    /// Forgets a node. Its updates so far are not believed again when somebody repeats them.
    pub(super) fn forget(&mut self, node: &NodeId, now: Tick) {
        let Some(gone) = self.remove(node) else { return };
        self.distrusted.remove(node);
        self.unlist(node);
        if self.forgotten.len() >= MOST_FORGOTTEN {
            self.forgotten.retain(|_, gone| now.since(gone.since) < self.remember);
            if self.forgotten.len() >= MOST_FORGOTTEN {
                self.forgotten.pop_first();
            }
        }
        self.forgotten.insert(node.clone(), ForgottenNode { version: gone.version, since: now });
    }

    /// True for an update from before the node was forgotten. A node that comes back sends a newer one, or, with its
    /// clock set back, one of another epoch.
    fn is_echo(&self, node: &NodeId, (epoch, sequence): Version) -> bool {
        self.forgotten.get(node).is_some_and(|gone| gone.version.0 == epoch && sequence <= gone.version.1)
    }
}

/// True if a node may have gone from `epoch` to `later` without a restart.
fn is_same_run(epoch: u64, later: u64) -> bool {
    later.checked_sub(epoch).is_some_and(|step| step <= OF_ONE_RUN)
}

/// The part of an update's message that lists its links.
fn written_links(message: &Bytes) -> Option<Bytes> {
    Some(message.slice_ref(UpdateHead::parse(message)?.connections.get().as_bytes()))
}

/// Uses a node's hash as it is, because it is uniform already.
#[derive(Debug, Default, Clone)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}
