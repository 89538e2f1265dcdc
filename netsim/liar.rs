//! A node that lies: besides what its core sends, it writes updates and advertisements in other nodes' names, and
//! claims links that it does not have. It reads every node's updates, so that its lies look newer. Owns the content of
//! the lies. The scenario decides when the node tells them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use meshd_core::wire::advertisement::AdvertisementMessage;
use meshd_core::wire::{Advertisement, ConnType, Cost, MessageType, NodeId, RoutingUpdate};
use rand::RngExt;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

use crate::world::service;

pub(crate) struct Liar {
    /// Its index.
    pub node: usize,
    id: NodeId,
    /// The newest update of each node, including the liar.
    heard: BTreeMap<NodeId, RoutingUpdate>,
    told: u64,
    /// The ID of its last lie, which the next lie may use again.
    last_id: String,
}

impl Liar {
    pub(crate) fn new(node: usize, id: NodeId) -> Self {
        Self { node, id, heard: BTreeMap::new(), told: 0, last_id: String::new() }
    }

    /// Notes a message that the liar sends or gets.
    pub(crate) fn hear(&mut self, message: &[u8]) {
        if MessageType::of(message).ok() == Some(MessageType::RoutingUpdate)
            && let Ok(update) = RoutingUpdate::parse(message)
            && let Some(node) = update.node_id.clone()
        {
            let version = |update: &RoutingUpdate| (update.epoch, update.sequence);
            let is_news = self.heard.get(&node).is_none_or(|known| version(known) < version(&update));
            if is_news {
                self.heard.insert(node, update);
            }
        }
    }

    /// Something untrue about one of these nodes.
    pub(crate) fn lie(&mut self, about: &[NodeId], wall: Timestamp, rng: &mut SmallRng) -> Option<Bytes> {
        let victim = about.choose(rng)?;
        self.told += 1;
        match rng.random_range(0..11) {
            0 => self.withdrawal(victim, wall),
            1 => self.claim(about, rng),
            kind => self.word(kind, victim, rng),
        }
    }

    /// An update in another's name.
    fn word(&mut self, kind: u32, victim: &NodeId, rng: &mut SmallRng) -> Option<Bytes> {
        let known = self.heard.get(victim)?.clone();
        let (epoch, sequence) = (known.epoch, known.sequence);
        let more = rng.random_range(1..1_000);
        let (epoch, sequence, suspected_duplicate) = match kind {
            2 | 3 => (epoch, sequence.saturating_add(more), 0),
            4 => (epoch, u64::MAX - more, 0),
            5 => (epoch.saturating_add(more), more, 0),
            6 => (u64::MAX - more, more, 0),
            // An update that the node may be about to send itself, or its newest update, altered.
            8 => (epoch, sequence.saturating_add(rng.random_range(1..=3)), 0),
            9 => (epoch, sequence, 0),
            10 => (epoch, sequence.saturating_add(more), 0),
            _ => ([1, epoch - 1, epoch, epoch.saturating_add(more)][rng.random_range(0..4)], more, epoch),
        };
        // No links, only a link with the liar, or the true links.
        let connections = match rng.random_range(0..3) {
            0 => Arc::default(),
            1 => Arc::new([(self.id.clone(), cheap())].into()),
            _ => known.connections,
        };
        self.heard.get_mut(victim)?.sequence =
            if suspected_duplicate == 0 { sequence } else { known.sequence };
        let update_id = match kind {
            9 => known.update_id,
            10 => self.last_id.clone(),
            _ => format!("lie{:05}", self.told),
        };
        self.last_id.clone_from(&update_id);
        let forwarding_node = self.id.clone();
        let node_id = Some(victim.clone());
        RoutingUpdate {
            node_id,
            update_id,
            epoch,
            sequence,
            connections,
            forwarding_node,
            suspected_duplicate,
        }
        .message()
        .ok()
    }

    /// The liar's own links, and cheap links with some of these nodes.
    fn claim(&mut self, about: &[NodeId], rng: &mut SmallRng) -> Option<Bytes> {
        let own = self.heard.get_mut(&self.id)?;
        own.sequence += 1;
        let mut update = own.clone();
        update.update_id = format!("lie{:05}", self.told);
        for node in about.iter().filter(|_| rng.random()) {
            if !update.connections.contains_key(node) {
                Arc::make_mut(&mut update.connections).insert(node.clone(), cheap());
            }
        }
        update.message().ok()
    }

    fn withdrawal(&self, victim: &NodeId, wall: Timestamp) -> Option<Bytes> {
        let advertisement = Advertisement {
            node_id: victim.clone(),
            service: service(),
            time: wall,
            conn_type: ConnType::DATAGRAM,
            tags: None,
            work_commands: None,
        };
        AdvertisementMessage { advertisement, cancel: true }.message().ok()
    }
}

fn cheap() -> Cost {
    Cost::new(1e-9).expect("positive")
}
