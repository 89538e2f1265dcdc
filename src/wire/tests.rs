//! The recorded bytes of a Go node are parsed and printed, and every parser rejects bad bytes.

use std::sync::Arc;

use bytes::BytesMut;
use proptest::prelude::*;
use serde_json::Value;

use super::advertisement::AdvertisementMessage;
use super::*;

fn recorded() -> Value {
    serde_json::from_str(include_str!("../../tests/vectors/tcp-session.json")).expect("vectors are JSON")
}

fn bytes(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2));
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex")).collect()
}

fn list<'a>(of: &'a Value, key: &str) -> &'a Vec<Value> {
    let list = of[key].as_array().unwrap_or_else(|| panic!("{key} is no list"));
    assert!(!list.is_empty(), "{key} is empty: the test would check nothing");
    list
}

fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or_else(|| panic!("{key} is no text in {of}"))
}

#[test]
fn name_hashes_are_those_of_the_go_node() {
    let recorded = recorded();
    let vectors = recorded["name_hashes"]["vectors"].as_object().expect("vectors");
    assert!(vectors.len() >= 15);
    for (name, hash) in vectors {
        assert_eq!(NodeId::new(name).unwrap().hash().to_string(), hash.as_str().unwrap(), "{name}");
    }
}

#[test]
fn data_headers_read_and_print_as_recorded() {
    let recorded = recorded();
    let source = NodeId::new(text(&recorded, "node")).unwrap().hash();
    for ping in list(&recorded, "ping_requests") {
        let frame = bytes(text(ping, "frame"));
        let header = DataHeader::parse(&frame).unwrap();
        assert_eq!(u64::from(header.hops), ping["hops_to_live"].as_u64().unwrap());
        assert_eq!(header.from_node, source);
        assert_eq!(header.to_node, NameHash::of(text(ping, "to")));
        assert_eq!(header.from_service.to_text(), text(ping, "from_service"));
        assert_eq!(header.to_service, ServiceName::PING);
        assert_eq!(header.message(&frame[DATA_HEADER_LEN..]), frame);
    }
}

#[test]
fn every_recorded_exchange_reads_and_prints_the_same() {
    let recorded = recorded();
    let mut notices = 0;
    for exchange in list(&recorded, "exchanges") {
        let sent = bytes(text(exchange, "sent"));
        let header = DataHeader::parse(&sent).unwrap();
        assert_eq!(header.message(&sent[DATA_HEADER_LEN..]), sent);
        for answer in list(exchange, "received") {
            let answer = bytes(answer.as_str().unwrap());
            let header = DataHeader::parse(&answer).unwrap();
            let payload = &answer[DATA_HEADER_LEN..];
            assert_eq!(header.message(payload), answer);
            if header.to_service == ServiceName::UNREACH {
                let notice = Unreachable::parse(payload).unwrap();
                assert!(!matches!(notice.problem, Problem::Other(_)), "{notice:?}");
                assert_eq!(notice.payload().unwrap(), payload);
                notices += 1;
            }
        }
    }
    assert_eq!(notices, 3);
}

#[test]
fn json_bodies_read_and_print_as_recorded() {
    let recorded = recorded();
    for key in ["routing_updates_before_handshake", "routing_updates_after_handshake"] {
        for update in list(&recorded, key) {
            let message = bytes(text(update, "hex"));
            assert_eq!(MessageType::of(&message).unwrap(), MessageType::RoutingUpdate);
            assert_eq!(RoutingUpdate::parse(&message).unwrap().message().unwrap(), message);
        }
    }
    for ad in list(&recorded, "service_advertisements") {
        let message = bytes(text(ad, "hex"));
        assert_eq!(MessageType::of(&message).unwrap(), MessageType::Advertisement);
        let parsed = AdvertisementMessage::parse(&message).unwrap();
        assert!(!parsed.cancel);
        assert_eq!(parsed.message().unwrap(), message);
    }
}

#[test]
fn a_whole_number_of_cost_prints_without_fraction() {
    for (cost, printed) in [(1.0, "1"), (1.5, "1.5"), (1e300, "1e+300"), (1e-7, "1e-7"), (100.0, "100")] {
        assert_eq!(serde_json::to_string(&Cost::new(cost).unwrap()).unwrap(), printed);
    }
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(Cost::new(bad).is_err(), "{bad}");
    }
}

#[test]
fn names_that_would_do_harm_are_refused() {
    assert_eq!(NodeId::new(""), Err(InvalidNodeId::Empty));
    assert_eq!(NodeId::new("LocalHost"), Err(InvalidNodeId::Reserved));
    assert_eq!(NodeId::new("a\nERROR: b"), Err(InvalidNodeId::Control));
    assert_eq!(NodeId::new("x".repeat(256)), Err(InvalidNodeId::TooLong(256)));
    assert!(NodeId::new("localhost.localdomain").is_ok());
    assert!(matches!(ServiceName::new("123456789"), Err(InvalidServiceName::TooLong(_))));
    assert!(matches!(ServiceName::new(""), Err(InvalidServiceName::Empty)));
    assert_eq!(ServiceName::new("12345678").unwrap().to_text(), "12345678");
    assert_eq!(ServiceName::from_wire(*b"a\0b\0\0\0\0\0").to_text(), "a\0b");
}

#[test]
fn json_that_lies_about_types_is_an_error_that_says_so() {
    let lies = [
        r#"{"NodeID":7,"UpdateID":"x","UpdateEpoch":1,"UpdateSequence":1,"Connections":{},"ForwardingNode":"a"}"#,
        r#"{"NodeID":"a","UpdateID":"x","UpdateEpoch":-1,"UpdateSequence":1,"Connections":{},"ForwardingNode":"a"}"#,
        r#"{"NodeID":"a","UpdateID":"x","UpdateEpoch":1,"UpdateSequence":1,"Connections":{"b":-2},"ForwardingNode":"a"}"#,
        r#"{"NodeID":"a","UpdateID":"x","UpdateEpoch":1,"UpdateSequence":1,"Connections":[1],"ForwardingNode":"a"}"#,
        r#"{"NodeID":"a","UpdateID":"x","UpdateEpoch":1,"UpdateSequence":1,"Connections":{},"ForwardingNode":""}"#,
        r#"[]"#,
        r#"{"#,
        "",
    ];
    for lie in lies {
        let mut message = vec![1];
        message.extend_from_slice(lie.as_bytes());
        let error = RoutingUpdate::parse(&message).expect_err(lie);
        assert!(error.to_string().starts_with("malformed routing update: "), "{error}");
    }
    assert!(matches!(RoutingUpdate::parse(&[]), Err(WireError::Empty)));
}

#[test]
fn an_update_too_large_for_a_frame_is_refused_at_its_source() {
    let name = |i| NodeId::new(format!("node-with-a-name-{i}")).unwrap();
    let connections = Arc::new((0..5_000).map(|i| (name(i), Cost::DEFAULT)).collect());
    let update = RoutingUpdate {
        node_id: NodeId::new("hub").ok(),
        update_id: "abcdefgh".into(),
        epoch: 1,
        sequence: 1,
        connections,
        forwarding_node: NodeId::new("hub").unwrap(),
        suspected_duplicate: 0,
    };
    let error = update.message().unwrap_err();
    assert!(matches!(error, WireError::TooLarge { len, .. } if len > MAX_MESSAGE), "{error}");
}

proptest! {
    /// However reads cut the stream, the same messages come out and nothing is left over.
    #[test]
    fn frames_survive_any_cutting(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..20),
        cut in 1_usize..64,
    ) {
        let mut stream = Vec::new();
        for m in &messages {
            stream.extend_from_slice(&frame::prefix(m.len()).unwrap());
            stream.extend_from_slice(m);
        }
        let mut buffer = BytesMut::new();
        let mut out = Vec::new();
        for piece in stream.chunks(cut) {
            buffer.extend_from_slice(piece);
            while let Some(m) = frame::next_message(&mut buffer) {
                out.push(m.to_vec());
            }
        }
        prop_assert_eq!(out, messages);
        prop_assert!(buffer.is_empty());
    }

    /// No bytes make a parser panic. A parsed message, when printed, parses to the same message.
    #[test]
    fn parsers_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = MessageType::of(&bytes);
        if let Ok(header) = DataHeader::parse(&bytes) {
            prop_assert_eq!(DataHeader::parse(&header.to_bytes()).unwrap(), header);
        }
        let _ = RoutingUpdate::parse(&bytes);
        let _ = AdvertisementMessage::parse(&bytes);
        let _ = Unreachable::parse(&bytes);
    }
}
