//! Silent clients at a QUIC listener: some complete the handshake and say nothing, others only begin it. All
//! are closed in time, at little cost, and an honest neighbour gets in meanwhile.
//! `tests/system/links/test_silence.py` has the same tests for listeners on TCP, UDP and Unix sockets; only here
//! there is a QUIC client.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, TransportConfig};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::harness::{LIMIT, Node, until};
use crate::port::free_port;

/// The ALPN of links.
const LINK: &[u8] = b"meshd-link/1";
const STRANGERS: usize = 3_000;
/// All must be closed within this time.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most bytes per connection that completed its handshake.
const PRICE: usize = 45_000;
/// The most additional bytes per connection of a second crowd of the same size: the allocator reuses the
/// memory of the first one.
const SECOND: usize = 1_000;
const GROWTH: usize = 16 << 20;
/// The most bytes for all clients that only begin a handshake: only few of them are admitted.
const UNBEGUN: usize = 24 << 20;

fn cert(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("certs").join(name)
}

fn profile(kind: &str, node: &str) -> Value {
    let (own, key) = (cert(&format!("{node}.crt")), cert(&format!("{node}.key")));
    match kind {
        "tls-server" => {
            json!({"tls-server": {"name": "srv", "cert": own, "key": key, "clientcas": cert("ca.crt"), "requireclientcert": true}})
        }
        _ => json!({"tls-client": {"name": "cli", "cert": own, "key": key, "rootcas": cert("ca.crt")}}),
    }
}

fn listener() -> (Node, SocketAddr) {
    let port = free_port();
    let listener = json!({"quic-listener": {"port": port, "bindaddr": "127.0.0.1", "tls": "srv"}});
    let node = Node::start("hop", json!([profile("tls-server", "hop"), listener]));
    (node, SocketAddr::from(([127, 0, 0, 1], port)))
}

/// Links an honest neighbour; returns how long that took.
fn honest(target: &Node, address: SocketAddr) -> Duration {
    let start = Instant::now();
    let peer = json!({"quic-peer": {"address": address.to_string(), "tls": "cli"}});
    let node = Node::start("control", json!([profile("tls-client", "control"), peer]));
    node.reaches("hop");
    target.reaches("control");
    start.elapsed()
}

/// Clients of a protocol, with the certificate of an admissible node.
fn client(protocol: &[u8]) -> Endpoint {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(cert("ca.crt")).unwrap()).unwrap();
    let own = vec![CertificateDer::from_pem_file(cert("execution.crt")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(cert("execution.key")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(own, key)
        .unwrap();
    tls.alpn_protocols = vec![protocol.to_vec()];
    let mut transport = TransportConfig::default();
    // The other side must end the silence.
    transport.max_idle_timeout(None);
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    config.transport_config(Arc::new(transport));
    let mut endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    endpoint.set_default_client_config(config);
    endpoint
}

/// Connections that say nothing.
async fn silent(endpoints: &[Endpoint], address: SocketAddr, count: usize) -> Vec<Connection> {
    let (mut dialling, mut silent) = (JoinSet::new(), Vec::new());
    for number in 0..count {
        let connecting = endpoints[number % endpoints.len()].connect(address, "localhost").unwrap();
        dialling.spawn(async move { timeout(LIMIT, connecting).await.expect("a handshake").unwrap() });
        if number >= 32 {
            silent.extend(dialling.join_next().await.map(Result::unwrap));
        }
    }
    silent.extend(dialling.join_all().await);
    silent
}

/// Waits until each is closed, within [`PATIENCE`] of the time when all were open.
async fn all_cut(crowd: &[Connection]) {
    let come = Instant::now();
    for one in crowd {
        let left = PATIENCE.saturating_sub(come.elapsed());
        let end = timeout(left, one.closed()).await.expect("a silent one was not cut");
        assert!(matches!(end, ConnectionError::ApplicationClosed(_)), "{end}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_are_silent_after_the_handshake_are_closed() {
    let (node, address) = listener();
    // Enough sockets for the simultaneous answers.
    let endpoints: Vec<_> = (0..30).map(|_| client(LINK)).collect();
    let before = node.rss();
    let crowd = silent(&endpoints, address, STRANGERS).await;
    let most = node.rss();
    let took = tokio::task::block_in_place(|| honest(&node, address));
    println!("{} bytes for each; an honest one waited for {took:?}", (most - before) / STRANGERS);
    assert!(took < Duration::from_secs(20), "an honest neighbour had to wait for {took:?}");
    assert!(most < before + STRANGERS * PRICE, "{before} bytes became {most}");
    all_cut(&crowd).await;
    all_cut(&silent(&endpoints, address, SECOND).await).await;
    assert!(node.rss() < most + GROWTH, "{most} bytes became {} with the next ones", node.rss());
    assert!(node.log().matches("disconnected").count() <= 2, "a stranger's end is no news");
}

/// The first flights of that many clients of a protocol, as an eavesdropper sees them.
pub(crate) async fn first_words(protocol: &[u8], count: usize) -> Vec<Vec<u8>> {
    let capture = UdpSocket::bind("127.0.0.1:0").unwrap();
    capture.set_read_timeout(Some(LIMIT)).unwrap();
    let (address, endpoint) = (capture.local_addr().unwrap(), client(protocol));
    let mut words = Vec::new();
    for _ in 0..count / 100 {
        let _connecting: Vec<_> = (0..100).map(|_| endpoint.connect(address, "localhost").unwrap()).collect();
        let heard = words.len();
        tokio::task::block_in_place(|| {
            while words.len() < heard + 100 {
                let mut buffer = [0; 2_000];
                let size = capture.recv(&mut buffer).unwrap();
                words.push(buffer[..size].to_vec());
            }
        });
    }
    words
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_only_begin_a_handshake_cost_almost_nothing() {
    let (node, address) = listener();
    let words = first_words(LINK, STRANGERS).await;
    assert!(words.iter().all(|word| word.len() >= 1_200 && word[0] & 0xf0 == 0xc0), "these are Initials");
    let before = node.rss();
    tokio::task::block_in_place(|| {
        let sources: Vec<_> = (0..100).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        for (number, word) in words.iter().enumerate() {
            sources[number % sources.len()].send_to(word, address).unwrap();
        }
        let took = honest(&node, address);
        println!("{} bytes more; an honest one waited for {took:?}", node.rss().saturating_sub(before));
        assert!(took < Duration::from_secs(20), "an honest neighbour had to wait for {took:?}");
        assert!(node.rss() < before + UNBEGUN, "{before} bytes became {}", node.rss());
        until("those who were let begin are given up", || {
            node.log().contains("the handshake takes too long").then_some(())
        });
    });
}
