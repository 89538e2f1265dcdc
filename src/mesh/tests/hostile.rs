//! Neighbours that send anything in any order: the node neither panics nor sends more than it should.

use bytes::Bytes;
use proptest::prelude::*;

use super::solo::{Solo, millis, node, update};
use crate::mesh::{LinkPolicy, SessionId};
use crate::wire::{DataHeader, NameHash, RoutingUpdate, ServiceName};

#[test]
fn what_begins_with_no_message_introduces_nobody() {
    let mut solo = Solo::new("a");
    // The rest of a web page's `POST / HTTP/1.1`, and of TLS's first message: two bytes were taken for a length.
    for begun in [&b"ST / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], b"\x01\x02\x00\x01\xfc\x03\x03"] {
        let session = solo.open_with(LinkPolicy::default());
        solo.packet(session, Bytes::from_static(begun));
        solo.say(session, &update("page", "ipage000", 1, 1, &[]));
        assert_eq!(solo.mesh.counters().sessions_established, 0, "{begun:?}");
    }
    // If a known neighbour sends the same, its session stays.
    let neighbour = solo.neighbour("b");
    let before = solo.mesh.counters().sessions_ended;
    solo.packet(neighbour, Bytes::from_static(b"ST / HTTP/1.1\r\n"));
    assert_eq!(solo.mesh.counters().sessions_ended, before);
}

/// An input of a node.
#[derive(Debug, Clone)]
enum Step {
    Open,
    Close(u64),
    Say(u64, Bytes),
    Wait(u64),
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn name() -> impl Strategy<Value = &'static str> {
    (0..NAMES.len()).prop_map(|i| NAMES[i])
}

fn updates() -> impl Strategy<Value = Bytes> {
    let links = proptest::collection::btree_map(name(), 1_u8..3, 0..4);
    (name(), name(), "[a-c]{1,2}", 0_u64..4, 0_u64..6, links, 0_u64..3).prop_map(
        |(of, by, id, epoch, sequence, links, suspect)| {
            let links: Vec<(&str, f64)> = links.into_iter().map(|(to, c)| (to, f64::from(c))).collect();
            let said = RoutingUpdate {
                forwarding_node: node(by),
                suspected_duplicate: suspect,
                ..update(of, &id, epoch, sequence, &links)
            };
            said.message().unwrap()
        },
    )
}

fn data() -> impl Strategy<Value = Bytes> {
    let services = [ServiceName::PING, ServiceName::UNREACH, ServiceName::from_wire(*b"\x01probe\0\0")];
    (name(), name(), 0_usize..3, 0_usize..3, 0_u8..3).prop_map(move |(from, to, s, t, hops)| {
        let (from_node, to_node) = (NameHash::of(from), NameHash::of(to));
        let header =
            DataHeader { hops, from_node, to_node, from_service: services[s], to_service: services[t] };
        header.message(br#"{"FromNode":"a"}"#)
    })
}

fn adverts() -> impl Strategy<Value = Bytes> {
    (name(), 0_u8..4, any::<bool>()).prop_map(|(of, second, cancel)| {
        let body = format!(
            r#"{{"NodeID":"{of}","Service":"s","Time":"9999-12-30T00:00:0{second}Z","ConnType":0,"Tags":null,"Cancel":{cancel}}}"#
        );
        Bytes::from([&[2], body.as_bytes()].concat())
    })
}

/// Valid messages, messages with a few bytes changed or cut off, and noise.
fn messages() -> impl Strategy<Value = Bytes> {
    let valid = || prop_oneof![updates(), data(), adverts(), Just(Bytes::from_static(b"\x03[]"))];
    let mutated =
        (valid(), any::<usize>(), any::<u8>(), any::<bool>()).prop_map(|(message, at, byte, cut)| {
            let mut message = message.to_vec();
            let at = at % message.len();
            message[at] = byte;
            message.truncate(if cut { at } else { message.len() });
            Bytes::from(message)
        });
    let noise = proptest::collection::vec(any::<u8>(), 0..80).prop_map(Bytes::from);
    prop_oneof![6 => valid(), 3 => mutated, 1 => noise]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Open),
        1 => (0_u64..6).prop_map(Step::Close),
        12 => (0_u64..6, messages()).prop_map(|(session, message)| Step::Say(session, message)),
        2 => (0_u64..5_000).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn no_sequence_of_events_does_harm(steps in proptest::collection::vec(steps(), 1..120)) {
        let mut solo = Solo::new("a");
        let mut open = 0_usize;
        for step in steps {
            let now = solo.now();
            let budget = match step {
                Step::Open => {
                    solo.open_with(LinkPolicy::default());
                    open += 1;
                    1
                }
                Step::Close(session) => {
                    solo.mesh.handle_session_closed(SessionId(session), now);
                    // A contesting session that takes over is sent everything that is known.
                    40
                }
                Step::Say(session, message) => {
                    solo.packet(SessionId(session), message);
                    40 + open
                }
                Step::Wait(time) => {
                    solo.advance(millis(time));
                    // On every session: greetings, own updates and advertisements, and contesting sessions that take
                    // over.
                    (2 + time as usize / 100) * (10 + open * 3) + open * 40
                }
            };
            let sent = solo.sent().len();
            prop_assert!(sent <= budget, "{sent} messages, {budget} are plenty");
            prop_assert!(solo.events().len() <= 2 * budget + open);
            let due = solo.mesh.poll_timeout().expect("there always is a next own update").0;
            prop_assert!(due.since_origin() <= solo.time + super::solo::secs(61));
        }
    }
}
