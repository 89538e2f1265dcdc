//! TCP proxies: from a local port into the mesh, and from a service of the mesh to an address.
//!
//! Owns the TCP side: the port, the options of sockets, and connecting to the address. `copy` carries the bytes, and
//! `accept` manages the connections.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::accept::{self, AcceptSource, Arrival, ServiceTarget};
use super::copy::LocalSocket;
use crate::node::NodeHandle;
use crate::os::{
    self,
    address::{open_first, plain, resolve},
};
use crate::stream::{StreamListenError, StreamListener, Streams};
use crate::tls::{ClientProfile, Secured, ServerProfile};
use crate::wire::{NodeId, ServiceName};

/// When and how often the kernel asks a silent peer whether it is still there.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));

/// A local port whose connections lead to a service of the mesh.
#[derive(Debug)]
pub(crate) struct TcpServer {
    port: LocalPort,
    target: ServiceTarget,
}

impl TcpServer {
    /// Opens the port.
    ///
    /// # Errors
    /// If the address cannot be resolved or bound.
    pub(crate) async fn bind(
        address: &str,
        streams: Streams,
        node: NodeId,
        service: ServiceName,
    ) -> io::Result<Self> {
        let listener = open_first(resolve(address).await?, os::tcp::listen)?;
        Ok(Self {
            port: LocalPort { listener, tls: None },
            target: ServiceTarget { streams, node, service, tls: None },
        })
    }

    /// Sets the TLS profiles of the port and of the service.
    #[must_use]
    pub(crate) fn with_tls(self, port: Option<ServerProfile>, service: Option<ClientProfile>) -> Self {
        let port = LocalPort { tls: port, ..self.port };
        Self { port, target: ServiceTarget { tls: service, ..self.target } }
    }

    /// The address it listens on.
    #[cfg(test)]
    pub(crate) fn local_addr(&self) -> io::Result<std::net::SocketAddr> {
        self.port.listener.local_addr()
    }

    /// Serves until `stop`; the port is free again once this returns.
    pub(crate) async fn run(self, stop: CancellationToken) {
        accept::inward(self.port, self.target, stop).await;
    }
}

/// A local port, with or without TLS.
#[derive(Debug)]
struct LocalPort {
    listener: TcpListener,
    tls: Option<ServerProfile>,
}

/// A TCP connection, with or without TLS.
trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {
    fn tcp(&self) -> &TcpStream;
}

impl ByteStream for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl ByteStream for Secured<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.io()
    }
}

impl LocalSocket for Box<dyn ByteStream> {
    fn complete(&self) {
        linger(self.tcp(), None);
    }
}

/// Makes a connection ready to carry bytes. Called after a handshake, because a reset would hide why a handshake
/// failed.
fn ready(stream: impl ByteStream + 'static) -> Box<dyn ByteStream> {
    // With no time to linger the kernel closes with a reset, even if this process is killed.
    linger(stream.tcp(), Some(Duration::ZERO));
    Box::new(stream)
}

fn linger(socket: &TcpStream, time: Option<Duration>) {
    if let Err(error) = SockRef::from(socket).set_linger(time) {
        debug!(%error, "cannot set how a proxy's connection is closed: the other end may take a reset for an end, \
                        or an end for a reset");
    }
}

impl AcceptSource for LocalPort {
    type Socket = TcpStream;
    type Side = Box<dyn ByteStream>;

    fn open(
        &self,
        socket: TcpStream,
    ) -> impl Future<Output = io::Result<Box<dyn ByteStream>>> + Send + 'static {
        let tls = self.tls.clone();
        async move {
            let Some(profile) = tls else { return Ok(ready(socket)) };
            Ok(ready(profile.accept(socket).await?.ending_like_tcp()))
        }
    }

    async fn accept(&self) -> io::Result<Arrival<TcpStream>> {
        let (socket, peer) = self.listener.accept().await?;
        os::tcp::tune(&socket, &KEEPALIVE);
        let peer = plain(peer);
        Ok((socket, peer.to_string(), Some(peer.ip())))
    }
}

/// A service of the mesh, whose streams lead to a TCP address.
#[derive(Debug)]
pub(crate) struct TcpClient {
    node: NodeHandle,
    listener: StreamListener,
    address: String,
    tls: Option<ClientProfile>,
}

impl TcpClient {
    /// Opens the service and advertises it. Does not check whether anybody listens at the address; each stream does.
    /// `tls_server` is the profile of the service, `tls_client` that of connections to the address.
    ///
    /// # Errors
    /// If the service cannot be opened.
    pub(crate) async fn listen(
        streams: &Streams,
        service: ServiceName,
        address: String,
        tls_server: Option<ServerProfile>,
        tls_client: Option<ClientProfile>,
    ) -> Result<Self, StreamListenError> {
        let tags = BTreeMap::from([
            ("type".to_owned(), "TCP Proxy".to_owned()),
            ("address".to_owned(), address.clone()),
        ]);
        let listener = streams.listen_with(service, Some(tags), tls_server).await?;
        info!(%service, %address, "proxy service open");
        Ok(Self { node: streams.node().clone(), listener, address, tls: tls_client })
    }

    /// Serves until `stop`; the service is free again once this returns.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let (address, tls) = (self.address, self.tls);
        let serve = |stream, stop| {
            let (address, tls, target) = (address.clone(), tls.clone(), address.clone());
            let connect = async move {
                let socket = TcpStream::connect(&address).await?;
                os::tcp::tune(&socket, &KEEPALIVE);
                let Some(profile) = tls else { return Ok(ready(socket)) };
                let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
                Ok(ready(profile.connect(socket, host).await?.ending_like_tcp()))
            };
            accept::join(connect, stream, target, stop)
        };
        accept::outward(&self.node, self.listener, accept::MOST, serve, stop).await;
    }
}
