//! Proxies between implementations: one end on a meshd node and the other on a Go node, in both directions.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::{Value, json};

use crate::harness::{LIMIT, Node, echo, exchange, pattern, until};
use crate::port::free_port;
use crate::receptor::beside_go_nodes;

/// A node with the entrances, linked to a node with the exits.
struct Proxied {
    near: Node,
    _far: Node,
    tcp: u16,
    udp: u16,
    unix: PathBuf,
    _targets: tempfile::TempDir,
}

impl Proxied {
    fn new(near: &Path, far: &Path) -> Self {
        let targets = tempfile::tempdir().unwrap();
        let (link, tcp, udp) = (free_port(), free_port(), free_port());
        let (target, datagrams) = (echo(), echo_datagrams());
        let (unix, behind) = (targets.path().join("in"), targets.path().join("behind"));
        echo_unix(&behind);
        let far = Node::run(
            far,
            "far",
            json!({}),
            json!([{"tcp-listener": {"port": link, "bindaddr": "127.0.0.1"}},
                   {"tcp-client": {"service": "tcp", "address": format!("127.0.0.1:{target}")}},
                   {"udp-client": {"service": "udp", "address": format!("127.0.0.1:{datagrams}")}},
                   {"unix-socket-client": {"service": "unix", "filename": behind}},
                   {"command-service": {"service": "term", "command": "sh -c 'stty -echo; read line; echo you said $line'"}}]),
        );
        let to = |service: &str, more: Value| {
            let mut item = json!({"remotenode": "far", "remoteservice": service});
            item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            item
        };
        let near = Node::run(
            near,
            "near",
            json!({}),
            json!([{"tcp-peer": {"address": format!("127.0.0.1:{link}")}},
                   {"tcp-server": to("tcp", json!({"port": tcp, "bindaddr": "127.0.0.1"}))},
                   {"udp-server": to("udp", json!({"port": udp, "bindaddr": "127.0.0.1"}))},
                   {"unix-socket-server": to("unix", json!({"filename": unix}))}]),
        );
        for service in ["tcp", "udp", "unix", "term"] {
            near.knows("far", service);
        }
        Self { near, _far: far, tcp, udp, unix, _targets: targets }
    }
}

fn echo_datagrams() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok((size, from)) = socket.recv_from(&mut buffer) {
            let _gone = socket.send_to(&buffer[..size], from);
        }
    });
    port
}

fn echo_unix(path: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut all = Vec::new();
            if stream.read_to_end(&mut all).is_ok() {
                let _gone = stream.write_all(&all);
            }
        }
    });
}

/// With Go at one end a half-close is not preserved, so nothing waits for the other end.
fn works(proxied: &Proxied, half_close: bool) {
    let sent = pattern(3_000_000);
    if half_close {
        assert!(exchange(proxied.tcp, &sent) == sent, "TCP");
        let mut stream = until("the socket", || UnixStream::connect(&proxied.unix).ok());
        stream.write_all(&sent[..100_000]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert!(all == sent[..100_000], "Unix");
    }
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
    until("a datagram there and back", || {
        socket.send_to(&sent[..1200], ("127.0.0.1", proxied.udp)).unwrap();
        let mut buffer = [0; 2000];
        let size = socket.recv(&mut buffer).ok()?;
        (buffer[..size] == sent[..1200]).then_some(())
    });
    let mut stream = UnixStream::connect(proxied.near.socket()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"connect far term\n").unwrap();
    // The terminal echoes input until the command turns that off.
    stream.write_all(b"hello\n").unwrap();
    let mut said = String::new();
    while !said.contains("you said hello") {
        let mut buffer = [0; 1000];
        let size = stream.read(&mut buffer).unwrap();
        assert!(size > 0, "{said}");
        said += &String::from_utf8_lossy(&buffer[..size]);
    }
}

fn ours() -> PathBuf {
    env!("CARGO_BIN_EXE_meshd").into()
}

#[test]
fn between_our_own_nodes() {
    works(&Proxied::new(&ours(), &ours()), true);
}

beside_go_nodes!(from_ours_into_a_go_node, from_a_go_node_into_ours);

fn from_ours_into_a_go_node(go: &Path) {
    works(&Proxied::new(&ours(), go), false);
}

fn from_a_go_node_into_ours(go: &Path) {
    works(&Proxied::new(go, &ours()), true);
}
