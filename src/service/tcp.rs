//! TCP proxies: from a local port into the mesh, and from a service of the mesh to an address.
//!
//! Owns the TCP side: the port, the options of sockets, TLS on them, the way to the address. Bytes are
//! `carry`'s and connections `relay`'s business.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::carry::Local;
use super::relay::{self, Source, Target};
use crate::stream::{ListenError, StreamListener, Streams};
use crate::tls::{ClientProfile, Secured, ServerProfile};
use crate::wire::{NodeId, ServiceName};

/// After how much silence the kernel asks the other side whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A TCP connection, with or without TLS.
type Socket = Either<TcpStream, Box<Secured<TcpStream>>>;

impl Local for Socket {
    fn abort(self) {
        match self {
            Self::Left(plain) => plain.abort(),
            // Dropped without the good-bye that TLS has: the other end knows that bytes are missing.
            Self::Right(_secured) => {}
        }
    }
}

/// A local port whose connections lead to a service of the mesh.
#[derive(Debug)]
pub struct TcpIn {
    port: Port,
    target: Target,
}

#[derive(Debug)]
struct Port {
    listener: TcpListener,
    tls: Option<ServerProfile>,
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
        let port = Port { listener: TcpListener::bind(address).await?, tls: None };
        Ok(Self { port, target: Target { streams, node, service, tls: None } })
    }

    /// With TLS on the port, and on the way to the service.
    #[must_use]
    pub fn with_tls(self, port: Option<ServerProfile>, way: Option<ClientProfile>) -> Self {
        let Self { port: Port { listener, .. }, target } = self;
        Self { port: Port { listener, tls: port }, target: Target { tls: way, ..target } }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.port.listener.local_addr()
    }

    /// Serves until `stop`; the port is free again once this returns.
    pub async fn run(self, stop: CancellationToken) {
        relay::inward(self.port, self.target, stop).await;
    }
}

impl Source for Port {
    type Accepted = TcpStream;
    type Socket = Socket;

    async fn accept(&self) -> io::Result<(TcpStream, String)> {
        let (socket, peer) = self.listener.accept().await?;
        tune(&socket);
        Ok((socket, peer.to_string()))
    }

    fn ready(&self, accepted: TcpStream) -> impl Future<Output = io::Result<Socket>> + Send + 'static {
        let tls = self.tls.clone();
        async move {
            let Some(profile) = tls else { return Ok(Either::Left(accepted)) };
            let secured = profile.accept(accepted).await.map_err(io::Error::other)?;
            Ok(Either::Right(Box::new(secured.ending_like_tcp())))
        }
    }
}

/// A service of the mesh whose streams lead to a TCP address.
#[derive(Debug)]
pub struct TcpOut {
    listener: StreamListener,
    address: String,
    tls: Option<ClientProfile>,
}

impl TcpOut {
    /// Opens the service, with TLS on it and on the way to the address if profiles are given, and tells the
    /// mesh of it. Whether anybody listens at the address shows with each stream.
    ///
    /// # Errors
    /// If the service cannot be had.
    pub async fn listen(
        streams: &Streams,
        service: ServiceName,
        address: String,
        port: Option<ServerProfile>,
        way: Option<ClientProfile>,
    ) -> Result<Self, ListenError> {
        let tags = BTreeMap::from([
            ("type".to_owned(), "TCP Proxy".to_owned()),
            ("address".to_owned(), address.clone()),
        ]);
        let listener = streams.listen_with(service, Some(tags), port).await?;
        info!(%service, %address, "proxy service open");
        Ok(Self { listener, address, tls: way })
    }

    /// Serves until `stop`; the service is free again once this returns.
    pub async fn run(self, stop: CancellationToken) {
        let connect = || dial(self.address.clone(), self.tls.clone());
        relay::outward(self.listener, connect, &self.address, stop).await;
    }
}

/// A connection to an address, past its handshake if there is one.
async fn dial(address: String, tls: Option<ClientProfile>) -> io::Result<Socket> {
    let socket = TcpStream::connect(&address).await?;
    tune(&socket);
    let Some(profile) = tls else { return Ok(Either::Left(socket)) };
    let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
    Ok(Either::Right(Box::new(profile.connect(socket, host).await?.ending_like_tcp())))
}

/// What comes is sent on at once, and a machine that died is noticed.
fn tune(socket: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4);
    let tuned = socket.set_nodelay(true).and_then(|()| SockRef::from(socket).set_tcp_keepalive(&keepalive));
    if let Err(error) = tuned {
        debug!(%error, "failed to set options of a proxied connection");
    }
}
