//! Two nodes with one ID, one of them a Go node two hops away: a Go node that started later ends, ours says so.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::harness::{Node, until};
use crate::port::free_port;
use crate::receptor::beside_go_nodes;

/// A listener and the peer that dials it.
fn listener() -> (Value, Value) {
    let port = free_port();
    let listener = json!({"tcp-listener": {"port": port, "bindaddr": "127.0.0.1"}});
    (listener, json!({"tcp-peer": {"address": format!("127.0.0.1:{port}")}}))
}

/// An epoch begins with the start time in seconds: the next node must start in a later second.
fn next_second() {
    let second = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let now = second();
    until("the next second", || (second() > now).then_some(()));
}

/// `first` and then `second` start as `twin`, with two meshd nodes between them. Returns both, and one of the
/// nodes between.
fn twins(first: &Path, second: &Path) -> (Node, Node, Node, Node) {
    let (to_near, near_peer) = listener();
    let (to_far, far_peer) = listener();
    let near = Node::start("near", json!([to_near]));
    let far = Node::start("far", json!([to_far, near_peer]));
    let first = Node::run(first, "twin", json!({}), json!([near_peer]));
    far.reaches("twin");
    next_second();
    let second = Node::run(second, "twin", json!({}), json!([far_peer]));
    (first, second, near, far)
}

beside_go_nodes!(ours_says_so_when_a_go_node_was_first, a_go_node_ends_when_ours_was_first);

fn ours_says_so_when_a_go_node_was_first(go: &Path) {
    let (mut go, mut ours, near, far) = twins(go, Path::new(env!("CARGO_BIN_EXE_meshd")));
    until("a warning", || ours.log().contains("another node uses this node's ID").then_some(()));
    assert!(ours.is_running() && go.is_running(), "{}{}", ours.log(), go.log());
    far.reaches("twin");
    near.reaches("twin");
}

fn a_go_node_ends_when_ours_was_first(go: &Path) {
    let (mut ours, mut go, near, far) = twins(Path::new(env!("CARGO_BIN_EXE_meshd")), go);
    go.end_within(60);
    assert!(ours.is_running(), "{}", ours.log());
    far.reaches("twin");
    near.reaches("twin");
}
