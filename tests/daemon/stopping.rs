//! How soon a node stops: at once if nothing is in progress, even if clients hold connections open, otherwise
//! within the grace period.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::json;

use crate::harness::{LIMIT, Node, echo, until};
use crate::port::free_port;

/// The bound if nothing is in progress, on a machine that is busy with other tests: less than the grace period.
const AT_ONCE: Duration = Duration::from_secs(4);
/// The grace period for commands and streams in progress, and as much more as a busy machine may take.
const GRACE: Duration = Duration::from_secs(15);

/// A client that has received the greeting.
fn client(node: &Node) -> BufReader<UnixStream> {
    let stream = UnixStream::connect(node.socket()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut reader = BufReader::new(stream);
    line(&mut reader);
    reader
}

fn line(reader: &mut BufReader<UnixStream>) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line
}

fn ask(reader: &mut BufReader<UnixStream>, text: &str) -> String {
    writeln!(reader.get_mut(), "{text}").unwrap();
    line(reader)
}

/// A node with listeners, services, a neighbour that dials it, and the neighbour's entrance to an echo behind
/// the node.
fn pair() -> (Node, Node, u16) {
    let (link, entrance, target) = (free_port(), free_port(), echo());
    let far = Node::start(
        "far",
        json!([{"tcp-listener": {"port": link, "bindaddr": "127.0.0.1"}},
               {"udp-listener": {"port": 0, "bindaddr": "127.0.0.1"}},
               {"ws-listener": {"port": 0, "bindaddr": "127.0.0.1"}},
               {"tcp-client": {"service": "echo", "address": format!("127.0.0.1:{target}")}},
               {"work-command": {"worktype": "sh", "command": "sh", "params": "-c", "allowruntimeparams": true}}]),
    );
    let near = Node::start(
        "near",
        json!([{"tcp-peer": format!("127.0.0.1:{link}")},
               {"tcp-server": {"port": entrance, "bindaddr": "127.0.0.1", "remotenode": "far", "remoteservice": "echo"}}]),
    );
    near.knows("far", "echo");
    near.knows("far", "control");
    (near, far, entrance)
}

#[test]
fn an_idle_node_stops_at_once() {
    let (mut near, mut far, _entrance) = pair();
    for node in [&mut near, &mut far] {
        let silent: Vec<_> = (0..50).map(|_| client(node)).collect();
        let mut idle: Vec<_> = (0..50).map(|_| client(node)).collect();
        for one in &mut idle {
            assert!(ask(one, "status").contains("NodeID"));
        }
        let took = node.stop();
        println!("{took:?} with {} clients", silent.len() + idle.len());
        assert!(took < AT_ONCE, "it took {took:?}");
    }
}

/// A port of this machine that answers nobody: the queue of unaccepted connections is full.
fn mute_port() -> (socket2::Socket, u16, Vec<socket2::Socket>) {
    let socket = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let listener = socket();
    listener.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    loop {
        let client = socket();
        if client.connect_timeout(&address, Duration::from_millis(100)).is_err() {
            return (listener, address.as_socket().unwrap().port(), queued);
        }
        queued.push(client);
    }
}

#[test]
fn a_node_that_dials_in_vain_stops_at_once() {
    let (_listener, mute, _queued) = mute_port();
    let peers = json!([{"tcp-peer": format!("127.0.0.1:{mute}")},
                       {"ws-peer": format!("ws://127.0.0.1:{mute}/")},
                       {"udp-peer": format!("127.0.0.1:{}", free_port())},
                       {"tcp-peer": "host.invalid:1"}]);
    let mut node = Node::start("a", peers);
    let took = node.stop();
    println!("{took:?}");
    assert!(took < AT_ONCE, "it took {took:?}");
}

#[test]
fn a_node_that_stops_dials_no_more() {
    // Nobody listens there, so it is dialled several times a second at first.
    let port = free_port();
    let peer = json!({"tcp-peer": format!("127.0.0.1:{port}")});
    let mut node = Node::start("a", json!([peer, {"work-command": {"worktype": "cat", "command": "cat"}}]));
    // A command that does not end, which gets the grace period.
    let mut submitting = client(&node);
    let request = r#"{"command":"work","subcommand":"submit","node":"localhost","worktype":"cat"}"#;
    let created = ask(&mut submitting, request);
    assert!(created.contains("Work unit created"), "{created}");
    rustix::process::kill_process(node.pid(), rustix::process::Signal::TERM).unwrap();
    until("it stops", || node.log().contains("stopping").then_some(()));
    let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    listener.set_nonblocking(true).unwrap();
    node.end_within(GRACE.as_secs() + 2);
    assert!(listener.accept().is_err(), "it has dialled again");
}

/// Submits a job to `far` that prints a line, and ends when its directory is gone.
fn submit(node: &Node) -> String {
    let mut submitting = client(node);
    // The job outlives its node.
    let script = "'echo begun; while [ -e $MESHD_UNIT_DIR ]; do sleep 0.1; done'";
    let submission =
        json!({"command": "work", "subcommand": "submit", "node": "far", "worktype": "sh", "params": script});
    let created = ask(&mut submitting, &submission.to_string());
    submitting.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    line(&mut submitting);
    created.split(' ').nth(5).unwrap().trim_end_matches('.').to_owned()
}

#[test]
fn readers_of_results_do_not_hold_up_the_end() {
    let (mut near, mut far, _entrance) = pair();
    let unit = submit(&near);
    // The output is read on near, which follows the unit, and on far, which runs it.
    let mut readers = [client(&near), client(&far)];
    for reader in &mut readers {
        assert!(ask(reader, &format!("work results {unit}")).contains("Streaming"));
        assert_eq!(line(reader), "begun\n");
    }
    for (node, reader) in [&mut near, &mut far].into_iter().zip(&mut readers) {
        let took = node.stop();
        println!("{took:?}");
        assert!(took < AT_ONCE, "it took {took:?}");
        assert_eq!(line(reader), "", "in order, and without a word that would be output");
    }
}

#[test]
fn commands_in_progress_get_the_grace_period_and_no_more() {
    let (mut near, mut far, entrance) = pair();
    // A stream through a proxy, and one by `connect`.
    let _proxied = {
        let mut stream = TcpStream::connect(("127.0.0.1", entrance)).unwrap();
        stream.write_all(b"something").unwrap();
        stream
    };
    let mut connected = client(&near);
    assert_eq!(ask(&mut connected, "connect far control"), "Connecting\n");
    assert!(line(&mut connected).contains("far"), "greeted by the other node");
    let took = far.stop();
    println!("the execution node: {took:?}");
    assert!(took < GRACE, "the execution node took {took:?}");
    let took = near.stop();
    println!("the control node: {took:?}");
    assert!(took < GRACE, "the control node took {took:?}");
}
