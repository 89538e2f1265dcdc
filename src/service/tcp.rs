//! TCP proxies: from a local port into the mesh, and from a service of the mesh to an address.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::stream::{ListenError, MeshStream, StreamListener, Streams};
use crate::wire::{NodeId, ServiceName};

/// Bytes in hand for each direction of a connection.
const BUFFER: usize = 64 << 10;
/// Pause after the system could not accept, out of descriptors as a rule.
const REST: std::time::Duration = std::time::Duration::from_millis(200);

/// A local port whose connections lead to a service of the mesh.
#[derive(Debug)]
pub struct TcpIn {
    listener: TcpListener,
    streams: Streams,
    node: NodeId,
    service: ServiceName,
}

impl TcpIn {
    /// Opens the port.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub async fn bind(
        address: &str,
        streams: Streams,
        node: NodeId,
        service: ServiceName,
    ) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address).await?, streams, node, service })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((socket, peer)) => {
                    debug!(%peer, node = %self.node, service = %self.service, "proxy connection");
                    let (streams, node, service) = (self.streams.clone(), self.node.clone(), self.service);
                    let carry = async move {
                        match streams.dial(&node, service).await {
                            Ok(stream) => carry(socket, stream).await,
                            Err(error) => warn!(%peer, %error, "proxy connection refused"),
                        }
                    };
                    spawn_until(stop.clone(), carry);
                }
                Err(error) => {
                    warn!(%error, "the proxy's port cannot accept, will go on trying");
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }
}

/// A service of the mesh whose streams lead to a TCP address.
#[derive(Debug)]
pub struct TcpOut {
    listener: StreamListener,
    address: String,
}

impl TcpOut {
    /// Opens the service and tells the mesh of it.
    ///
    /// # Errors
    /// If the service cannot be had.
    pub async fn listen(
        streams: &Streams,
        service: ServiceName,
        address: String,
    ) -> Result<Self, ListenError> {
        let tags = BTreeMap::from([
            ("type".to_owned(), "TCP Proxy".to_owned()),
            ("address".to_owned(), address.clone()),
        ]);
        let listener = streams.listen(service, Some(tags)).await?;
        info!(%service, %address, "proxy service open");
        Ok(Self { listener, address })
    }

    /// Serves until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let stream = tokio::select! {
                () = stop.cancelled() => return,
                stream = self.listener.accept() => stream,
            };
            let Some(stream) = stream else { return };
            let address = self.address.clone();
            let carry = async move {
                match TcpStream::connect(&address).await {
                    Ok(socket) => carry(socket, stream).await,
                    Err(error) => warn!(%address, %error, "proxy stream refused"),
                }
            };
            spawn_until(stop.clone(), carry);
        }
    }
}

fn spawn_until(stop: CancellationToken, carry: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = carry => {}
        }
    });
}

/// Carries bytes both ways; each direction ends by itself.
async fn carry(mut socket: TcpStream, mut stream: MeshStream) {
    let _only_slower = socket.set_nodelay(true);
    match copy_bidirectional_with_sizes(&mut socket, &mut stream, BUFFER, BUFFER).await {
        Ok((inward, outward)) => debug!(inward, outward, "proxy connection ended"),
        Err(error) => debug!(%error, "proxy connection broken"),
    }
}
