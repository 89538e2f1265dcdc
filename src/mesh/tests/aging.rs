//! How long nodes that are gone are remembered, and that the memory is bounded.

use bytes::Bytes;
use jiff::Timestamp;

use super::solo::{Solo, as_advert, as_update, millis, node, secs, service, update};
use crate::mesh::{CloseReason, Event, ForgetError, LinkPolicy, LocalService, Options, SessionId};
use crate::wire::advertisement::AdvertisementMessage;
use crate::wire::{Advertisement, ConnType, RoutingUpdate, WorkCommand};

fn via_b(update: RoutingUpdate) -> RoutingUpdate {
    RoutingUpdate { forwarding_node: node("b"), ..update }
}

fn ad(of: &str) -> Bytes {
    let advertisement = Advertisement {
        node_id: node(of),
        service: service("svc"),
        time: Timestamp::from_second(100).unwrap(),
        conn_type: ConnType::DATAGRAM,
        tags: None,
        work_commands: None,
    };
    AdvertisementMessage { advertisement, cancel: false }.message().unwrap()
}

/// Knows `x` behind `b`, with a service, and then loses the link to `b`.
fn with_x_gone(options: Options) -> Solo {
    let mut solo = Solo::with("a", options);
    let b = solo.neighbour("b");
    solo.say(b, &update("b", "b_and_x_", 1, 3, &[("a", 1.0), ("x", 1.0)]));
    solo.say(b, &via_b(update("x", "x_lives_", 0, 7, &[("b", 1.0)])));
    solo.packet(b, ad("x"));
    solo.advance(secs(1));
    assert!(solo.mesh.status(solo.now()).routing_table.contains_key("x"));
    let now = solo.now();
    solo.mesh.handle_session_closed(b, now);
    solo.advance(secs(1));
    solo.sent();
    solo.events();
    solo
}

fn knows_x(solo: &Solo) -> [bool; 3] {
    let status = solo.mesh.status(solo.now());
    [
        status.known_connection_costs.contains_key("x"),
        status.advertisements.iter().any(|ad| ad.node_id == node("x")),
        solo.mesh.name_of(node("x").hash()).is_some(),
    ]
}

#[test]
fn an_absent_node_stays_listed_for_ten_minutes() {
    let mut solo = with_x_gone(Options::default());
    solo.advance(secs(590));
    assert_eq!(knows_x(&solo), [true; 3]);
    solo.advance(secs(20));
    assert_eq!(knows_x(&solo), [false; 3]);
    assert_eq!(solo.mesh.counters().forgotten, 2, "b as well");
}

#[test]
fn another_time_to_forget_counts_for_those_who_are_gone_already() {
    let mut solo = with_x_gone(Options::default());
    solo.advance(secs(100));
    let now = solo.now();
    solo.mesh.set_forget_time(secs(120), now);
    solo.advance(secs(10));
    assert_eq!(knows_x(&solo), [true; 3]);
    solo.advance(secs(20));
    assert_eq!(knows_x(&solo), [false; 3]);
}

#[test]
fn an_echo_does_not_bring_a_forgotten_node_back_but_a_sign_of_life_does() {
    for (epoch, sequence, believed) in [(0, 7, false), (0, 8, true), (1, 1, true)] {
        let mut solo = with_x_gone(Options::default());
        solo.advance(secs(610));
        let b = solo.neighbour("b");
        solo.say(b, &via_b(update("x", "x_again_", epoch, sequence, &[("b", 1.0)])));
        solo.packet(b, ad("x"));
        assert_eq!(knows_x(&solo), [believed, false, believed], "{epoch} {sequence}");
    }
}

#[test]
fn new_neighbours_are_not_told_of_nodes_that_are_long_gone() {
    for (minutes, told) in [(4, true), (6, false)] {
        let mut solo = with_x_gone(Options::default());
        solo.advance(secs(minutes * 60));
        let c = solo.open_with(LinkPolicy::default());
        solo.say(c, &update("c", "greeting", 1, 1, &[]));
        solo.say(c, &update("c", "lists_us", 1, 2, &[("a", 1.0)]));
        let sent = solo.sent_to(c);
        let x = node("x");
        assert_eq!(sent.iter().filter_map(as_update).any(|u| u.node_id.as_ref() == Some(&x)), told);
        assert_eq!(sent.iter().filter_map(as_advert).any(|ad| ad.advertisement.node_id == x), told);
    }
}

#[test]
fn a_node_is_forgotten_on_demand_unless_it_is_there() {
    let mut solo = with_x_gone(Options::default());
    let c = solo.neighbour("c");
    let now = solo.now();
    assert_eq!(solo.mesh.forget(&node("a"), now), Err(ForgetError::Own(node("a"))));
    let reachable = ForgetError::Reachable { node: node("c"), via: node("c") };
    assert_eq!(solo.mesh.forget(&node("c"), now), Err(reachable));
    assert_eq!(solo.mesh.forget(&node("y"), now), Err(ForgetError::Unknown(node("y"))));
    assert_eq!(solo.mesh.forget(&node("x"), now), Ok(()));
    assert_eq!(knows_x(&solo), [false; 3]);
    assert_eq!(solo.mesh.forget(&node("x"), now), Err(ForgetError::Unknown(node("x"))));
    solo.packet(c, ad("x"));
    assert_eq!(knows_x(&solo), [false; 3], "the others have not forgotten it");
}

#[test]
fn ten_thousand_names_that_come_and_go_leave_nothing_behind() {
    let mut solo = Solo::with("a", Options { max_idle: secs(100_000), ..Options::default() });
    let b = solo.neighbour("b");
    for i in 0..10_000 {
        let name = format!("pod-{i}");
        solo.say(b, &via_b(update(&name, &format!("u{i:07}"), 5, 1, &[])));
        solo.packet(b, ad(&name));
        let now = solo.now();
        let _no_route = solo.mesh.send(service("s"), &node(&format!("typed-{i}")), service("s"), b"", 3, now);
        solo.advance(millis(500));
        solo.sent();
        solo.events();
        // Nodes are forgotten after ten minutes, which are 1,200 rounds.
        assert!(solo.mesh.tables().names <= 1_220, "{} names", solo.mesh.tables().names);
        assert!(solo.mesh.aging.len() <= 1_220);
    }
    let status = solo.mesh.status(solo.now());
    assert!(status.known_connection_costs.len() <= 1_220 && status.advertisements.len() <= 1_220);
    solo.advance(secs(700));
    assert_eq!(solo.mesh.tables().names, 2);
    assert_eq!(solo.mesh.status(solo.now()).advertisements.len(), 0);
}

#[test]
fn tables_are_bounded_in_bytes() {
    let mut solo = Solo::with("a", Options { max_table_bytes: 20_000, ..Options::default() });
    let b = solo.neighbour("b");
    for i in 0..1_000 {
        let name = format!("made-up-{i}");
        solo.say(b, &via_b(update(&name, &format!("u{i:07}"), 5, 1, &[("y", 1.0), ("z", 1.0)])));
        solo.packet(b, ad(&name));
    }
    let status = solo.mesh.status(solo.now());
    assert!((10..200).contains(&status.known_connection_costs.len()));
    assert!((10..200).contains(&status.advertisements.len()));
    assert!(solo.mesh.counters().no_room > 800);
}

#[test]
fn what_found_no_room_is_put_down_to_who_told_it() {
    let mut solo = Solo::with("a", Options { max_nodes: 10, ..Options::default() });
    let (b, c) = (solo.neighbour("b"), solo.neighbour("c"));
    solo.events();
    for i in 0..20 {
        let name = format!("made-up-{i}");
        solo.say(b, &via_b(update(&name, &format!("u{i:07}"), 5, 1, &[])));
        solo.packet(b, Bytes::from_static(b"\x01{"));
    }
    let told = |peer: &str| solo.mesh.neighbours()[&node(peer)].stats;
    let [by_b, by_c] = ["b", "c"].map(told);
    assert_eq!((by_b.updates - by_c.updates, by_b.malformed, by_c.malformed), (20, 20, 0));
    assert_eq!((by_b.new_nodes - by_c.new_nodes, by_b.refused, by_c.refused), (7, 13, 0));
    let refused =
        solo.events().into_iter().filter(|e| matches!(e, Event::TableFull { session, .. } if *session == b));
    assert_eq!(refused.count(), 13);
    assert!(solo.mesh.peer(c).is_some_and(|peer| *peer == node("c")));
}

#[test]
fn a_flood_is_told_of_once_in_each_of_its_windows() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    solo.events();
    let mut loud = 0;
    for sequence in 0..80_000 {
        solo.packet(b, ad("b"));
        if sequence % 40_000 == 39_999 {
            loud += solo
                .events()
                .iter()
                .filter(|event| matches!(event, Event::FloodDetected { session, .. } if *session == b))
                .count();
            assert_eq!(loud, sequence / 40_000 + 1);
            solo.advance(secs(11));
        }
    }
}

#[test]
fn a_neighbour_too_many_is_refused_before_the_update_is_too_large() {
    let mut solo = Solo::with("a", Options { max_own_message: 1_000, ..Options::default() });
    let mut refused = None;
    for i in 0..100 {
        let session = solo.open_with(LinkPolicy::default());
        solo.say(session, &update(&format!("neighbour-{i:03}"), &format!("u{i:07}"), 1, 1, &[]));
        if let [(closed, CloseReason::TooManyLinks { bytes })] = solo.closed()[..] {
            assert!(closed == session && bytes > 1_000);
            refused = Some(i);
            break;
        }
        solo.sent();
    }
    assert!(matches!(refused, Some(30..60)), "{refused:?}");
    solo.advance(secs(1));
    let largest = solo.sent().iter().map(|(_, message)| message.len()).max();
    assert!(largest.is_some_and(|len| (900..=1_000).contains(&len)), "{largest:?}");
}

/// Lets a node from `host` introduce itself; true if it is let in.
fn comes_from(solo: &mut Solo, host: &str, name: &str) -> (SessionId, bool) {
    let session = solo.open_with(LinkPolicy { host: Some(host.to_owned()), ..LinkPolicy::default() });
    solo.say(session, &update(name, "hello___", 1, 1, &[]));
    solo.sent();
    (session, !solo.closed().iter().any(|(closed, _)| *closed == session))
}

#[test]
fn strangers_with_long_names_leave_room_for_others() {
    let mut solo = Solo::new("a");
    let long = |i: usize| format!("{i:0>255}");
    let strangers: Vec<_> = (0..300).map(|i| comes_from(&mut solo, "192.0.2.66", &long(i))).collect();
    let let_in = strangers.iter().filter(|(_, let_in)| *let_in).count();
    assert!((100..180).contains(&let_in), "{let_in}");
    assert!(comes_from(&mut solo, "192.0.2.1", &long(1_000)).1, "another host's neighbour");
    for i in 0..20 {
        // A neighbour that the listener's allowedpeers names, and a neighbour that is dialled.
        let (listed, dialled) = (long(2_000 + i), long(3_000 + i));
        let host = Some("192.0.2.66".to_owned());
        let listener =
            LinkPolicy { host, allowed_peers: Some([node(&listed)].into()), ..LinkPolicy::default() };
        for (policy, name) in [(listener, listed), (LinkPolicy::default(), dialled)] {
            let session = solo.open_with(policy);
            solo.say(session, &update(&name, "hello___", 1, 1, &[]));
            assert_eq!(solo.closed(), [], "{name}");
        }
    }
    let now = solo.now();
    strangers.iter().for_each(|(session, _)| solo.mesh.handle_session_closed(*session, now));
    solo.events();
    assert!(comes_from(&mut solo, "192.0.2.66", &long(4_000)).1, "their places are free again");
}

#[test]
fn a_service_with_too_long_a_description_is_refused() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    let now = solo.now();
    let tags = [("type".to_owned(), "Control Service".to_owned()), ("k".to_owned(), "v".repeat(60_000))];
    let long = LocalService { conn_type: ConnType::STREAM, tags: tags.into() };
    solo.mesh.advertise(service("long"), long, now);
    assert!(matches!(&solo.events()[..], [Event::UpdateTooLarge(_)]));
    let commands = (0..2_000).map(|i| WorkCommand { work_type: format!("a-kind-of-work-{i}"), secure: true });
    solo.mesh.set_work_commands(commands.collect(), now);
    assert!(matches!(&solo.events()[..], [Event::UpdateTooLarge(_)]));
    solo.advance(secs(1));
    assert_eq!(solo.sent_to(b).iter().filter_map(as_advert).count(), 0);
}

/// The broken links that are known, by their ends.
fn broken(solo: &Solo) -> Vec<String> {
    let all = solo.mesh.status(solo.now()).broken_links;
    let pairs = all.iter().flat_map(|(one, others)| others.keys().map(move |other| (one, other)));
    pairs.filter(|(one, other)| one < other).map(|(one, other)| format!("{one}-{other}")).collect()
}

#[test]
fn a_link_that_broke_is_known_until_it_is_back_or_its_node_is_forgotten() {
    let mut solo = with_x_gone(Options::default());
    assert_eq!(broken(&solo), ["a-b"]);
    let status = solo.mesh.status(solo.now());
    let outages = status.outages(&node("a"));
    assert_eq!(outages.len(), 1, "{outages:?}");
    assert_eq!((&outages[0].lost[..], &outages[0].behind[..]), (&[node("b")][..], &[node("x")][..]));
    assert!(outages[0].since.is_some_and(|since| since < solo.now().wall), "{outages:?}");
    let b = solo.neighbour("b");
    assert!(broken(&solo).is_empty());
    // Not ours: `b` and `x` agree that it is gone, or one of them alone says so.
    solo.say(b, &update("b", "b_alone_", 1, 9, &[("a", 1.0)]));
    solo.advance(secs(1));
    assert_eq!(broken(&solo), ["b-x"]);
    let outages = solo.mesh.status(solo.now()).outages(&node("a"));
    assert_eq!((&outages[0].lost[..], outages[0].behind.len()), (&[node("x")][..], 0), "{outages:?}");
    let now = solo.now();
    solo.mesh.forget(&node("x"), now).unwrap();
    assert!(broken(&solo).is_empty());
    assert_eq!(solo.mesh.tables().broken_links, 0);
}

#[test]
fn a_link_that_one_node_alone_claims_does_not_break() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    solo.say(b, &update("b", "b_claims", 1, 3, &[("a", 1.0), ("x", 1.0)]));
    solo.advance(secs(1));
    solo.say(b, &update("b", "b_drops_", 1, 4, &[("a", 1.0)]));
    solo.advance(secs(1));
    assert!(broken(&solo).is_empty());
}
