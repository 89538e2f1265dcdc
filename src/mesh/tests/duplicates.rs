//! Two nodes with one ID, and one node that came back with its clock set back.

use super::net::Net;
use super::solo::{EPOCH, Solo, as_update, millis, node, secs, update};
use crate::mesh::Event;
use crate::wire::RoutingUpdate;

fn via(forwarder: &str, update: RoutingUpdate) -> RoutingUpdate {
    RoutingUpdate { forwarding_node: node(forwarder), ..update }
}

fn notices(solo: &mut Solo) -> Vec<u64> {
    let updates = solo.sent().into_iter().filter_map(|(_, message)| as_update(&message));
    updates.map(|update| update.suspected_duplicate).filter(|&suspect| suspect != 0).collect()
}

#[test]
fn a_newer_node_with_our_id_is_told_once_a_second() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    for i in 0..5 {
        solo.say(b, &via("b", update("a", &format!("twin{i:04}"), EPOCH + 1, i, &[])));
    }
    solo.advance(millis(1));
    assert_eq!(notices(&mut solo), [EPOCH + 1]);
    assert!(matches!(&solo.events()[..], [Event::DuplicateNode { epoch }] if *epoch == EPOCH + 1));
    // Whoever hears the next one believes it: it is answered as well, in good time.
    solo.say(b, &via("b", update("a", "twin9999", EPOCH + 1, 99, &[])));
    solo.advance(millis(900));
    assert_eq!(notices(&mut solo), [] as [u64; 0]);
    solo.advance(millis(100));
    assert_eq!(notices(&mut solo), [EPOCH + 1]);
    solo.advance(secs(5));
    assert_eq!(notices(&mut solo), [] as [u64; 0]);
}

#[test]
fn an_older_node_with_our_id_and_our_own_echo_are_let_alone() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    solo.say(b, &via("b", update("a", "twin_old", EPOCH - 1, 1, &[])));
    solo.say(b, &via("b", update("a", "own_echo", EPOCH, 1, &[])));
    assert_eq!(solo.sent(), []);
    assert!(solo.events().is_empty());
}

#[test]
fn we_stop_when_the_older_one_names_our_epoch() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    let told = RoutingUpdate { suspected_duplicate: EPOCH, ..update("a", "notice__", EPOCH - 1, 9, &[]) };
    solo.say(b, &via("b", told));
    assert!(matches!(&solo.events()[..], [Event::WeAreDuplicate]));
}

#[test]
fn whoever_believed_in_the_newer_one_is_set_right_and_passes_it_on() {
    let mut solo = Solo::new("a");
    let (b, c) = (solo.neighbour("b"), solo.neighbour("c"));
    solo.say(b, &via("b", update("x", "twin____", 9, 50, &[])));
    let notice = RoutingUpdate { suspected_duplicate: 9, ..update("x", "notice__", 5, 3, &[]) };
    solo.sent();
    solo.say(b, &via("b", notice));
    let sent = solo.sent();
    assert!(matches!(&sent[..], [(to, _)] if *to == c), "{sent:?}");
    solo.say(b, &via("b", update("x", "older_ok", 5, 4, &[("b", 1.0)])));
    assert_eq!(solo.sent().len(), 1, "epoch 5 is believed again");
    solo.say(b, &via("b", update("x", "twinlate", 9, 51, &[("c", 1.0)])));
    assert_eq!(solo.sent().len(), 1, "the owner of the name must hear of it");
    let known = &solo.mesh.status(solo.now()).known_connection_costs["x"];
    assert!(known.contains_key("b") && !known.contains_key("c"), "but nobody believes it: {known:?}");
}

/// A twin joins far from the node that was here first.
#[test]
fn of_two_nodes_with_one_id_the_newer_one_is_told_to_stop() {
    for (first, second, stops) in [(EPOCH, EPOCH + 1, "twin"), (EPOCH + 1, EPOCH, "x")] {
        let mut net = Net::of(&["a", "b", "c"], &[("a", "b"), ("b", "c")]);
        net.add("x", first);
        net.join("x", "a");
        net.run(secs(2));
        // The twin lives under another name here, and calls itself x.
        net.add("twin", second);
        let now = net.now();
        let rng = rand::SeedableRng::seed_from_u64(500);
        let twin = crate::mesh::Mesh::new(node("x"), second, Default::default(), rng, now);
        net.nodes.insert("twin".into(), twin);
        net.join("twin", "c");
        net.run(secs(2));
        let told = |(at, event): &(String, Event)| at == stops && matches!(event, Event::WeAreDuplicate);
        assert!(net.events.iter().any(told), "{stops}");
        let other = |(at, event): &(String, Event)| at != stops && matches!(event, Event::WeAreDuplicate);
        assert!(!net.events.iter().any(other));
    }
}

#[test]
fn a_node_that_restarts_with_its_clock_set_back_is_believed_again() {
    let mut net = Net::of(&["a", "b", "c"], &[("a", "b"), ("b", "c"), ("c", "a")]);
    net.add("x", EPOCH);
    net.join("x", "a");
    net.run(secs(15));
    assert_eq!(net.routes("c")["x"], "a");
    net.remove("x");
    net.run(secs(5));
    net.add("x", EPOCH - 1_000);
    net.join("x", "b");
    net.run(secs(2));
    for (at, hop) in [("a", "b"), ("b", "x"), ("c", "b")] {
        assert_eq!(net.routes(at).get("x").map(String::as_str), Some(hop), "{at}");
        let now = net.now();
        let links = &net.mesh(at).status(now).known_connection_costs["x"];
        assert_eq!(links.keys().map(|to| to.as_str()).collect::<Vec<_>>(), ["b"], "{at}");
    }
}
