//! Whether a node that has just started is linked: its peers are dialled with its own certificate, so that a wrong
//! address, a firewall or a refused certificate has words, and then its status is read until there is a link.

use std::io;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::cli::endpoint::{Endpoint, EndpointDialer};
use crate::cli::wait::until;
use crate::config::{Config, HostPort};
use crate::rpc::report::{self, node::NodeReport};
use crate::rpc::request::Request;
use crate::rpc::{CallError, Client, Deadlines};
use crate::tls::ClientProfile;

/// How long a dial may take.
const DIAL: Duration = Duration::from_secs(10);
/// How long a peer that has accepted a connection has for refusing the certificate.
const SECOND_THOUGHTS: Duration = Duration::from_secs(1);
/// How long the first link may take.
const LINK: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(100);

/// Dials each peer by TCP once; what is wrong with any of them.
pub(super) async fn dial(config: &Config) -> Vec<String> {
    let mut wrong = Vec::new();
    let tcp = config.tcp_peers.iter().map(|peer| (peer.address.clone(), peer.tls.clone()));
    for (address, tls) in tcp {
        let tried = timeout(DIAL, dial_one(config, &address, tls.as_deref())).await;
        let error = match tried {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => format!("no answer within {} s", DIAL.as_secs()),
        };
        wrong.push(format!("{address}: {error}"));
    }
    wrong
}

async fn dial_one(config: &Config, address: &HostPort, tls: Option<&str>) -> io::Result<()> {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    let Some(name) = tls else { return Ok(()) };
    let options = config.tls_clients.iter().find(|client| client.name == name);
    let options = options.ok_or_else(|| io::Error::other(format!("there is no tls-client {name}")))?;
    let profile = ClientProfile::open(options.clone(), Some(&config.node.id)).map_err(io::Error::other)?;
    let mut stream = profile.connect(stream, &address.host).await.map_err(io::Error::other)?;
    // In TLS 1.3 a client has finished before the server looks at its certificate.
    match timeout(SECOND_THOUGHTS, stream.read_u8()).await {
        Ok(Err(error)) => Err(error),
        Ok(Ok(_)) | Err(_) => Ok(()),
    }
}

/// The ID of the node that answers now at the control socket.
pub(super) async fn running(config: &Config) -> Option<String> {
    status(&client(config)?).await.ok()?.node_id
}

fn client(config: &Config) -> Option<Client> {
    let socket = config.control_services.iter().find_map(|service| service.filename.clone())?;
    Some(Client::new(EndpointDialer::new(Endpoint::Unix(socket), None), Deadlines::default()))
}

async fn status(client: &Client) -> Result<NodeReport, CallError> {
    let answer = client.command(&Request::Status { fields: None }).await?;
    Ok(report::read(&answer).unwrap_or_default())
}

/// The neighbours of the node, once it has one; one that waits to be dialled need have none.
///
/// # Errors
/// There is no link, in words.
pub(super) async fn wait(config: &Config) -> Result<Vec<String>, String> {
    let node = &config.node.id;
    let client = client(config).ok_or("the node has no control socket to ask for its links")?;
    let dials = !config.tcp_peers.is_empty() || !config.ws_peers.is_empty() || !config.quic_peers.is_empty();
    let mut last = format!("{node} does not answer");
    let linked = until(LOOK, async || {
        match status(&client).await {
            Err(error) => last = format!("{node} does not answer: {error}"),
            Ok(report) => {
                let linked: Vec<String> =
                    report.connections.into_iter().flatten().map(|link| link.node_id).collect();
                if report.node_id.as_deref() == Some(node.as_str()) && (!dials || !linked.is_empty()) {
                    return Ok(Some(linked));
                }
                last = format!("{node} runs, but has no link after {} s", LINK.as_secs());
            }
        }
        Ok(None)
    });
    let linked = timeout(LINK, linked).await;
    linked.unwrap_or(Err(last))
}
