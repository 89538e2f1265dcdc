//! Accepting streams on a service of this node. Owns the handshakes and the queue of accepted streams; refuses to know
//! what streams carry.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use quinn::{Endpoint, RecvStream, SendStream, TokioRuntime, VarInt};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, warn};

use super::connection::{Opened, Side};
use super::dial::{SetupError, Streams};
use super::far_end::{DialRefused, FarEnd, FarEnds};
use super::mesh_stream::MeshStream;
use super::mux;
use super::settings;
use super::socket::{MeshSocket, service_at};
use super::tls::{self, Peer, TrustError};
use super::windows::{WindowBudget, Windows};
use crate::mesh::LocalService;
use crate::node::NodeHandle;
use crate::tls::{Expected, HandshakeVerdict, Handshakes, Rejection, ServerProfile};
use crate::wire::{ConnType, ServiceName};

/// A service cannot accept streams.
pub type StreamListenError = SetupError;

/// Streams that may wait to be accepted.
const BACKLOG: usize = 128;
/// How long streams may go on when their service is closed.
const FAREWELL: Duration = Duration::from_secs(2);
/// The code of a close towards a dialer that violates the protocol.
const PROTOCOL_ERROR: VarInt = VarInt::from_u32(500);
/// The code of a close towards a dialer whose node has its share of this node's buffers.
const TOO_MANY: VarInt = VarInt::from_u32(503);

/// A service that accepts streams. Closed, and withdrawn from the mesh, when dropped.
#[derive(Debug)]
pub struct StreamListener {
    accepted: mpsc::Receiver<MeshStream>,
    endpoint: Endpoint,
    notices: AbortHandle,
    accepting: AbortHandle,
    released: CancellationToken,
    /// When dropped, no further streams begin on shared connections.
    _closing: DropGuard,
}

impl Streams {
    /// Opens a service for streams without a TLS profile; advertises it if there are `tags`.
    ///
    /// # Errors
    /// If the service is reserved or open already, or the node has stopped.
    pub async fn listen(
        &self,
        service: ServiceName,
        tags: Option<BTreeMap<String, String>>,
    ) -> Result<StreamListener, StreamListenError> {
        self.listen_with(service, tags, None).await
    }

    /// Opens a service for streams, under a TLS profile if one is given. If the profile requires client certificates,
    /// the dialer's certificate must name its node.
    pub async fn listen_with(
        &self,
        service: ServiceName,
        tags: Option<BTreeMap<String, String>>,
        tls: Option<ServerProfile>,
    ) -> Result<StreamListener, StreamListenError> {
        let config = match &tls {
            Some(profile) => tls::server_of(profile, Expected::Anyone)?.0,
            None => tls::server()?,
        };
        let socket = Arc::new(MeshSocket::new(self.node().bind(service).await?));
        let runtime = Arc::new(TokioRuntime);
        let endpoint =
            Endpoint::new_with_abstract_socket(settings::endpoint(), Some(config), socket.clone(), runtime)?;
        if let Some(tags) = tags {
            let conn_type = if tls.is_some() { ConnType::STREAM_TLS } else { ConnType::STREAM };
            self.node().advertise(service, LocalService { conn_type, tags });
        }
        let released = socket.released();
        let far_ends = Arc::new(FarEnds::default());
        let (accepted_sender, accepted) = mpsc::channel(BACKLOG);
        let closing = CancellationToken::new();
        let acceptor = Acceptor {
            node: self.node().clone(),
            far_ends: far_ends.clone(),
            budget: self.budget().clone(),
            accepted: accepted_sender,
            tls,
            closing: closing.clone(),
        };
        let accepting = tokio::spawn(accept_all(endpoint.clone(), acceptor));
        let notices = tokio::spawn(async move { far_ends.follow(&socket).await });
        let (accepting, notices) = (accepting.abort_handle(), notices.abort_handle());
        let closing = closing.drop_guard();
        Ok(StreamListener { accepted, endpoint, notices, accepting, released, _closing: closing })
    }
}

impl StreamListener {
    /// The next stream; `None` once the node has stopped.
    pub async fn accept(&mut self) -> Option<MeshStream> {
        self.accepted.recv().await
    }

    /// Closes the service as dropping it does, and waits until its name can be bound again.
    pub async fn close(self) {
        let released = self.released.clone();
        drop(self);
        released.cancelled().await;
    }
}

impl Drop for StreamListener {
    fn drop(&mut self) {
        self.accepting.abort();
        self.notices.abort();
        let endpoint = self.endpoint.clone();
        endpoint.set_server_config(None);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(end(endpoint))),
            Err(_) => endpoint.close(PROTOCOL_ERROR, b"Listener Closed"),
        }
    }
}

/// Gives streams time to end in good order, then ends the rest.
async fn end(endpoint: Endpoint) {
    let _others_are_left = timeout(FAREWELL, endpoint.wait_idle()).await;
    endpoint.close(PROTOCOL_ERROR, b"Listener Closed");
}

/// The state of a service that its handshakes share.
#[derive(Clone)]
struct Acceptor {
    node: NodeHandle,
    far_ends: Arc<FarEnds>,
    budget: WindowBudget,
    accepted: mpsc::Sender<MeshStream>,
    tls: Option<ServerProfile>,
    /// Cancelled when the service is closed: then no more streams begin.
    closing: CancellationToken,
}

async fn accept_all(endpoint: Endpoint, acceptor: Acceptor) {
    let mut handshakes = Handshakes::default();
    loop {
        let incoming = tokio::select! {
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => incoming,
                None => return,
            },
            () = handshakes.next() => continue,
        };
        if handshakes.are_suspicious() && !incoming.remote_address_validated() {
            // Anybody can forge a sender's address, so the dialer has to show first that it gets answers. `retry`
            // cannot fail, because the address is not validated yet.
            let _asked = incoming.retry();
        } else {
            let acceptor = acceptor.clone();
            handshakes.begin(async move { acceptor.shake_hands(incoming).await });
        }
    }
}

/// Why a dialer was rejected.
#[derive(Debug, thiserror::Error)]
enum DialerRefusal {
    #[error(transparent)]
    Connection(#[from] quinn::ConnectionError),
    #[error("TLS profile {profile}: {rejection}")]
    Certificate { profile: String, rejection: Rejection },
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("the node's connections have used up their share of the buffers (streambuffers)")]
    TooMany,
    #[error("its first byte was not the zero that every stream begins with")]
    FirstByte,
}

impl Acceptor {
    /// Takes a dialer from its first packet to its first byte. The accepted stream or connection goes on in a task of
    /// its own.
    async fn shake_hands(self, incoming: quinn::Incoming) {
        let from = incoming.remote_address();
        match timeout(settings::HANDSHAKE_LIMIT, self.accept(incoming)).await {
            Ok(Ok(())) => {}
            Ok(Err(error @ (DialerRefusal::Certificate { .. } | DialerRefusal::TooMany))) => {
                warn!(%from, %error, "stream refused");
            }
            Ok(Err(error)) => debug!(%from, %error, "stream refused"),
            Err(_elapsed) => debug!(%from, "stream refused: the handshake took too long"),
        }
    }

    async fn accept(&self, incoming: quinn::Incoming) -> Result<(), DialerRefusal> {
        let far_end = self.far_ends.at(incoming.remote_address());
        let refused = far_end.refused();
        // The dialer cannot be told, because a firewall rejects our answers to it.
        let never = async move {
            if let DialRefused::Blocked { node, by } = refused.await {
                warn!(dialer = %node, firewall = %by, "cannot start a stream: a firewall blocks this node's answers");
            }
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            accepted = self.establish(incoming, far_end) => accepted,
            never = never => match never {},
        }
    }

    async fn establish(&self, incoming: quinn::Incoming, far_end: Arc<FarEnd>) -> Result<(), DialerRefusal> {
        let from = service_at(incoming.remote_address()).map(|(node, _)| node);
        let (connection, guard) = match &self.tls {
            None => (incoming.await?, None),
            Some(profile) => {
                let expected = tls::expected_client(profile, from);
                let (config, verdict) = tls::server_of(profile, expected.clone())?;
                let connection = incoming.accept_with(Arc::new(config))?.await;
                let connection = connection.map_err(|error| refused(profile, &verdict, error))?;
                let guard = profile.admit(tls::peer_chain(&connection), expected);
                (connection, Some(guard))
            }
        };
        let shared = Peer::of(&connection).shares();
        // Counted only after the handshake, because anybody can begin a connection in another node's name.
        let Some(windows) = from.and_then(|node| Windows::of_visitor(&self.budget, node, shared)) else {
            connection.close(TOO_MANY, b"too many connections");
            return Err(DialerRefusal::TooMany);
        };
        let node = self.node.clone();
        let opened = Opened { node, connection, side: Side::Listener, far_end, windows, guard };
        if shared {
            tokio::spawn(self.clone().accept_streams(mux::Incoming::new(opened)));
            return Ok(());
        }
        let first = first_byte(opened.connection.accept_bi().await?).await;
        let halves = first.inspect_err(|_| opened.connection.close(PROTOCOL_ERROR, b"Read Data Error"))?;
        let stream = opened.into_only_stream(halves, false);
        let acceptor = self.clone();
        tokio::spawn(async move { acceptor.hand_over(stream).await });
        Ok(())
    }

    /// Hands a stream to the listener's owner.
    async fn hand_over(&self, stream: MeshStream) {
        // If the profile requires a client certificate, the handshake has verified that it names the dialing node.
        let certified = self.tls.as_ref().is_some_and(ServerProfile::requires_client_certificate);
        let _closed = self.accepted.send(stream.certified(certified)).await;
    }

    /// Accepts the streams of a shared connection until the connection or the service is closed.
    async fn accept_streams(self, incoming: mux::Incoming) {
        let incoming = Arc::new(incoming);
        loop {
            let accepted = tokio::select! {
                accepted = incoming.accept() => accepted,
                () = self.closing.cancelled() => break,
            };
            let Some((halves, lease)) = accepted else { return };
            let (acceptor, incoming) = (self.clone(), incoming.clone());
            tokio::spawn(async move {
                if let Ok(Ok(halves)) = timeout(settings::HANDSHAKE_LIMIT, first_byte(halves)).await {
                    acceptor.hand_over(incoming.stream(halves, lease)).await;
                }
            });
        }
        incoming.close().await;
    }
}

/// Reads the byte that every stream begins with.
async fn first_byte(
    (send, mut recv): (SendStream, RecvStream),
) -> Result<(SendStream, RecvStream), DialerRefusal> {
    let mut first = [0xff];
    match recv.read_exact(&mut first).await {
        Ok(()) if first == [0] => Ok((send, recv)),
        Ok(()) | Err(_) => Err(DialerRefusal::FirstByte),
    }
}

/// Why a handshake under a profile failed: a rejected certificate, or an error of the connection.
fn refused(
    profile: &ServerProfile,
    verdict: &HandshakeVerdict,
    error: quinn::ConnectionError,
) -> DialerRefusal {
    verdict.rejection().map_or(DialerRefusal::Connection(error), |rejection| DialerRefusal::Certificate {
        profile: profile.name().to_owned(),
        rejection: rejection.clone(),
    })
}
