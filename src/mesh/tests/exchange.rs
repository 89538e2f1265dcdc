//! New and slow neighbours get everything, in pieces for which their links have room.

use bytes::Bytes;

use super::services::ad;
use super::solo::{Solo, as_advert, as_update, node, update};
use crate::mesh::{Event, LinkPolicy, SessionId};
use crate::wire::RoutingUpdate;
use crate::wire::advertisement::AdvertisementMessage;

const NODES: usize = 300;

/// A node that has heard of many others through `b`, with their services.
fn knowing() -> (Solo, SessionId) {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    (0..NODES).for_each(|i| tell(&mut solo, b, &format!("node-{i:03}")));
    solo.sent();
    (solo, b)
}

fn tell(solo: &mut Solo, b: SessionId, of: &str) {
    let said = update(of, &format!("{of:.8}"), 1, 1, &[("b", 1.0)]);
    solo.say(b, &RoutingUpdate { forwarding_node: node("b"), ..said });
    solo.packet(b, ad(of, "svc", 1, false));
}

/// A new neighbour whose link has no room yet.
fn newcomer(solo: &mut Solo) -> SessionId {
    let c = solo.open_with(LinkPolicy::default());
    solo.say(c, &update("c", "hello___", 1, 1, &[]));
    solo.say(c, &update("c", "listed__", 1, 2, &[("a", 1.0)]));
    while solo.mesh.poll_transmit().is_some() {}
    c
}

fn sent_now(solo: &mut Solo) -> Vec<Bytes> {
    std::iter::from_fn(|| solo.mesh.poll_transmit()).map(|transmit| transmit.message).collect()
}

/// Everything that a session sends, in pieces of `bytes` each.
fn pieces(solo: &mut Solo, session: SessionId, bytes: usize) -> Vec<Vec<Bytes>> {
    let now = solo.now();
    let mut pieces = Vec::new();
    while solo.mesh.is_behind(session) {
        solo.mesh.handle_room(session, bytes, now);
        pieces.push(sent_now(solo));
    }
    pieces
}

fn nodes_told(messages: &[Bytes]) -> Vec<String> {
    let updates = messages.iter().filter_map(as_update);
    updates
        .map(|update| update.node_id.unwrap().to_string())
        .filter(|name| name.starts_with("node-"))
        .collect()
}

fn services_told(messages: &[Bytes]) -> usize {
    messages.iter().filter_map(as_advert).filter(|AdvertisementMessage { cancel, .. }| !cancel).count()
}

#[test]
fn a_link_with_little_room_is_told_everything_in_pieces() {
    let (mut solo, _) = knowing();
    let c = newcomer(&mut solo);
    let behind = |event: &Event| matches!(event, Event::Behind { session } if *session == c);
    assert_eq!(std::iter::from_fn(|| solo.mesh.poll_event()).filter(behind).count(), 1, "asked for once");
    let pieces = pieces(&mut solo, c, 4_000);
    assert!(pieces.len() > 20, "{} pieces", pieces.len());
    for piece in &pieces {
        let bytes: usize = piece.iter().map(Bytes::len).sum();
        assert!(bytes < 5_000, "{bytes} bytes where there was room for 4,000");
    }
    let all = pieces.concat();
    assert_eq!(nodes_told(&all), (0..NODES).map(|i| format!("node-{i:03}")).collect::<Vec<_>>());
    assert_eq!(services_told(&all), NODES);
}

#[test]
fn what_found_no_room_is_told_once_more() {
    let (mut solo, b) = knowing();
    let c = newcomer(&mut solo);
    pieces(&mut solo, c, usize::MAX);
    assert!(!solo.mesh.is_behind(c));
    tell(&mut solo, b, "node-late");
    solo.mesh.handle_no_room(c);
    sent_now(&mut solo);
    let all = pieces(&mut solo, c, 4_000).concat();
    assert!(nodes_told(&all).contains(&"node-late".to_owned()));
    assert_eq!(services_told(&all), NODES + 1);
}

#[test]
fn who_goes_on_missing_something_still_hears_of_everybody() {
    let (mut solo, _) = knowing();
    let c = newcomer(&mut solo);
    let now = solo.now();
    let mut told = Vec::new();
    for _ in 0..200 {
        solo.mesh.handle_no_room(c);
        solo.mesh.handle_room(c, 4_000, now);
        told.extend(sent_now(&mut solo));
    }
    assert!(nodes_told(&told).contains(&format!("node-{:03}", NODES - 1)));
    assert!(services_told(&told) >= NODES);
}

#[test]
fn an_update_id_of_more_than_64_bytes_is_malformed() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    for (len, known) in [(65, false), (64, true)] {
        let said = update("x", &"i".repeat(len), 1, 1, &[]);
        solo.say(b, &RoutingUpdate { forwarding_node: node("b"), ..said });
        assert_eq!(
            solo.mesh.status(solo.now()).known_connection_costs.contains_key(&node("x")),
            known,
            "{len}"
        );
        let malformed = solo.events().iter().any(|event| matches!(event, Event::Malformed { .. }));
        assert_eq!(malformed, !known, "{len}");
    }
}
