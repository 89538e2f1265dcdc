//! Two nodes with one ID, and a node that returns with its clock set back.

use super::net::Net;
use super::solo::{EPOCH, Solo, as_update, millis, node, secs, update};
use crate::mesh::{CloseReason, Event, LinkPolicy, SessionId};
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
    assert!(matches!(&solo.events()[..], [Event::SpokenFor { epoch, .. }] if *epoch == EPOCH + 1));
    // Nodes that hear the twin's next update believe it, so it is answered as well, within the second.
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
    let own = as_update(&solo.mesh.own_update.message()).unwrap();
    solo.say(b, &via("b", own));
    assert_eq!(solo.sent(), []);
    assert!(solo.events().is_empty());
    assert_eq!(solo.mesh.status(solo.now()).spoken_for, []);
}

/// The neighbours that are reported as the source of updates in our name.
fn speakers(solo: &Solo) -> Vec<String> {
    solo.mesh.status(solo.now()).spoken_for.iter().map(|(by, _)| by.to_string()).collect()
}

/// One neighbour lies often, another rarely. Liars under ever new names must not fill a table.
#[test]
fn each_neighbour_that_brings_lies_is_named_and_warned_of_once_a_minute() {
    let mut solo = Solo::new("a");
    let [b, c] = ["b", "c"].map(|peer| solo.neighbour(peer));
    let mut warned = Vec::new();
    for second in 0..70 {
        for (by, name, every) in [(b, "b", 1), (c, "c", 50)] {
            if second % every == 0 {
                solo.say(by, &via(name, update("a", "lie_____", EPOCH + 1, 9, &[])));
            }
            solo.say(by, &update(name, "alive___", 1, 10 + second, &[("a", 1.0)]));
        }
        solo.advance(secs(1));
        warned.extend(solo.events().into_iter().filter_map(|event| match event {
            Event::SpokenFor { session, .. } => Some((second, session)),
            _other => None,
        }));
    }
    assert_eq!(warned, [(0, b), (0, c), (60, b)]);
    assert_eq!(speakers(&solo), ["b", "c"]);
    for i in 0..100 {
        let name = format!("guest{i}");
        let guest = solo.neighbour(&name);
        solo.say(guest, &via(&name, update("a", "lie_____", EPOCH + 1, 9, &[])));
    }
    assert_eq!((speakers(&solo).len(), &speakers(&solo)[0][..]), (16, "guest99"));
}

/// A notice in our name which says that epoch `suspect` is not ours.
fn notice(epoch: u64, sequence: u64, suspect: u64) -> RoutingUpdate {
    let notice = update("a", &format!("n{sequence:07}"), epoch, sequence, &[]);
    via("b", RoutingUpdate { suspected_duplicate: suspect, ..notice })
}

/// Updates in our own name that this node sent.
fn own_updates(solo: &mut Solo) -> Vec<RoutingUpdate> {
    let updates = solo.sent().into_iter().filter_map(|(_, message)| as_update(&message));
    updates.filter(|update| update.node_id == Some(node("a"))).collect()
}

fn stops(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::WeAreDuplicate))
}

/// Ten minutes of notices that each name our present epoch.
#[test]
fn notices_end_nothing_and_are_outdone_by_a_later_epoch() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    let (mut epochs, mut warnings) = (vec![EPOCH], 0);
    for second in 1..=600 {
        let epoch = *epochs.last().unwrap();
        solo.say(b, &notice(epoch - 1, second, epoch));
        solo.say(b, &via("b", update("b", &format!("b{second:07}"), 1, 100 + second, &[("a", 1.0)])));
        solo.advance(secs(1));
        for own in own_updates(&mut solo).into_iter().filter(|own| own.epoch != epoch) {
            assert!(own.epoch > epoch && own.connections.contains_key("b"), "{own:?}");
            epochs.push(own.epoch);
        }
        if second == 1 {
            assert_eq!(epochs.len(), 2, "the first one is outdone at once");
        }
        let events = solo.events();
        assert!(!stops(&events), "after {second} s");
        warnings += events.iter().filter(|event| matches!(event, Event::SpokenFor { .. })).count();
    }
    epochs.dedup();
    assert!((55..=62).contains(&epochs.len()), "every ten seconds: {}", epochs.len());
    assert_eq!(warnings, 10, "once a minute");
    assert_eq!(solo.mesh.status(solo.now()).spoken_for[0].0, node("b"));
}

/// Whatever a third node writes in our name, our answer soon prevails.
#[test]
fn what_is_newer_than_our_word_is_outdone_at_once() {
    const LAST: u64 = u64::MAX;
    for (what, lie) in [
        ("our epoch, a higher sequence", update("a", "lie_____", EPOCH, 1_000, &[])),
        ("the last sequence of our epoch", update("a", "lie_____", EPOCH, LAST, &[])),
        ("half of all sequences", update("a", "lie_____", EPOCH, LAST >> 1, &[])),
        ("a later epoch", update("a", "lie_____", EPOCH + 5, 3, &[])),
        ("the last of all epochs", update("a", "lie_____", LAST, LAST, &[])),
        ("a notice from an older epoch", notice(1, 9, EPOCH)),
        ("a notice from a later epoch", notice(EPOCH + 1_000, 9, EPOCH)),
        ("a notice from our own epoch", notice(EPOCH, 1_000, EPOCH)),
        ("a notice with the last of everything", notice(LAST, LAST, EPOCH)),
    ] {
        let mut solo = Solo::new("a");
        let (b, _c) = (solo.neighbour("b"), solo.neighbour("c"));
        // A node that hears the lie first, and then everything that is flooded.
        let mut far = Solo::new("far");
        let hop = far.neighbour("b");
        let known = solo.mesh.own_update.message();
        far.say(hop, &via("b", as_update(&known).unwrap()));
        far.say(hop, &via("b", lie.clone()));
        solo.say(b, &via("b", lie));
        for _ in 0..20 {
            solo.advance(millis(100));
            far.advance(millis(100));
            own_updates(&mut solo).into_iter().for_each(|own| far.say(hop, &via("b", own)));
        }
        let events = solo.events();
        assert!(!stops(&events), "{what}");
        assert!(
            events.iter().any(|event| matches!(event, Event::SpokenFor { session, .. } if *session == b)),
            "{what}"
        );
        assert_eq!(far.said("a"), ["b", "c"], "{what}");
        assert_eq!(solo.closed(), [], "{what}");
    }
}

/// Somebody alters our update on its way, or guesses our next version: the lie has the same version as our update.
#[test]
fn an_altered_copy_of_our_latest_update_is_outdone() {
    let mut solo = Solo::new("a");
    let (b, _c) = (solo.neighbour("b"), solo.neighbour("c"));
    let own = as_update(&solo.mesh.own_update.message()).unwrap();
    solo.say(b, &via("b", own.clone()));
    assert_eq!(own_updates(&mut solo), [], "an echo");
    solo.say(b, &via("b", RoutingUpdate { connections: Default::default(), ..own.clone() }));
    solo.advance(millis(600));
    assert!(own_updates(&mut solo).iter().any(|next| next.sequence > own.sequence));
}

/// A greeting has the version of our latest update but lists no links, so only a liar passes it on.
#[test]
fn what_has_the_number_of_a_greeting_is_outdone_as_well() {
    for ahead in [None, Some(1), Some(2), Some(3)] {
        let mut solo = Solo::new("a");
        let (b, c) = (solo.neighbour("b"), solo.neighbour("c"));
        let silent = solo.open_with(LinkPolicy::default());
        solo.advance(secs(3));
        let greeting = solo.updates_to(silent).pop().unwrap();
        solo.events();
        let announced = solo.mesh.own_update.sequence();
        let lie = ahead.map(|ahead| update("a", "lie_____", EPOCH, announced + ahead, &[]));
        let said = lie.unwrap_or(greeting);
        solo.say(b, &via("b", said.clone()));
        solo.advance(millis(600));
        let outdone = |own: &RoutingUpdate| own.sequence > said.sequence && own.connections.len() == 2;
        assert!(solo.updates_to(c).iter().any(outdone), "{said:?}");
        assert!(solo.events().iter().any(|event| matches!(event, Event::SpokenFor { .. })), "{said:?}");
    }
}

#[test]
fn a_lie_on_a_session_that_contests_another_hides_nobody() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    let lie = |sequence| via("b", update("a", "lie_____", EPOCH, sequence, &[]));
    solo.say(b, &lie(1_000));
    let contester = solo.open_with(LinkPolicy::default());
    solo.say(contester, &lie(2_000));
    assert_eq!(speakers(&solo), ["b"]);
}

/// Sessions under our own ID: which of them stop this process.
#[test]
fn only_who_proves_to_be_this_node_and_was_here_first_ends_it() {
    let certified = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
    for (what, certified, epoch, ends) in [
        ("a stranger", None, 1, false),
        ("a member with another certificate", certified(&["x"]), 1, false),
        ("this node, dialled by mistake", certified(&["a"]), EPOCH, false),
        ("one that started later", certified(&["a"]), EPOCH + 1, false),
        ("one that was here first", certified(&["x", "a"]), EPOCH - 1, true),
    ] {
        let mut solo = Solo::new("a");
        let session = solo.open_with(LinkPolicy { certified, ..LinkPolicy::default() });
        solo.say(session, &update("a", "greeting", epoch, 1, &[]));
        let events = solo.events();
        assert_eq!(stops(&events), ends, "{what}");
        let closed = events
            .iter()
            .any(|event| matches!(event, Event::CloseSession { reason: CloseReason::OwnId, .. }));
        assert!(closed, "{what}");
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
    assert_eq!(solo.said("x"), ["b"]);
}

/// A liar uses several epochs, and copies of its updates are still on their way when the last epoch is corrected.
#[test]
fn of_several_epochs_that_were_corrected_none_is_believed_again() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    solo.say(b, &via("b", update("x", "genuine1", 5, 1, &[("b", 1.0)])));
    let lie = |epoch| via("b", update("x", &format!("lie{epoch:05}"), epoch, 1, &[]));
    for epoch in 7..27 {
        solo.say(b, &lie(epoch));
        let notice = update("x", &format!("not{epoch:05}"), 5, epoch, &[("b", 1.0)]);
        solo.say(b, &via("b", RoutingUpdate { suspected_duplicate: epoch, ..notice }));
        solo.say(b, &via("b", update("x", &format!("gen{epoch:05}"), 5, epoch + 1, &[("b", 1.0)])));
    }
    for epoch in 27 - 16..27 {
        solo.say(b, &lie(epoch));
        assert_eq!(solo.said("x"), ["b"], "epoch {epoch}");
    }
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
    assert_eq!(solo.said("x"), ["b"], "but nobody believes it");
}

/// A twin joins far from a node of the same name. Neither stops. The node with the smaller epoch is believed most of
/// the time, and both report the other.
#[test]
fn of_two_nodes_with_one_id_the_first_is_believed_and_both_say_so() {
    for (first, second) in [(EPOCH, EPOCH + 1), (EPOCH + 1, EPOCH)] {
        let mut net = Net::of(&["a", "b", "c", "d"], &[("a", "b"), ("b", "c"), ("c", "d")]);
        net.add("x", first);
        net.join("x", "a");
        net.run(secs(2));
        // The network knows the twin under another name, but it calls itself x.
        net.add("twin", second);
        let now = net.now();
        let rng = rand::SeedableRng::seed_from_u64(500);
        let twin = crate::mesh::Mesh::new(node("x"), second, Default::default(), rng, now);
        net.nodes.insert("twin".into(), twin);
        net.join("twin", "d");
        net.run(secs(30));
        let mut believed = 0;
        for _ in 0..300 {
            net.run(millis(100));
            believed += usize::from(net.routes("b").get("x").is_some_and(|via| via == "a"));
        }
        let older = if first < second { believed } else { 300 - believed };
        assert!(older > 200, "the older one was believed {older} times of 300");
        let told = |at: &str| {
            net.events.iter().any(|(of, event)| of == at && matches!(event, Event::SpokenFor { .. }))
        };
        assert!(told("x") && told("twin"));
        assert!(!net.events.iter().any(|(_, event)| matches!(event, Event::WeAreDuplicate)));
        // Once the twin is gone, all believe x again.
        net.remove("twin");
        net.run(secs(15));
        for at in ["a", "b", "c", "d"] {
            assert!(net.routes(at).contains_key("x"), "{at}: {:?}", net.routes(at));
        }
    }
}

/// A forged notice in the name of an absent node has an epoch beyond the node's own. Once the node is back, its
/// neighbours send it the notice.
#[test]
fn who_was_away_when_a_notice_was_made_up_is_believed_again() {
    let mut net = Net::of(&["a", "b", "c"], &[("a", "b"), ("b", "c")]);
    net.add("x", EPOCH);
    net.join("x", "a");
    net.run(secs(15));
    net.remove("x");
    let notice =
        RoutingUpdate { suspected_duplicate: EPOCH, ..update("x", "made_up_", u64::MAX - 663, 9, &[]) };
    let (of_b_and_c, now) = (SessionId(2), net.now());
    net.mesh("b").handle_packet(of_b_and_c, via("c", notice).message().unwrap(), now);
    net.run(secs(5));
    net.add("x", EPOCH + 100);
    net.join("x", "b");
    net.run(secs(30));
    for at in ["a", "c"] {
        assert!(net.routes(at).contains_key("x"), "{at}: {:?}", net.routes(at));
    }
}

/// We believe a forged update in the name of `x` with an epoch beyond its own, and sent it to `x` before `x` listed us.
#[test]
fn who_speaks_for_itself_and_is_not_believed_hears_why() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    solo.say(b, &via("b", update("x", "made_up_", u64::MAX - 663, u64::MAX - 9, &[("b", 1.0)])));
    let x = solo.neighbour("x");
    solo.advance(secs(1));
    solo.sent();
    solo.say(x, &via("x", update("x", "genuine2", EPOCH, 2, &[("a", 1.0)])));
    let told = solo.updates_to(x);
    assert!(
        matches!(&told[..], [one] if one.node_id == Some(node("x")) && one.epoch == u64::MAX - 663),
        "{told:?}"
    );
    // Not again, however often it repeats its own.
    for sequence in 3..100 {
        solo.say(x, &via("x", update("x", &format!("gen{sequence:05}"), EPOCH, sequence, &[("a", 1.0)])));
    }
    assert!(solo.updates_to(x).is_empty());
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
