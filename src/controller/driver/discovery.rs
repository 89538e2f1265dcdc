//! What the mesh's advertisements mean for the registry: which nodes are registered, as what, and what they offer.
//! Pure, but for the store at the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::world::NodeView;
use crate::controller::core::{InstanceName, NodeType, Offer, SIGHTING_LIFE};
use crate::controller::options::{ControllerOptions, Discovery};
use crate::controller::store::{Error, InstanceRecord, Observed, Registry, Store};

/// When each node was heard last, by the clock of this process.
#[derive(Debug, Default)]
pub(super) struct Sightings(BTreeMap<InstanceName, Sighted>);

#[derive(Debug, Clone, Copy)]
struct Sighted {
    advertised: i64,
    heard: Instant,
    routed: bool,
    /// When it was last reachable, with an advertisement that counted.
    seen: Instant,
}

impl Sightings {
    /// Takes the nodes as they are now. An advertisement counts from the moment at which it arrived here.
    pub(super) fn note(&mut self, nodes: &[NodeView], now: Instant) {
        for sighted in self.0.values_mut() {
            sighted.routed = false;
        }
        for node in nodes {
            let Some(advertised) = node.advertised else { continue };
            let new = Sighted { advertised, heard: now, routed: false, seen: now };
            let sighted = self.0.entry(node.name.clone()).or_insert(new);
            if sighted.advertised != advertised {
                (sighted.advertised, sighted.heard) = (advertised, now);
            }
            sighted.routed = node.routed;
            if node.routed && now.duration_since(sighted.heard) <= SIGHTING_LIFE {
                sighted.seen = now;
            }
        }
    }

    /// What a heartbeat says.
    pub(super) fn report(&self, own: &InstanceName, now: Instant) -> Vec<Observed> {
        let others = self.0.iter().filter(|(name, _)| *name != own).map(|(name, sighted)| Observed {
            instance: name.clone(),
            routed: sighted.routed,
            age: now.duration_since(sighted.seen),
        });
        let myself = Observed { instance: own.clone(), routed: true, age: Duration::ZERO };
        others.chain([myself]).collect()
    }
}

/// What a node offers for jobs.
pub(super) fn offer(node: &NodeView, runner: &str) -> Offer {
    let found = node.work_types.iter().find(|(name, _)| name == runner);
    Offer { runner: found.is_some(), secure: found.is_some_and(|(_, secure)| *secure), tls: node.tls }
}

/// What a node is that is not registered; `None` if it has nothing to do with jobs.
pub(super) fn node_type(node: &NodeView, options: &ControllerOptions) -> Option<NodeType> {
    node.advertised?;
    match (node.work_types.is_empty(), offer(node, &options.child_types.runner).runner) {
        (true, _) => Some(NodeType::Hop),
        (false, true) => Some(NodeType::Execution),
        (false, false) => None,
    }
}

/// Brings the registry up to what the nodes advertise. Returns whether anything was to change.
fn apply(
    registry: &mut Registry,
    nodes: &[NodeView],
    own: (&InstanceName, bool),
    options: &ControllerOptions,
    now: crate::controller::core::Time,
) -> Result<bool, Error> {
    let mut changed = false;
    for node in nodes {
        let is_own = node.name == *own.0;
        if registry.instance_mut(&node.name).is_err() {
            let found = match is_own {
                true => Some((options.node_type, true)),
                false => wanted(node, options),
            };
            let Some((node_type, enabled)) = found else { continue };
            registry.add_instance(InstanceRecord::register(node.name.clone(), node_type, enabled, now))?;
            changed = true;
        }
        let instance = &mut registry.instance_mut(&node.name)?.instance;
        let offer = offer(node, &options.child_types.runner);
        if node.advertised.is_some() && instance.offer != offer {
            instance.offer = offer;
            changed = true;
        }
        if is_own && (instance.signs != own.1 || instance.node_type != options.node_type) {
            (instance.signs, instance.node_type) = (own.1, options.node_type);
            changed = true;
        }
    }
    Ok(changed)
}

fn wanted(node: &NodeView, options: &ControllerOptions) -> Option<(NodeType, bool)> {
    let patterns = &options.discover_nodes;
    let may = patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(node.name.as_str()));
    let node_type = node_type(node, options).filter(|_| may)?;
    match options.discovery {
        Discovery::Off => None,
        Discovery::Disabled => Some((node_type, false)),
        Discovery::Enabled => Some((node_type, true)),
    }
}

/// Brings the registry in the store up to what the nodes advertise.
pub(super) async fn register(
    store: &Store,
    nodes: Vec<NodeView>,
    own: InstanceName,
    signs: bool,
    options: ControllerOptions,
) -> Result<(), Error> {
    let mut current = store.registry().await?;
    if !apply(&mut current, &nodes, (&own, signs), &options, store.now().await?)? {
        return Ok(());
    }
    let change =
        move |registry: &mut Registry, now| apply(registry, &nodes, (&own, signs), &options, now).map(drop);
    store.change_registry(None, change).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::core::Time;
    use crate::controller::options::NodeType as Wanted;
    use crate::mesh::firewall::Pattern;

    fn options(discovery: Discovery) -> ControllerOptions {
        let seconds = Duration::from_secs;
        ControllerOptions {
            node_type: Wanted::Control,
            store: "sqlite".into(),
            store_password_file: None,
            credentials: None,
            child_types: crate::controller::options::ChildTypes {
                local: "local".into(),
                runner: "ansible-runner".into(),
                kube_runtime: "k".into(),
                kube_in_cluster: "i".into(),
            },
            run_dir: "/tmp".into(),
            tls_client: None,
            require_tls: false,
            verify_signature: true,
            discovery,
            discover_nodes: Vec::new(),
            on_loss: crate::controller::options::OnLoss::TakeOver,
            payload_copies: 1,
            timers: crate::controller::options::Timers {
                heartbeat: seconds(10),
                owner_lost_after: seconds(30),
                lost_after: seconds(180),
                poll: seconds(20),
            },
            bounds: crate::controller::options::Bounds {
                max_pending: 10,
                max_payload: 10,
                payload_retention: seconds(1),
                output_retention: seconds(1),
                output_limit: 1,
                job_retention: seconds(1),
                project_cache: 1,
                cleanup_every: seconds(1),
            },
            forks_per_cpu: 4,
            mib_per_fork: 100,
            memory_reserve: None,
            peers: crate::controller::options::Peers {
                service: crate::wire::ServiceName::new("ctrlpeer").unwrap(),
                tls_server: None,
                tls_client: None,
            },
        }
    }

    fn node(name: &str, types: &[(&str, bool)]) -> NodeView {
        let work_types = types.iter().map(|(name, secure)| ((*name).to_owned(), *secure)).collect();
        NodeView { name: name.into(), routed: true, advertised: Some(1), tls: false, work_types }
    }

    fn registered(nodes: &[NodeView], options: &ControllerOptions) -> Vec<(String, Wanted, bool, Offer)> {
        let mut registry = Registry { instances: Vec::new(), groups: Vec::new() };
        let own = InstanceName::from("own");
        assert!(apply(&mut registry, nodes, (&own, true), options, Time(0)).unwrap());
        assert!(!apply(&mut registry, nodes, (&own, true), options, Time(1)).unwrap(), "it changes once");
        let show = |one: &crate::controller::core::Instance| {
            (one.name.to_string(), one.node_type, one.enabled, one.offer)
        };
        registry.plain_instances().iter().map(show).collect()
    }

    #[test]
    fn nodes_are_registered_as_what_they_advertise() {
        let nodes = [
            node("own", &[("local", false)]),
            node("e", &[("ansible-runner", true)]),
            node("hop", &[]),
            node("other", &[("cat", false)]),
        ];
        let secure = Offer { runner: true, secure: true, tls: false };
        let own = ("own".to_owned(), Wanted::Control, true, Offer::default());
        assert_eq!(registered(&nodes, &options(Discovery::Off)), std::slice::from_ref(&own));
        for (discovery, enabled) in [(Discovery::Disabled, false), (Discovery::Enabled, true)] {
            let found = registered(&nodes, &options(discovery));
            let wanted = [
                own.clone(),
                ("e".to_owned(), Wanted::Execution, enabled, secure),
                ("hop".to_owned(), Wanted::Hop, enabled, Offer::default()),
            ];
            assert_eq!(found, wanted);
        }
        let some = ControllerOptions {
            discover_nodes: vec![Pattern::Exact("hop".into())],
            ..options(Discovery::Enabled)
        };
        assert_eq!(registered(&nodes, &some).len(), 2, "own and hop");
    }

    #[test]
    fn a_node_is_seen_while_it_is_routed_and_advertises() {
        let (own, start) = (InstanceName::from("own"), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut sightings = Sightings::default();
        let age = |sightings: &Sightings, now| {
            let seen = sightings.report(&own, now);
            let e = seen.iter().find(|seen| seen.instance.as_str() == "e").unwrap();
            (e.routed, e.age.as_secs())
        };
        let mut e = node("e", &[]);
        sightings.note(std::slice::from_ref(&e), at(0));
        sightings.note(std::slice::from_ref(&e), at(100));
        assert_eq!(age(&sightings, at(100)), (true, 0));
        sightings.note(&[], at(110));
        assert_eq!(age(&sightings, at(130)), (false, 30));
        sightings.note(std::slice::from_ref(&e), at(200));
        assert_eq!(age(&sightings, at(200)), (true, 100), "its advertisement is too old to count");
        e.advertised = Some(2);
        sightings.note(std::slice::from_ref(&e), at(201));
        assert_eq!(age(&sightings, at(201)), (true, 0));
    }
}
