//! The services that other nodes offer, as their advertisements said it last.
//!
//! Owns the table and its size; which advertisement is believed, and what becomes of one that is dropped, is
//! decided in `services`.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeInclusive};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use jiff::Timestamp;

use super::pool::Pool;
use super::quota::Shares;
use super::status::Offers;
use super::{Options, Tick, services};
use crate::wire::{Advertisement, NodeId, ServiceName};

/// A service of a node.
pub(super) type Key = (NodeId, ServiceName);

/// What another node offers.
#[derive(Debug)]
pub(super) struct Offered {
    pub(super) advertisement: Arc<Advertisement>,
    /// As it came, in memory of its own: what it was read into may be much larger.
    pub(super) message: Bytes,
}

impl Offered {
    fn new(advertisement: Advertisement, message: &[u8]) -> Self {
        Self { advertisement: advertisement.into(), message: Bytes::copy_from_slice(message) }
    }
}

#[derive(Debug)]
struct Heard {
    offered: Arc<Offered>,
    told_by: NodeId,
    /// It is dated before its node's present life, and is dropped then unless it is renewed.
    expires: Option<Tick>,
}

/// The table.
#[derive(Debug)]
pub(super) struct HeardTable {
    pool: Option<Pool>,
    services: BTreeMap<Key, Heard>,
    /// How many services of each node there are.
    counts: BTreeMap<NodeId, usize>,
    max_per_node: usize,
    /// Which neighbour has told of how many services, and the length of those advertisements.
    shares: Shares,
    bytes: Shares,
    /// The advertisements for clients, once somebody has asked. It follows each change from then on.
    listed: OnceLock<Offers>,
}

impl HeardTable {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            pool: options.pool.clone(),
            services: BTreeMap::new(),
            counts: BTreeMap::new(),
            max_per_node: options.max_services_per_node,
            shares: Shares::new(options.max_nodes),
            bytes: Shares::new(options.max_table_bytes),
            listed: OnceLock::new(),
        }
    }

    /// True if `teller` may put an advertisement of `len` bytes in.
    pub(super) fn admits(&self, key: &Key, len: usize, teller: &NodeId) -> bool {
        let before = self.services.get(key).map_or(0, |heard| heard.offered.message.len());
        let new = before == 0;
        let count = self.counts.get(&key.0).copied().unwrap_or(0);
        (!new || count < self.max_per_node)
            && self.shares.admits(teller, 1, usize::from(!new))
            && self.bytes.admits(teller, len, before)
    }

    /// Services in the table.
    pub(super) fn len(&self) -> usize {
        self.services.len()
    }

    /// Length of all their advertisements.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.total()
    }

    /// True if a node offers something.
    pub(super) fn knows(&self, node: &NodeId) -> bool {
        self.counts.contains_key(node)
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Arc<Offered>> {
        self.services.get(key).map(|heard| &heard.offered)
    }

    /// All services, by node.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Offered)> {
        self.services.iter().map(|(key, heard)| (key, &*heard.offered))
    }

    /// The services after that one, or from the first one on.
    pub(super) fn after(&self, last: Option<&Key>) -> impl Iterator<Item = (&Key, &Offered)> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.services.range((from, Bound::Unbounded)).map(|(key, heard)| (key, &*heard.offered))
    }

    /// The advertisements as clients see them.
    pub(super) fn listed(&self) -> &Offers {
        let ads = || self.services.values().map(|heard| &heard.offered.advertisement);
        self.listed.get_or_init(|| ads().map(|ad| (services::place(ad), ad.clone())).collect())
    }

    /// The services of one node.
    pub(super) fn of(&self, node: &NodeId) -> Vec<Key> {
        self.services.range(services_of(node)).map(|(key, _)| key.clone()).collect()
    }

    /// Puts an advertisement in, with the message in which `teller` told it, in place of an older one.
    pub(super) fn put(
        &mut self,
        key: &Key,
        ad: Advertisement,
        message: &[u8],
        teller: &NodeId,
        expires: Option<Tick>,
    ) {
        self.remove(key);
        let offered = match &self.pool {
            None => Arc::new(Offered::new(ad, message)),
            Some(pool) => pool.offered(key, |kept| kept.message == message, || Offered::new(ad, message)),
        };
        // The name that the advertisement holds anyway.
        let node = offered.advertisement.node_id.clone();
        self.shares.add(teller, 1);
        self.bytes.add(teller, offered.message.len());
        *self.counts.entry(node.clone()).or_default() += 1;
        if let Some(listed) = self.listed.get_mut() {
            listed.set(services::place(&offered.advertisement), offered.advertisement.clone());
        }
        self.services.insert((node, key.1), Heard { offered, told_by: teller.clone(), expires });
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Arc<Offered>> {
        let Heard { offered, told_by, .. } = self.services.remove(key)?;
        if let Some(listed) = self.listed.get_mut() {
            listed.remove(&services::place(&offered.advertisement));
        }
        self.shares.remove(&told_by, 1);
        self.bytes.remove(&told_by, offered.message.len());
        if let Some(count) = self.counts.get_mut(&key.0) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&key.0);
            }
        }
        Some(offered)
    }

    /// What `node` dated before `born` is to be dropped at `due`.
    pub(super) fn outdate(&mut self, node: &NodeId, born: Timestamp, due: Tick) {
        let services = self.services.range_mut(services_of(node)).map(|(_, heard)| heard);
        for heard in services.filter(|heard| heard.offered.advertisement.time < born) {
            heard.expires.get_or_insert(due);
        }
    }

    /// What is to be dropped by now, and when the next one is due.
    pub(super) fn due(&self, now: Tick) -> (Vec<Key>, Option<Tick>) {
        let dated = || self.services.iter().filter_map(|(key, heard)| Some((heard.expires?, key)));
        let next = dated().map(|(due, _)| due).filter(|due| *due > now).min();
        (dated().filter(|(due, _)| *due <= now).map(|(_, key)| key.clone()).collect(), next)
    }
}

/// All services of a node.
fn services_of(node: &NodeId) -> RangeInclusive<Key> {
    let [first, last] = [0, u8::MAX].map(|byte| ServiceName::from_wire([byte; 8]));
    (node.clone(), first)..=(node.clone(), last)
}
