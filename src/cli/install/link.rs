//! Waits until a node that has just started is linked: reads its status until there is a link. If there is none, the
//! node itself says what is wrong: a wrong address, a firewall, a refused certificate, another node of its name.

use std::time::Duration;

use tokio::time::timeout;

use crate::cli::endpoint::{Endpoint, EndpointDialer};
use crate::cli::wait::until;
use crate::config::Config;
use crate::rpc::report;
use crate::rpc::report::doctor::DoctorReport;
use crate::rpc::report::finding::Severity;
use crate::rpc::report::node::{NodeReport, Section};
use crate::rpc::request::{DoctorRequest, Request};
use crate::rpc::{CallError, Client, Deadlines};

/// How long the first link may take.
const LINK_WITHIN: Duration = Duration::from_secs(20);
const LINK_EVERY: Duration = Duration::from_millis(100);

/// What the node finds wrong with itself and its links.
pub(super) async fn faults(config: &Config) -> Vec<String> {
    let Some(client) = client(config) else { return Vec::new() };
    let answer = client.long_command(&Request::Doctor(DoctorRequest::default())).await.unwrap_or_default();
    let DoctorReport { findings, .. } = report::read(&answer).unwrap_or_default();
    findings.iter().filter(|one| one.severity == Severity::Error).map(ToString::to_string).collect()
}

/// The ID of the node that answers now at the control socket.
pub(super) async fn running_node(config: &Config) -> Option<String> {
    status(&client(config)?).await.ok()?.node_id
}

fn client(config: &Config) -> Option<Client> {
    let socket = config.control_services.iter().find_map(|service| service.filename.clone())?;
    Some(Client::new(EndpointDialer::new(Endpoint::Unix(socket), None), Deadlines::default()))
}

async fn status(client: &Client) -> Result<NodeReport, CallError> {
    // Links, because connections include a neighbour that may still refuse this node.
    let fields = Some(vec![Section::NodeId.to_string(), Section::Links.to_string()]);
    let answer = client.command(&Request::Status { fields }).await?;
    Ok(report::read(&answer).unwrap_or_default())
}

/// Waits for a link, and returns the node's neighbours. A node that dials nobody needs none.
///
/// # Errors
/// Why there is no link.
pub(super) async fn wait(config: &Config) -> Result<Vec<String>, String> {
    let node = &config.node.id;
    let client = client(config).ok_or("the node has no control socket to ask for its links")?;
    let dials = !config.tcp_peers.is_empty() || !config.ws_peers.is_empty() || !config.quic_peers.is_empty();
    let mut last = format!("{node} does not answer");
    let linked = until(LINK_EVERY, async || {
        match status(&client).await {
            Err(error) => last = format!("{node} does not answer: {error}"),
            Ok(report) => {
                let linked: Vec<String> =
                    report.links.into_iter().flatten().map(|link| link.node_id).collect();
                if report.node_id.as_deref() == Some(node.as_str()) && (!dials || !linked.is_empty()) {
                    return Ok(Some(linked));
                }
                last = format!("{node} runs, but has no link after {} s", LINK_WITHIN.as_secs());
            }
        }
        Ok(None)
    });
    let linked = timeout(LINK_WITHIN, linked).await;
    linked.unwrap_or(Err(last))
}
