//! Firewall rules on the real binary: what passes, which rejections are reported, and that rules change at
//! run time.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Node, until};
use crate::port::free_port;
use crate::receptor::beside_go_nodes;

fn reject(rule: Value) -> Value {
    let mut rule = rule;
    rule["action"] = json!("reject");
    rule
}

/// Two meshd nodes, the first with rules.
fn pair(rules: Value) -> (Node, Node, u16) {
    let port = free_port();
    let guarded = Node::start_with("guarded", json!({"firewallrules": rules}), listener(port));
    let other = Node::start("other", json!([{"tcp-peer": format!("127.0.0.1:{port}")}]));
    (guarded, other, port)
}

fn listener(port: u16) -> Value {
    json!([{"tcp-listener": {"port": port, "bindaddr": "127.0.0.1"}}])
}

#[test]
fn a_rejected_sender_is_notified_and_a_dropped_one_is_not() {
    let (guarded, other, port) = pair(json!([
        {"action": "accept", "fromnode": "/oth.*/", "toservice": "ping"},
        {"action": "drop", "tonode": "guarded"}]));
    other.reaches("guarded");
    guarded.reaches("other");
    assert_eq!(other.ask_json("ping guarded")["Success"], true);

    for (rules, error) in [
        (json!([reject(json!({"tonode": "guarded", "toservice": "/pi.*|x/"}))]), "blocked by firewall"),
        (json!([reject(json!({"tonode": "/guar/"})), {"action": "drop", "toservice": "ping"}]), "timeout"),
    ] {
        guarded.configure("guarded", json!({"firewallrules": rules}), listener(port));
        assert_eq!(guarded.reload(), json!({"Success": true}));
        until(error, || {
            let answer = other.ask_json("ping guarded");
            let text = answer["Error"].as_str().unwrap_or_default().to_owned();
            text.contains(error).then_some(())
        });
    }
    guarded.configure("guarded", json!({}), listener(port));
    assert_eq!(guarded.reload(), json!({"Success": true}));
    until("no rules", || (other.ask_json("ping guarded")["Success"] == true).then_some(()));
}

/// The worked example of a control node: its control service is closed to the mesh and open on its socket.
fn example(port: u16) -> (tempfile::TempDir, std::path::PathBuf) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf.d/10-control.yml");
    let dir = tempfile::tempdir().unwrap();
    // Without certificates: the neighbours here have none.
    let text = fs::read_to_string(path).unwrap().replace("    tls: mesh\n", "");
    let needs_files = |item: &&str| item.starts_with("tls-client") || item.starts_with("work-signing");
    let text = text.split("\n- ").filter(|item| !needs_files(item)).collect::<Vec<_>>().join("\n- ");
    let socket = dir.path().join("s").display().to_string();
    let edited = text
        .replace(
            "    id: control\n",
            &format!("    id: control\n    datadir: {}\n", dir.path().join("data").display()),
        )
        .replace("/run/meshd/control.sock", &socket)
        .replace("hop.example.org:27199", &format!("127.0.0.1:{port}"));
    assert!(edited.contains(&socket) && edited.contains("datadir") && edited.contains(&port.to_string()));
    let config = dir.path().join("control.yml");
    fs::write(&config, edited).unwrap();
    (dir, config)
}

beside_go_nodes!(a_go_node_sees_that_it_is_blocked, a_go_node_that_rejects_fails_our_connection_at_once);

fn a_go_node_sees_that_it_is_blocked(program: &Path) {
    let port = free_port();
    let items = json!([{"tcp-listener": {"port": port}}]);
    let go = Node::run(program, "go", json!({}), items);
    let (dir, config) = example(port);
    let control = Node::spawn(Path::new(env!("CARGO_BIN_EXE_meshd")), dir, &config);
    control.reaches("go");
    go.reaches("control");
    assert_eq!(go.ask_json("ping control")["Success"], true, "only the control service is closed");
    assert!(control.ask("status").contains("go"), "the own socket is open");
    // The Go node's `connect` answers late; its log has the notice at once.
    let socket = go.socket();
    std::thread::spawn(move || {
        use std::io::Write;
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        stream.write_all(b"connect control control\n").unwrap();
        std::thread::park_timeout(crate::harness::LIMIT);
    });
    until("the notice", || go.log().contains("blocked by firewall").then_some(()));
    // In the other direction, towards the Go node, nothing is closed.
    assert_eq!(control.ask_json("ping go")["Success"], true);
}

/// A rejected connection fails at once, and the error names the node whose rule it was.
fn rejected_at_once(from: &Node, line: &str, says: &str) {
    until(says, || {
        let began = std::time::Instant::now();
        let answer = from.ask(line);
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{answer} took as long as silence");
        answer.contains(says).then_some(())
    });
}

#[test]
fn a_rejected_connection_fails_at_once() {
    let port = free_port();
    let other = Node::start("other", listener(port));
    let (dir, config) = example(port);
    let control = Node::spawn(Path::new(env!("CARGO_BIN_EXE_meshd")), dir, &config);
    control.reaches("other");
    other.reaches("control");
    let blocked =
        |node: &str, by: &str| format!("connection to {node}:control blocked by the firewall of node {by}");
    rejected_at_once(&other, "connect control control", &blocked("control", "control"));
    assert_eq!(control.ask("connect other control"), "Connecting", "the other way is open");

    // A node's own rules apply as well, and a removed rule is forgotten.
    let rules = json!({"firewallrules": [reject(json!({"tonode": "control", "toservice": "control"}))]});
    other.configure("other", rules, listener(port));
    assert_eq!(other.reload(), json!({"Success": true}));
    rejected_at_once(&other, "connect control control", &blocked("control", "other"));
}

fn a_go_node_that_rejects_fails_our_connection_at_once(program: &Path) {
    let port = free_port();
    let rules = json!({"firewallrules": [{"action": "reject", "tonode": "go", "toservice": "control"}]});
    let go = Node::run(program, "go", rules, json!([{"tcp-listener": {"port": port}}]));
    let ours = Node::start("ours", json!([{"tcp-peer": format!("127.0.0.1:{port}")}]));
    ours.reaches("go");
    go.reaches("ours");
    rejected_at_once(
        &ours,
        "connect go control",
        "connection to go:control blocked by the firewall of node go",
    );
}

/// The dialer gets no notice, since the rule rejects packets to it; the log of the other node gives the
/// reason.
#[test]
fn a_node_that_may_not_answer_logs_it() {
    let port = free_port();
    let rules = json!({"firewallrules": [reject(json!({"fromnode": "far", "tonode": "near"}))]});
    let hop = Node::start_with("hop", rules, listener(port));
    let peer = json!([{"tcp-peer": format!("127.0.0.1:{port}")}]);
    let (near, far) = (Node::start("near", peer.clone()), Node::start("far", peer));
    near.knows("far", "control");
    let socket = near.socket();
    std::thread::spawn(move || {
        use std::io::Write;
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        stream.write_all(b"connect far control\n").unwrap();
        std::thread::park_timeout(crate::harness::LIMIT);
    });
    let says = "a firewall blocks this node's answers dialer=near firewall=hop";
    until(says, || far.log().contains(says).then_some(()));
    drop(hop);
}
