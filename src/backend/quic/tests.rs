//! What only QUIC has: two ways for packets, certificates, and addresses that change.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use tokio::net::UdpSocket;

use super::*;
use crate::backend::session::TransportReader;
use crate::backend::{ListenSpec, Listener, MAX_BATCH_PACKETS, SessionEnd};
use crate::tls::tests::pki::Pki;

/// Whatever a test waits for comes within this time.
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

fn datagrams_received(session: &Session) -> u64 {
    let TransportReader::Quic(reader) = &session.reader.transport else { panic!("not QUIC") };
    reader.datagrams_received()
}

fn data(number: u8, len: usize) -> Bytes {
    [&[0, number][..], &vec![number; len]].concat().into()
}

#[tokio::test]
async fn data_that_fits_goes_as_datagrams_and_all_else_on_the_stream() {
    let pki = pki();
    let mut listener = listener(&pki).await;
    let address = listener.local_addr();
    let mut dialed = dial(&QuicDialOptions { address, tls: pki.client("n") }).await.unwrap();
    let mut accepted = listener.accept().await.unwrap();
    let small: Vec<Bytes> = (0..20).map(|number| data(number, 1_000)).collect();
    let large: Vec<Bytes> = (0..5).map(|number| data(number, 16_384)).collect();
    let update = Bytes::from_static(b"\x01{}");
    let mut sent = [small.clone(), large, vec![update]].concat();
    send(&mut dialed, &sent).await;
    let mut received = receive(&mut accepted, sent.len()).await;
    sent.sort();
    received.sort();
    assert!(received == sent);
    assert_eq!(datagrams_received(&accepted), small.len() as u64);
    send(&mut accepted, &small[..1]).await;
    assert_eq!(receive(&mut dialed, 1).await, small[..1]);
}

#[tokio::test]
async fn strangers_are_refused_on_both_sides() {
    let (pki, other) = (pki(), pki());
    let mut listener = listener(&pki).await;
    let address = listener.local_addr();
    let failure = dial(&QuicDialOptions { address: address.clone(), tls: other.client("n") }).await;
    assert!(matches!(failure, Err(DialFailure::Tls { .. })), "{failure:?}");
    let error = timeout(DEADLINE, listener.accept()).await.expect("not told").expect_err("refused");
    assert!(matches!(error, AcceptError::Tls { .. }), "{error}");
}

/// Carries datagrams between one client and a server, and can change the address that the server sees.
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
    async fn start(server: SocketAddr) -> Self {
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
    let nat = Nat::start(listener.local_addr().parse().unwrap()).await;
    let options = QuicDialOptions { address: nat.front.to_string(), tls: pki.client("n") };
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

#[tokio::test]
async fn a_revoked_certificate_ends_the_session() {
    let pki = pki();
    let mut listener = listener(&pki).await;
    let options = QuicDialOptions { address: listener.local_addr(), tls: pki.client("n") };
    let mut dialed = dial(&options).await.unwrap();
    let mut accepted = listener.accept().await.unwrap();
    let TransportReader::Quic(reader) = &accepted.reader.transport else { panic!("not QUIC") };
    reader.revoke();
    let end = accepted.reader.read_batch(&mut Vec::new()).await.expect_err("cut");
    assert!(end.to_string().contains("no longer accepted"), "{end}");
    let end = timeout(DEADLINE, dialed.reader.read_batch(&mut Vec::new())).await.expect("not told");
    assert!(matches!(end, Err(SessionEnd::Broken(_))), "{end:?}");
}

/// A session whose reader has more datagrams waiting than one batch takes, and something on the stream.
async fn flooded(listener: &mut Listener, pki: &Pki) -> (Session, Session) {
    let options = QuicDialOptions { address: listener.local_addr(), tls: pki.client("n") };
    let mut dialed = dial(&options).await.unwrap();
    let accepted = listener.accept().await.unwrap();
    let flood: Vec<Bytes> = (0..4 * MAX_BATCH_PACKETS).map(|number| data(number as u8, 100)).collect();
    send(&mut dialed, &[Bytes::from_static(b"\x01{}")]).await;
    send(&mut dialed, &flood).await;
    let arrived = async {
        while datagrams_received(&accepted) < flood.len() as u64 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(DEADLINE, arrived).await.expect("the datagrams arrive");
    (dialed, accepted)
}

#[tokio::test]
async fn datagrams_do_not_keep_the_stream_waiting() {
    let pki = pki();
    let mut listener = listener(&pki).await;
    let (_dialed, mut accepted) = flooded(&mut listener, &pki).await;
    let mut packets = Vec::new();
    for _ in 0..2 {
        accepted.reader.read_batch(&mut packets).await.unwrap();
    }
    assert!(packets.iter().any(|packet| packet.first() == Some(&1)), "the stream's turn came");
}

#[tokio::test]
async fn datagrams_do_not_keep_a_revoked_session_alive() {
    let pki = pki();
    let mut listener = listener(&pki).await;
    let (_dialed, mut accepted) = flooded(&mut listener, &pki).await;
    let TransportReader::Quic(reader) = &accepted.reader.transport else { panic!("not QUIC") };
    reader.revoke();
    let end = accepted.reader.read_batch(&mut Vec::new()).await.expect_err("cut");
    assert!(end.to_string().contains("no longer accepted"), "{end}");
}
