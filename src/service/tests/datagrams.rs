//! UDP proxies: each source has a flow of its own, and forbidden datagrams do not pass.

use std::net::SocketAddr;

use bytes::Bytes;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::super::{FlowLimits, UdpClient, UdpServer};
use super::{LIMIT, Rig, pattern, service};
use crate::wire::{MAX_HOPS, MAX_PAYLOAD};

/// Starts proxies from a local port to a target at the other end of the mesh, and returns the port's address.
async fn pair(rig: &Rig, target: SocketAddr) -> SocketAddr {
    let (near, far) = (&rig.nodes[0], &rig.nodes[2]);
    let limits = FlowLimits::default();
    let exit = UdpClient::listen(far, service("behind"), target.to_string(), limits).await.unwrap();
    rig.tasks.spawn(exit.run(rig.stop.clone()));
    let behind = (far.id().clone(), service("behind"));
    let entrance = UdpServer::bind("127.0.0.1:0", near.clone(), behind, limits).await.unwrap();
    let address = entrance.local_addr().unwrap();
    rig.tasks.spawn(entrance.run(rig.stop.clone()));
    address
}

async fn socket() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.unwrap()
}

async fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = vec![0; 65_536];
    let (size, from) = timeout(LIMIT, socket.recv_from(&mut buffer)).await.expect("it arrives").unwrap();
    buffer.truncate(size);
    (buffer, from)
}

#[tokio::test]
async fn answers_find_their_source() {
    let rig = Rig::new().await;
    let target = socket().await;
    let entrance = pair(&rig, target.local_addr().unwrap()).await;
    let sources = [socket().await, socket().await, socket().await];
    let mut seen = Vec::new();
    for (number, source) in sources.iter().enumerate() {
        source.send_to(&pattern(1000 + number, 1), entrance).await.unwrap();
        let (datagram, from) = receive(&target).await;
        assert_eq!(datagram, pattern(1000 + number, 1));
        assert!(!seen.contains(&from), "each source has a socket of its own");
        seen.push(from);
    }
    for (number, from) in seen.iter().enumerate().rev() {
        target.send_to(&[number as u8], from).await.unwrap();
    }
    for (number, source) in sources.iter().enumerate() {
        assert_eq!(receive(source).await, (vec![number as u8], entrance));
    }
    // The same source keeps its socket.
    sources[1].send_to(b"again", entrance).await.unwrap();
    assert_eq!(receive(&target).await, (b"again".to_vec(), seen[1]));
    rig.end().await;
}

#[tokio::test]
async fn sizes_from_nothing_to_the_limit_pass_and_larger_ones_do_not() {
    let rig = Rig::new().await;
    let target = socket().await;
    let entrance = pair(&rig, target.local_addr().unwrap()).await;
    let source = socket().await;
    for size in [0, 1, 1500, MAX_PAYLOAD] {
        source.send_to(&pattern(size, 2), entrance).await.unwrap();
        assert!(receive(&target).await.0 == pattern(size, 2), "{size}");
    }
    source.send_to(&pattern(MAX_PAYLOAD + 1, 2), entrance).await.unwrap();
    source.send_to(b"next", entrance).await.unwrap();
    assert_eq!(receive(&target).await.0, b"next");
}

#[tokio::test]
async fn a_target_may_come_late_and_go_away_for_a_while() {
    let rig = Rig::new().await;
    let target = socket().await;
    let address = target.local_addr().unwrap();
    drop(target);
    let entrance = pair(&rig, address).await;
    let source = socket().await;
    source.send_to(b"nobody", entrance).await.unwrap();
    let target = UdpSocket::bind(address).await.unwrap();
    // The error for the first datagram may arrive late and make the send of the next one fail, so it is sent
    // repeatedly.
    let arrived = timeout(LIMIT, async {
        let mut buffer = [0; 16];
        loop {
            source.send_to(b"somebody", entrance).await.unwrap();
            let wait = std::time::Duration::from_millis(100);
            if let Ok(received) = timeout(wait, target.recv_from(&mut buffer)).await {
                return received.unwrap();
            }
        }
    });
    let (_, from) = arrived.await.expect("it arrives");
    target.send_to(b"here", from).await.unwrap();
    assert_eq!(receive(&source).await.0, b"here");
}

#[tokio::test]
async fn only_the_target_answers() {
    let rig = Rig::new().await;
    let far = rig.nodes[2].clone();
    let behind = far.bind(service("behind")).await.unwrap();
    let stranger = far.bind(service("stranger")).await.unwrap();
    let target = (far.id().clone(), service("behind"));
    let entrance =
        UdpServer::bind("127.0.0.1:0", rig.nodes[0].clone(), target, FlowLimits::default()).await.unwrap();
    let address = entrance.local_addr().unwrap();
    rig.tasks.spawn(entrance.run(rig.stop.clone()));
    let source = socket().await;
    source.send_to(b"question", address).await.unwrap();
    let question = timeout(LIMIT, behind.receive()).await.unwrap().unwrap();
    let (near, flow) = (rig.nodes[0].id(), question.header.from_service);
    for (socket, text) in [(&stranger, "from a stranger"), (&behind, "answer")] {
        socket.send_to(near, flow, Bytes::from_static(text.as_bytes()), MAX_HOPS).await.unwrap();
    }
    assert_eq!(receive(&source).await.0, b"answer");
}

#[tokio::test]
async fn a_proxy_that_ends_frees_its_names() {
    let rig = Rig::new().await;
    let target = socket().await;
    let entrance = pair(&rig, target.local_addr().unwrap()).await;
    socket().await.send_to(b"x", entrance).await.unwrap();
    receive(&target).await;
    rig.end().await;
    rig.nodes[2].bind(service("behind")).await.expect("the service is free");
    UdpSocket::bind(entrance).await.expect("the port is free");
}
