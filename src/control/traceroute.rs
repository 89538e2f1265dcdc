//! `traceroute`: every node on the way to one, in order, under the keys `0`, `1`, …

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{Context, ping};
use crate::node::PingReply;
use crate::wire::Problem;

pub(super) async fn answer(context: &Context, target: &str) -> Value {
    let Some(node) = context.node_named(target) else { return no_such_node(context) };
    let replies = context.node.traceroute(&node).await;
    let hops = replies.iter().enumerate().map(|(hop, reply)| (hop.to_string(), step(reply)));
    Value::Object(hops.collect())
}

/// That the hops ran out is how a node on the way answers, so it is no error here.
fn step(reply: &PingReply) -> Value {
    let mut step = Map::from_iter(ping::timing(reply));
    let error = reply.error.as_ref().map(ToString::to_string);
    let error = error.filter(|text| text != Problem::MessageExpired.as_str());
    step.extend(error.map(|text| ("Error".to_owned(), Value::String(text))));
    Value::Object(step)
}

/// No route leads to a name that no node can have.
fn no_such_node(context: &Context) -> Value {
    let reply = PingReply { from: Some(context.node.id().clone()), elapsed: Duration::ZERO, error: None };
    let mut step = Map::from_iter(ping::timing(&reply));
    step.insert("Error".to_owned(), json!("no route to node"));
    json!({ "0": step })
}
