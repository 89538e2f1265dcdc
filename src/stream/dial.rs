//! Opening a stream to a service on another node. Owns the endpoint of all dials and their errors; refuses to know what
//! streams carry.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, RecvStream, SendStream, TokioRuntime,
    TransportErrorCode,
};
use tokio::sync::{OnceCell, OwnedMutexGuard};
use tokio::time::timeout;

use super::connection::{Opened, Side};
use super::far_end::{DialRefused, FarEnds};
use super::mesh_stream::MeshStream;
use super::mux::{ConnectionLease, FoundConnection, SharedConnection, SharedConnections};
use super::settings;
use super::socket::{MeshSocket, address};
use super::tls::{self, Peer, TrustError};
use super::windows::{WindowBudget, Windows, default_buffers};
use crate::node::{BindError, NodeHandle};
use crate::tls::{ClientProfile, Expected, HandshakeError, HandshakeVerdict};
use crate::wire::{NodeId, ServiceName};

/// How long another stream may take to begin on an open shared connection, in addition to four round trips. After that
/// the dialer looks for another connection.
const SHARED_WITHIN: Duration = Duration::from_secs(1);

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No path to the node is known.
    #[error("no route to node {0}")]
    NoRoute(NodeId),
    /// The node has no such service.
    #[error("service {service} is unknown on node {node}")]
    ServiceUnknown {
        /// The node dialled.
        node: NodeId,
        /// The service dialled.
        service: ServiceName,
    },
    /// A firewall on the way rejected the connection.
    #[error("connection to {node}:{service} blocked by the firewall of node {by}")]
    Blocked {
        /// The node dialled.
        node: NodeId,
        /// The service dialled.
        service: ServiceName,
        /// The node whose firewall it was.
        by: NodeId,
    },
    /// No answer came in time.
    #[error("no answer from {node}:{service} within {} s", settings::HANDSHAKE_LIMIT.as_secs())]
    Timeout {
        /// The node dialled.
        node: NodeId,
        /// The service dialled.
        service: ServiceName,
    },
    /// The listener names more authorities than fit in a handshake.
    #[error(
        "failed to connect to {node}:{service}: the handshake is larger than {} KiB: its tls-server trusts too many authorities (clientcas)",
        settings::LARGEST_HANDSHAKE >> 10
    )]
    TooLarge {
        /// The node dialled.
        node: NodeId,
        /// The service dialled.
        service: ServiceName,
    },
    /// The listener closed the connection with an internal error.
    #[error(
        "failed to connect to {node}:{service}: {source}; a receptor node fails like this if its tls-server trusts \
         too many authorities (clientcas) to name them all in a handshake"
    )]
    ListenerFailed {
        /// The node dialled.
        node: NodeId,
        /// The service dialled.
        service: ServiceName,
        /// The listener's error.
        source: ConnectionError,
    },
    /// The handshake failed.
    #[error("failed to connect to {node}:{service}: {source}")]
    Handshake {
        /// The node dialled.
        node: NodeId,
        /// The service dialled.
        service: ServiceName,
        /// The connection's error.
        source: ConnectionError,
    },
    /// The certificate at the other end is not accepted.
    #[error("failed to connect to {node}:{service}: {source}")]
    Rejected {
        /// The node dialled.
        node: NodeId,
        /// The service dialled.
        service: ServiceName,
        /// Why the certificate was rejected.
        source: HandshakeError,
    },
    /// This node cannot dial at all.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

/// Why this node cannot open streams at all.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// No service could be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// TLS could not be set up.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// QUIC could not be set up.
    #[error("failed to set up QUIC: {0}")]
    Quic(#[from] io::Error),
}

impl DialError {
    /// Whether a certificate was rejected: the dialer's or the listener's. That proves nothing, because a node on the
    /// way can send a close in the far end's name, or show a certificate of its own.
    pub fn is_tls(&self) -> bool {
        // QUIC has a range of error codes for TLS alerts (RFC 9001, section 4.8).
        let is_alert = |code: TransportErrorCode| (0x100..0x200).contains(&u64::from(code));
        match self {
            Self::Rejected { .. } => true,
            Self::Handshake { source: ConnectionError::TransportError(error), .. } => is_alert(error.code),
            Self::Handshake { source: ConnectionError::ConnectionClosed(close), .. } => {
                is_alert(close.error_code)
            }
            Self::Handshake { .. }
            | Self::NoRoute(_)
            | Self::ServiceUnknown { .. }
            | Self::Blocked { .. }
            | Self::Timeout { .. }
            | Self::TooLarge { .. }
            | Self::ListenerFailed { .. }
            | Self::Setup(_) => false,
        }
    }
}

impl From<DialError> for io::Error {
    fn from(error: DialError) -> Self {
        let kind = match &error {
            DialError::NoRoute(_) => io::ErrorKind::HostUnreachable,
            DialError::ServiceUnknown { .. } => io::ErrorKind::ConnectionRefused,
            DialError::Blocked { .. } => io::ErrorKind::PermissionDenied,
            DialError::Timeout { .. } => io::ErrorKind::TimedOut,
            DialError::TooLarge { .. }
            | DialError::ListenerFailed { .. }
            | DialError::Handshake { .. }
            | DialError::Rejected { .. } => io::ErrorKind::ConnectionAborted,
            DialError::Setup(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// Opens and accepts the streams of one node. Clones share their state.
#[derive(Debug, Clone)]
pub struct Streams {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    node: NodeHandle,
    budget: WindowBudget,
    dialer: OnceCell<OverlayEndpoint>,
}

/// The socket that all dials of a node share: QUIC tells their connections apart.
#[derive(Debug)]
struct OverlayEndpoint {
    node: NodeHandle,
    endpoint: Endpoint,
    far_ends: Arc<FarEnds>,
    /// For connections with one stream, and for connections that may carry many.
    configs: [ClientConfig; 2],
    shared: SharedConnections,
    budget: WindowBudget,
}

/// The destination of a dial, and its TLS profile.
#[derive(Clone, Copy)]
struct DialTarget<'a> {
    node: &'a NodeId,
    service: ServiceName,
    tls: Option<&'a ClientProfile>,
}

impl Streams {
    /// Streams over a node's datagrams, with [`default_buffers`] for their buffers.
    pub fn new(node: NodeHandle) -> Self {
        let budget = WindowBudget::new(default_buffers());
        Self { inner: Arc::new(Inner { node, budget, dialer: OnceCell::new() }) }
    }

    /// Sets how many bytes the buffers of all streams may hold together. Buffers that are larger already do not shrink.
    pub fn set_buffers(&self, bytes: u64) {
        self.inner.budget.set(bytes);
    }

    pub(super) fn budget(&self) -> &WindowBudget {
        &self.inner.budget
    }

    /// The node.
    pub fn node(&self) -> &NodeHandle {
        &self.inner.node
    }

    /// Opens a stream to a service that has no TLS profile.
    ///
    /// # Errors
    /// [`DialError`], within the handshake's limit; at once if there is no route, no such service, or a firewall that
    /// rejects the connection.
    pub async fn dial(&self, node: &NodeId, service: ServiceName) -> Result<MeshStream, DialError> {
        self.dial_with(node, service, None).await
    }

    /// Opens a stream to a service. If a TLS profile is given, the listener's certificate must name the node.
    pub async fn dial_with(
        &self,
        node: &NodeId,
        service: ServiceName,
        tls: Option<&ClientProfile>,
    ) -> Result<MeshStream, DialError> {
        self.open(DialTarget { node, service, tls }, false).await
    }

    /// As [`Self::dial_with`], for many short streams: if the other end is one of our own nodes, they share a
    /// connection, which needs one handshake for all. If it breaks, all of them stall. A stream that is dropped before
    /// it was shut down does not look complete to the other end.
    pub async fn dial_shared(
        &self,
        node: &NodeId,
        service: ServiceName,
        tls: Option<&ClientProfile>,
    ) -> Result<MeshStream, DialError> {
        self.open(DialTarget { node, service, tls }, true).await
    }

    /// The number of open connections that were dialled.
    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        self.inner.dialer.get().map_or(0, |dialer| dialer.endpoint.open_connections())
    }

    async fn open(&self, target: DialTarget<'_>, share: bool) -> Result<MeshStream, DialError> {
        let node = target.node;
        if !self.inner.node.reaches(node.hash()) {
            return Err(DialError::NoRoute(node.clone()));
        }
        let dialer = self.inner.dialer.get_or_try_init(|| OverlayEndpoint::new(&self.inner)).await?;
        let dial = async {
            match share {
                true => dialer.dial_shared(target).await,
                false => dialer.dial(target).await,
            }
        };
        tokio::select! {
            dialed = dial => dialed,
            // The last route to the node is gone. Callers that can wait watch for its return themselves.
            () = self.inner.node.disappears(node.hash()) => Err(DialError::NoRoute(node.clone())),
        }
    }
}

impl OverlayEndpoint {
    async fn new(inner: &Inner) -> Result<Self, SetupError> {
        let socket = Arc::new(MeshSocket::new(inner.node.bind_ephemeral().await?));
        let runtime = Arc::new(TokioRuntime);
        let endpoint =
            Endpoint::new_with_abstract_socket(settings::endpoint(), None, socket.clone(), runtime)?;
        let configs = [tls::client(false)?, tls::client(true)?];
        let far_ends = Arc::new(FarEnds::default());
        let following = far_ends.clone();
        tokio::spawn(async move { following.follow(&socket).await });
        let shared = SharedConnections::default();
        let (node, budget) = (inner.node.clone(), inner.budget.clone());
        Ok(Self { node, endpoint, far_ends, configs, shared, budget })
    }

    async fn dial(&self, target: DialTarget<'_>) -> Result<MeshStream, DialError> {
        let opened = self.connect(target, false).await?;
        self.only_stream(target, opened, false).await
    }

    async fn dial_shared(&self, target: DialTarget<'_>) -> Result<MeshStream, DialError> {
        let key = (target.node.hash(), target.service, target.tls.map(|tls| tls.name().to_owned()));
        loop {
            match self.shared.find(&key, target.tls).await {
                FoundConnection::Open(shared, lease) => {
                    let limit = SHARED_WITHIN + shared.connection.rtt() * 4;
                    match self.another_stream(target, &shared, lease, limit).await {
                        // The other end may have closed the connection, and its close was lost.
                        Err(DialError::Timeout { .. }) => {}
                        dialled => return dialled,
                    }
                }
                FoundConnection::Vacant(slot) => return self.first_stream(target, Some(slot)).await,
                // This dialer waits for no other attempt: attempts that fail take long, and a node that does not share
                // needs a connection for each stream anyway.
                FoundConnection::Failed => return self.first_stream(target, None).await,
            }
        }
    }

    /// Opens a connection for this stream, and for more streams if the other end agrees.
    async fn first_stream(
        &self,
        target: DialTarget<'_>,
        slot: Option<OwnedMutexGuard<Option<SharedConnection>>>,
    ) -> Result<MeshStream, DialError> {
        let opened = self.connect(target, true).await?;
        if !Peer::of(&opened.connection).shares() {
            drop(slot);
            return self.only_stream(target, opened, true).await;
        }
        let shared = SharedConnection::new(opened, target.tls.cloned());
        let lease = shared.lease(target.tls);
        if let Some(mut slot) = slot {
            *slot = Some(shared.clone());
        }
        match lease {
            Some(lease) => self.another_stream(target, &shared, lease, settings::HANDSHAKE_LIMIT).await,
            None => Err(target.failed(shared.connection.close_reason())),
        }
    }

    async fn another_stream(
        &self,
        target: DialTarget<'_>,
        shared: &SharedConnection,
        lease: ConnectionLease,
        limit: Duration,
    ) -> Result<MeshStream, DialError> {
        let halves = self.begin(target, &shared.connection, limit).await;
        let halves = halves.inspect_err(|_| lease.retire_connection())?;
        Ok(shared.stream(halves, lease))
    }

    async fn only_stream(
        &self,
        target: DialTarget<'_>,
        opened: Opened,
        strict: bool,
    ) -> Result<MeshStream, DialError> {
        let halves = self.begin(target, &opened.connection, settings::HANDSHAKE_LIMIT).await?;
        Ok(opened.into_only_stream(halves, strict))
    }

    /// Begins a stream on an open connection.
    async fn begin(
        &self,
        target: DialTarget<'_>,
        connection: &Connection,
        limit: Duration,
    ) -> Result<(SendStream, RecvStream), DialError> {
        let begin = async {
            let (mut send, recv) = connection.open_bi().await?;
            // The peer learns of a stream by its first byte, a zero (docs/protocol.md#stream-opening).
            let wrote = send.write_all(&[0]).await;
            wrote.map_err(|_| connection.close_reason().unwrap_or(ConnectionError::LocallyClosed))?;
            Ok((send, recv))
        };
        match timeout(limit, begin).await {
            Ok(Ok(halves)) => Ok(halves),
            Ok(Err(source)) => Err(target.failed(Some(source))),
            Err(_elapsed) => Err(target.timeout()),
        }
    }

    /// Opens a connection; with `share`, it may carry many streams if the other end agrees.
    async fn connect(&self, target: DialTarget<'_>, share: bool) -> Result<Opened, DialError> {
        let DialTarget { node, service, tls: profile } = target;
        let (config, verdict) = match profile {
            Some(profile) => tls::client_of(profile, node, share).map_err(SetupError::from)?,
            None => (self.configs[usize::from(share)].clone(), HandshakeVerdict::default()),
        };
        let address = address(node.hash(), service);
        let far_end = self.far_ends.at(address);
        let refused = far_end.refused();
        // The name is not sent. It separates the sessions that TLS caches for each node.
        let name = format!("n{}.mesh", node.hash());
        let connecting = self
            .endpoint
            .connect_with(config, address, &name)
            .map_err(|error| SetupError::Quic(io::Error::other(error)))?;
        let opened = tokio::select! {
            opened = timeout(settings::HANDSHAKE_LIMIT, connecting) => opened,
            refused = refused => {
                let node = node.clone();
                return Err(match refused {
                    DialRefused::ServiceUnknown => DialError::ServiceUnknown { node, service },
                    DialRefused::Blocked { by, .. } => DialError::Blocked { node, service, by },
                });
            }
        };
        match opened {
            Ok(Ok(connection)) => {
                let windows = Windows::of_our_own(&self.budget, node.hash());
                let expected = || Expected::Node(node.clone());
                let guard = profile.map(|profile| profile.admit(tls::peer_chain(&connection), expected()));
                let node = self.node.clone();
                Ok(Opened { node, connection, side: Side::Dialer, far_end, windows, guard })
            }
            Ok(Err(_)) if let (Some(profile), Some(rejection)) = (profile, verdict.rejection()) => {
                let profile = profile.name().to_owned();
                let source = HandshakeError::Rejected { profile, rejection: Box::new(rejection.clone()) };
                Err(DialError::Rejected { node: node.clone(), service, source })
            }
            Ok(Err(source)) => Err(target.failed(Some(source))),
            Err(_elapsed) => Err(target.timeout()),
        }
    }
}

impl DialTarget<'_> {
    fn failed(self, source: Option<ConnectionError>) -> DialError {
        let source = source.unwrap_or(ConnectionError::LocallyClosed);
        let (node, service) = (self.node.clone(), self.service);
        match &source {
            ConnectionError::TransportError(error) if is_too_large(error.code, &error.reason) => {
                DialError::TooLarge { node, service }
            }
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::INTERNAL_ERROR =>
            {
                DialError::ListenerFailed { node, service, source }
            }
            _ => DialError::Handshake { node, service, source },
        }
    }

    fn timeout(self) -> DialError {
        DialError::Timeout { node: self.node.clone(), service: self.service }
    }
}

/// Whether a handshake failed because one of its messages was too large. If its pieces came out of order, quinn counts
/// them and has a code; otherwise rustls refuses the message and quinn passes its text on.
fn is_too_large(code: TransportErrorCode, reason: &str) -> bool {
    let too_large = rustls::Error::InvalidMessage(rustls::InvalidMessage::HandshakePayloadTooLarge);
    code == TransportErrorCode::CRYPTO_BUFFER_EXCEEDED || reason == too_large.to_string()
}
