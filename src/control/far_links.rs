//! What another node says of its links, which anybody may ask. A receptor node has no such answer. Refuses to know what
//! the links are wanted for.

use std::time::Duration;

use super::Context;
use super::doctor::SERVICE;
use crate::rpc::report::node::{LinkReport, NodeReport, Section};
use crate::rpc::report::{self};
use crate::rpc::request::Request;
use crate::rpc::{CallLimits, ControlConnection};
use crate::wire::{NodeId, ServiceName};

/// A node with a thousand neighbours answers with some hundred kilobytes.
const LIMITS: CallLimits =
    CallLimits { greeting: Duration::from_secs(5), answer: Duration::from_secs(5), answer_size: 1 << 20 };

/// The links of a node; `None` if it does not tell them. If its control service `asks_for_tls`, the controller's TLS
/// profile is used.
pub(crate) async fn far_links(
    context: &Context,
    node: &NodeId,
    asks_for_tls: bool,
) -> Option<Vec<LinkReport>> {
    let service = ServiceName::new(SERVICE).ok()?;
    let profile = match asks_for_tls {
        true => Some(context.tls.client(&context.controller.as_ref()?.tls_client()?).ok()?),
        false => None,
    };
    let stream = context.streams.dial_shared(node, service, profile.as_ref()).await.ok()?;
    let mut connection = ControlConnection::to_node(Box::new(stream), node.as_str(), LIMITS);
    let request = Request::Status { fields: Some(vec![Section::Links.to_string()]) };
    let answer = connection.command(&request).await.ok()?;
    report::read::<NodeReport>(&answer).ok()?.links
}
