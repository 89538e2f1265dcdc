//! Routing updates: which are news, where they are sent, and that their floods end.

use super::net::Net;
use super::solo::{Solo, as_update, kind, millis, node, secs, update};
use crate::mesh::{Event, LinkPolicy, Options};
use crate::wire::{MessageType, RoutingUpdate};

fn via(forwarder: &str, update: RoutingUpdate) -> RoutingUpdate {
    RoutingUpdate { forwarding_node: node(forwarder), ..update }
}

#[test]
fn news_goes_to_everybody_but_its_bringer_once() {
    let mut solo = Solo::new("a");
    let (b, c) = (solo.neighbour("b"), solo.neighbour("c"));
    let news = via("b", update("x", "xupdate1", 5, 1, &[("b", 1.0)]));
    solo.say(b, &news);
    let sent = solo.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].0, c);
    assert_eq!(as_update(&sent[0].1).unwrap(), via("a", news.clone()));
    solo.say(b, &news);
    solo.say(c, &via("c", news));
    assert_eq!(solo.sent(), [], "known by its ID");
}

#[test]
fn what_is_not_newer_is_ignored() {
    let mut solo = Solo::new("a");
    let (b, c) = (solo.neighbour("b"), solo.neighbour("c"));
    solo.say(b, &via("b", update("x", "newest__", 5, 7, &[("b", 1.0)])));
    solo.sent();
    for (id, epoch, sequence) in [("same_seq", 5, 7), ("lowerseq", 5, 6), ("oldepoch", 4, 99)] {
        solo.say(b, &via("b", update("x", id, epoch, sequence, &[("a", 1.0)])));
        assert_eq!(solo.updates_to(c), [], "{id}");
    }
    assert_eq!(solo.said("x"), ["b"]);
    solo.say(b, &via("b", update("x", "newepoch", 6, 1, &[("y", 1.0)])));
    assert_eq!(solo.sent().len(), 1);
    assert_eq!(solo.said("x"), ["y"]);
}

/// One of the two is forged. All nodes must believe the same one, in whichever order they come.
#[test]
fn of_two_updates_of_one_version_all_believe_the_same_one() {
    let [less, more] =
        [("lesser__", "b"), ("greater_", "c")].map(|(id, to)| via("b", update("x", id, 5, 7, &[(to, 1.0)])));
    for order in [[&less, &more], [&more, &less]] {
        let mut solo = Solo::new("a");
        let (b, c) = (solo.neighbour("b"), solo.neighbour("c"));
        order.iter().for_each(|said| solo.say(b, said));
        let last = solo.updates_to(c).pop().unwrap();
        assert_eq!(last, via("a", more.clone()));
        // Recognised as known by its links, it is not even parsed to its end.
        solo.say(b, &more);
        assert_eq!(solo.sent(), []);
    }
}

#[test]
fn a_node_that_has_started_anew_is_told_of_once() {
    let restarted = |solo: &mut Solo| {
        let events = solo.events();
        events
            .iter()
            .filter(|event| matches!(event, Event::NodeRestarted(who) if *who == node("x").hash()))
            .count()
    };
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    solo.events();
    let (run, next_run) = (5 << 24, 6 << 24);
    for (id, epoch, sequence, told) in [
        ("first___", run, 7, 0),
        ("later___", run, 8, 0),
        ("outdoing", run + 64, 1, 0),
        ("newepoch", next_run, 1, 1),
        ("again___", next_run, 2, 0),
        ("late____", run, 9, 0),
        ("outdoing", next_run + (1 << 20), 1, 0),
    ] {
        solo.say(b, &via("b", update("x", id, epoch, sequence, &[("b", 1.0)])));
        assert_eq!(restarted(&mut solo), told, "{id} {epoch}");
    }
    // Of two nodes with one ID, the later one keeps taking later epochs.
    let twin = 7 << 24;
    for (step, told) in [(0, 1), (64, 0), (128, 0)] {
        let epoch = twin + step;
        let id = format!("{step:08}");
        solo.say(b, &via("b", update("x", &id, epoch, 1, &[("b", 1.0)])));
        let first = update("x", &format!("n{step:07}"), next_run, 50 + step, &[("b", 1.0)]);
        solo.say(b, &via("b", RoutingUpdate { suspected_duplicate: epoch, ..first.clone() }));
        solo.say(b, &via("b", RoutingUpdate { sequence: 51 + step, ..first }));
        assert_eq!(restarted(&mut solo), told, "{step}");
    }
}

#[test]
fn a_link_that_one_end_no_longer_lists_is_gone() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    solo.say(b, &update("b", "b_and_x_", 1, 3, &[("a", 1.0), ("x", 1.0)]));
    solo.say(b, &via("b", update("x", "xupdate1", 5, 1, &[("b", 1.0)])));
    solo.advance(millis(500));
    assert_eq!(solo.mesh.status(solo.now()).routing_table[&node("x")], node("b"));
    solo.say(b, &update("b", "only_a__", 1, 4, &[("a", 1.0)]));
    solo.advance(millis(500));
    let status = solo.mesh.status(solo.now());
    assert!(!status.known_connection_costs["x"].contains_key("b"));
    assert!(!status.routing_table.contains_key("x"));
}

#[test]
fn a_link_that_one_end_does_not_list_yet_counts_once_it_does() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    solo.say(b, &via("b", update("x", "x_to_y__", 5, 2, &[("b", 1.0), ("y", 1.0)])));
    solo.say(b, &via("b", update("y", "y_alone_", 5, 1, &[])));
    assert!(!solo.mesh.status(solo.now()).known_connection_costs["x"].contains_key("y"));
    solo.say(b, &via("b", update("y", "y_to_x__", 5, 2, &[("x", 1.0)])));
    let known = solo.mesh.status(solo.now()).known_connection_costs;
    assert!(known["x"].contains_key("y") && known["y"].contains_key("x"), "{known:?}");
}

#[test]
fn hearing_of_a_new_node_is_answered_by_our_own_update() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    solo.say(b, &via("b", update("x", "xupdate1", 5, 1, &[])));
    solo.advance(millis(200));
    let own = solo.updates_to(b);
    assert!(matches!(&own[..], [own] if own.node_id == Some(node("a"))), "{own:?}");
    solo.say(b, &via("b", update("x", "xupdate2", 5, 2, &[])));
    solo.advance(millis(200));
    assert_eq!(solo.updates_to(b), []);
}

#[test]
fn own_updates_come_every_ten_seconds_with_rising_sequence() {
    let mut solo = Solo::with("a", Options { max_idle: secs(1_000), ..Options::default() });
    let b = solo.neighbour("b");
    let mut told = Vec::new();
    for _ in 0..1_000 {
        solo.advance(millis(100));
        let time = solo.time;
        told.extend(solo.updates_to(b).into_iter().map(|update| (time, update.sequence)));
    }
    assert!(told.len() >= 9);
    for pair in told.windows(2) {
        let apart = pair[1].0 - pair[0].0;
        assert!((secs(9)..=secs(10)).contains(&apart), "{apart:?}");
        assert!(pair[1].1 > pair[0].1);
    }
}

#[test]
fn a_new_neighbour_is_told_all_that_is_known() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    for name in ["x", "y", "z"] {
        solo.say(b, &via("b", update(name, &format!("{name}_update"), 5, 1, &[])));
    }
    let c = solo.open_with(LinkPolicy::default());
    solo.sent();
    solo.say(c, &update("c", "greeting", 1, 1, &[]));
    let told = solo.updates_to(c);
    assert!(told.iter().all(|update| update.forwarding_node == node("a")));
    let whose: Vec<String> = told.iter().map(|u| u.node_id.as_ref().unwrap().to_string()).collect();
    assert_eq!(whose, ["a", "b", "x", "y", "z"]);
}

#[test]
fn a_neighbour_that_came_back_is_told_of_its_own_past() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    let now = solo.now();
    solo.mesh.handle_session_closed(b, now);
    let again = solo.open_with(LinkPolicy::default());
    solo.sent();
    solo.say(again, &update("b", "reborn__", 0, 1, &[]));
    assert!(solo.updates_to(again).iter().any(|u| u.node_id == Some(node("b")) && u.epoch == 1));
}

#[test]
fn nodes_beyond_the_bound_are_counted_and_not_passed_on() {
    let mut solo = Solo::with("a", Options { max_nodes: 3, ..Options::default() });
    let (b, _c) = (solo.neighbour("b"), solo.neighbour("c"));
    for name in ["x", "y", "z"] {
        solo.say(b, &via("b", update(name, &format!("{name}_update"), 5, 1, &[])));
    }
    assert_eq!(solo.mesh.counters().no_room, 2);
    assert_eq!(solo.sent().len(), 1);
}

#[test]
fn floods_in_a_ring_stop() {
    let names = ["a", "b", "c", "d", "e"];
    let ring = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a")];
    let mut net = Net::of(&names, &ring);
    net.run(secs(10));
    for name in names {
        assert_eq!(net.routes(name).len(), 4);
    }
    net.log.clear();
    net.run(secs(60));
    // meshd nodes announce themselves once a minute. An update starts on both links of its node, and each other
    // node passes it on over one.
    let updates = net.log.iter().filter(|sent| kind(&sent.message) == MessageType::RoutingUpdate);
    let most = 2 * 5 * (2 + 4);
    let count = updates.count();
    assert!((1..=most).contains(&count), "{count} of at most {most}");
    for sent in &net.log {
        let Some(update) = as_update(&sent.message) else { continue };
        assert_eq!(update.forwarding_node.as_str(), sent.from);
    }
}

#[test]
fn a_broken_ring_is_walked_the_other_way_round() {
    let mut net = Net::of(&["a", "b", "c"], &[("b", "c"), ("c", "a")]);
    let link = net.join("a", "b");
    net.run(secs(1));
    assert_eq!(net.routes("a")["b"], "b");
    net.part(link);
    net.run(secs(1));
    assert_eq!(net.routes("a")["b"], "c");
    assert_eq!(net.routes("b")["a"], "c");
}

#[test]
fn a_link_that_one_end_denied_and_lists_again_is_back_at_once() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    solo.say(b, &via("b", update("x", "x_to_y__", 5, 1, &[("b", 1.0), ("y", 2.0)])));
    solo.say(b, &via("b", update("y", "y_to_x__", 5, 1, &[("x", 2.0)])));
    solo.say(b, &via("b", update("x", "x_denies", 5, 2, &[("b", 1.0)])));
    assert!(!solo.mesh.status(solo.now()).known_connection_costs["y"].contains_key("x"));
    solo.say(b, &via("b", update("x", "x_again_", 5, 3, &[("b", 1.0), ("y", 2.0)])));
    let known = solo.mesh.status(solo.now()).known_connection_costs;
    assert!(known["y"].contains_key("x"), "y has said nothing else: {known:?}");
}
