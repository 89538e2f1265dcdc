//! A listener on all addresses serves IPv4 and IPv6, whatever its transport.

use std::net::SocketAddr;

use super::*;
use crate::backend::{
    DialSpec, ListenSpec, QuicDialOptions, QuicListenOptions, TcpDialOptions, TcpListenOptions,
    UdpDialOptions, UdpListenOptions, WsDialOptions, WsListenOptions,
};
use crate::tls::make::{CertSubject, Dates};
use crate::tls::tests::pki::Pki;
use crate::wire::{NodeId, RoutingUpdate};

const ALL: &str = "0.0.0.0";

/// Dials the listener at several addresses of this host, and exchanges a packet each way.
async fn is_reached(spec: ListenSpec, to: impl Fn(SocketAddr) -> DialSpec) {
    let mut listener = Listener::bind(&spec).await.expect("bind");
    let port = listener.local_addr().parse::<SocketAddr>().expect("an address").port();
    // An answer arrives only if it comes from the very address dialled.
    for host in ["127.0.0.1", "127.0.0.2", "::1"] {
        let address = SocketAddr::new(host.parse().expect("an address"), port);
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
        let dialing = async {
            let mut dialed = dial(&to(address)).await.unwrap_or_else(|failure| panic!("{host}: {failure}"));
            let packet = update.message().expect("small");
            dialed.writer.write_batch(&mut VecDeque::from([packet])).await.expect("write");
            dialed
        };
        let (mut dialed, accepted) = tokio::join!(dialing, listener.accept());
        let mut accepted = accepted.unwrap_or_else(|error| panic!("{host}: {error}"));
        let peer: SocketAddr = accepted.info.peer.parse().expect("an address");
        assert_eq!((peer.is_ipv4(), peer.ip().is_loopback()), (address.is_ipv4(), true), "{host}: {peer}");
        let mut packets = Vec::new();
        accepted.reader.read_batch(&mut packets).await.expect("read");
        accepted.writer.write_batch(&mut VecDeque::from([packet(7, 100)])).await.expect("write");
        dialed.reader.read_batch(&mut packets).await.expect("read");
        assert_eq!(packets.len(), 2, "{host}");
    }
}

#[tokio::test]
async fn tcp_is_reached_on_both_families() {
    let to = |address: SocketAddr| {
        DialSpec::Tcp(TcpDialOptions { address: address.to_string(), tls: None, congestion: None })
    };
    let test = is_reached(ListenSpec::Tcp(TcpListenOptions::new(ALL, 0)), to);
    tokio::time::timeout(DEADLINE, test).await.expect("the test hangs");
}

#[tokio::test]
async fn udp_is_reached_on_both_families() {
    let to = |address: SocketAddr| DialSpec::Udp(UdpDialOptions { address: address.to_string() });
    let test = is_reached(ListenSpec::Udp(UdpListenOptions::new(ALL, 0)), to);
    tokio::time::timeout(DEADLINE, test).await.expect("the test hangs");
}

#[tokio::test]
async fn websockets_are_reached_on_both_families() {
    let to = |address: SocketAddr| {
        DialSpec::WebSocket(WsDialOptions {
            host: address.ip().to_string(),
            port: address.port(),
            path: "/".into(),
            extra_header: None,
            tls: None,
            proxy: None,
        })
    };
    let test = is_reached(ListenSpec::WebSocket(WsListenOptions::new(ALL, 0, "/", None)), to);
    tokio::time::timeout(DEADLINE, test).await.expect("the test hangs");
}

#[tokio::test]
async fn quic_is_reached_on_both_families() {
    let pki = Pki::new();
    let addresses = ["127.0.0.1", "127.0.0.2", "::1"].map(|host| host.parse().expect("an address")).into();
    let names = CertSubject { addresses, ..crate::tls::tests::pki::node_names("n") };
    pki.issue("n", &names, "ca", Dates::default());
    let client = pki.client("n");
    let to = |address: SocketAddr| DialSpec::Quic(QuicDialOptions::new(address.to_string(), client.clone()));
    let test = is_reached(ListenSpec::Quic(QuicListenOptions::new(ALL, 0, pki.server("n"))), to);
    tokio::time::timeout(DEADLINE, test).await.expect("the test hangs");
}
