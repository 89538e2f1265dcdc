//! UDP proxies: from a local port into the mesh, and from a service of the mesh to an address.
//!
//! Owns what a flow does: each source gets a datagram socket on the other side, and only answers of the target itself
//! go back. `flows` owns the bounds. Full queues drop datagrams, as with any UDP.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::{UdpSocket, lookup_host};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::flows::{FlowInbox, FlowLimits, Flows};
use crate::mesh::LocalService;
use crate::node::{BindError, CountedBy, NodeHandle, OverlaySocket};
use crate::os::address::{self, network_of};
use crate::wire::{ConnType, MAX_PAYLOAD, NameHash, NodeId, ServiceName};

/// Room for the largest datagram that the mesh carries, and one byte more to recognise larger ones.
const ROOM: usize = MAX_PAYLOAD + 1;
/// The pause after a socket has failed to receive.
const REST: Duration = Duration::from_millis(200);
/// How long a flow whose socket cannot be connected stays in the table and drops its datagrams.
const PENALTY: Duration = Duration::from_secs(5);

/// A local port whose datagrams go to a service of the mesh.
#[derive(Debug)]
pub(crate) struct UdpServer {
    socket: Arc<UdpSocket>,
    node: NodeHandle,
    target: (NodeId, ServiceName),
    limits: FlowLimits,
}

impl UdpServer {
    /// Opens the port.
    ///
    /// # Errors
    /// If the address cannot be resolved or bound.
    pub(crate) async fn bind(
        address: &str,
        node: NodeHandle,
        target: (NodeId, ServiceName),
        limits: FlowLimits,
    ) -> io::Result<Self> {
        let socket = address::open_first(address::resolve(address).await?, address::udp)?;
        let socket = Arc::new(UdpSocket::from_std(socket)?);
        Ok(Self { socket, node, target, limits })
    }

    /// The address it listens on.
    #[cfg(test)]
    pub(crate) fn local_addr(&self) -> io::Result<std::net::SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves until `stop`; the port is free again once this returns.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut flows = Flows::new(self.limits);
        let mut buffer = vec![0; ROOM];
        loop {
            let received = tokio::select! {
                () = stop.cancelled() => return flows.end().await,
                received = self.socket.recv_from(&mut buffer) => received,
            };
            match received {
                Ok((size, source)) => {
                    let Some(datagram) = carried(&buffer[..size]) else { continue };
                    flows.deliver(&source, &network_of(source.ip()), datagram, |inbox| {
                        into_mesh(inbox, self.node.clone(), self.target.clone(), self.socket.clone(), source)
                    });
                }
                Err(error) => rest(&error).await,
            }
        }
    }
}

/// One source's flow into the mesh.
async fn into_mesh(
    mut inbox: FlowInbox,
    node: NodeHandle,
    (to_node, to_service): (NodeId, ServiceName),
    socket: Arc<UdpSocket>,
    source: SocketAddr,
) {
    let shown = address::plain(source);
    let overlay = match node.bind_ephemeral().await {
        Ok(overlay) => overlay,
        Err(error) => return debug!(source = %shown, %error, "cannot start a datagram flow"),
    };
    let to = to_node.hash();
    loop {
        tokio::select! {
            datagram = inbox.receive() => {
                let Some(datagram) = datagram else { return };
                let _dropped = overlay.try_send_to(to, to_service, &datagram);
            }
            answer = overlay.receive() => {
                let Some(answer) = answer else { return };
                if (answer.header.from_node, answer.header.from_service) != (to, to_service) {
                    debug!(source = %shown, from = %answer.header.from_service, "a datagram from a stranger is dropped");
                    continue;
                }
                inbox.beat();
                let _dropped = socket.send_to(&answer.payload, source).await;
            }
            notice = overlay.unreachable() => {
                let Some((notice, by)) = notice else { return };
                debug!(source = %shown, node = %to_node, service = %to_service, %by, problem = ?notice.problem,
                    "a datagram did not arrive");
            }
        }
    }
}

/// A service of the mesh, whose datagrams go to a UDP address.
#[derive(Debug)]
pub(crate) struct UdpClient {
    node: NodeHandle,
    socket: Arc<OverlaySocket>,
    address: String,
    limits: FlowLimits,
}

impl UdpClient {
    /// Opens the service and advertises it. The address is looked up for each new source.
    ///
    /// # Errors
    /// If the service cannot be opened.
    pub(crate) async fn listen(
        node: &NodeHandle,
        service: ServiceName,
        address: String,
        limits: FlowLimits,
    ) -> Result<Self, BindError> {
        let socket = Arc::new(node.bind(service).await?);
        let tags = BTreeMap::from([
            ("type".to_owned(), "UDP Proxy".to_owned()),
            ("address".to_owned(), address.clone()),
        ]);
        node.advertise(service, LocalService { conn_type: ConnType::DATAGRAM, tags });
        info!(%service, %address, "proxy service open");
        Ok(Self { node: node.clone(), socket, address, limits })
    }

    /// Serves until `stop`; the service is free again once this returns.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut flows: Flows<(NameHash, ServiceName), CountedBy> = Flows::new(self.limits);
        loop {
            let received = tokio::select! {
                () = stop.cancelled() => break,
                received = self.socket.receive() => received,
            };
            let Some(received) = received else { break };
            let source = (received.header.from_node, received.header.from_service);
            flows.deliver(&source, &self.node.counted(source.0, false), received.payload, |inbox| {
                out_of_mesh(inbox, self.socket.clone(), source, self.address.clone())
            });
        }
        flows.end().await;
    }
}

/// One source's flow out of the mesh.
async fn out_of_mesh(
    mut inbox: FlowInbox,
    overlay: Arc<OverlaySocket>,
    source: (NameHash, ServiceName),
    address: String,
) {
    let socket = match connect(&address).await {
        Ok(socket) => socket,
        Err(error) => {
            warn!(%address, %error, "cannot start a datagram flow");
            return sleep(PENALTY).await;
        }
    };
    let mut buffer = vec![0; ROOM];
    loop {
        tokio::select! {
            datagram = inbox.receive() => {
                let Some(datagram) = datagram else { return };
                // The send may fail while nobody listens at the target, who may come later.
                let _dropped = socket.send(&datagram).await;
            }
            answer = socket.recv(&mut buffer) => match answer {
                Ok(size) => {
                    inbox.beat();
                    let Some(answer) = carried(&buffer[..size]) else { continue };
                    let _dropped = overlay.try_send_to(source.0, source.1, &answer);
                }
                Err(error) => rest(&error).await,
            }
        }
    }
}

async fn connect(address: &str) -> io::Result<UdpSocket> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host(address).await? {
        let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
        let socket = UdpSocket::bind(any).await?;
        match socket.connect(address).await {
            Ok(()) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A copy of the datagram, unless it is too large for the mesh.
fn carried(datagram: &[u8]) -> Option<Bytes> {
    if datagram.len() > MAX_PAYLOAD {
        debug!(size = datagram.len(), limit = MAX_PAYLOAD, "a datagram too large for the mesh is dropped");
        return None;
    }
    Some(Bytes::copy_from_slice(datagram))
}

/// Logs a receive error and pauses, because the error may last. Does not pause if nobody listens at a target, which the
/// kernel reports once.
async fn rest(error: &io::Error) {
    debug!(%error, "a UDP proxy cannot receive, trying again");
    if error.kind() != io::ErrorKind::ConnectionRefused {
        sleep(REST).await;
    }
}
