//! Sessions of bare datagrams: whole packets, but no promise of order, arrival, beginning or end.
//!
//! On one host a datagram arrives unless a buffer is full. The tests rely on this and keep bursts small.

use super::*;
use crate::backend::Writer;
use crate::wire::{NodeId, RoutingUpdate};

/// The largest datagram.
const MAX: usize = 65_507;

fn introduction() -> Bytes {
    let node = NodeId::new("dialer").expect("a name");
    let update = RoutingUpdate {
        node_id: Some(node.clone()),
        update_id: "ABCDefgh".to_owned(),
        epoch: 1,
        sequence: 1,
        connections: Default::default(),
        forwarding_node: node,
        suspected_duplicate: 0,
    };
    update.message().expect("small")
}

/// Both ends of a session that has been introduced.
async fn introduced(harness: &impl Harness) -> (Listener, Session, Session) {
    let mut listener = Listener::bind(&harness.anywhere()).await.expect("bind");
    let mut dialed = dial(&harness.to(&listener)).await.expect("dial");
    send(&mut dialed.writer, &[introduction()]).await;
    let mut accepted = listener.accept().await.expect("accept");
    assert_same(&read_exactly(&mut accepted.reader, 1).await, &[introduction()]);
    (listener, dialed, accepted)
}

async fn send(writer: &mut Writer, packets: &[Bytes]) {
    let mut batch: VecDeque<Bytes> = packets.iter().cloned().collect();
    writer.write_batch(&mut batch).await.expect("write");
    assert!(batch.is_empty());
}

fn sorted(mut packets: Vec<BytesMut>) -> Vec<BytesMut> {
    packets.sort();
    packets
}

pub(super) async fn packets_of_every_size_arrive_whole(harness: impl Harness) {
    let (_listener, mut dialed, mut accepted) = introduced(&harness).await;
    for (from, to) in [(&mut dialed.writer, &mut accepted.reader), (&mut accepted.writer, &mut dialed.reader)]
    {
        for (number, len) in [0, 1, 36, 1_452, 1_473, 4_096, 16_420, 65_506, MAX, 0].into_iter().enumerate() {
            let sent = [packet(number, len)];
            send(from, &sent).await;
            assert_same(&read_exactly(to, 1).await, &sent);
        }
    }
}

pub(super) async fn bursts_arrive_whole_and_in_batches(harness: impl Harness) {
    let (_listener, mut dialed, mut accepted) = introduced(&harness).await;
    let mut largest = 0;
    for burst in 0..200 {
        let mut sent: Vec<Bytes> =
            (0..40).map(|n| packet(burst * 40 + n, [300, 300, 300, 1_452][n % 4])).collect();
        send(&mut dialed.writer, &sent).await;
        let mut received = Vec::new();
        while received.len() < sent.len() {
            let before = received.len();
            accepted.reader.read_batch(&mut received).await.expect("more packets");
            largest = largest.max(received.len() - before);
        }
        sent.sort();
        assert_same(&sorted(received), &sent);
    }
    assert!(largest > 1, "packets at hand were not given in one batch");
}

pub(super) async fn a_dropped_read_loses_nothing(harness: impl Harness) {
    let (_listener, mut dialed, mut accepted) = introduced(&harness).await;
    for (from, to) in [(&mut dialed.writer, &mut accepted.reader), (&mut accepted.writer, &mut dialed.reader)]
    {
        let (mut received, mut dropped) = (Vec::new(), 0);
        let sent: Vec<Bytes> = (0..300).map(|number| packet(number, 500)).collect();
        for one in &sent {
            dropped += usize::from(try_once(to.read_batch(&mut received)).await.is_none());
            send(from, std::slice::from_ref(one)).await;
        }
        while received.len() < sent.len() {
            to.read_batch(&mut received).await.expect("more packets");
        }
        assert_same(&received, &sent);
        assert!(dropped > 0, "no read was dropped");
    }
}

pub(super) async fn a_packet_that_no_datagram_carries_is_dropped_alone(harness: impl Harness) {
    let (_listener, mut dialed, mut accepted) = introduced(&harness).await;
    send(&mut dialed.writer, &[packet(0, 3), packet(1, MAX + 1), packet(2, 4)]).await;
    assert_same(&read_exactly(&mut accepted.reader, 2).await, &[packet(0, 3), packet(2, 4)]);
}

pub(super) async fn a_dropped_listener_frees_its_address(harness: impl Harness) {
    let (listener, dialed, accepted) = introduced(&harness).await;
    let (address, to) = (harness.same(&listener), harness.to(&listener));
    drop((listener, accepted, dialed));
    let mut listener = Listener::bind(&address).await.expect("bind again");
    let mut dialed = dial(&to).await.expect("dial again");
    send(&mut dialed.writer, &[introduction()]).await;
    listener.accept().await.expect("accept again");
}

pub(super) async fn sessions_say_where_they_came_from(harness: impl Harness) {
    let (listener, dialed, accepted) = introduced(&harness).await;
    assert_eq!((dialed.info.direction, accepted.info.direction), (Direction::Outbound, Direction::Inbound));
    assert_eq!(dialed.info.peer, listener.local_addr());
    assert_eq!(dialed.info.transport, accepted.info.transport);
    assert!(!accepted.info.peer.is_empty());
}

pub(super) async fn a_reader_that_does_not_read_stops_nobody(harness: impl Harness) {
    let (_listener, mut dialed, mut accepted) = introduced(&harness).await;
    let large = packet(0, 60_000);
    for _ in 0..40 {
        send(&mut dialed.writer, &vec![large.clone(); 20]).await;
        tokio::task::yield_now().await;
    }
    let mut received = Vec::new();
    accepted.reader.read_batch(&mut received).await.expect("what was kept");
    assert!(received.iter().all(|packet| packet == &large));
}

pub(super) async fn a_refusal_ends_the_session_once_and_for_good(harness: impl Harness) {
    let (listener, mut dialed, accepted) = introduced(&harness).await;
    drop((listener, accepted));
    let mut none = Vec::new();
    let first = loop {
        // The first packets may still be taken, because the end takes time to arrive.
        if let Err(end) = dialed.writer.write_batch(&mut vec![introduction()].into()).await {
            break end;
        }
        tokio::task::yield_now().await;
    };
    assert!(matches!(first, SessionEnd::Broken(_)), "{first}");
    let later = dialed.writer.write_batch(&mut vec![introduction()].into()).await;
    assert!(matches!(later, Err(SessionEnd::AlreadyOver)), "{later:?}");
    assert!(try_once(dialed.reader.read_batch(&mut none)).await.is_none_or(|read| read.is_err()));
    assert!(none.is_empty());
}
