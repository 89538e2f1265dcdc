//! Opening a stream to a service on another node.

use std::io;
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, ConnectionError, Endpoint, TokioRuntime};
use tokio::sync::{OnceCell, watch};
use tokio::time::timeout;

use super::connection::{MeshStream, Side};
use super::secured;
use super::settings;
use super::socket::{MeshSocket, address};
use super::trust::{self, TrustError};
use super::watch::Watches;
use crate::node::{BindError, NodeHandle};
use crate::tls::{ClientProfile, Expected, HandshakeError, Verdict};
use crate::wire::{NodeId, ServiceName};

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No path to the node is known.
    #[error("no route to node {0}")]
    NoRoute(NodeId),
    /// The node is there, the service is not.
    #[error("service {service} is unknown on node {node}")]
    ServiceUnknown {
        /// The node dialled.
        node: NodeId,
        /// The service dialled.
        service: ServiceName,
    },
    /// A firewall on the way turned the connection away.
    #[error("connection to {node}:{service} blocked by the firewall of node {by}")]
    Blocked {
        /// The node dialled.
        node: NodeId,
        /// The service dialled.
        service: ServiceName,
        /// The node whose rule it was.
        by: NodeId,
    },
    /// Nothing came back in time.
    #[error("no answer from {node}:{service} within {} s", settings::HANDSHAKE_LIMIT.as_secs())]
    Timeout {
        /// The node dialled.
        node: NodeId,
        /// The service dialled.
        service: ServiceName,
    },
    /// The handshake failed.
    #[error("failed to connect to {node}:{service}: {source}")]
    Handshake {
        /// The node dialled.
        node: NodeId,
        /// The service dialled.
        service: ServiceName,
        /// What went wrong.
        source: ConnectionError,
    },
    /// The certificate at the other end is not accepted.
    #[error("failed to connect to {node}:{service}: {source}")]
    Rejected {
        /// The node dialled.
        node: NodeId,
        /// The service dialled.
        service: ServiceName,
        /// Why.
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

impl From<DialError> for io::Error {
    fn from(error: DialError) -> Self {
        let kind = match &error {
            DialError::NoRoute(_) => io::ErrorKind::HostUnreachable,
            DialError::ServiceUnknown { .. } => io::ErrorKind::ConnectionRefused,
            DialError::Blocked { .. } => io::ErrorKind::PermissionDenied,
            DialError::Timeout { .. } => io::ErrorKind::TimedOut,
            DialError::Handshake { .. } | DialError::Rejected { .. } => io::ErrorKind::ConnectionAborted,
            DialError::Setup(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// Streams of one node. Clones are the same.
#[derive(Debug, Clone)]
pub struct Streams {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    node: NodeHandle,
    dialer: OnceCell<Dialer>,
}

/// All dials of a node share one socket: QUIC tells their connections apart.
#[derive(Debug)]
struct Dialer {
    endpoint: Endpoint,
    watches: Arc<Watches>,
    config: ClientConfig,
}

impl Streams {
    /// Streams over a node's datagrams.
    pub fn new(node: NodeHandle) -> Self {
        Self { inner: Arc::new(Inner { node, dialer: OnceCell::new() }) }
    }

    /// The node.
    pub fn node(&self) -> &NodeHandle {
        &self.inner.node
    }

    /// Opens a stream to a service that has no TLS profile.
    ///
    /// # Errors
    /// [`DialError`], within the handshake's limit; at once if there is no route or no such service, or a firewall
    /// rejects it.
    pub async fn dial(&self, node: &NodeId, service: ServiceName) -> Result<MeshStream, DialError> {
        self.dial_with(node, service, None).await
    }

    /// Opens a stream to a service under a TLS profile, if one is given: the certificate over there must name
    /// the node.
    ///
    /// # Errors
    /// As [`Self::dial`].
    pub async fn dial_with(
        &self,
        node: &NodeId,
        service: ServiceName,
        tls: Option<&ClientProfile>,
    ) -> Result<MeshStream, DialError> {
        if !self.inner.node.reaches(node.hash()) {
            return Err(DialError::NoRoute(node.clone()));
        }
        let dialer = self.inner.dialer.get_or_try_init(|| Dialer::new(&self.inner.node)).await?;
        tokio::select! {
            dialed = dialer.dial(node, service, tls) => dialed,
            // Its last hop has just told that it is gone; whoever can wait for it is told when it appears.
            () = self.inner.node.disappears(node.hash()) => Err(DialError::NoRoute(node.clone())),
        }
    }
}

impl Dialer {
    async fn new(node: &NodeHandle) -> Result<Self, SetupError> {
        let socket = Arc::new(MeshSocket::new(node.bind_ephemeral().await?));
        let runtime = Arc::new(TokioRuntime);
        let endpoint =
            Endpoint::new_with_abstract_socket(settings::endpoint(), None, socket.clone(), runtime)?;
        let crypto = QuicClientConfig::try_from(trust::client()?).map_err(TrustError::new)?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(settings::transport(true));
        let watches = Arc::new(Watches::default());
        let listening = watches.clone();
        tokio::spawn(async move { listening.listen(&socket).await });
        Ok(Self { endpoint, watches, config })
    }

    async fn dial(
        &self,
        node: &NodeId,
        service: ServiceName,
        tls: Option<&ClientProfile>,
    ) -> Result<MeshStream, DialError> {
        let (config, verdict) = match tls {
            Some(profile) => secured::client(profile, node).map_err(SetupError::from)?,
            None => (self.config.clone(), Verdict::default()),
        };
        let address = address(node.hash(), service);
        let gone = self.watches.watch(address);
        let mut rejections = gone.blocked.subscribe();
        // The name is not sent; it keeps apart what TLS remembers of each node.
        let name = format!("n{}.mesh", node.hash());
        let connecting = self
            .endpoint
            .connect_with(config, address, &name)
            .map_err(|error| SetupError::Quic(io::Error::other(error)))?;
        let open = async {
            let connection = connecting.await?;
            let (mut send, recv) = connection.open_bi().await?;
            // Streams are not announced before something is written; what, the contract says.
            let wrote = send.write_all(&[0]).await;
            wrote.map_err(|_| connection.close_reason().unwrap_or(ConnectionError::LocallyClosed))?;
            Ok((connection, send, recv))
        };
        let opened = tokio::select! {
            opened = timeout(settings::HANDSHAKE_LIMIT, open) => opened,
            () = gone.unknown.cancelled() => return Err(DialError::ServiceUnknown { node: node.clone(), service }),
            by = blocked(&mut rejections) => return Err(DialError::Blocked { node: node.clone(), service, by }),
        };
        match opened {
            Ok(Ok((connection, send, recv))) => {
                // What answered is what has started since.
                let gone = if gone.restarted.is_cancelled() { self.watches.watch(address) } else { gone };
                let expected = || Expected::Node(node.clone());
                let guard = tls.map(|tls| tls.admit(secured::peer_chain(&connection), expected()));
                Ok(MeshStream::new(connection, Side::Dialer, (send, recv), gone, guard))
            }
            Ok(Err(_)) if let (Some(tls), Some(rejection)) = (tls, verdict.rejection()) => {
                let profile = tls.name().to_owned();
                let source = HandshakeError::Rejected { profile, rejection: Box::new(rejection.clone()) };
                Err(DialError::Rejected { node: node.clone(), service, source })
            }
            Ok(Err(source)) => Err(DialError::Handshake { node: node.clone(), service, source }),
            Err(_elapsed) => Err(DialError::Timeout { node: node.clone(), service }),
        }
    }
}

/// The node whose firewall turns the attempt away, once one does.
async fn blocked(rejections: &mut watch::Receiver<Option<NodeId>>) -> NodeId {
    loop {
        if rejections.changed().await.is_err() {
            return std::future::pending().await;
        }
        if let Some(by) = rejections.borrow_and_update().clone() {
            return by;
        }
    }
}
