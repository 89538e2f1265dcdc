//! The services of other nodes, as their latest advertisements describe them.
//!
//! Owns the table, its size and its digest. `services` decides which advertisement is believed, and what becomes of a
//! dropped one.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeInclusive};
use std::sync::Arc;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};

use super::anti_entropy::{Digest, dated};
use super::quota::TableQuota;
use super::{Options, Tick};
use crate::wire::{Advertisement, NodeId, ServiceName};

pub(super) type AdKey = (NodeId, ServiceName);

/// A service of another node.
#[derive(Debug)]
struct RemoteService {
    /// As shown to users: a date later than its arrival is replaced by the time of its arrival.
    advertisement: Arc<Advertisement>,
    /// The date that its node gave it.
    date: Timestamp,
    /// The message as it came. A copy, because the buffer that it was read into may be much larger.
    message: Bytes,
    heard_from: NodeId,
    /// Set if it is dated before its node's last restart: when it is dropped, unless renewed before.
    expires: Option<Tick>,
    /// Whether its node can be reached; only then does the digest contain it.
    reachable: bool,
}

/// An advertisement to be put into the table.
#[derive(Debug)]
pub(super) struct NewService<'a> {
    pub(super) advertisement: Advertisement,
    pub(super) now: Timestamp,
    pub(super) message: &'a [u8],
    pub(super) heard_from: &'a NodeId,
    pub(super) expires: Option<Tick>,
    pub(super) reachable: bool,
}

#[derive(Debug)]
pub(super) struct ServiceTable {
    services: BTreeMap<AdKey, RemoteService>,
    /// How many services of each node there are.
    counts: BTreeMap<NodeId, usize>,
    max_per_node: usize,
    /// How many services each neighbour has passed on, and the bytes of their advertisements.
    entries: TableQuota,
    bytes: TableQuota,
    digest: Digest,
}

impl ServiceTable {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            services: BTreeMap::new(),
            counts: BTreeMap::new(),
            max_per_node: options.max_services_per_node,
            entries: TableQuota::new(options.max_nodes),
            bytes: TableQuota::new(options.max_table_bytes),
            digest: Digest::default(),
        }
    }

    /// True if neighbour `from` may put in an advertisement of `len` bytes.
    pub(super) fn admits(&self, key: &AdKey, len: usize, from: &NodeId) -> bool {
        let before = self.services.get(key).map_or(0, |known| known.message.len());
        let new = before == 0;
        let count = self.counts.get(&key.0).copied().unwrap_or(0);
        (!new || count < self.max_per_node)
            && self.entries.admits(from, 1, usize::from(!new))
            && self.bytes.admits(from, len, before)
    }

    /// Services in the table.
    pub(super) fn len(&self) -> usize {
        self.services.len()
    }

    /// Bytes of all advertisements in the table.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.total()
    }

    /// True if a node offers something.
    pub(super) fn knows(&self, node: &NodeId) -> bool {
        self.counts.contains_key(node)
    }

    /// True if a service of this node came from the node itself, as our neighbour.
    pub(super) fn has_told(&self, node: &NodeId) -> bool {
        self.services.range(services_of(node)).any(|(_, known)| known.heard_from == *node)
    }

    /// The dates of the services of reachable nodes.
    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    pub(super) fn get(&self, key: &AdKey) -> Option<&Arc<Advertisement>> {
        self.services.get(key).map(|known| &known.advertisement)
    }

    /// The date of a service's latest advertisement, by its node's clock.
    pub(super) fn date(&self, key: &AdKey) -> Option<Timestamp> {
        self.services.get(key).map(|known| known.date)
    }

    /// The services that were dated ahead of our clock when they came, and how far.
    pub(super) fn ahead(&self) -> BTreeMap<AdKey, SignedDuration> {
        let ahead = |known: &RemoteService| known.date.duration_since(known.advertisement.time);
        let all = self.services.iter().map(|(key, known)| (key, ahead(known)));
        all.filter(|(_, ahead)| ahead.is_positive()).map(|(key, ahead)| (key.clone(), ahead)).collect()
    }

    /// All advertisements, by node.
    pub(super) fn advertisements(&self) -> impl Iterator<Item = &Arc<Advertisement>> {
        self.services.values().map(|known| &known.advertisement)
    }

    /// The messages of all services after `last`, or of all services if it is `None`.
    pub(super) fn messages_after(&self, last: Option<&AdKey>) -> impl Iterator<Item = (&AdKey, Bytes)> {
        let after = (last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.services.range(after).map(|(key, known)| (key, known.message.clone()))
    }

    /// The services of one node.
    pub(super) fn of(&self, node: &NodeId) -> Vec<AdKey> {
        self.services.range(services_of(node)).map(|(key, _)| key.clone()).collect()
    }

    /// Puts an advertisement in; it replaces an older one.
    pub(super) fn put(&mut self, key: &AdKey, new: NewService<'_>) {
        self.remove(key);
        // Shares memory with the name in the advertisement, which is kept anyway.
        let node = new.advertisement.node_id.clone();
        self.entries.add(new.heard_from, 1);
        self.bytes.add(new.heard_from, new.message.len());
        *self.counts.entry(node.clone()).or_default() += 1;
        let date = new.advertisement.time;
        let advertisement = Advertisement { time: date.min(new.now), ..new.advertisement };
        let service = RemoteService {
            advertisement: advertisement.into(),
            date,
            message: Bytes::copy_from_slice(new.message),
            heard_from: new.heard_from.clone(),
            expires: new.expires,
            reachable: new.reachable,
        };
        toggle_if_reachable(&mut self.digest, &service);
        self.services.insert((node, key.1), service);
    }

    /// Takes a service out and returns its date.
    pub(super) fn remove(&mut self, key: &AdKey) -> Option<Timestamp> {
        let gone = self.services.remove(key)?;
        toggle_if_reachable(&mut self.digest, &gone);
        self.entries.remove(&gone.heard_from, 1);
        self.bytes.remove(&gone.heard_from, gone.message.len());
        if let Some(count) = self.counts.get_mut(&key.0) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&key.0);
            }
        }
        Some(gone.date)
    }

    /// A node can be reached from now on, or no longer.
    pub(super) fn set_reachable(&mut self, node: &NodeId, reachable: bool) {
        for (_, known) in self.services.range_mut(services_of(node)) {
            toggle_if_reachable(&mut self.digest, known);
            known.reachable = reachable;
            toggle_if_reachable(&mut self.digest, known);
        }
    }

    /// Has those services of `node` dropped at `due` that are dated before `start`.
    pub(super) fn outdate(&mut self, node: &NodeId, start: Timestamp, due: Tick) {
        let services = self.services.range_mut(services_of(node)).map(|(_, known)| known);
        for known in services.filter(|known| known.date < start) {
            known.expires.get_or_insert(due);
        }
    }

    /// The services that are to be dropped now, and when the next one is due.
    pub(super) fn due(&self, now: Tick) -> (Vec<AdKey>, Option<Tick>) {
        let expiring = || self.services.iter().filter_map(|(key, known)| Some((known.expires?, key)));
        let next = expiring().map(|(due, _)| due).filter(|due| *due > now).min();
        (expiring().filter(|(due, _)| *due <= now).map(|(_, key)| key.clone()).collect(), next)
    }
}

fn toggle_if_reachable(digest: &mut Digest, service: &RemoteService) {
    let RemoteService { advertisement, date, reachable, .. } = service;
    if *reachable {
        digest.toggle(advertisement.node_id.hash(), dated(advertisement.service, *date));
    }
}

fn services_of(node: &NodeId) -> RangeInclusive<AdKey> {
    let [first, last] = [0, u8::MAX].map(|byte| ServiceName::from_wire([byte; 8]));
    (node.clone(), first)..=(node.clone(), last)
}
