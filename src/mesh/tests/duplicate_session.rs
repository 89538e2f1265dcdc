//! Two sessions between the same two nodes: which one stays.

use super::net::Net;
use super::solo::{Solo, as_data, kind, millis, node, secs, update};
use crate::mesh::{CloseReason, LinkPolicy, SessionId};
use crate::wire::{DataHeader, MAX_HOPS, MessageType, REJECT, ServiceName};

/// A second session with `b`, which has one with us already.
fn contested(solo: &mut Solo) -> (SessionId, SessionId) {
    let old = solo.neighbour("b");
    let new = solo.open_with(LinkPolicy::default());
    solo.sent();
    solo.say(new, &update("b", "again___", 1, 9, &[]));
    (old, new)
}

fn data_from_b() -> bytes::Bytes {
    let header = DataHeader {
        hops: MAX_HOPS,
        from_node: node("b").hash(),
        to_node: node("a").hash(),
        from_service: ServiceName::PING,
        to_service: ServiceName::from_wire(*b"\x01probe\0\0"),
    };
    header.message(&[])
}

#[test]
fn a_living_neighbours_second_session_is_rejected() {
    let mut solo = Solo::new("a");
    let (old, new) = contested(&mut solo);
    let probe = solo.sent_to(old);
    assert_eq!(as_data(&probe[0]).unwrap().to_service, ServiceName::PING);
    solo.packet(old, data_from_b());
    assert_eq!(solo.closed(), [(new, CloseReason::AlreadyConnected(node("b")))]);
    assert_eq!(solo.sent_to(new), [REJECT]);
    solo.advance(secs(10));
    assert_eq!(solo.closed(), [], "the living one stays");
}

#[test]
fn a_dead_neighbours_second_session_takes_over_without_another_word() {
    for (own, patience) in [("a", secs(4)), ("c", secs(2))] {
        let mut solo = Solo::new(own);
        let (old, new) = contested(&mut solo);
        solo.advance(patience - millis(1));
        assert_eq!(solo.closed(), []);
        solo.sent();
        solo.advance(millis(1));
        assert_eq!(solo.closed(), [(old, CloseReason::Superseded)]);
        assert!(solo.updates_to(new)[0].connections.contains_key("b"));
    }
}

#[test]
fn a_rival_takes_over_at_once_when_the_other_session_ends() {
    let mut solo = Solo::new("a");
    let (old, new) = contested(&mut solo);
    solo.packet(old, bytes::Bytes::from_static(REJECT));
    assert_eq!(solo.closed(), [(old, CloseReason::RejectedByPeer)]);
    assert!(!solo.updates_to(new).is_empty());
    solo.advance(secs(1));
    assert_eq!(solo.mesh.status(solo.now()).routing_table.len(), 1);
}

#[test]
fn a_session_survives_the_end_of_its_rival() {
    let mut solo = Solo::new("a");
    let (_old, new) = contested(&mut solo);
    let now = solo.now();
    solo.mesh.handle_session_closed(new, now);
    solo.events();
    solo.advance(secs(10));
    assert_eq!(solo.closed(), []);
}

#[test]
fn greetings_are_no_sign_that_the_other_end_is_established() {
    let mut solo = Solo::new("a");
    let (old, new) = contested(&mut solo);
    solo.say(old, &update("b", "greets_o", 1, 10, &[("a", 1.0)]));
    assert_eq!(solo.closed(), []);
    assert_ne!(old, new);
}

/// Two nodes dial each other at the same moment, and each hears the other first on a different session.
#[test]
fn crossing_sessions_leave_one() {
    let mut net = Net::default();
    net.add("a", 1);
    net.add("b", 2);
    let first = net.join("a", "b");
    let second = net.join("a", "b");
    let (now, hello) = (net.now(), |of| update(of, "hello___", 1, 1, &[]).message().unwrap());
    net.mesh("a").handle_packet(first, hello("b"), now);
    net.mesh("b").handle_packet(second, hello("a"), now);
    net.run(secs(3));
    for (node, peer) in [("a", "b"), ("b", "a")] {
        assert_eq!(net.routes(node).get(peer).map(String::as_str), Some(peer));
    }
    net.log.clear();
    net.run(secs(60));
    let rejects = net.log.iter().filter(|sent| kind(&sent.message) == MessageType::Reject).count();
    assert_eq!(rejects, 0);
    let updates = net.log.iter().filter(|sent| kind(&sent.message) == MessageType::RoutingUpdate).count();
    assert!((2..=5).contains(&updates), "two nodes, once a minute: {updates}");
}
