//! Tests of what only QUIC has: streams for flows, certificates, and addresses that change.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use tokio::net::UdpSocket;

use super::*;
use crate::backend::session::TransportReader;
use crate::backend::{ListenSpec, Listener, SessionEnd};
use crate::tls::tests::pki::Pki;
use crate::wire::{DataHeader, NameHash, ServiceName};

pub(crate) mod wan;

/// The longest wait for anything that a test expects.
const DEADLINE: Duration = Duration::from_secs(20);

async fn listener(pki: &Pki) -> Listener {
    let options = QuicListenOptions::new("127.0.0.1", 0, pki.server("n"));
    Listener::bind(&ListenSpec::Quic(options)).await.unwrap()
}

fn pki() -> Pki {
    let pki = Pki::new();
    pki.node("n");
    pki
}

async fn send(session: &mut Session, packets: &[Bytes]) {
    let mut batch: VecDeque<Bytes> = packets.iter().cloned().collect();
    session.writer.write_batch(&mut batch).await.unwrap();
}

async fn receive(session: &mut Session, count: usize) -> Vec<Bytes> {
    let mut packets = Vec::new();
    while packets.len() < count {
        timeout(DEADLINE, session.reader.read_batch(&mut packets)).await.expect("no packet").unwrap();
    }
    packets.into_iter().map(bytes::BytesMut::freeze).collect()
}

fn data(number: u8, len: usize) -> Bytes {
    [&[0, number][..], &vec![number; len]].concat().into()
}

/// A datagram of a flow.
fn of_flow(flow: u64, number: u8, len: usize) -> Bytes {
    let (from_service, to_service) = (ServiceName::CONTROL, ServiceName::CONTROL);
    let (from_node, to_node) = (NameHash(flow.wrapping_mul(0x9E37_79B9_7F4A_7C15)), NameHash(7));
    DataHeader { hops: 1, from_node, to_node, from_service, to_service }.message(&vec![number; len])
}

#[tokio::test]
async fn a_flow_keeps_its_order_whatever_the_size_of_its_packets() {
    let pki = pki();
    let mut listener = listener(&pki).await;
    let address = listener.local_addr();
    let mut dialed = dial(&QuicDialOptions::new(address, pki.client("n"))).await.unwrap();
    let mut accepted = listener.accept().await.unwrap();
    let update = Bytes::from_static(b"\x01{}");
    let packet = |number: u8| {
        of_flow(u64::from(number % 5), number, if number.is_multiple_of(3) { 16_384 } else { 100 })
    };
    let sent: Vec<Bytes> = (0..200).map(packet).chain([update.clone()]).collect();
    send(&mut dialed, &sent).await;
    let received = receive(&mut accepted, sent.len()).await;
    assert!(received.contains(&update));
    for flow in 0..5 {
        let of_this = |packets: &[Bytes]| -> Vec<Bytes> {
            let is_of_this = |packet: &&Bytes| packet.starts_with(&of_flow(flow, 0, 0));
            packets.iter().filter(is_of_this).cloned().collect()
        };
        assert_eq!(of_this(&received).len(), 40);
        assert!(of_this(&received) == of_this(&sent), "flow {flow} is out of order");
    }
    let TransportReader::Quic(reader) = &accepted.reader.transport else { panic!("not QUIC") };
    assert!(reader.streams() > 2, "flows have streams of their own: {}", reader.streams());
}

#[tokio::test]
async fn strangers_are_refused_on_both_sides() {
    let (pki, other) = (pki(), pki());
    let mut listener = listener(&pki).await;
    let address = listener.local_addr();
    let failure = dial(&QuicDialOptions::new(address.clone(), other.client("n"))).await;
    assert!(matches!(failure, Err(DialFailure::Tls { .. })), "{failure:?}");
    let error = timeout(DEADLINE, listener.accept()).await.expect("not told").expect_err("refused");
    assert!(matches!(error, AcceptError::Tls { .. }), "{error}");
}

/// Carries datagrams between one client and a server. It can drop the client's first datagrams, and change the
/// address that the server sees.
struct Nat {
    front: SocketAddr,
    moved: Arc<AtomicBool>,
    after_the_move: Arc<AtomicU64>,
    task: tokio::task::AbortHandle,
}

impl Drop for Nat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Nat {
    async fn start(server: SocketAddr, mut lost: usize) -> Self {
        let front = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let backs =
            [UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap()];
        let (moved, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let address = front.local_addr().unwrap();
        let (has_moved, after_the_move) = (moved.clone(), count.clone());
        let task = tokio::spawn(async move {
            let mut client = None;
            let (mut from_client, mut from_server) = ([0; 65_536], [0; 65_536]);
            loop {
                let back = &backs[usize::from(has_moved.load(Ordering::Relaxed))];
                tokio::select! {
                    Ok((len, from)) = front.recv_from(&mut from_client) => {
                        client = Some(from);
                        if lost > 0 {
                            lost -= 1;
                            continue;
                        }
                        let _lost = back.send_to(&from_client[..len], server).await;
                    }
                    Ok((len, _server)) = back.recv_from(&mut from_server) => {
                        after_the_move.fetch_add(u64::from(has_moved.load(Ordering::Relaxed)), Ordering::Relaxed);
                        let Some(client) = client else { continue };
                        let _lost = front.send_to(&from_server[..len], client).await;
                    }
                }
            }
        });
        Self { front: address, moved, after_the_move: count, task: task.abort_handle() }
    }
}

#[tokio::test]
async fn a_session_survives_a_change_of_address() {
    let pki = pki();
    let mut listener = listener(&pki).await;
    let nat = Nat::start(listener.local_addr().parse().unwrap(), 0).await;
    let options = QuicDialOptions::new(nat.front.to_string(), pki.client("n"));
    let mut dialed = dial(&options).await.unwrap();
    let mut accepted = listener.accept().await.unwrap();
    for round in 0..4_u8 {
        send(&mut dialed, &[data(round, 9), data(round, 16_384)]).await;
        assert_eq!(receive(&mut accepted, 2).await.len(), 2, "round {round}");
        send(&mut accepted, &[data(round, 16_384)]).await;
        assert_eq!(receive(&mut dialed, 1).await.len(), 1, "round {round}");
        if round == 1 {
            nat.moved.store(true, Ordering::Relaxed);
        }
    }
    assert!(nat.after_the_move.load(Ordering::Relaxed) > 0, "the address did not change");
}

/// The whole address changes, not only the port. This makes a new path, on which nothing known of the old one
/// counts.
#[tokio::test(start_paused = true)]
async fn what_is_under_way_is_known_after_a_change_of_address() {
    let wan = wan::Wan {
        delay: Duration::from_millis(50),
        rate: 2_500_000,
        buffer: Duration::from_millis(100),
        loss: 0.0,
    };
    let mut joined = wan.join().await;
    let packets: Vec<Bytes> = (0..60).map(|number| of_flow(number.into(), number, 16_384)).collect();
    for turn in 0..2 {
        send(&mut joined.accepted, &packets).await;
        let gauge = joined.accepted.writer.in_flight().unwrap();
        let begun = async {
            while gauge.bytes() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(DEADLINE, begun).await.unwrap_or_else(|_| panic!("turn {turn}: nothing is under way"));
        if turn == 0 {
            joined.change_address();
            // The accepting side learns of the new address from a packet sent to it.
            send(&mut joined.dialed, &packets[..1]).await;
        }
        assert_eq!(receive(&mut joined.dialed, packets.len()).await.len(), packets.len(), "turn {turn}");
        let empty = async {
            while gauge.bytes() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(DEADLINE, empty).await.unwrap_or_else(|_| panic!("turn {turn}: {}", gauge.bytes()));
    }
}

#[tokio::test]
async fn two_lost_first_packets_cost_a_dial_little() {
    let pki = pki();
    let mut listener = listener(&pki).await;
    let nat = Nat::start(listener.local_addr().parse().unwrap(), 2).await;
    let options = QuicDialOptions::new(nat.front.to_string(), pki.client("n"));
    let begun = tokio::time::Instant::now();
    let (dialed, accepted) = tokio::join!(dial(&options), listener.accept());
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    drop((dialed.unwrap(), accepted.unwrap()));
}

#[tokio::test]
async fn a_revoked_certificate_ends_the_session() {
    let pki = pki();
    let mut listener = listener(&pki).await;
    let options = QuicDialOptions::new(listener.local_addr(), pki.client("n"));
    let mut dialed = dial(&options).await.unwrap();
    let mut accepted = listener.accept().await.unwrap();
    let TransportReader::Quic(reader) = &accepted.reader.transport else { panic!("not QUIC") };
    reader.revoke();
    let end = accepted.reader.read_batch(&mut Vec::new()).await.expect_err("cut");
    assert!(end.to_string().contains("no longer accepted"), "{end}");
    let end = timeout(DEADLINE, dialed.reader.read_batch(&mut Vec::new())).await.expect("not told");
    assert!(matches!(end, Err(SessionEnd::Broken(_))), "{end:?}");
}
