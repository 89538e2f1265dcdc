//! Tests of what only UDP has: real and spoofed sources, errors that come back by ICMP, and joined datagrams.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::*;
use crate::backend::{ListenSpec, Listener, dial as dial_spec};
use crate::wire::{NodeId, RoutingUpdate};

async fn listener() -> Listener {
    Listener::bind(&ListenSpec::Udp(UdpListenOptions::new("127.0.0.1", 0))).await.unwrap()
}

async fn dialed(listener: &Listener) -> Session {
    let options = UdpDialOptions { address: listener.local_addr() };
    dial_spec(&crate::backend::DialSpec::Udp(options)).await.unwrap()
}

fn update(name: &str) -> Bytes {
    let update = RoutingUpdate {
        node_id: NodeId::new(name).ok(),
        update_id: "0123456789".to_owned(),
        epoch: 1,
        sequence: 1,
        connections: Default::default(),
        forwarding_node: NodeId::new(name).unwrap(),
        suspected_duplicate: 0,
    };
    update.message().unwrap()
}

async fn send(session: &mut Session, packets: impl IntoIterator<Item = Bytes>) {
    session.writer.write_batch(&mut packets.into_iter().collect()).await.unwrap();
}

async fn receive(session: &mut Session, count: usize) -> Vec<BytesMut> {
    let mut packets = Vec::new();
    while packets.len() < count {
        session.reader.read_batch(&mut packets).await.unwrap();
    }
    packets
}

#[tokio::test]
async fn a_source_without_a_routing_update_leaves_no_trace() {
    let mut listener = listener().await;
    let mut stranger = dialed(&listener).await;
    let mut neighbour = dialed(&listener).await;
    send(&mut stranger, [Bytes::from_static(b"\0data"), Bytes::from_static(b"\x01{"), Bytes::new()]).await;
    send(&mut neighbour, [update("real")]).await;
    let mut accepted = listener.accept().await.unwrap();
    assert_eq!(receive(&mut accepted, 1).await, [update("real")]);
    let TransportReader::Udp(UdpReader { source: DatagramSource::Shared(member) }) =
        &accepted.reader.transport
    else {
        panic!("not an accepted UDP session");
    };
    assert_eq!(member.hub.sessions(), 1);
}

#[tokio::test]
async fn sessions_of_one_port_do_not_mix() {
    let mut listener = listener().await;
    let mut seen = BTreeSet::new();
    let mut pairs = Vec::new();
    for number in 0..20_u8 {
        let mut session = dialed(&listener).await;
        send(&mut session, [update(&format!("node-{number}")), Bytes::from(vec![number; 9])]).await;
        let accepted = listener.accept().await.unwrap();
        assert!(seen.insert(accepted.info.peer.clone()), "{} twice", accepted.info.peer);
        pairs.push((number, session, accepted));
    }
    for (number, session, accepted) in &mut pairs {
        assert_eq!(receive(accepted, 2).await[1][..], [*number; 9]);
        send(accepted, [Bytes::from(vec![*number; 5])]).await;
        assert_eq!(receive(session, 1).await[0][..], [*number; 5]);
    }
}

#[tokio::test]
async fn many_invented_sources_make_few_sessions() {
    let mut listener = listener().await;
    let (mut sockets, mut accepted) = (Vec::new(), Vec::new());
    for number in 0..table::MAX_NEW {
        let mut session = dialed(&listener).await;
        send(&mut session, [update(&format!("node-{number}"))]).await;
        accepted.push(listener.accept().await.unwrap());
        sockets.push(session);
    }
    let TransportReader::Udp(UdpReader { source: DatagramSource::Shared(member) }) =
        &accepted[0].reader.transport
    else {
        panic!("not an accepted UDP session");
    };
    let hub = member.hub.clone();
    assert_eq!(hub.sessions(), table::MAX_NEW);
    // A further source has to wait until another has ended, and repeats its first message as neighbours do.
    let mut late = dialed(&listener).await;
    send(&mut late, [update("late")]).await;
    // Datagrams of one host arrive in order. So once this one is there, the late source's has been handled.
    send(&mut sockets[1], [Bytes::from_static(b"after it")]).await;
    receive(&mut accepted[1], 2).await;
    assert_eq!(hub.sessions(), table::MAX_NEW);
    drop(accepted.swap_remove(0));
    send(&mut late, [update("late")]).await;
    assert_eq!(receive(&mut listener.accept().await.unwrap(), 1).await, [update("late")]);
}

#[tokio::test]
async fn a_port_where_nobody_listens_ends_the_session() {
    let listener = listener().await;
    let mut session = dialed(&listener).await;
    drop(listener);
    let end = loop {
        let _sent = session.writer.write_batch(&mut [update("a")].into()).await;
        let mut none = Vec::new();
        let read = session.reader.read_batch(&mut none);
        if let Ok(Err(end)) = tokio::time::timeout(Duration::from_secs(10), read).await {
            break end;
        }
    };
    assert!(end.to_string().contains("refused"), "{end}");
}

#[tokio::test]
async fn one_refusal_of_a_neighbour_does_not_disturb_the_others() {
    let mut listener = listener().await;
    let (mut gone, mut stays) = (dialed(&listener).await, dialed(&listener).await);
    send(&mut gone, [update("gone")]).await;
    let mut accepted_gone = listener.accept().await.unwrap();
    send(&mut stays, [update("stays")]).await;
    let mut accepted_stays = listener.accept().await.unwrap();
    drop(gone);
    for _ in 0..10 {
        send(&mut accepted_gone, [Bytes::from_static(b"anybody?")]).await;
        send(&mut accepted_stays, [Bytes::from_static(b"still there")]).await;
        assert_eq!(receive(&mut stays, 1).await[0][..], *b"still there");
    }
}

#[tokio::test]
async fn datagrams_that_leave_with_one_call_arrive_one_by_one() {
    let mut listener = listener().await;
    let mut session = dialed(&listener).await;
    let lens = [1_400, 1_400, 1_400, 90, 0, 1_400, 0, 0, 700, 700, 700, 800, 16_420, 16_420, 16_420, 1];
    let sent: Vec<Bytes> = lens.iter().enumerate().map(|(n, &len)| vec![n as u8; len].into()).collect();
    send(&mut session, [update("a")]).await;
    let mut accepted = listener.accept().await.unwrap();
    receive(&mut accepted, 1).await;
    send(&mut session, sent.clone()).await;
    assert_eq!(receive(&mut accepted, sent.len()).await, sent);
}

#[tokio::test]
async fn a_session_that_ends_makes_room_for_the_next_of_its_source() {
    let mut listener = listener().await;
    let mut session = dialed(&listener).await;
    for _ in 0..3 {
        send(&mut session, [update("a")]).await;
        let mut accepted = listener.accept().await.unwrap();
        assert_eq!(receive(&mut accepted, 1).await, [update("a")]);
    }
}
