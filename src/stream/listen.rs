//! Taking streams in on a service of this node.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Connection, Endpoint, Incoming, RecvStream, SendStream, ServerConfig, TokioRuntime, VarInt};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, warn};

use super::connection::{self, MeshStream, Side, end_when_gone};
use super::dial::{SetupError, Streams};
use super::far_end::{Blocked, Gone, Watches};
use super::mux;
use super::secured;
use super::settings;
use super::socket::{MeshSocket, service_at};
use super::trust::{self, TrustError};
use super::windows::{Budget, Windows};
use crate::mesh::Offer;
use crate::tls::{Expected, Guard, Handshakes, Rejection, ServerProfile};
use crate::wire::{ConnType, ServiceName};

/// Why a service cannot take streams in.
pub type ListenError = SetupError;

/// First packets that may wait to be looked at, and bytes behind them.
const MOST_INCOMING: usize = 4096;
const INCOMING_BUFFER: u64 = 16 << 20;
/// Streams that may wait to be accepted.
const BACKLOG: usize = 128;
/// How long streams may go on when their service is closed.
const FAREWELL: Duration = Duration::from_secs(2);
/// What a dialer that does not keep to the protocol is told.
const PROTOCOL_ERROR: VarInt = VarInt::from_u32(500);
/// What one is told whose node has its share of this node's buffers.
const TOO_MANY: VarInt = VarInt::from_u32(503);

/// A service that takes streams in. Closed, and withdrawn from the mesh, when dropped.
#[derive(Debug)]
pub struct StreamListener {
    accepted: mpsc::Receiver<MeshStream>,
    endpoint: Endpoint,
    notices: AbortHandle,
    accepting: AbortHandle,
    released: CancellationToken,
    /// Tells connections with many streams that no more of them begin.
    _closing: DropGuard,
}

impl Streams {
    /// Opens a service for streams without a TLS profile; with `tags`, the mesh is told of it.
    ///
    /// # Errors
    /// If the service is reserved or open already, or the node has stopped.
    pub async fn listen(
        &self,
        service: ServiceName,
        tags: Option<BTreeMap<String, String>>,
    ) -> Result<StreamListener, ListenError> {
        self.listen_with(service, tags, None).await
    }

    /// Opens a service for streams, under a TLS profile if one is given. Where the profile requires client
    /// certificates, one must name the node that dials.
    ///
    /// # Errors
    /// As [`Self::listen`].
    pub async fn listen_with(
        &self,
        service: ServiceName,
        tags: Option<BTreeMap<String, String>>,
        tls: Option<ServerProfile>,
    ) -> Result<StreamListener, ListenError> {
        let config = match &tls {
            Some(profile) => secured::server(profile, Expected::Anyone)?.0,
            None => {
                let mut config = trust::server()?;
                config.alpn_protocols = secured::protocols(true);
                let crypto = QuicServerConfig::try_from(config).map_err(TrustError::new)?;
                ServerConfig::with_crypto(Arc::new(crypto))
            }
        };
        let config = limited(config);
        let socket = Arc::new(MeshSocket::new(self.node().bind(service).await?));
        let runtime = Arc::new(TokioRuntime);
        let endpoint =
            Endpoint::new_with_abstract_socket(settings::endpoint(), Some(config), socket.clone(), runtime)?;
        if let Some(tags) = tags {
            let conn_type = if tls.is_some() { ConnType::STREAM_TLS } else { ConnType::STREAM };
            self.node().advertise(service, Offer { conn_type, tags });
        }
        let released = socket.released();
        let watches = Arc::new(Watches::default());
        let (accepted_sender, accepted) = mpsc::channel(BACKLOG);
        let closing = CancellationToken::new();
        let door = Door {
            watches: watches.clone(),
            budget: self.budget().clone(),
            accepted: accepted_sender,
            tls,
            closing: closing.clone(),
        };
        let accepting = tokio::spawn(accept_all(endpoint.clone(), door));
        let notices = tokio::spawn(async move { watches.listen(&socket).await });
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

    /// Closes the service as dropping it does, and waits until its name is free to be opened again.
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

/// Lets streams that are about to end do so in good order, then ends the others.
async fn end(endpoint: Endpoint) {
    let _others_are_left = timeout(FAREWELL, endpoint.wait_idle()).await;
    endpoint.close(PROTOCOL_ERROR, b"Listener Closed");
}

fn limited(mut config: ServerConfig) -> ServerConfig {
    config
        .transport_config(settings::transport(false))
        .migration(false)
        .max_incoming(MOST_INCOMING)
        .incoming_buffer_size_total(INCOMING_BUFFER);
    config
}

/// What streams come in by.
#[derive(Clone)]
struct Door {
    watches: Arc<Watches>,
    budget: Budget,
    accepted: mpsc::Sender<MeshStream>,
    tls: Option<ServerProfile>,
    /// The service is closed: no more streams begin.
    closing: CancellationToken,
}

async fn accept_all(endpoint: Endpoint, door: Door) {
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
            // Packets come from wherever their sender says: a dialer has to show first that it gets answers. Only one
            // that was asked already may not be asked again, and this one was not.
            let _asked = incoming.retry();
        } else {
            let door = door.clone();
            handshakes.begin(async move { door.shake_hands(incoming).await });
        }
    }
}

/// Why a dialer was not let in.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Connection(#[from] quinn::ConnectionError),
    #[error("TLS profile {profile}: {rejection}")]
    Certificate { profile: String, rejection: Rejection },
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("the node's connections have their share of the buffers (streambuffers)")]
    TooMany,
    #[error("its first byte was not the zero that every stream begins with")]
    FirstByte,
}

/// What came in.
enum Accepted {
    /// The one stream of its connection.
    Stream(MeshStream),
    /// A connection that streams will come on.
    Many(Connection, Gone, Arc<Windows>),
}

impl Door {
    /// From the first packet until the dialer has proved that it speaks the protocol. What comes of it goes on by
    /// itself.
    async fn shake_hands(self, incoming: Incoming) {
        let from = incoming.remote_address();
        match timeout(settings::HANDSHAKE_LIMIT, self.accept(incoming)).await {
            Ok(Ok(Accepted::Stream(stream))) => {
                tokio::spawn(async move { self.accepted.send(stream).await });
            }
            Ok(Ok(Accepted::Many(connection, gone, windows))) => {
                tokio::spawn(async move { self.accept_streams(connection, gone, windows).await });
            }
            Ok(Err(error @ (Refusal::Certificate { .. } | Refusal::TooMany))) => {
                warn!(%from, %error, "stream refused");
            }
            Ok(Err(error)) => debug!(%from, %error, "stream refused"),
            Err(_elapsed) => debug!(%from, "stream refused: the handshake took too long"),
        }
    }

    async fn accept(&self, incoming: Incoming) -> Result<Accepted, Refusal> {
        let from = incoming.remote_address();
        let gone = self.watches.watch(from);
        let blocked = gone.blocked();
        // The dialer cannot be told: what we send it is what is turned away.
        let never = async move {
            let Blocked { node, by } = blocked.await;
            warn!(dialer = %node, firewall = %by, "a stream cannot begin: our answers are blocked by a firewall");
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            accepted = self.let_in(incoming, gone) => accepted,
            never = never => match never {},
        }
    }

    async fn let_in(&self, incoming: Incoming, gone: Gone) -> Result<Accepted, Refusal> {
        let from = service_at(incoming.remote_address()).map(|(node, _)| node);
        let (connection, guard) = match &self.tls {
            None => (incoming.await?, None),
            Some(profile) => {
                let (connection, guard) = accept_secured(incoming, profile).await?;
                (connection, Some(guard))
            }
        };
        // Not before it stands: anybody can begin one in another's name.
        let Some(windows) = from.and_then(|node| Windows::of_visitor(&self.budget, node)) else {
            connection.close(TOO_MANY, b"too many connections");
            return Err(Refusal::TooMany);
        };
        if mux::is_agreed(&connection) {
            windows.allow_many(&connection);
            mux::allow_streams(&connection);
            tokio::spawn(end_when_gone(connection.clone(), gone.clone(), windows.clone(), guard));
            return Ok(Accepted::Many(connection, gone, windows));
        }
        let halves = connection.accept_bi().await?;
        match first_byte(halves).await {
            Ok(halves) => {
                let stream = MeshStream::new(connection, Side::Listener, halves, gone, windows, guard);
                Ok(Accepted::Stream(stream.certified(self.demands_certificates())))
            }
            Err(refusal) => {
                connection.close(PROTOCOL_ERROR, b"Read Data Error");
                Err(refusal)
            }
        }
    }

    /// Whether nobody gets in without a certificate that names the node that dials.
    fn demands_certificates(&self) -> bool {
        self.tls.as_ref().is_some_and(ServerProfile::requires_client_certificate)
    }

    /// Takes the streams of one connection in until it is closed or the service is.
    async fn accept_streams(&self, connection: Connection, gone: Gone, windows: Arc<Windows>) {
        let streams = mux::Streams::new();
        loop {
            let halves = tokio::select! {
                halves = connection.accept_bi() => halves,
                () = self.closing.cancelled() => break,
            };
            // The dialer is bound to fewer than this.
            let (Ok(halves), Some(lease)) = (halves, streams.lease(usize::MAX)) else { return };
            let (connection, gone, accepted) = (connection.clone(), gone.clone(), self.accepted.clone());
            let (windows, certified) = (windows.clone(), self.demands_certificates());
            tokio::spawn(async move {
                if let Ok(Ok(halves)) = timeout(settings::HANDSHAKE_LIMIT, first_byte(halves)).await {
                    let stream =
                        MeshStream::shared(connection, Side::Listener, halves, Some(gone), windows, lease);
                    let _closed = accepted.send(stream.certified(certified)).await;
                }
            });
        }
        streams.retire();
        streams.ended().await;
        connection::close(&connection);
    }
}

/// Takes the byte that every stream begins with.
async fn first_byte((send, mut recv): (SendStream, RecvStream)) -> Result<(SendStream, RecvStream), Refusal> {
    let mut first = [0xff];
    match recv.read_exact(&mut first).await {
        Ok(()) if first == [0] => Ok((send, recv)),
        Ok(()) | Err(_) => Err(Refusal::FirstByte),
    }
}

async fn accept_secured(incoming: Incoming, profile: &ServerProfile) -> Result<(Connection, Guard), Refusal> {
    let from = service_at(incoming.remote_address()).map(|(node, _)| node);
    let expected = secured::expected_client(profile, from);
    let (config, verdict) = secured::server(profile, expected.clone())?;
    match incoming.accept_with(Arc::new(limited(config)))?.await {
        Ok(connection) => {
            let guard = profile.admit(secured::peer_chain(&connection), expected);
            Ok((connection, guard))
        }
        Err(error) => Err(verdict.rejection().map_or(Refusal::Connection(error), |rejection| {
            Refusal::Certificate { profile: profile.name().to_owned(), rejection: rejection.clone() }
        })),
    }
}
