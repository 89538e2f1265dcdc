//! Where clients come from: the Unix socket, a TCP port, and a service of the mesh.
//!
//! Owns how each kind of listener yields clients and what is known of them. It does not know the protocol that they
//! speak.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::TcpKeepalive;
use tokio::net::{TcpListener, TcpStream};

use super::channel::ClientStream;
use super::peer::ClientPeer;
use crate::os::{
    self,
    address::plain,
    unix_socket::{self, UnixSocket},
};
use crate::stream::{self, StreamListener};
use crate::tls::{HandshakeError, Handshakes, Names, ServerProfile};
use crate::wire::NodeId;
use crate::work::{Caller, CallerName, Origin};

/// When and how often the kernel asks a silent TCP client whether it is still there.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));

/// Why no clients can be heard.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    /// The Unix socket cannot be bound.
    #[error("control {0}")]
    Unix(#[from] unix_socket::UnixBindError),
    /// The TCP address cannot be parsed, resolved or bound.
    #[error("control service: failed to listen on TCP address {address}: {source}")]
    Tcp {
        /// The address as configured.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The mesh service cannot be offered.
    #[error("control service: {0}")]
    Mesh(#[from] stream::StreamListenError),
}

/// The connection of a new client, and who the client is.
pub(super) type ClientArrival = (Box<dyn ClientStream>, ClientPeer);

/// A source of clients.
pub(super) trait Accept: Send + 'static {
    /// Waits for the next client; `None` once there will be no more. Cancel safe.
    fn accept(&mut self) -> impl Future<Output = io::Result<Option<ClientArrival>>> + Send;

    /// Stops listening. Returns once the address, path or service name is free.
    fn close(self) -> impl Future<Output = ()> + Send
    where
        Self: Sized,
    {
        drop(self);
        async {}
    }
}

impl Accept for UnixSocket {
    async fn accept(&mut self) -> io::Result<Option<ClientArrival>> {
        let (stream, name) = UnixSocket::accept(self).await?;
        let user = stream.peer_cred().map(|cred| CallerName::User(cred.uid()));
        let credentials = user.unwrap_or_default();
        let caller = Caller::new(Origin::Unix, true, credentials);
        Ok(Some((Box::new(stream), ClientPeer { caller, host: None, name })))
    }
}

/// A TCP port whose clients speak without TLS.
pub(super) struct TcpPort {
    listener: TcpListener,
    trusted: bool,
}

impl TcpPort {
    pub(super) fn new(listener: TcpListener, trusted: bool) -> Self {
        Self { listener, trusted }
    }
}

impl Accept for TcpPort {
    async fn accept(&mut self) -> io::Result<Option<ClientArrival>> {
        let (stream, address) = self.listener.accept().await?;
        os::tcp::tune(&stream, &KEEPALIVE);
        let address = plain(address);
        let caller = Caller::new(Origin::Tcp, self.trusted, CallerName::Unknown);
        let peer = ClientPeer { caller, host: Some(address.ip()), name: address.to_string() };
        Ok(Some((Box::new(stream), peer)))
    }
}

/// A TCP port whose clients speak TLS.
pub(super) struct TlsPort {
    listener: TcpListener,
    profile: ServerProfile,
    trusted: bool,
    own: NodeId,
    handshakes: Handshakes<Result<ClientArrival, HandshakeError>>,
}

impl TlsPort {
    pub(super) fn new(listener: TcpListener, profile: ServerProfile, trusted: bool, own: NodeId) -> Self {
        Self { listener, profile, trusted, own, handshakes: Handshakes::default() }
    }

    fn begin(&mut self, stream: TcpStream, address: SocketAddr) {
        os::tcp::tune(&stream, &KEEPALIVE);
        let (profile, trusted, address) = (self.profile.clone(), self.trusted, plain(address));
        let own = self.own.clone();
        self.handshakes.begin(async move {
            let secured = profile.accept(stream).await.inspect_err(|error| {
                tracing::info!(peer = %address, %error, "control client refused");
            })?;
            // A certificate that names another node is for links, though the same authority has signed it.
            let is_operators = |names: &Names| {
                names.node_ids.is_empty() || names.node_ids.iter().any(|node| node == own.as_str())
            };
            let shown = secured.names().filter(is_operators);
            // If the profile requires a certificate, the handshake has verified it.
            let trusted = trusted || (shown.is_some() && profile.requires_client_certificate());
            let name = shown.map(|names| Arc::from(names.subject));
            let credentials = name.map(CallerName::Certificate).unwrap_or_default();
            // receptorctl ends a payload by shutting down the socket below TLS.
            let link: Box<dyn ClientStream> = Box::new(secured.ending_like_tcp());
            let (host, name) = (Some(address.ip()), address.to_string());
            Ok((link, ClientPeer { caller: Caller::new(Origin::Tcp, trusted, credentials), host, name }))
        });
    }
}

impl Accept for TlsPort {
    async fn accept(&mut self) -> io::Result<Option<ClientArrival>> {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => {
                    let (stream, address) = accepted?;
                    self.begin(stream, address);
                }
                // A failed handshake was logged in `begin`.
                ended = self.handshakes.next() => if let Ok(client) = ended {
                    return Ok(Some(client));
                },
            }
        }
    }
}

/// A service of the mesh.
pub(super) struct MeshService {
    listener: StreamListener,
    trusted: bool,
}

impl MeshService {
    pub(super) fn new(listener: StreamListener, trusted: bool) -> Self {
        Self { listener, trusted }
    }
}

impl Accept for MeshService {
    async fn accept(&mut self) -> io::Result<Option<ClientArrival>> {
        let Some(stream) = self.listener.accept().await else { return Ok(None) };
        let (node, service) = stream.remote().ok_or(io::ErrorKind::NotConnected)?;
        let origin = Origin::Mesh { node, certified: stream.is_certified() };
        let caller = Caller::new(origin, self.trusted, CallerName::Unknown);
        let peer = ClientPeer { caller, host: None, name: format!("{node}:{service}") };
        Ok(Some((Box::new(stream), peer)))
    }

    async fn close(self) {
        self.listener.close().await;
    }
}
