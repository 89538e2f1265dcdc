//! Datagrams: hops, notices, pings, the firewall, and datagrams that are refused at once.

use bytes::Bytes;

use super::net::Net;
use super::solo::{Solo, as_data, node, secs, service};
use crate::mesh::firewall::{Action, Pattern, Rule};
use crate::mesh::{Event, SendError, SessionId};
use crate::wire::{DATA_HEADER_LEN, DataHeader, MAX_PAYLOAD, Problem, ServiceName, Unreachable};

fn header(from: &str, to: &str, to_service: ServiceName, hops: u8) -> DataHeader {
    DataHeader {
        hops,
        from_node: node(from).hash(),
        to_node: node(to).hash(),
        from_service: service("here"),
        to_service,
    }
}

/// `a` between `b` and `c`.
fn between() -> (Solo, SessionId, SessionId) {
    let mut solo = Solo::new("a");
    let (b, c) = (solo.neighbour("b"), solo.neighbour("c"));
    (solo, b, c)
}

fn notice(message: &Bytes) -> (DataHeader, Unreachable) {
    (as_data(message).unwrap(), Unreachable::parse(&message[DATA_HEADER_LEN..]).unwrap())
}

fn the_only_notice(solo: &mut Solo, to: SessionId) -> Problem {
    let sent = solo.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].0, to);
    let (header, notice) = notice(&sent[0].1);
    assert_eq!((header.from_service, header.to_service), (ServiceName::UNREACH, ServiceName::UNREACH));
    assert_eq!(header.from_node, node("a").hash());
    notice.problem
}

#[test]
fn passing_on_takes_one_hop_and_changes_nothing_else() {
    let (mut solo, b, c) = between();
    let sent = header("b", "c", service("there"), 7);
    solo.packet(b, sent.message(b"payload"));
    let expected = DataHeader { hops: 6, ..sent }.message(b"payload");
    assert_eq!(solo.sent(), [(c, expected)]);
}

#[test]
fn the_last_hop_may_deliver_but_not_pass_on() {
    let (mut solo, b, _c) = between();
    solo.packet(b, header("b", "c", service("there"), 0).message(b""));
    assert_eq!(the_only_notice(&mut solo, b), Problem::MessageExpired);
    assert_eq!(solo.mesh.counters().expired, 1);
    assert!(solo.mesh.bind(service("there")));
    solo.packet(b, header("b", "a", service("there"), 0).message(b"x"));
    let delivered = |e: &Event| matches!(e, Event::Deliver(d) if d.payload == b"x"[..]);
    assert!(solo.events().iter().any(delivered));
}

#[test]
fn an_unknown_service_is_reported_and_a_closed_one_is_unknown() {
    let (mut solo, b, _c) = between();
    let message = header("b", "a", service("there"), 3).message(b"");
    solo.packet(b, message.clone());
    assert_eq!(the_only_notice(&mut solo, b), Problem::ServiceUnknown);
    assert!(solo.mesh.bind(service("there")));
    assert!(!solo.mesh.bind(service("there")));
    assert!(!solo.mesh.bind(ServiceName::PING));
    solo.packet(b, message.clone());
    assert_eq!(solo.sent(), []);
    let now = solo.now();
    solo.mesh.unbind(service("there"), now);
    solo.packet(b, message);
    assert_eq!(the_only_notice(&mut solo, b), Problem::ServiceUnknown);
}

#[test]
fn the_firewall_comes_first() {
    for (action, counted) in [(Action::Accept, 0), (Action::Reject, 1), (Action::Drop, 1)] {
        let (mut solo, b, c) = between();
        let to_node = Some(Pattern::Exact("c".into()));
        let rule = Rule { action, from_node: None, to_node, from_service: None, to_service: None };
        solo.mesh.set_firewall(vec![rule]);
        solo.packet(b, header("b", "c", service("there"), 0).message(b""));
        assert_eq!(solo.mesh.counters().blocked, counted);
        match action {
            Action::Accept => assert_eq!(the_only_notice(&mut solo, b), Problem::MessageExpired),
            Action::Reject => assert_eq!(the_only_notice(&mut solo, b), Problem::BlockedByFirewall),
            Action::Drop => assert_eq!(solo.sent(), []),
        }
        solo.packet(c, header("c", "b", service("there"), 4).message(b""));
        assert_eq!(solo.sent().len(), 1, "what no rule matches passes");
    }
}

#[test]
fn with_a_firewall_unknown_names_do_not_pass() {
    let (mut solo, b, _c) = between();
    solo.mesh.set_firewall(vec![]);
    solo.packet(b, header("stranger", "c", service("there"), 4).message(b""));
    assert_eq!(solo.sent().len(), 1);
    let from_node = Some(Pattern::Exact("nobody".into()));
    let rule = Rule { action: Action::Drop, from_node, to_node: None, from_service: None, to_service: None };
    solo.mesh.set_firewall(vec![rule]);
    solo.packet(b, header("stranger", "c", service("there"), 4).message(b""));
    assert_eq!(solo.sent(), []);
    assert_eq!(solo.mesh.counters().unknown_name, 1);
}

#[test]
fn there_is_no_notice_about_a_notice() {
    let (mut solo, b, _c) = between();
    for (to, to_service, hops) in [("c", ServiceName::UNREACH, 0), ("a", service("nobody"), 3)] {
        let lost = DataHeader { from_service: ServiceName::UNREACH, ..header("b", to, to_service, hops) };
        solo.packet(b, lost.message(b"{}"));
        assert_eq!(solo.sent(), []);
    }
}

#[test]
fn pings_are_answered_and_answers_to_pings_are_not() {
    let (mut solo, b, _c) = between();
    solo.packet(b, header("b", "a", ServiceName::PING, 3).message(b"ignored"));
    let sent = solo.sent();
    let answer = as_data(&sent[0].1).unwrap();
    assert_eq!((sent.len(), sent[0].0, sent[0].1.len()), (1, b, DATA_HEADER_LEN));
    assert_eq!((answer.from_service, answer.to_service), (ServiceName::PING, service("here")));
    let echo = DataHeader { from_service: ServiceName::PING, ..header("b", "a", ServiceName::PING, 3) };
    solo.packet(b, echo.message(b""));
    assert_eq!(solo.sent(), []);
}

#[test]
fn a_datagram_without_hops_expires_here() {
    let (mut solo, _b, _c) = between();
    let now = solo.now();
    solo.mesh.send(service("here"), &node("c"), ServiceName::PING, b"", 0, now).unwrap();
    assert_eq!(solo.sent(), []);
    let expired = |event: &Event| match event {
        Event::Unreachable { notice, reported_by } => {
            notice.problem == Problem::MessageExpired && *reported_by == node("a")
        }
        _ => false,
    };
    assert!(solo.events().iter().any(expired));
}

#[test]
fn what_cannot_be_sent_says_so() {
    let (mut solo, b, _c) = between();
    let now = solo.now();
    let mut send = |to: &str, name: &str, len: usize| {
        solo.mesh.send(service("here"), &node(to), service(name), &vec![0; len], 30, now)
    };
    assert_eq!(send("c", "svc", MAX_PAYLOAD + 1), Err(SendError::TooLarge(MAX_PAYLOAD + 1)));
    assert_eq!(send("nowhere", "svc", 1), Err(SendError::NoRoute));
    assert_eq!(send("a", "svc", 1), Err(SendError::ServiceUnknown));
    assert_eq!(send("b", "svc", MAX_PAYLOAD), Ok(()));
    assert_eq!(solo.mesh.counters().no_route, 1);
    let sent = solo.sent();
    assert_eq!((sent.len(), sent[0].0), (1, b));
    assert_eq!(sent[0].1.len(), DATA_HEADER_LEN + MAX_PAYLOAD);
}

/// Pings with 0, 1, 2, ... hops name one node after the other, as a traceroute shows them.
#[test]
fn a_traceroute_names_every_node_on_the_way() {
    let mut net = Net::of(&["a", "b", "c", "d"], &[("a", "b"), ("b", "c"), ("c", "d")]);
    assert!(net.mesh("a").bind(service("trace")));
    let mut way = Vec::new();
    for hops in 0..4 {
        let now = net.now();
        net.events.clear();
        let to = node("d");
        net.mesh("a").send(service("trace"), &to, ServiceName::PING, b"", hops, now).unwrap();
        net.run(secs(1));
        for (at, event) in net.events.iter().filter(|(at, _)| at == "a") {
            match event {
                Event::Unreachable { notice, reported_by } => {
                    assert_eq!(notice.from_service, service("trace"), "at {at}");
                    way.push(format!("{reported_by}: {}", notice.problem));
                }
                Event::Deliver(answer) => {
                    assert_eq!(answer.header.from_service, ServiceName::PING);
                    way.push(format!("{} answers", net.nodes[at].name_of(answer.header.from_node).unwrap()));
                }
                _ => {}
            }
        }
    }
    let expired = |name| format!("{name}: message expired");
    assert_eq!(way, [expired("a"), expired("b"), expired("c"), "d answers".to_owned()]);
}
