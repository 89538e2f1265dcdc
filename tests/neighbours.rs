//! A node and its neighbours as processes: a stopped neighbour is detected, and a receptor node is left to
//! its own timers.

#[path = "support/receptor.rs"]
mod receptor;

use std::future::Future;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use meshd::backend::{ListenSpec, TcpListenOptions};
use meshd::mesh::LinkPolicy;
use meshd::node::{LinkHandle, LinkSpec, LinkStatus, NodeHandle, NodeOptions};
use meshd::wire::NodeId;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A child process that dials us, ended when dropped.
struct Neighbour {
    process: Child,
    _dir: tempfile::TempDir,
}

impl Neighbour {
    fn start(program: &Path, address: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = serde_json::json!([
            {"node": {"id": "neighbour", "datadir": dir.path().join("data")}},
            {"tcp-peer": {"address": address}}]);
        std::fs::write(dir.path().join("c.yml"), config.to_string()).unwrap();
        let mut command = Command::new(program);
        command.arg("--config").arg(dir.path().join("c.yml")).stdout(Stdio::null()).stderr(Stdio::null());
        Self { process: command.spawn().unwrap(), _dir: dir }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

async fn listening() -> (NodeHandle, LinkHandle, String) {
    let (node, _stopped) = NodeHandle::start(NodeOptions::new(NodeId::new("here").unwrap()));
    let spec = ListenSpec::Tcp(TcpListenOptions::new("127.0.0.1", 0));
    let link = node.add_link(LinkSpec::Listen { spec, policy: LinkPolicy::default() }).await.unwrap();
    let address = link.local_addr().unwrap().to_owned();
    (node, link, address)
}

/// Waits until the links satisfy a condition.
async fn until<F: Future<Output = bool>>(what: &str, limit: Duration, wanted: impl Fn() -> F) {
    let end = Instant::now() + limit;
    while !wanted().await {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn link(node: &NodeHandle) -> Option<LinkStatus> {
    node.links().await.into_iter().next()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_neighbour_is_noticed() {
    let (node, _link, address) = listening().await;
    let neighbour = Neighbour::start(Path::new(env!("CARGO_BIN_EXE_meshd")), &address);
    let known = |link: Option<LinkStatus>| link.is_some_and(|link| link.probed && link.rtt.is_some());
    // The first probes measure the link's loss; silence means little before that.
    let asked = || async { known(link(&node).await) && node.status().await.counters.probes >= 10 };
    until("it is known to be of our kind", Duration::from_secs(30), asked).await;
    neighbour.signal(Signal::SIGSTOP);
    let start = Instant::now();
    until("it is gone", Duration::from_secs(60), || async { link(&node).await.is_none() }).await;
    let gone = start.elapsed();
    neighbour.signal(Signal::SIGCONT);
    println!("gone after {gone:?}");
    // A slow machine may be late, but not as late as receptor's 21 s.
    assert!(gone < Duration::from_secs(15), "{gone:?}");
    until("it is back", Duration::from_secs(60), || async { link(&node).await.is_some() }).await;
}

receptor::beside_go_nodes!(a_receptor_node_is_not_disturbed_by_a_probe);

fn a_receptor_node_is_not_disturbed_by_a_probe(program: &Path) {
    tokio::runtime::Runtime::new().unwrap().block_on(is_not_disturbed(program));
}

async fn is_not_disturbed(program: &Path) {
    let (node, _link, address) = listening().await;
    let _neighbour = Neighbour::start(program, &address);
    until("it is linked", Duration::from_secs(30), || async { link(&node).await.is_some() }).await;
    let first = link(&node).await.unwrap();
    let rounds = || async { link(&node).await.is_some_and(|link| link.packets_in >= first.packets_in + 4) };
    until("some rounds have passed", Duration::from_secs(60), rounds).await;
    let link = link(&node).await.unwrap();
    println!("{link:?}");
    assert_eq!((link.session, link.probed, link.rtt), (first.session, false, None));
    // A neighbour that says nothing is probed three times. That it knows no probes may arrive only after the second
    // one.
    let probes = node.status().await.counters.probes;
    assert!((1..3).contains(&probes), "it has said that it knows no probes: {probes}");
}
