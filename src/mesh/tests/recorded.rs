//! The recorded session of a Go node, replayed against our node under its name: our node must answer the same,
//! byte for byte.

use bytes::Bytes;
use serde_json::Value;

use super::solo::{Solo, node, service, update};
use crate::mesh::firewall::{Action, Pattern, Rule};
use crate::mesh::{CloseReason, LinkPolicy, LocalService, SessionId};
use crate::wire::{ConnType, Cost, REJECT, RoutingUpdate, WorkCommand};

fn recorded() -> Value {
    serde_json::from_str(include_str!("../../../tests/vectors/tcp-session.json")).unwrap()
}

fn bytes(hex: &Value) -> Bytes {
    let hex = hex.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// Our node in the recorded node's place, after `peer` has introduced itself and sent its recorded updates, its own
/// and those of nodes beyond it.
fn replayed(recorded: &Value) -> (Solo, SessionId) {
    let name = recorded["node"].as_str().unwrap();
    let mut solo = Solo::new(name);
    let cost = Cost::new(recorded["listener_cost"].as_f64().unwrap()).unwrap();
    let session = solo.open_with(LinkPolicy { cost, ..LinkPolicy::default() });
    solo.say(session, &update("peer", "greeting", 1, 1, &[]));
    let known = recorded["status_with_peer"]["KnownConnectionCosts"].as_object().unwrap();
    for (i, (from, links)) in known.iter().filter(|(from, _)| *from != name).enumerate() {
        let links = links.as_object().unwrap();
        let links: Vec<(&str, f64)> =
            links.iter().map(|(to, c)| (to.as_str(), c.as_f64().unwrap())).collect();
        let told =
            RoutingUpdate { forwarding_node: node("peer"), ..update(from, &format!("{i:08}"), 1, 2, &links) };
        solo.say(session, &told);
    }
    solo.advance(super::solo::millis(500));
    assert!(solo.closed().is_empty());
    solo.sent();
    (solo, session)
}

#[test]
fn every_recorded_exchange_is_answered_as_recorded() {
    let recorded = recorded();
    let (mut solo, session) = replayed(&recorded);
    let blocked = Some(Pattern::Exact("blocked".into()));
    let rule = Rule {
        action: Action::Reject,
        from_node: None,
        to_node: None,
        from_service: None,
        to_service: blocked,
    };
    solo.mesh.set_firewall(vec![rule]);
    let exchanges = recorded["exchanges"].as_array().unwrap();
    assert!(exchanges.len() >= 5);
    for exchange in exchanges {
        solo.packet(session, bytes(&exchange["sent"]));
        let expected: Vec<Bytes> = exchange["received"].as_array().unwrap().iter().map(bytes).collect();
        assert_eq!(solo.sent_to(session), expected, "{}", exchange["what"]);
    }
}

#[test]
fn pings_leave_as_recorded() {
    let recorded = recorded();
    let (mut solo, session) = replayed(&recorded);
    let pings = recorded["ping_requests"].as_array().unwrap();
    assert!(!pings.is_empty());
    for ping in pings {
        let (to, from) = (ping["to"].as_str().unwrap(), ping["from_service"].as_str().unwrap());
        let now = solo.now();
        solo.mesh.send(service(from), &node(to), crate::wire::ServiceName::PING, &[], 30, now).unwrap();
        assert_eq!(solo.sent_to(session), [bytes(&ping["frame"])]);
    }
}

#[test]
fn another_cost_ends_the_session_as_recorded() {
    let recorded = recorded();
    assert_eq!(recorded["reject_on_cost_mismatch"], serde_json::json!(["closed"]));
    let (mut solo, session) = replayed(&recorded);
    solo.say(session, &update("peer", "cheaper_", 1, 9, &[("go-node", 1.0)]));
    assert!(matches!(&solo.closed()[..], [(_, CloseReason::CostDisagreement { .. })]));
    assert_eq!(solo.sent_to(session), [REJECT]);
}

#[test]
fn the_status_is_the_recorded_one() {
    let recorded = recorded();
    let (mut solo, _session) = replayed(&recorded);
    let now = solo.now();
    let offer = |conn_type, tags: &[(&str, &str)]| LocalService {
        conn_type,
        tags: tags.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect(),
    };
    let udp = offer(ConnType::DATAGRAM, &[("type", "UDP Proxy"), ("address", "127.0.0.1:9")]);
    solo.mesh.advertise(service("udpsvc"), udp, now);
    let control = offer(ConnType::STREAM, &[("type", "Control Service")]);
    solo.mesh.advertise(service("control"), control, now);
    let echo = WorkCommand { work_type: "echo".into(), secure: false };
    solo.mesh.set_work_commands(vec![echo], now);

    let (status, expected) = (solo.mesh.status(now), &recorded["status_with_peer"]);
    // Maps of costs and names print as in the recording.
    assert_eq!(serde_json::to_value(&status.known_connection_costs).unwrap(), costs(expected));
    assert_eq!(serde_json::to_value(&status.routing_table).unwrap(), expected["RoutingTable"]);
    let connections = expected["Connections"].as_array().unwrap();
    assert_eq!(status.connections.len(), connections.len());
    assert_eq!(status.connections["peer"].get(), connections[0]["Cost"].as_f64().unwrap());
    let services: Vec<String> = status.advertisements.iter().map(|ad| ad.service.to_text()).collect();
    assert_eq!(services, ["control", "udpsvc"], "the control service comes first");
    assert!(status.advertisements[0].work_commands.is_some());
}

fn costs(expected: &Value) -> Value {
    expected["KnownConnectionCosts"].clone()
}
