//! Introductions, and the reasons for which sessions end.

use std::collections::{BTreeMap, BTreeSet};

use super::solo::{Solo, as_data, as_update, millis, node, secs, update};
use crate::mesh::{CloseReason, Event, LinkPolicy, SessionId};
use crate::wire::{Cost, REJECT, RoutingUpdate};

#[test]
fn greets_at_once_and_every_second_and_gives_up_after_more_than_ten() {
    let mut solo = Solo::new("a");
    let session = solo.open_with(LinkPolicy::default());
    assert_eq!(solo.updates_to(session).len(), 1);
    for _ in 0..10 {
        solo.advance(secs(1));
        let greetings = solo.updates_to(session);
        assert_eq!(greetings.len(), 1);
        assert!(greetings[0].connections.is_empty());
    }
    assert_eq!(solo.closed(), []);
    solo.advance(secs(1));
    assert_eq!(solo.closed(), [(session, CloseReason::NoIntroduction)]);
    assert_eq!(solo.sent(), [], "there is nobody to reject");
}

/// A peer that connects and says nothing learns this node's name, but not its links.
#[test]
fn who_has_not_introduced_itself_is_told_of_no_links() {
    let mut solo = Solo::new("a");
    let _neighbours = ["b", "c"].map(|peer| solo.neighbour(peer));
    let stranger = solo.open_with(LinkPolicy::default());
    solo.advance(secs(10));
    let greetings = solo.updates_to(stranger);
    assert_eq!(greetings.len(), 11);
    assert!(greetings.iter().all(|greeting| greeting.connections.is_empty()), "{greetings:?}");
    solo.say(stranger, &update("d", "greeting", 1, 1, &[]));
    assert_eq!(solo.updates_to(stranger)[0].connections.len(), 3);
}

#[test]
fn answers_an_introduction_by_listing_the_peer() {
    let mut solo = Solo::new("a");
    let session = solo.open_with(LinkPolicy::default());
    solo.sent();
    solo.say(session, &update("b", "greeting", 1, 1, &[]));
    let told = solo.updates_to(session);
    assert_eq!(*told[0].connections, BTreeMap::from([(node("b"), Cost::DEFAULT)]));
    assert!(matches!(&solo.events()[..], [Event::SessionUp { peer, .. }] if *peer == node("b")));
    solo.advance(secs(3));
    assert_eq!(
        solo.updates_to(session),
        [],
        "its only neighbour knows of the new link, and is greeted no more"
    );
}

/// A receptor node that is linked to another node of our name lists that name from its first update on, and then
/// refuses us.
#[test]
fn who_lists_us_before_it_has_heard_us_has_not_let_us_in() {
    let first_words = || {
        let mut solo = Solo::new("a");
        let session = solo.open_with(LinkPolicy::default());
        solo.say(session, &update("b", "first___", 1, 1, &[("a", 1.0)]));
        assert!(solo.mesh.sessions.established(session).is_some() && !solo.mesh.is_let_in(session));
        (solo, session)
    };
    let (mut solo, session) = first_words();
    solo.say(session, &update("b", "second__", 1, 2, &[("a", 1.0)]));
    assert!(solo.mesh.is_let_in(session), "it says so again");
    let (mut solo, session) = first_words();
    let flooded = RoutingUpdate { forwarding_node: node("b"), ..update("c", "of_c____", 1, 1, &[]) };
    solo.say(session, &flooded);
    assert!(solo.mesh.is_let_in(session), "it floods over the session");
}

fn rejected(policy: LinkPolicy, says: &[RoutingUpdate]) -> CloseReason {
    let mut solo = Solo::new("a");
    let session = solo.open_with(policy);
    for update in says {
        assert_eq!(solo.closed(), [], "too early");
        solo.sent();
        solo.say(session, update);
    }
    let mut closed = solo.closed();
    assert_eq!(closed.len(), 1);
    let (which, reason) = closed.remove(0);
    assert_eq!((which, reason.rejects()), (session, true));
    assert_eq!(solo.sent_to(session).last().unwrap(), REJECT);
    reason
}

#[test]
fn our_own_id_is_rejected() {
    let reason = rejected(LinkPolicy::default(), &[update("a", "greeting", 1, 1, &[])]);
    assert_eq!(reason, CloseReason::OwnId);
}

#[test]
fn a_peer_that_is_not_allowed_is_rejected() {
    let policy = LinkPolicy { allowed_peers: Some(BTreeSet::from([node("c")])), ..LinkPolicy::default() };
    let reason = rejected(policy, &[update("b", "greeting", 1, 1, &[])]);
    assert_eq!(reason, CloseReason::NotAllowed(node("b")));
}

#[test]
fn a_peer_whose_certificate_is_for_others_is_rejected() {
    let certified = vec!["c".to_owned(), "d".to_owned()];
    let policy = LinkPolicy { certified: Some(certified.clone()), ..LinkPolicy::default() };
    let reason = rejected(policy.clone(), &[update("b", "greeting", 1, 1, &[])]);
    assert_eq!(reason, CloseReason::NotCertified { claimed: node("b"), certified });
    assert!(reason.to_string().starts_with("it calls itself b, but its certificate names c, d"));
    let mut solo = Solo::new("a");
    let session = solo.open_with(policy);
    solo.say(session, &update("c", "greeting", 1, 1, &[]));
    assert_eq!(solo.closed(), []);
}

#[test]
fn another_cost_is_rejected() {
    let says = [update("b", "greeting", 1, 1, &[]), update("b", "costs__2", 1, 2, &[("a", 2.0)])];
    let reason = rejected(LinkPolicy::default(), &says);
    let (ours, theirs) = (Cost::DEFAULT, Cost::new(2.0).unwrap());
    assert_eq!(reason, CloseReason::CostDisagreement { ours, theirs });
}

#[test]
fn a_peer_that_no_longer_lists_us_is_rejected() {
    let says = [
        update("b", "greeting", 1, 1, &[]),
        update("b", "lists_us", 1, 2, &[("a", 1.0)]),
        update("b", "not_now_", 1, 3, &[]),
    ];
    assert_eq!(rejected(LinkPolicy::default(), &says), CloseReason::NoLongerListsUs);
}

#[test]
fn a_peer_that_restarted_on_the_same_link_is_rejected() {
    for epoch in [1, 3] {
        let says = [
            update("b", "greeting", 2, 1, &[]),
            update("b", "lists_us", 2, 2, &[("a", 1.0)]),
            update("b", "newlife_", epoch, 1, &[]),
        ];
        assert_eq!(rejected(LinkPolicy::default(), &says), CloseReason::NoLongerListsUs);
    }
}

#[test]
fn a_peer_that_changes_its_name_is_rejected() {
    let says = [update("b", "greeting", 1, 1, &[]), update("c", "changed_", 1, 2, &[])];
    let reason = rejected(LinkPolicy::default(), &says);
    assert_eq!(reason, CloseReason::PeerChanged { from: node("b"), to: node("c") });
}

#[test]
fn a_greeting_that_was_overtaken_does_no_harm() {
    let mut solo = Solo::new("a");
    let session = solo.open_with(LinkPolicy::default());
    solo.say(session, &update("b", "greeting", 1, 2, &[]));
    solo.say(session, &update("b", "lists_us", 1, 3, &[("a", 1.0)]));
    solo.sent();
    solo.say(session, &update("b", "first___", 1, 1, &[]));
    assert_eq!(solo.closed(), []);
    assert_eq!(solo.sent(), []);
}

#[test]
fn a_late_greeting_is_answered_but_not_processed() {
    let mut solo = Solo::new("a");
    let other = solo.neighbour("c");
    let session = solo.open_with(LinkPolicy::default());
    solo.say(session, &update("b", "greeting", 1, 1, &[]));
    solo.advance(secs(1));
    solo.sent();
    solo.say(session, &update("b", "greets_2", 1, 2, &[]));
    let sent = solo.sent();
    assert_eq!(sent.iter().filter(|(to, _)| *to == other).count(), 0, "nothing is passed on");
    let answer: Vec<_> = sent.iter().filter_map(|(_, message)| as_update(message)).collect();
    assert!(matches!(&answer[..], [own] if own.connections.contains_key("b")), "{answer:?}");
}

#[test]
fn the_cost_of_a_link_may_depend_on_the_peer() {
    let dear = Cost::new(7.0).unwrap();
    let policy = LinkPolicy { node_cost: BTreeMap::from([(node("b"), dear)]), ..LinkPolicy::default() };
    for (peer, cost) in [("b", dear), ("c", Cost::DEFAULT)] {
        let mut solo = Solo::new("a");
        let session = solo.open_with(policy.clone());
        solo.say(session, &update(peer, "greeting", 1, 1, &[]));
        assert_eq!(solo.mesh.status(solo.now()).connections[peer], cost);
    }
}

#[test]
fn a_reject_ends_the_session_without_an_answer() {
    for introduced in [false, true] {
        let mut solo = Solo::new("a");
        let session = if introduced { solo.neighbour("b") } else { solo.open_with(LinkPolicy::default()) };
        solo.sent();
        solo.packet(session, bytes::Bytes::from_static(REJECT));
        assert_eq!(solo.closed(), [(session, CloseReason::RejectedByPeer)]);
        assert_eq!(solo.sent(), []);
    }
}

#[test]
fn silence_of_21_seconds_ends_a_session_and_activity_prolongs_it() {
    let mut solo = Solo::new("a");
    let session = solo.neighbour("b");
    solo.advance(secs(15));
    let now = solo.now();
    solo.mesh.handle_activity(session, now.tick);
    solo.advance(secs(20));
    assert_eq!(solo.closed(), []);
    assert!(solo.mesh.status(solo.now()).connections.contains_key("b"));
    solo.advance(secs(1));
    assert_eq!(solo.closed(), [(session, CloseReason::Idle(secs(21)))]);
    solo.advance(secs(1));
    assert!(solo.mesh.status(solo.now()).routing_table.is_empty());
}

#[test]
fn a_silent_peer_is_asked_whether_it_lives() {
    let mut solo = Solo::new("a");
    let session = solo.neighbour("b");
    solo.advance(millis(9_900));
    assert!(solo.sent_to(session).iter().all(|message| as_data(message).is_none()));
    solo.advance(millis(10_500));
    let probes = solo.sent_to(session).iter().filter_map(as_data).count();
    assert_eq!(probes, 10, "each second after half the time that it may be silent");
    let now = solo.now();
    solo.mesh.handle_activity(session, now.tick);
    solo.advance(secs(10));
    assert!(solo.sent_to(session).iter().all(|message| as_data(message).is_none()));
    assert_eq!(solo.closed(), []);
}

#[test]
fn a_late_end_of_an_old_session_does_not_touch_a_newer_one() {
    let mut solo = Solo::new("a");
    let old = solo.neighbour("b");
    let now = solo.now();
    solo.mesh.handle_session_closed(old, now);
    let new = solo.neighbour("b");
    solo.mesh.handle_session_closed(old, now);
    solo.packet(old, bytes::Bytes::from_static(REJECT));
    assert_eq!(solo.closed(), []);
    assert!(solo.mesh.status(solo.now()).connections.contains_key("b"));
    assert_ne!(old, new);
}

#[test]
fn names_that_nobody_else_knows_are_forgotten_with_their_session() {
    let mut solo = Solo::new("a");
    for i in 0..100 {
        let session: SessionId = solo.open_with(LinkPolicy::default());
        let name = format!("made-up-{i}");
        solo.say(session, &update(&name, "greeting", 1, 1, &[]));
        assert!(solo.mesh.name_of(node(&name).hash()).is_some());
        let now = solo.now();
        solo.mesh.handle_session_closed(session, now);
        assert_eq!(solo.mesh.name_of(node(&name).hash()), None);
    }
    assert!(solo.mesh.status(solo.now()).known_connection_costs.len() <= 1);
}
