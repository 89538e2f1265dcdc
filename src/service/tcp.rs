//! TCP proxies: from a local port into the mesh, and from a service of the mesh to an address.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::stream::{ListenError, MeshStream, StreamListener, Streams};
use crate::tls::{ClientProfile, ServerProfile};
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
    tls_server: Option<ServerProfile>,
    tls_client: Option<ClientProfile>,
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
        Ok(Self {
            listener: TcpListener::bind(address).await?,
            streams,
            node,
            service,
            tls_server: None,
            tls_client: None,
        })
    }

    /// With TLS on the port, and on the way to the service.
    #[must_use]
    pub fn with_tls(self, tls_server: Option<ServerProfile>, tls_client: Option<ClientProfile>) -> Self {
        Self { tls_server, tls_client, ..self }
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
                    let (tls_server, tls_client) = (self.tls_server.clone(), self.tls_client.clone());
                    let carry = async move {
                        let Some(socket) = accepted_side(socket, tls_server).await else { return };
                        match streams.dial_with(&node, service, tls_client.as_ref()).await {
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
    tls_client: Option<ClientProfile>,
}

impl TcpOut {
    /// Opens the service, with TLS on it and on the way to the address if profiles are given, and tells the
    /// mesh of it.
    ///
    /// # Errors
    /// If the service cannot be had.
    pub async fn listen(
        streams: &Streams,
        service: ServiceName,
        address: String,
        tls_server: Option<ServerProfile>,
        tls_client: Option<ClientProfile>,
    ) -> Result<Self, ListenError> {
        let tags = BTreeMap::from([
            ("type".to_owned(), "TCP Proxy".to_owned()),
            ("address".to_owned(), address.clone()),
        ]);
        let listener = streams.listen_with(service, Some(tags), tls_server).await?;
        info!(%service, %address, "proxy service open");
        Ok(Self { listener, address, tls_client })
    }

    /// Serves until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let stream = tokio::select! {
                () = stop.cancelled() => return,
                stream = self.listener.accept() => stream,
            };
            let Some(stream) = stream else { return };
            let (address, tls_client) = (self.address.clone(), self.tls_client.clone());
            let carry = async move {
                match dialled_side(&address, tls_client).await {
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

/// Bytes of a TCP connection, with or without TLS.
trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// The socket of a client, past its handshake if there is one.
async fn accepted_side(socket: TcpStream, tls: Option<ServerProfile>) -> Option<Box<dyn Socket>> {
    let _only_slower = socket.set_nodelay(true);
    let Some(profile) = tls else { return Some(Box::new(socket)) };
    match profile.accept(socket).await {
        Ok(secured) => Some(Box::new(secured.ending_like_tcp())),
        Err(error) => {
            info!(%error, "proxy connection refused");
            None
        }
    }
}

/// A connection to an address, past its handshake if there is one.
async fn dialled_side(address: &str, tls: Option<ClientProfile>) -> io::Result<Box<dyn Socket>> {
    let socket = TcpStream::connect(address).await?;
    let _only_slower = socket.set_nodelay(true);
    let Some(profile) = tls else { return Ok(Box::new(socket)) };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    Ok(Box::new(profile.connect(socket, host).await?.ending_like_tcp()))
}

/// Carries bytes both ways; each direction ends by itself.
async fn carry(mut socket: Box<dyn Socket>, mut stream: MeshStream) {
    match copy_bidirectional_with_sizes(&mut socket, &mut stream, BUFFER, BUFFER).await {
        Ok((inward, outward)) => debug!(inward, outward, "proxy connection ended"),
        Err(error) => debug!(%error, "proxy connection broken"),
    }
}
