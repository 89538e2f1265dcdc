//! `connect`: joins a client's connection to a service of a node, as raw bytes in both directions.
//!
//! Each direction ends on its own: a client that closes its writing side still gets the service's answer.

use std::io;

use super::channel::Channel;
use super::{Context, RequestRefusal};
use crate::stream::MeshStream;
use crate::wire::ServiceName;

/// Dials the service.
///
/// # Errors
/// [`RequestRefusal`] if a name is invalid, the profile does not exist or the dial fails; the client may send more
/// commands.
pub(super) async fn dial(
    context: &Context,
    node: &str,
    service: &str,
    tls: Option<String>,
) -> Result<MeshStream, RequestRefusal> {
    let tls = tls.map(|name| context.tls.client(&name)).transpose()?;
    let node = context.node_named(node).ok_or(RequestRefusal::NoSuchNode)?;
    Ok(context.streams.dial_with(&node, ServiceName::new(service)?, tls.as_ref()).await?)
}

/// Carries bytes until both directions have ended.
pub(super) async fn bridge(channel: &mut Channel, mut service: MeshStream) -> io::Result<()> {
    channel.send("Connecting\n").await?;
    let (up, down) =
        tokio::io::copy_bidirectional_with_sizes(channel, &mut service, 64 * 1024, 64 * 1024).await?;
    tracing::debug!(up, down, "connection to service ended");
    Ok(())
}
