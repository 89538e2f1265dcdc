//! A link's reader decides by the immutable table: for every header, the core must decide the same.

use proptest::prelude::*;

use super::solo::{Solo, node, secs, service, update};
use crate::mesh::firewall::{Action, Rule};
use crate::mesh::{Event, ForwardingDecision};
use crate::wire::{DataHeader, NameHash, RoutingUpdate, ServiceName};

const NAMES: [&str; 5] = ["a", "b", "c", "far", "unheard-of"];

fn headers() -> impl Strategy<Value = DataHeader> {
    let service = prop_oneof![
        Just(ServiceName::PING),
        Just(ServiceName::UNREACH),
        Just(service("bound")),
        any::<[u8; 8]>().prop_map(ServiceName::from_wire),
    ];
    let name = || {
        prop_oneof![
            4 => (0..NAMES.len()).prop_map(|i| node(NAMES[i]).hash()),
            1 => any::<u64>().prop_map(NameHash),
        ]
    };
    (any::<u8>().prop_map(|hops| hops % 4), name(), name(), service.clone(), service).prop_map(
        |(hops, from_node, to_node, from_service, to_service)| DataHeader {
            hops,
            from_node,
            to_node,
            from_service,
            to_service,
        },
    )
}

proptest! {
    #[test]
    fn the_fast_path_agrees_with_the_core(header in headers(), firewall in any::<bool>()) {
        let mut solo = Solo::new("a");
        let b = solo.neighbour("b");
        solo.neighbour("c");
        let far = super::solo::update("far", "far_away", 1, 1, &[("b", 1.0)]);
        let told = super::solo::update("b", "b_to_far", 1, 3, &[("a", 1.0), ("far", 1.0)]);
        solo.say(b, &told);
        solo.say(b, &crate::wire::RoutingUpdate { forwarding_node: node("b"), ..far });
        solo.advance(super::solo::millis(500));
        solo.mesh.bind(service("bound"));
        if firewall {
            let rule = Rule {
                action: Action::Drop, from_node: None, to_node: None, from_service: None, to_service: None,
            };
            solo.mesh.set_firewall(vec![rule]);
        }
        solo.sent();
        solo.events();
        let message = header.message(b"payload");
        let decision = solo.mesh.routes().decide(&header);
        let before = solo.mesh.counters();
        solo.packet(b, message);
        let (sent, counters) = (solo.sent(), solo.mesh.counters());
        match decision {
            ForwardingDecision::Forward(session) => {
                let passed_on = DataHeader { hops: header.hops - 1, ..header }.message(b"payload");
                prop_assert_eq!(sent, [(session, passed_on)]);
            }
            ForwardingDecision::Local => {
                prop_assert_eq!(header.to_node, node("a").hash());
                prop_assert_eq!(counters.expired + counters.blocked, before.expired + before.blocked);
            }
            ForwardingDecision::Core => {
                let all = |c: crate::counters::Counters| c.expired + c.blocked + c.no_route + c.unknown_name;
                prop_assert!(all(counters) > all(before), "the core must have had a reason");
            }
        }
    }
}

/// In a large mesh, the core keeps its routes until the outside has computed new ones.
#[test]
fn a_large_mesh_has_its_routes_computed_outside() {
    let computation = |solo: &mut Solo| {
        solo.advance(secs(1));
        let asked = solo.events().into_iter().filter_map(|event| match event {
            Event::ComputeRoutes(computation) => Some(computation),
            _ => None,
        });
        let [computation] = asked.collect::<Vec<_>>().try_into().expect("asked for once");
        computation
    };
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    let names: Vec<String> = (0..2_100).map(|i| format!("n{i:04}")).collect();
    for name in &names {
        let said = update(name, &format!("u{name}___"), 1, 1, &[("b", 1.0)]);
        solo.say(b, &RoutingUpdate { forwarding_node: node("b"), ..said });
    }
    let without_links_back = computation(&mut solo).run();
    let now = solo.now();
    solo.mesh.handle_routes(&without_links_back, now.tick);

    let links: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 1.0)).chain([("a", 1.0)]).collect();
    solo.say(b, &update("b", "b_to_all", 1, 3, &links));
    let all = computation(&mut solo).run();
    assert!(solo.mesh.routing_table().len() < 10, "not in place");
    // Changes during the computation wait for the next one.
    solo.say(b, &update("b", "all_gone", 1, 4, &[("a", 1.0)]));
    solo.advance(secs(1));
    assert!(!solo.events().iter().any(|event| matches!(event, Event::ComputeRoutes(_))), "one at a time");
    let now = solo.now();
    solo.mesh.handle_routes(&all, now.tick);
    assert_eq!(solo.mesh.routing_table().len(), 2_101);
    let gone = computation(&mut solo).run();
    let now = solo.now();
    solo.mesh.handle_routes(&gone, now.tick);
    assert_eq!(solo.mesh.routing_table().len(), 1);
}
