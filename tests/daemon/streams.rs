//! Attacks on a node's streams: handshakes with forged names, data that nobody reads, and forged updates of
//! other nodes. The node never uses more memory than its stream budget, and honest streams continue.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use meshd::wire::{DataHeader, MAX_HOPS, NameHash, ServiceName};
use serde_json::{Value, json};

use crate::harness::{LIMIT, Node, echo, exchange, pattern, until};
use crate::port::free_port;
use crate::silence::first_words;

/// Handshakes with forged names.
const STRANGERS: usize = 3_000;
/// Their memory in total, in bytes: only few of them are admitted.
const UNBEGUN: usize = 24 << 20;

/// A neighbour that speaks the protocol and may lie.
struct Stranger {
    socket: TcpStream,
    /// Updates sent so far.
    sent: u64,
}

impl Stranger {
    fn join(node: &Node, port: u16) -> Self {
        let mut stranger = Self { socket: TcpStream::connect(("127.0.0.1", port)).unwrap(), sent: 0 };
        // Discards what the node sends, which must not block it.
        let mut unread = stranger.socket.try_clone().unwrap();
        thread::spawn(move || std::io::copy(&mut unread, &mut std::io::sink()));
        for sequence in 1.. {
            stranger.update("stranger", 1 << 40, sequence, &["hub"]);
            if node.ask_json("status")["RoutingTable"].get("stranger").is_some() {
                break;
            }
            assert!(sequence < 1_000, "the stranger was not let in");
            thread::sleep(Duration::from_millis(20));
        }
        stranger
    }

    fn send(&mut self, message: &[u8]) {
        self.socket.write_all(&u16::try_from(message.len()).unwrap().to_le_bytes()).unwrap();
        self.socket.write_all(message).unwrap();
    }

    /// An update of a node, true or not.
    fn update(&mut self, node: &str, epoch: u64, sequence: u64, neighbours: &[&str]) {
        self.sent += 1;
        let id = format!("x{:07}", self.sent);
        let connections: serde_json::Map<_, _> =
            neighbours.iter().map(|name| ((*name).to_owned(), json!(1.0))).collect();
        let update = json!({"NodeID": node, "UpdateID": id, "UpdateEpoch": epoch,
            "UpdateSequence": sequence, "Connections": connections, "ForwardingNode": "stranger",
            "SuspectedDuplicate": 0});
        self.send(format!("\x01{update}").as_bytes());
    }

    /// A datagram to the hub's control service with any node as its source.
    fn datagram(&mut self, from: &str, payload: &[u8]) {
        let header = DataHeader {
            hops: MAX_HOPS,
            from_node: NameHash::of(from),
            to_node: NameHash::of("hub"),
            from_service: ServiceName::new("x").unwrap(),
            to_service: ServiceName::CONTROL,
        };
        self.send(&header.message(payload));
    }
}

fn hub(node: Value, more: Value) -> (Node, u16) {
    let port = free_port();
    let mut items = json!([{"tcp-listener": {"port": port, "bindaddr": "127.0.0.1"}}]);
    items.as_array_mut().unwrap().extend(more.as_array().unwrap().clone());
    (Node::start_with("hub", node, items), port)
}

fn honest(port: u16, more: Value) -> Node {
    let mut items = json!([{"tcp-peer": {"address": format!("127.0.0.1:{port}")}}]);
    items.as_array_mut().unwrap().extend(more.as_array().unwrap().clone());
    let node = Node::start("honest", items);
    node.reaches("hub");
    node
}

/// A stream to the hub's control service.
struct Talk(BufReader<UnixStream>);

impl Talk {
    fn open(node: &Node) -> Self {
        let stream = UnixStream::connect(node.socket()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut talk = Self(BufReader::new(stream));
        assert!(talk.line().contains("node honest"));
        writeln!(talk.0.get_mut(), "connect hub control").unwrap();
        assert_eq!(talk.line(), "Connecting\n");
        assert_eq!(talk.line(), "Receptor Control, node hub\n");
        talk
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    /// The hub's status.
    fn status(&mut self) -> Value {
        writeln!(self.0.get_mut(), "status").unwrap();
        serde_json::from_str(&self.line()).expect("the stream goes on")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_with_forged_names_cost_almost_nothing() {
    let words = first_words(b"netceptor", STRANGERS).await;
    tokio::task::block_in_place(|| {
        let (hub, port) = hub(json!({}), json!([]));
        let mut all = vec![honest(port, json!([]))];
        // Receptor nodes handle a request to validate their address.
        for program in ["RECEPTOR_GO", "RECEPTOR_GO_NEW"].map(std::env::var_os) {
            let Some(program) = program else {
                eprintln!(
                    "SKIPPED: the part beside a receptor node, as RECEPTOR_GO or RECEPTOR_GO_NEW is not set"
                );
                continue;
            };
            let peer = json!([{"tcp-peer": {"address": format!("127.0.0.1:{port}")}}]);
            let id = format!("honest{}", all.len());
            let node = Node::run(Path::new(&program), &id, json!({}), peer);
            node.reaches("hub");
            all.push(node);
        }
        let mut stranger = Stranger::join(&hub, port);
        let (before, mut most) = (hub.rss(), 0);
        for (number, word) in words.iter().enumerate() {
            stranger.datagram(&format!("ghost{number}"), word);
        }
        for honest in &all {
            let begun = Instant::now();
            let mut talk = Talk::open(honest);
            let took = begun.elapsed();
            for _ in 0..20 {
                assert_eq!(talk.status()["NodeID"], "hub");
                most = most.max(hub.rss());
            }
            assert!(took < Duration::from_secs(20), "an honest stream had to wait for {took:?}");
        }
        println!("{} bytes more", most.saturating_sub(before));
        assert!(most < before + UNBEGUN, "{before} bytes became {most}");
    });
}

#[test]
fn unread_data_is_bounded_for_all_streams_together() {
    const BUDGET: usize = 16 << 20;
    const CLIENTS: usize = 40;
    let (mute, answering) = (TcpListener::bind("127.0.0.1:0").unwrap(), echo());
    let address = |port: u16| format!("127.0.0.1:{port}");
    let sink = mute.local_addr().unwrap().port();
    let exits = json!([
        {"tcp-client": {"service": "mute", "address": address(sink)}},
        {"tcp-client": {"service": "echo", "address": address(answering)}}]);
    let (hub, port) = hub(json!({"streambuffers": BUDGET}), exits);
    let (to_mute, to_echo) = (free_port(), free_port());
    let honest = honest(
        port,
        json!([
        {"tcp-server": {"port": to_mute, "bindaddr": "127.0.0.1", "remotenode": "hub", "remoteservice": "mute"}},
        {"tcp-server": {"port": to_echo, "bindaddr": "127.0.0.1", "remotenode": "hub", "remoteservice": "echo"}}]),
    );
    honest.knows("hub", "mute");
    let before = hub.rss();
    let writers: Vec<_> = (0..CLIENTS)
        .map(|_| {
            thread::spawn(move || {
                let mut stream = TcpStream::connect(("127.0.0.1", to_mute)).unwrap();
                stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
                let mut written = 0;
                while let Ok(some) = stream.write(&[7; 64 << 10]) {
                    written += some;
                }
                (stream, written)
            })
        })
        .collect();
    let held: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    let most = hub.rss();
    let written: usize = held.iter().map(|(_, written)| written).sum();
    println!("{written} bytes written; {before} bytes became {most}");
    // The buffers, and the other memory of 40 streams with their sockets.
    assert!(most < before + BUDGET + CLIENTS * (200 << 10), "{before} bytes became {most}");
    let sent = pattern(5_000_000);
    assert!(exchange(to_echo, &sent) == sent, "who is read has room");
}

#[test]
fn forged_updates_of_a_node_end_none_of_its_streams() {
    let (hub, port) = hub(json!({}), json!([]));
    let honest = honest(port, json!([]));
    let mut stranger = Stranger::join(&hub, port);
    let (mut busy, mut silent) = (Talk::open(&honest), Talk::open(&honest));
    // Old enough to count as opened before a restart.
    let opened = Instant::now();
    while opened.elapsed() < Duration::from_secs(3) {
        busy.status();
    }
    stranger.update("honest", 1 << 63, 1, &["hub", "nowhere"]);
    // Once the hub knows the next update on the same session, it has read this one. It does not believe this one,
    // because it has a session with that node.
    stranger.update("marker", 1, 1, &["hub"]);
    until("the hub to have read both", || {
        let costs = hub.ask_json("status")["KnownConnectionCosts"].clone();
        costs.get("marker").map(|_| ())
    });
    let costs = hub.ask_json("status")["KnownConnectionCosts"]["honest"].clone();
    assert!(costs.get("nowhere").is_none(), "{costs}");
    let told = Instant::now();
    while told.elapsed() < Duration::from_secs(4) {
        busy.status();
    }
    assert_eq!(silent.status()["NodeID"], "hub");
    assert_eq!(busy.status()["NodeID"], "hub");
}
