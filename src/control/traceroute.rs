//! `traceroute`: the nodes on the way to a node, in order, under the keys `0`, `1`, … Refuses to know how they are
//! found.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{Context, ping};
use crate::node::PingReply;

pub(super) async fn answer(context: &Context, target: &str) -> Value {
    let Some(node) = context.node_named(target) else { return no_such_node(context) };
    let replies = context.node.traceroute(&node).await;
    let hops = replies.iter().enumerate().map(|(hop, reply)| (hop.to_string(), step(reply)));
    Value::Object(hops.collect())
}

/// One node's reply. Replies of nodes on the way carry no error.
fn step(reply: &PingReply) -> Value {
    let mut step = Map::from_iter(ping::timing(reply));
    step.extend(reply.error.as_ref().map(|error| ("Error".to_owned(), json!(error.to_string()))));
    Value::Object(step)
}

/// No route leads to a name that no node can have.
fn no_such_node(context: &Context) -> Value {
    let reply = PingReply { from: Some(context.node.id().clone()), elapsed: Duration::ZERO, error: None };
    let mut step = Map::from_iter(ping::timing(&reply));
    step.insert("Error".to_owned(), json!("no route to node"));
    json!({ "0": step })
}
