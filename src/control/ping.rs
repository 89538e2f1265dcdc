//! `ping`: one sign of life from a node. A ping that fails is an answer, not an error of the command.

use serde_json::{Map, Value, json};

use super::Context;
use crate::duration;
use crate::node::PingReply;
use crate::wire::MAX_HOPS;

pub(super) async fn answer(context: &Context, target: &str) -> Value {
    let Some(node) = context.node_named(target) else { return no_such_node() };
    let reply = context.node.ping(&node, MAX_HOPS).await;
    let mut answer = Map::from_iter([("Success".to_owned(), json!(reply.error.is_none()))]);
    if reply.from.is_some() {
        answer.extend(timing(&reply));
    }
    answer.extend(reply.error.map(|error| ("Error".to_owned(), json!(error.to_string()))));
    Value::Object(answer)
}

/// No route leads to a name that no node can have.
fn no_such_node() -> Value {
    json!({"Success": false, "Error": "no route to node"})
}

/// Who answered and when, in the keys of `ping` and `traceroute`. The time is in nanoseconds.
pub(super) fn timing(reply: &PingReply) -> [(String, Value); 3] {
    let from = reply.from.as_ref().map_or("", |node| node.as_str());
    let nanos = u64::try_from(reply.elapsed.as_nanos()).unwrap_or(u64::MAX);
    [
        ("From".to_owned(), json!(from)),
        ("Time".to_owned(), json!(nanos)),
        ("TimeStr".to_owned(), json!(duration::print(reply.elapsed))),
    ]
}
