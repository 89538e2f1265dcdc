//! What the mesh's advertisements mean for the registry.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::super::discovery::{Own, Sightings, apply, candidates};
use super::options;
use crate::controller::core::{Instance, InstanceName, Offer, Time};
use crate::controller::driver::world::NodeView;
use crate::controller::options::{ControllerOptions, Discovery, NodeType};
use crate::controller::store::InstanceRegistry;
use crate::mesh::firewall::Pattern;

fn node(name: &str, types: &[(&str, bool)]) -> NodeView {
    let work_types = types.iter().map(|(name, secure)| ((*name).to_owned(), *secure)).collect();
    NodeView { name: name.into(), routed: true, advertised: Some(1), tls: false, work_types }
}

fn registered(nodes: &[NodeView], options: &ControllerOptions) -> Vec<(String, NodeType, bool, Offer)> {
    let mut registry = InstanceRegistry { instances: Vec::new(), groups: Vec::new() };
    let own = Own { name: "own".into(), signs: true };
    assert!(apply(&mut registry, nodes, &own, &BTreeMap::new(), options, Time(0)).unwrap());
    assert!(
        !apply(&mut registry, nodes, &own, &BTreeMap::new(), options, Time(1)).unwrap(),
        "it changes once"
    );
    let show = |one: &Instance| (one.name.to_string(), one.node_type, one.enabled, one.offer);
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
    let own = ("own".to_owned(), NodeType::Control, true, Offer::default());
    for discovery in [Discovery::Off, Discovery::Disabled] {
        assert_eq!(registered(&nodes, &options(discovery)), std::slice::from_ref(&own));
    }
    let others = [
        ("e".to_owned(), NodeType::Execution, true, secure),
        ("hop".to_owned(), NodeType::Hop, true, Offer::default()),
    ];
    let found = registered(&nodes, &options(Discovery::Enabled));
    assert_eq!(found, [&[own][..], &others].concat());
    // Nodes that are not registered are candidates, with the types that they would have.
    let mut registry = InstanceRegistry { instances: Vec::new(), groups: Vec::new() };
    let (own, disabled) = (Own { name: "own".into(), signs: true }, options(Discovery::Disabled));
    apply(&mut registry, &nodes, &own, &BTreeMap::new(), &disabled, Time(0)).unwrap();
    let found: Vec<_> = candidates(&registry, &nodes, &disabled, Time(7))
        .into_iter()
        .map(|one| (one.name.to_string(), one.node_type, one.seen == Time(7), one.offer))
        .collect();
    assert_eq!(found, others);
    let some = ControllerOptions {
        discover_nodes: vec![Pattern::Exact("hop".into())],
        ..options(Discovery::Enabled)
    };
    assert_eq!(registered(&nodes, &some).len(), 2, "own and hop");
}

#[test]
fn a_hop_that_offers_to_run_jobs_becomes_an_execution_node() {
    let mut registry = InstanceRegistry { instances: Vec::new(), groups: Vec::new() };
    let own = Own { name: "own".into(), signs: true };
    let options = options(Discovery::Enabled);
    for (types, expected) in [
        (&[][..], NodeType::Hop),
        (&[("cat", false)][..], NodeType::Hop),
        (&[("ansible-runner", false)][..], NodeType::Execution),
        (&[][..], NodeType::Execution),
    ] {
        apply(&mut registry, &[node("e", types)], &own, &BTreeMap::new(), &options, Time(5)).unwrap();
        let e = &registry.instances[0].instance;
        assert_eq!((e.node_type, e.health_due), (expected, (expected != NodeType::Hop).then_some(Time(5))));
    }
}

#[test]
fn a_node_is_seen_while_it_is_routed_and_advertises() {
    let (own, start) = (InstanceName::from("own"), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut sightings = Sightings::default();
    let mut look = |nodes: &[NodeView], seconds: u64, is_reported: bool| {
        sightings.note(nodes, at(seconds), 1);
        let seen = sightings.report(&own).into_iter().find(|seen| seen.instance.as_str() == "e").unwrap();
        if is_reported {
            sightings.on_reported(at(seconds));
        }
        (seen.reachable, seen.again)
    };
    let mut e = [node("e", &[])];
    assert_eq!(look(&e, 0, true), (true, true));
    assert_eq!(look(&e, 100, true), (true, true));
    assert_eq!(look(&[], 110, true), (false, true), "it was there until the look that missed it");
    assert_eq!(look(&[], 140, true), (false, false));
    assert_eq!(look(&e, 200, true), (false, false), "its advertisement is too old to count");
    e[0].advertised = Some(2);
    assert_eq!(look(&e, 201, false), (true, true));
    look(&[], 202, false);
    assert_eq!(look(&[], 300, true), (false, true), "the store did not learn it before");
    assert_eq!(look(&[], 310, true), (false, false));
}
