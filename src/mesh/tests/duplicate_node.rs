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

/// What a node that was here first under our ID says of us.
fn notice(epoch: u64, sequence: u64) -> RoutingUpdate {
    let notice = update("a", &format!("n{sequence:07}"), epoch, sequence, &[]);
    via("b", RoutingUpdate { suspected_duplicate: EPOCH, ..notice })
}

/// Updates in our own name that went out to `b`, whose probes are answered as a receptor node does it.
fn own_updates(solo: &mut Solo) -> usize {
    let updates = solo.sent().into_iter().filter_map(|(_, message)| as_update(&message));
    updates.filter(|update| update.node_id == Some(node("a")) && update.epoch == EPOCH).count()
}

fn stops(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::WeAreDuplicate))
}

#[test]
fn we_stop_when_an_older_one_goes_on_naming_our_epoch() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    let mut end = None;
    for sequence in 1..=60 {
        solo.advance(secs(1));
        // It answers what it hears, as nodes of both kinds do.
        if own_updates(&mut solo) > 0 {
            solo.say(b, &notice(EPOCH - 1, sequence));
        }
        if end.is_none() && stops(&solo.events()) {
            end = Some(sequence);
        }
        solo.say(b, &via("b", update("b", &format!("b{sequence:07}"), 1, 100 + sequence, &[("a", 1.0)])));
    }
    assert!(matches!(end, Some(25..=60)), "after {end:?} s");
}

#[test]
fn ten_thousand_notices_within_twenty_seconds_end_nothing() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    let mut warnings = 0;
    for i in 1..=10_000 {
        // Some from one epoch, some from another one each time.
        let epoch = if i % 2 == 0 { 1 } else { EPOCH - i };
        solo.say(b, &notice(epoch, i));
        solo.advance(millis(2));
        let events = solo.events();
        assert!(!stops(&events));
        warnings += events.iter().filter(|event| matches!(event, Event::Suspected { .. })).count();
    }
    assert_eq!(warnings, 1, "once a minute");
    solo.say(b, &via("b", update("b", "b_lives_", 1, 100, &[("a", 1.0)])));
    solo.sent();
    solo.advance(secs(10));
    assert_eq!(own_updates(&mut solo), 1, "it goes on under its epoch");
    solo.advance(secs(9));
    assert!(!stops(&solo.events()));
}

#[test]
fn what_is_only_repeated_or_said_at_once_is_no_persistence() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    for second in 0..120 {
        // A recorded notice, and all the notices of a minute together.
        solo.say(b, &notice(EPOCH - 1, 7));
        if second % 61 == 0 {
            (8..20).for_each(|sequence| solo.say(b, &notice(EPOCH - 1, second * 100 + sequence)));
        }
        solo.say(b, &via("b", update("b", &format!("b{second:07}"), 1, 100 + second, &[("a", 1.0)])));
        solo.advance(secs(1));
        assert!(!stops(&solo.events()), "after {second} s");
    }
}

#[test]
fn a_made_up_notice_does_not_keep_its_victim_from_being_believed() {
    let mut solo = Solo::new("a");
    let (b, c) = (solo.neighbour("b"), solo.neighbour("c"));
    solo.say(b, &via("b", update("x", "genuine1", 9, 50, &[])));
    solo.say(c, &via("c", RoutingUpdate { suspected_duplicate: 9, ..update("x", "made_up_", 1, 9, &[]) }));
    for sequence in 51..=55 {
        solo.advance(secs(10));
        solo.say(b, &via("b", update("x", &format!("gen{sequence:05}"), 9, sequence, &[("b", 1.0)])));
        solo.say(c, &via("c", update("c", &format!("c{sequence:07}"), 1, sequence, &[("a", 1.0)])));
    }
    let known = &solo.mesh.status(solo.now()).known_connection_costs;
    assert!(known[&node("x")].contains_key("b"), "{known:?}");
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
        net.run(secs(60));
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
