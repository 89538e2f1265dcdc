//! What the mesh's advertisements mean for the registry: which nodes are registered, their types and offers, and which
//! nodes could be registered. Pure, except for [`register`], which uses the store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::candidates::Candidate;
use super::world::NodeView;
use crate::controller::core::{CLOCK_TOLERANCE, InstanceName, NodeType, Offer, SIGHTING_LIFE, Time};
use crate::controller::options::{ControllerOptions, Discovery, RUNNER_TYPE};
use crate::controller::store::{Error, InstanceRecord, InstanceRegistry, Observed, Store};

/// Discovery adds instances only up to this number, because anybody who can join the mesh can invent names. Operators
/// may add more.
const MOST_FOUND: usize = 10_000;

/// When each node was heard last, by the clock of this process.
#[derive(Debug, Default)]
pub(super) struct Sightings {
    nodes: BTreeMap<InstanceName, Sighted>,
    /// The last look at the nodes that was reported to the store.
    reported: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Sighted {
    advertised: i64,
    heard: Instant,
    routed: bool,
    /// At the last look it was reachable and its advertisement was recent.
    is_seen: bool,
    /// The last look until which it counted as seen.
    seen: Instant,
    /// How far its clock is off, once known.
    offset: Option<Duration>,
}

impl Sightings {
    /// Takes the nodes as they are now. `wall` is the present time by the clock that advertisements use, in
    /// milliseconds. An advertisement counts from its arrival here. A node that was seen at the last look counts as
    /// seen until now: while this process is suspended or waits for its disk, it sees no nodes, and no node may count
    /// as silent because of this.
    pub(super) fn note(&mut self, nodes: &[NodeView], now: Instant, wall: i64) {
        for sighted in self.nodes.values_mut() {
            sighted.routed = false;
        }
        for node in nodes {
            let Some(advertised) = node.advertised else { continue };
            let off = Duration::from_millis(advertised.abs_diff(wall));
            // The first advertisement may have arrived long before this look, so only a time in the future shows an
            // offset.
            let offset = (advertised > wall).then_some(off);
            let new = Sighted { advertised, heard: now, routed: false, is_seen: true, seen: now, offset };
            let sighted = self.nodes.entry(node.name.clone()).or_insert(new);
            if sighted.advertised != advertised {
                (sighted.advertised, sighted.heard, sighted.offset) = (advertised, now, Some(off));
            }
            sighted.routed = node.routed;
        }
        for sighted in self.nodes.values_mut() {
            let is_seen = sighted.routed && now.duration_since(sighted.heard) <= SIGHTING_LIFE;
            if std::mem::replace(&mut sighted.is_seen, is_seen) || is_seen {
                sighted.seen = now;
            }
        }
    }

    /// Forgets nodes that are neither registered nor on the mesh.
    pub(super) fn keep(&mut self, registered: &BTreeSet<InstanceName>) {
        self.nodes.retain(|name, sighted| sighted.routed || registered.contains(name));
    }

    /// How far the clock of each node is off, where that is known.
    fn offsets(&self) -> BTreeMap<InstanceName, Duration> {
        self.nodes.iter().filter_map(|(name, sighted)| Some((name.clone(), sighted.offset?))).collect()
    }

    /// What a heartbeat reports.
    pub(super) fn report(&self, own: &InstanceName) -> Vec<Observed> {
        let others = self.nodes.iter().filter(|(name, _)| *name != own).map(|(name, sighted)| Observed {
            instance: name.clone(),
            reachable: sighted.is_seen,
            again: self.reported.is_none_or(|reported| sighted.seen > reported),
        });
        let myself = Observed { instance: own.clone(), reachable: true, again: true };
        others.chain([myself]).collect()
    }

    /// The store now knows what was noted up to that moment.
    pub(super) fn on_reported(&mut self, noted: Instant) {
        self.reported = Some(noted);
    }
}

/// This control node.
#[derive(Debug, Clone)]
pub(super) struct Own {
    pub(super) name: InstanceName,
    /// It has a key that signs work.
    pub(super) signs: bool,
}

/// What a node offers for jobs.
pub(super) fn offer(node: &NodeView) -> Offer {
    let found = node.work_types.iter().find(|(name, _)| name == RUNNER_TYPE);
    Offer { runner: found.is_some(), secure: found.is_some_and(|(_, secure)| *secure), tls: node.tls }
}

/// The type that a node's advertisement shows; `None` if the node has nothing to do with jobs.
pub(super) fn node_type(node: &NodeView) -> Option<NodeType> {
    node.advertised?;
    match (node.work_types.is_empty(), offer(node).runner) {
        (true, _) => Some(NodeType::Hop),
        (false, true) => Some(NodeType::Execution),
        (false, false) => None,
    }
}

/// Updates the registry to what the nodes advertise. Returns whether anything changed.
pub(super) fn apply(
    registry: &mut InstanceRegistry,
    nodes: &[NodeView],
    own: &Own,
    offsets: &BTreeMap<InstanceName, Duration>,
    options: &ControllerOptions,
    now: Time,
) -> Result<bool, Error> {
    let mut changed = false;
    for node in nodes {
        let is_own = node.name == own.name;
        if !registry.has_instance(&node.name) {
            let is_enabled = options.discovery == Discovery::Enabled;
            let found = match is_own {
                true => Some(options.node_type),
                false => {
                    found_as(node, options).filter(|_| is_enabled && registry.instances.len() < MOST_FOUND)
                }
            };
            let Some(node_type) = found else { continue };
            // Groups come first, because anybody who can join the mesh can choose a node's name.
            if !is_own && registry.group_mut(&node.name.as_str().into()).is_ok() {
                tracing::debug!(node = %node.name, "node not registered: a group already has its name");
                continue;
            }
            registry.add_instance(InstanceRecord::register(node.name.clone(), node_type, true, now))?;
            changed = true;
        }
        let instance = &mut registry.instance_mut(&node.name)?.instance;
        let offer = offer(node);
        if node.advertised.is_some() && instance.offer != offer {
            instance.offer = offer;
            changed = true;
        }
        if is_own && (instance.signs != own.signs || instance.node_type != options.node_type) {
            (instance.signs, instance.node_type) = (own.signs, options.node_type);
            changed = true;
        }
        if !is_own && instance.node_type == NodeType::Hop && instance.offer.runner {
            instance.become_execution(now);
            changed = true;
        }
        if let Some(offset) = offsets.get(&node.name).filter(|_| !is_own) {
            changed |= instance.on_clock_offset(*offset);
        }
    }
    Ok(changed)
}

/// What a node that is not registered could be registered as.
fn found_as(node: &NodeView, options: &ControllerOptions) -> Option<NodeType> {
    let patterns = &options.discover_nodes;
    let may = patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(node.name.as_str()));
    // An advertisement that outlives its node must not bring the instance back.
    node_type(node).filter(|_| may && node.routed)
}

/// The nodes that could be registered.
pub(super) fn candidates(
    registry: &InstanceRegistry,
    nodes: &[NodeView],
    options: &ControllerOptions,
    now: Time,
) -> Vec<Candidate> {
    let candidate = |node: &NodeView| {
        let node_type = found_as(node, options)?;
        let offer = offer(node);
        Some(Candidate { name: node.name.clone(), node_type, offer, seen: now })
    };
    let strangers = nodes.iter().filter(|node| !registry.has_instance(&node.name));
    strangers.filter_map(candidate).collect()
}

/// Updates the registry in the store to what the nodes advertise. Returns the registry, and the nodes that could be
/// registered.
pub(super) async fn register(
    store: &Store,
    nodes: Vec<NodeView>,
    own: Own,
    sightings: &Sightings,
    options: &ControllerOptions,
) -> Result<(InstanceRegistry, Vec<Candidate>), Error> {
    let mut current = store.registry().await?;
    let now = store.now().await?;
    let wall = Time(Timestamp::now().as_millisecond());
    // If this node's own clock is wrong, all other clocks seem wrong. With SQLite there is no other clock to compare it
    // with.
    let is_off = store.is_shared() && wall.since(now).max(now.since(wall)) > CLOCK_TOLERANCE;
    let offsets = if is_off { BTreeMap::new() } else { sightings.offsets() };
    let is_changed = apply(&mut current, &nodes, &own, &offsets, options, now)?;
    let found = candidates(&current, &nodes, options, now);
    if is_changed {
        let options = options.clone();
        let change = move |registry: &mut InstanceRegistry, now| {
            apply(registry, &nodes, &own, &offsets, &options, now).map(drop)
        };
        store.change_registry(None, change).await?;
    }
    Ok((current, found))
}
