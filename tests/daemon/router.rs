//! IP routers in network namespaces: packets of both families cross the mesh, and routes follow the
//! advertisements.
//!
//! Needs root and `ip` (iproute2), and fails where it cannot create namespaces.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use crate::harness::{LIMIT, Node, pattern, until};
use crate::receptor::beside_go_nodes;

fn ip(args: &str) -> String {
    let output =
        Command::new("ip").args(args.split_whitespace()).output().expect("`ip` of iproute2 is needed");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {args}: {told} (namespaces take root and CAP_NET_ADMIN)");
    String::from_utf8(output.stdout).unwrap()
}

/// A network namespace with an address of each family on its loopback device; removed when dropped.
struct Space {
    name: String,
}

impl Space {
    fn new(number: u8) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mesh-{}-{count}", std::process::id());
        ip(&format!("netns add {name}"));
        let space = Self { name };
        space.ip("link set lo up");
        space.ip(&format!("addr add 10.77.{number}.1/32 dev lo"));
        space.ip(&format!("addr add fd77:{number}::1/128 dev lo"));
        space
    }

    fn ip(&self, args: &str) -> String {
        ip(&format!("-n {} {args}", self.name))
    }

    /// Connects to another namespace, with one address at each end.
    fn join(&self, other: &Self) {
        let (here, there) = (&self.name, &other.name);
        ip(&format!("link add wire netns {here} type veth peer name wire netns {there}"));
        for (space, address) in [(self, "192.0.2.1/24"), (other, "192.0.2.2/24")] {
            space.ip(&format!("addr add {address} dev wire"));
            space.ip("link set wire up");
        }
    }

    fn node(&self, program: &Path, id: &str, items: Value) -> Node {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        Node::run_by(command, program, id, items)
    }

    /// The kernel's routes of both families, one per line.
    fn routes(&self) -> String {
        self.ip("-4 route") + &self.ip("-6 route")
    }

    /// Waits until a route exists, or no longer does.
    fn awaits(&self, net: &str, there: bool) {
        let what = format!("route {net} in {}: {there}; now\n{}", self.name, self.routes());
        let found = || self.routes().lines().any(|line| line.split(' ').next() == Some(net));
        until(&what, || (found() == there).then_some(()));
    }

    /// Runs a closure on a thread inside the namespace.
    fn inside<T: Send>(&self, task: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.name)).unwrap();
        thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network))
                    .unwrap();
                task()
            });
            thread.join().unwrap()
        })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _gone = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Sends bytes over TCP and a datagram over UDP, from one namespace to an address in another.
fn talk(from: &Space, to: &Space, address: &str) {
    let address: IpAddr = address.parse().unwrap();
    let (listener, answerer) =
        to.inside(|| (TcpListener::bind((address, 0)).unwrap(), UdpSocket::bind((address, 0)).unwrap()));
    let (tcp, udp) = (listener.local_addr().unwrap(), answerer.local_addr().unwrap());
    answerer.set_read_timeout(Some(LIMIT)).unwrap();
    let sent = pattern(1_000_000);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            stream.write_all(&all).unwrap();
        });
        scope.spawn(|| {
            let mut buffer = [0; 2000];
            let (size, from) = answerer.recv_from(&mut buffer).unwrap();
            answerer.send_to(&buffer[..size], from).unwrap();
        });
        from.inside(|| {
            assert!(exchange(tcp, &sent) == sent, "{address}: byte for byte");
            let socket = UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            socket.send_to(b"hello", udp).unwrap();
            let mut buffer = [0; 9];
            assert_eq!(socket.recv_from(&mut buffer).unwrap(), (5, udp));
        });
    });
}

fn exchange(to: SocketAddr, sent: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect_timeout(&to, LIMIT).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            writer.write_all(sent).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    })
}

fn router(number: u8, interface: &str) -> Value {
    json!({"ip-router": {
        "networkname": "net", "interface": interface, "localnet": format!("10.78.{number}.0/30"),
        "routes": format!("10.77.{number}.0/24,fd77:{number}::/32")}})
}

fn own() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_meshd"))
}

#[test]
fn packets_cross_and_routes_come_and_go() {
    let (left, right) = (Space::new(1), Space::new(2));
    left.join(&right);
    let listener = json!({"tcp-listener": {"port": 7777, "bindaddr": "192.0.2.1"}});
    let peer = json!({"tcp-peer": "192.0.2.1:7777"});
    let near = left.node(own(), "near", json!([listener, router(1, "meshtest")]));
    let far = right.node(own(), "far", json!([peer, router(2, "meshtest")]));
    for net in ["10.77.2.0/24", "10.78.2.0/30", "fd77:2::/32"] {
        left.awaits(net, true);
    }
    right.awaits("10.77.1.0/24", true);
    right.awaits("fd77:1::/32", true);
    assert!(left.ip("addr show dev meshtest").contains("10.78.1.1 peer 10.78.1.2/32"));
    // A node installs no routes to its own networks.
    assert!(!left.routes().contains("10.77.1.0/24") && !left.routes().contains("10.78.1.0/30"));
    talk(&left, &right, "10.77.2.1");
    talk(&right, &left, "10.78.1.1");
    // IPv6 packets come from the address on the loopback device, as no other node knows an address of the
    // interface.
    talk(&left, &right, "fd77:2::1");
    talk(&right, &left, "fd77:1::1");

    // Somebody removes routes, and then the interface itself.
    left.ip("route del 10.77.2.0/24");
    left.ip("link del meshtest");
    left.awaits("10.77.2.0/24", true);
    talk(&left, &right, "10.77.2.1");

    // A reload that removes the router removes interface and routes on both sides; another reload restores
    // them.
    far.configure("far", json!({}), json!([peer]));
    assert_eq!(far.reload(), json!({"Success": true}));
    assert!(!right.ip("link").contains("meshtest") && !right.routes().contains("10.77.1.0/24"));
    left.awaits("10.77.2.0/24", false);
    left.awaits("fd77:2::/32", false);
    far.configure("far", json!({}), json!([peer, router(2, "other")]));
    assert_eq!(far.reload(), json!({"Success": true}));
    left.awaits("fd77:2::/32", true);
    talk(&left, &right, "fd77:2::1");

    // The routes of a node that goes away are removed.
    drop(far);
    assert!(!right.ip("link").contains("other"), "the interface ends with its node");
    left.awaits("10.77.2.0/24", false);
    left.awaits("10.78.2.0/30", false);
    drop(near);
    assert!(!left.ip("link").contains("meshtest"));
}

/// A route that somebody else created is kept; if the interface exists already, an error names it.
#[test]
fn routes_and_interfaces_of_others_are_left_alone() {
    let (left, right) = (Space::new(1), Space::new(2));
    left.join(&right);
    left.ip("route add 10.77.2.0/24 via 192.0.2.2");
    let near = left.node(
        own(),
        "near",
        json!([{"tcp-listener": {"port": 7777, "bindaddr": "192.0.2.1"}}, router(1, "meshtest")]),
    );
    let far = right.node(own(), "far", json!([{"tcp-peer": "192.0.2.1:7777"}, router(2, "meshtest")]));
    left.awaits("fd77:2::/32", true);
    until("the complaint", || {
        near.log().contains("not following networks that other nodes offer").then_some(())
    });
    drop(far);
    left.awaits("fd77:2::/32", false);
    assert!(left.routes().contains("10.77.2.0/24 via 192.0.2.2"), "{}", left.routes());

    near.configure("near", json!({}), json!([router(1, "wire")]));
    let answer = near.reload()["Error"].as_str().unwrap().to_owned();
    assert!(answer.contains("ip-router net") && answer.contains("tun device wire"), "{answer}");
    assert!(left.ip("link").contains("meshtest"), "all stays as it was");
}

beside_go_nodes!(a_go_router_and_ours_reach_each_other);

fn a_go_router_and_ours_reach_each_other(program: &Path) {
    let (left, right) = (Space::new(1), Space::new(2));
    left.join(&right);
    let near = left.node(
        own(),
        "near",
        json!([{"tcp-listener": {"port": 7777, "bindaddr": "192.0.2.1"}}, router(1, "meshtest")]),
    );
    // The Go node's routes are IPv4 only.
    let far = right.node(
        program,
        "far",
        json!([{"tcp-peer": {"address": "192.0.2.1:7777"}},
               {"ip-router": {"networkname": "net", "localnet": "10.78.2.0/30", "routes": "10.77.2.0/24"}}]),
    );
    left.awaits("10.77.2.0/24", true);
    right.awaits("10.77.1.0/24", true);
    talk(&left, &right, "10.77.2.1");
    talk(&right, &left, "10.78.1.1");
    drop(far);
    left.awaits("10.77.2.0/24", false);
    drop(near);
}
