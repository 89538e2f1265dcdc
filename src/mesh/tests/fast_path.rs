//! The immutable table that a link's reader asks decides as the core does, for every header.

use proptest::prelude::*;

use super::solo::{Solo, node, service};
use crate::mesh::Decision;
use crate::mesh::firewall::{Action, Rule};
use crate::wire::{DataHeader, NameHash, ServiceName};

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
            let now = solo.now();
            solo.mesh.set_firewall(vec![rule], now);
        }
        solo.sent();
        solo.events();
        let message = header.message(b"payload");
        let decision = solo.mesh.routes().decide(&header);
        let before = solo.mesh.counters();
        solo.packet(b, message);
        let (sent, counters) = (solo.sent(), solo.mesh.counters());
        match decision {
            Decision::Forward(session) => {
                let passed_on = DataHeader { hops: header.hops - 1, ..header }.message(b"payload");
                prop_assert_eq!(sent, [(session, passed_on)]);
            }
            Decision::Local => {
                prop_assert_eq!(header.to_node, node("a").hash());
                prop_assert_eq!(counters.expired + counters.blocked, before.expired + before.blocked);
            }
            Decision::Core => {
                let all = |c: crate::mesh::Counters| c.expired + c.blocked + c.no_route + c.unknown_name;
                prop_assert!(all(counters) > all(before), "the core must have had a reason");
            }
        }
    }
}
