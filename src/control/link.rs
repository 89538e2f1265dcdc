//! `link test`: how much the link with a neighbour carries each way, and its round trip with and without that load.
//! Owns the report; how bytes are sent is `service`'s.

use std::convert::Infallible;
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use super::refusal::NoSuchTest;
use super::{Context, RequestRefusal};
use crate::node::LinkStatus;
use crate::rpc::report::link::{LinkTestReport, WayReport};
use crate::rpc::request::LinkTest;
use crate::service::{Carried, TestSize};
use crate::wire::{MAX_HOPS, NodeId};

/// Pings before the link is loaded.
const QUIET_PINGS: usize = 5;
/// The pause between two pings while the link is loaded.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) async fn test(context: &Context, test: &LinkTest) -> Result<Value, RequestRefusal> {
    let link = tested(context, &test.node).await?;
    let node = &link.node_id;
    tracing::info!(%node, seconds = test.seconds, mb = test.mb, "link test");
    let mut quiet = Vec::new();
    for _ in 0..QUIET_PINGS {
        quiet.extend(round_trip(context, node).await);
    }
    let mut busy = Vec::new();
    let size = TestSize { seconds: test.seconds, bytes: test.mb * 1_000_000 };
    let carried = tokio::select! {
        carried = context.link_tests.run(node, size) => carried?,
        never = ping_on(context, node, &mut busy) => match never {},
    };
    let now = context.node.links().await.into_iter().find(|now| now.session == link.session);
    let report = LinkTestReport {
        node_id: node.to_string(),
        transport: link.transport.to_owned(),
        address: link.address.clone(),
        rtt: median(&mut quiet),
        busy_rtt: median(&mut busy),
        busy_rtt_max: busy.last().copied(),
        probe_loss: now.as_ref().unwrap_or(&link).probe_loss,
        out: way(carried.out),
        back: way(carried.back),
    };
    Ok(serde_json::to_value(&report)?)
}

/// The link with the neighbour of that name, if it can be tested.
async fn tested(context: &Context, name: &str) -> Result<LinkStatus, NoSuchTest> {
    let links = context.node.links().await;
    if links.is_empty() {
        return Err(NoSuchTest::Alone);
    }
    let Some(link) = links.iter().find(|link| link.node_id.as_str() == name) else {
        let neighbours: Vec<&str> = links.iter().map(|link| link.node_id.as_str()).collect();
        return Err(NoSuchTest::NotNeighbour { name: name.to_owned(), neighbours: neighbours.join(", ") });
    };
    let node = link.node_id.clone();
    if !link.probed {
        return Err(NoSuchTest::OtherMake(node));
    }
    match context.node.status().await.routing_table.get(&node) {
        Some(via) if *via != node => Err(NoSuchTest::Detour { node, via: via.clone() }),
        Some(_) | None => Ok(link.clone()),
    }
}

/// The round trip in nanoseconds, if an answer came.
async fn round_trip(context: &Context, node: &NodeId) -> Option<u64> {
    let reply = context.node.ping(node, MAX_HOPS).await;
    reply.error.is_none().then(|| u64::try_from(reply.elapsed.as_nanos()).unwrap_or(u64::MAX))
}

/// Pings until dropped.
async fn ping_on(context: &Context, node: &NodeId, times: &mut Vec<u64>) -> Infallible {
    loop {
        times.extend(round_trip(context, node).await);
        sleep(PAUSE).await;
    }
}

/// The median; sorts the times.
fn median(times: &mut [u64]) -> Option<u64> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

fn way(carried: Carried) -> WayReport {
    let Carried { bytes, nanos } = carried;
    let rate = u128::from(bytes) * 1_000_000_000 / u128::from(nanos.max(1));
    WayReport { bytes, time: nanos, rate: u64::try_from(rate).unwrap_or(u64::MAX) }
}
