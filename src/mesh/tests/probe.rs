//! meshd neighbours: probes, silence, lateness, and repairs of what floods have lost.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use super::super::anti_entropy::{Digest, dated};
use super::net::Net;
use super::solo::{Solo, as_data, as_update, millis, node, secs, service, update};
use crate::mesh::{CloseReason, Event, LinkPolicy, Options, SessionId};
use crate::wire::advertisement::AdvertisementMessage;
use crate::wire::{Advertisement, ConnType, DATA_HEADER_LEN, DataHeader, RoutingUpdate, ServiceName};

const PROBE: ServiceName = ServiceName::from_wire(*b"\x01probe\0\0");
const ALIVE: ServiceName = ServiceName::from_wire(*b"\x01alive\0\0");

/// A neighbour that has introduced itself, and neither answers nor refuses probes.
fn silent_neighbour(solo: &mut Solo, peer: &str) -> SessionId {
    let session = solo.open_with(LinkPolicy::default());
    let own = solo.mesh.id().to_string();
    solo.say(session, &update(peer, "greeting", 1, 1, &[]));
    solo.say(session, &update(peer, "lists_us", 1, 2, &[(&own, 1.0)]));
    session
}

/// The probes that were sent on a session.
fn probes(solo: &mut Solo, session: SessionId) -> Vec<Bytes> {
    let is_probe = |m: &Bytes| as_data(m).is_some_and(|header| header.to_service == ALIVE);
    solo.sent_to(session).into_iter().filter(is_probe).collect()
}

fn answer(solo: &mut Solo, session: SessionId, peer: &str, probe: &Bytes) {
    let header = DataHeader {
        hops: 30,
        from_node: node(peer).hash(),
        to_node: solo.mesh.id().hash(),
        from_service: ALIVE,
        to_service: PROBE,
    };
    solo.packet(session, header.message(&probe[DATA_HEADER_LEN..]));
}

/// Lets time pass while the neighbour answers every probe for which `lives` is true.
fn answering(solo: &mut Solo, session: SessionId, time: Duration, mut lives: impl FnMut(usize) -> bool) {
    let (end, mut count) = (solo.time + time, 0);
    while solo.time < end {
        solo.advance(millis(50));
        for probe in probes(solo, session) {
            count += 1;
            if lives(count) {
                answer(solo, session, "b", &probe);
            }
        }
    }
    assert!(count > 0, "it was never asked");
}

#[test]
fn a_neighbour_of_our_kind_that_falls_silent_is_gone_within_three_seconds() {
    for gone in ["a", "b"] {
        let mut net = Net::of(&["a", "b"], &[("a", "b")]);
        net.run(secs(10));
        net.nodes.remove(gone);
        let left = if gone == "a" { "b" } else { "a" };
        let start = net.now().tick;
        net.run(millis(1_600));
        let now = net.now();
        assert!(net.mesh(left).status(now).connections.contains_key(gone), "too early");
        net.run(millis(1_400));
        let now = net.now();
        assert!(net.mesh(left).status(now).connections.is_empty(), "{left} still believes in {gone}");
        assert!(now.tick.since(start) <= secs(3));
        let silent = |(_, event): &(String, Event)| {
            matches!(event, Event::CloseSession { reason: CloseReason::Silent(_), .. })
        };
        assert!(net.events.iter().any(silent));
    }
}

#[test]
fn round_trips_are_measured() {
    let mut net = Net::of(&["a", "b"], &[("a", "b")]);
    net.run(secs(5));
    let now = net.now();
    let link = net.mesh("a").status(now).neighbours[&node("b")].clone();
    assert_eq!((link.is_meshd, link.rtt, link.loss), (true, Some(millis(2)), 0.0));
}

#[test]
fn an_idle_link_between_our_nodes_carries_little() {
    let mut net = Net::of(&["a", "b"], &[("a", "b")]);
    net.run(secs(20));
    net.log.clear();
    net.run(secs(60));
    // A probe and its answer every 1.3 s.
    assert!((80..=110).contains(&net.log.len()), "{}", net.log.len());
    let bytes: usize = net.log.iter().map(|sent| sent.message.len()).sum();
    assert!(bytes < 60 * 300, "{bytes} bytes in a minute");
}

#[test]
fn a_receptor_node_is_asked_once_and_then_left_to_its_own_timers() {
    let mut solo = Solo::new("a");
    let b = silent_neighbour(&mut solo, "b");
    solo.advance(millis(10));
    assert_eq!(probes(&mut solo, b).len(), 1);
    solo.refuse_probe(b, "b");
    assert!(solo.events().iter().all(|event| !matches!(event, Event::Unreachable { .. })));
    solo.advance(secs(20));
    assert_eq!(probes(&mut solo, b).len(), 0);
    assert_eq!(solo.closed(), [], "receptor's own rounds may be that far apart");
    assert!(!solo.mesh.status(solo.now()).neighbours[&node("b")].is_meshd);
}

#[test]
fn who_says_nothing_about_probes_is_asked_a_few_times() {
    let mut solo = Solo::new("a");
    let b = silent_neighbour(&mut solo, "b");
    solo.advance(secs(20));
    assert_eq!(probes(&mut solo, b).len(), 3);
    assert_eq!(solo.closed(), []);
}

#[test]
fn a_node_that_was_busy_itself_blames_nobody() {
    let mut solo = Solo::new("a");
    let b = silent_neighbour(&mut solo, "b");
    answering(&mut solo, b, secs(30), |_| true);
    // The node stalls for different times, so at different moments of a probe.
    for stall in (500..40_000).step_by(1_700) {
        solo.time += millis(stall);
        answering(&mut solo, b, secs(3), |_| true);
        assert_eq!(solo.closed(), [], "after {stall} ms");
    }
    solo.time += secs(60);
    solo.advance(millis(3_100));
    assert!(matches!(&solo.closed()[..], [(_, CloseReason::Silent(_))]), "but the dead are dead");
}

#[test]
fn what_was_due_before_anybody_waited_for_it_is_no_lateness() {
    let mut solo = Solo::new("a");
    let quiet = solo.neighbour("q");
    let session = solo.open_with(LinkPolicy::default());
    solo.say(session, &update("b", "greeting", 1, 1, &[]));
    let heard = solo.mesh.sessions.get(quiet).unwrap().last_heard();
    // The peer lists us late. From then on it is probed, and answers over a long path.
    solo.advance(secs(8));
    solo.say(session, &update("b", "lists_us", 1, 2, &[("a", 1.0)]));
    solo.advance(millis(1));
    assert_eq!(solo.mesh.sessions.get(quiet).unwrap().last_heard(), heard, "its silence is its own");
    for _ in 0..12 {
        let asked = loop {
            if let Some(probe) = probes(&mut solo, session).pop() {
                break probe;
            }
            solo.advance(millis(10));
        };
        solo.advance(millis(1_500));
        answer(&mut solo, session, "b", &asked);
    }
    assert_eq!(solo.mesh.counters().late_wakeups, 0);
}

#[test]
fn a_node_that_is_kept_busy_does_not_believe_in_the_dead_for_ever() {
    let mut solo = Solo::new("a");
    let b = silent_neighbour(&mut solo, "b");
    answering(&mut solo, b, secs(30), |_| true);
    let loud = solo.neighbour("loud");
    let start = solo.time;
    while solo.closed().iter().all(|(session, _)| *session != b) {
        assert!(solo.time - start < secs(25), "the dead live on");
        // The node does nothing else while it handles the loud neighbour's messages.
        solo.time += secs(5);
        let now = solo.now();
        let said = update("loud", "again", 1, 3, &[("a", 1.0)]).message().unwrap();
        solo.mesh.handle_packet(loud, said, now);
        solo.mesh.handle_timeout(now);
        solo.mesh.handle_wait(now.tick);
    }
}

#[test]
fn a_lossy_link_is_not_a_dead_one() {
    let mut solo = Solo::new("a");
    let b = silent_neighbour(&mut solo, "b");
    // Half of the answers get lost, then six of seven.
    answering(&mut solo, b, secs(20), |count| count % 2 == 0);
    answering(&mut solo, b, secs(300), |count| count % 7 == 0);
    assert_eq!(solo.closed(), []);
    let loss = solo.mesh.status(solo.now()).neighbours[&node("b")].loss;
    assert!((0.8..0.9).contains(&loss), "{loss}");
    solo.advance(secs(22));
    assert_eq!(solo.closed().len(), 1);
}

#[test]
fn what_a_flood_has_missed_is_told_again() {
    let mut net = Net::of(&["a", "b", "c"], &[("a", "b"), ("b", "c")]);
    net.run(secs(5));
    let now = net.now();
    let x = SessionId(1_000);
    net.mesh("a").handle_session_opened(x, LinkPolicy::default(), now);
    for said in [update("x", "greeting", 1, 1, &[]), update("x", "lists_us", 1, 2, &[("a", 1.0)])] {
        net.mesh("a").handle_packet(x, said.message().unwrap(), now);
        net.mesh("a").handle_timeout(now);
    }
    // The link loses all messages.
    while net.mesh("a").poll_transmit().is_some() {}
    net.run(millis(300));
    assert!(!net.routes("c").contains_key("x"));
    net.run(secs(4));
    assert_eq!(net.routes("c").get("x").map(String::as_str), Some("b"));
    net.log.clear();
    net.run(secs(20));
    let known: usize = net.log.iter().filter(|sent| as_data(&sent.message).is_none()).count();
    assert!(known < 20, "and then there is peace: {known}");
}

#[test]
fn probes_of_strangers_are_nothing_special() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    let header = DataHeader {
        hops: 30,
        from_node: node("stranger").hash(),
        to_node: node("a").hash(),
        from_service: service("x"),
        to_service: ALIVE,
    };
    for payload in [&b""[..], b"123", &[0; 68], &[255; 200]] {
        solo.packet(b, header.message(payload));
        solo.packet(b, DataHeader { from_node: node("b").hash(), ..header }.message(payload));
        solo.packet(
            b,
            DataHeader { to_service: PROBE, from_node: node("b").hash(), ..header }.message(payload),
        );
    }
    assert_eq!(solo.closed(), []);
}

/// The digest in our answer to a probe from this session's peer.
fn digest_told(solo: &mut Solo, session: SessionId, peer: &str) -> Vec<u8> {
    solo.sent();
    let header = DataHeader {
        hops: 30,
        from_node: node(peer).hash(),
        to_node: solo.mesh.id().hash(),
        from_service: PROBE,
        to_service: ALIVE,
    };
    solo.packet(session, header.message(&[0; 68]));
    let is_answer = |m: &Bytes| as_data(m).is_some_and(|header| header.to_service == PROBE);
    let answer = solo.sent_to(session).into_iter().find(is_answer).expect("a probe is answered");
    answer[DATA_HEADER_LEN + 4..].to_vec()
}

fn advert(of: &str, name: &str, time: Timestamp, cancel: bool) -> Bytes {
    let (node_id, service) = (node(of), service(name));
    let conn_type = ConnType::DATAGRAM;
    let advertisement = Advertisement { node_id, service, time, conn_type, tags: None, work_commands: None };
    AdvertisementMessage { advertisement, cancel }.message().unwrap()
}

/// The digest of what the node knows, computed anew from its messages.
fn fresh_digest(solo: &mut Solo) -> Digest {
    let (mut digest, now) = (Digest::default(), solo.now());
    let mesh = &mut solo.mesh;
    let updates = mesh.lsdb.messages_after(None).filter(|(node, _)| mesh.lsdb.reaches(node));
    let updates: Vec<Bytes> =
        updates.map(|(_, message)| message).chain([mesh.own_update.message()]).collect();
    for update in updates.iter().filter_map(as_update) {
        digest.toggle(update.node_id.unwrap().hash(), [update.epoch, update.sequence]);
    }
    let services = mesh.services.messages_after(None).filter(|((node, _), _)| mesh.lsdb.reaches(node));
    let services: Vec<Bytes> = services.map(|(_, message)| message).collect();
    for message in services.into_iter().chain(mesh.services.announced_messages(now.wall)) {
        let ad = AdvertisementMessage::parse(&message).unwrap().advertisement;
        digest.toggle(ad.node_id.hash(), dated(ad.service, ad.time));
    }
    digest
}

#[test]
fn a_digest_that_follows_each_change_is_the_one_that_is_computed_anew() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    solo.say(b, &update("b", "b_and_xyz", 1, 3, &[("a", 1.0), ("x", 1.0), ("y", 1.0)]));
    let mut digests = BTreeSet::new();
    for (name, sequence) in [("x", 1), ("y", 1), ("gone", 1), ("x", 2), ("gone", 2), ("y", 7)] {
        let links: &[(&str, f64)] = if name == "gone" { &[] } else { &[("b", 1.0)] };
        let said = update(name, &format!("{name:.>7}{sequence}"), 9, sequence, links);
        solo.say(b, &RoutingUpdate { forwarding_node: node("b"), ..said });
        solo.advance(millis(300));
        for (service, cancel) in [("one", false), ("two", false), ("one", sequence == 2)] {
            let wall = solo.now().wall;
            solo.packet(b, advert(name, service, wall, cancel));
            solo.advance(millis(10));
            let followed = digest_told(&mut solo, b, "b");
            assert_eq!(solo.mesh.digest(), fresh_digest(&mut solo), "{name} {sequence} {service}");
            digests.insert(followed);
        }
    }
    assert!(digests.len() > 10, "what it told did not move it");
}

#[test]
fn newcomers_among_our_kind_are_answered_together_and_soon() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    digest_told(&mut solo, b, "b");
    let own =
        |sent: Vec<Bytes>| sent.iter().filter_map(as_update).filter(|u| u.node_id == Some(node("a"))).count();
    for i in 0..50 {
        let said = update(&format!("new-{i}"), &format!("u{i:07}"), 9, 1, &[("b", 1.0)]);
        solo.say(b, &RoutingUpdate { forwarding_node: node("b"), ..said });
        solo.advance(millis(10));
    }
    assert_eq!(own(solo.sent_to(b)), 0, "a neighbour of our kind tells them of us");
    solo.advance(millis(600));
    assert_eq!(own(solo.sent_to(b)), 1);
}

#[test]
fn a_large_mesh_takes_its_time_to_answer_newcomers() {
    let mut solo = Solo::with("a", Options { peer_silence: secs(1_000), ..Options::default() });
    let b = solo.neighbour("b");
    digest_told(&mut solo, b, "b");
    let names: Vec<String> = (0..199).map(|i| format!("n{i:03}")).collect();
    let links: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 1.0)).chain([("a", 1.0)]).collect();
    solo.say(b, &update("b", "b_to_all", 1, 3, &links));
    let say = |solo: &mut Solo, name: &str, id: &str| {
        let said = update(name, id, 9, 1, &[("b", 1.0)]);
        solo.say(b, &RoutingUpdate { forwarding_node: node("b"), ..said });
    };
    names.iter().for_each(|name| say(&mut solo, name, &format!("u{name}___")));
    solo.advance(secs(4));
    let own =
        |sent: Vec<Bytes>| sent.iter().filter_map(as_update).filter(|u| u.node_id == Some(node("a"))).count();
    assert!(own(solo.sent_to(b)) > 0, "they were newcomers themselves");
    say(&mut solo, "late", "newcomer");
    solo.advance(millis(2_900));
    assert_eq!(own(solo.sent_to(b)), 0);
    solo.advance(millis(200));
    assert_eq!(own(solo.sent_to(b)), 1, "a second, and ten milliseconds for each of 200 nodes");
}
