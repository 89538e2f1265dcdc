//! The life of the control service: accepts clients from every listener, one task for each, and ends in order.
//!
//! Owns how many clients there may be, of one neighbour too, and for how long silent ones are kept. One bad client, or a
//! listener that cannot accept for a while, never stops the others.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::listen::{Accept, Arrival, MeshService, TcpPort, TlsPort};
use super::session::{Neighbour, Shares, Stop};
use super::{Context, ListenError, session};
use crate::os::address::{open_first, plain, resolve};
use crate::os::places::Places;
use crate::os::{self, unix_socket::UnixSocket};
use crate::tls::ServerProfile;
use crate::wire::ServiceName;
use crate::work::Rights;

/// What clients may use up. The defaults are for production; tests make them small.
#[derive(Debug, Clone)]
pub(crate) struct ServerLimits {
    /// Clients at a time of one neighbour: the users of the Unix socket, a host or a node. All neighbours together have
    /// twice as many, once those that are trusted and once the others.
    pub connections: usize,
    /// How long a new client may take to begin its first command line.
    pub first_command: Duration,
    /// How long a line may take from its first byte to its end.
    pub line: Duration,
    /// How long a client may take to begin each further line, and to take in an answer. AWX keeps connections open.
    pub idle: Duration,
    /// How long a connection that we end stays half open for the client to read the rest.
    pub linger: Duration,
    /// How long commands may go on once the daemon stops.
    pub grace: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 20_000,
            first_command: Duration::from_secs(20),
            line: Duration::from_secs(20),
            idle: Duration::from_secs(30 * 60),
            linger: Duration::from_secs(2),
            grace: Duration::from_secs(5),
        }
    }
}

/// How long a listener rests that cannot accept, out of descriptors as a rule.
const REST: Duration = Duration::from_millis(200);

/// How long a refused client may take to read why.
const REFUSAL: Duration = Duration::from_millis(50);

/// A control service whose sockets are bound one by one before it runs.
pub(crate) struct Server {
    context: Context,
    limits: ServerLimits,
    unix: Vec<UnixSocket>,
    tcp: Vec<TcpPort>,
    tls: Vec<TlsPort>,
    mesh: Vec<MeshService>,
    trusts_everyone: bool,
    closed: CancellationToken,
}

impl Server {
    /// A service that nobody can reach yet.
    pub(crate) fn new(context: Context, limits: ServerLimits) -> Self {
        Self {
            context,
            limits,
            unix: Vec::new(),
            tcp: Vec::new(),
            tls: Vec::new(),
            mesh: Vec::new(),
            trusts_everyone: false,
            closed: CancellationToken::new(),
        }
    }

    /// Trusts the callers of whatever this listens on from here on, without any proof.
    pub(crate) fn trust_everyone(&mut self) {
        self.trusts_everyone = true;
    }

    /// Binds a Unix socket with the permission bits `mode`. Clients connect from now on. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`ListenError::Unix`], `InUse` inside if another daemon serves this path.
    pub(crate) fn listen_unix(&mut self, path: &Path, mode: u32) -> Result<(), ListenError> {
        self.unix.push(UnixSocket::bind(path, mode)?);
        Ok(())
    }

    /// Binds a TCP address, `host:port`, and says which it became. Clients speak TLS if a profile is
    /// given. Those of a loopback address are trusted, and those who had to show a certificate that is no other node's.
    ///
    /// # Errors
    /// [`ListenError::Tcp`].
    pub(crate) async fn listen_tcp(
        &mut self,
        address: &str,
        tls: Option<ServerProfile>,
    ) -> Result<SocketAddr, ListenError> {
        let failed = |source| ListenError::Tcp { address: address.to_owned(), source };
        let opened = resolve(address).await.and_then(|found| open_first(found, os::tcp::listen));
        let listener = opened.map_err(failed)?;
        let bound = plain(listener.local_addr().map_err(failed)?);
        let trusted = self.trusts_everyone || bound.ip().is_loopback();
        match tls {
            Some(profile) => {
                let own = self.context.node.id().clone();
                self.tls.push(TlsPort::new(listener, profile, trusted, own));
            }
            None => self.tcp.push(TcpPort::new(listener, trusted)),
        }
        Ok(bound)
    }

    /// Offers and advertises a service of the mesh, under a TLS profile if one is given.
    ///
    /// # Errors
    /// [`ListenError::Mesh`] if the name is taken.
    pub(crate) async fn listen_mesh(
        &mut self,
        service: ServiceName,
        tls: Option<ServerProfile>,
    ) -> Result<(), ListenError> {
        let tags = BTreeMap::from([("type".to_owned(), "Control Service".to_owned())]);
        let listener = self.context.streams.listen_with(service, Some(tags), tls).await?;
        self.mesh.push(MeshService::new(listener, self.trusts_everyone));
        Ok(())
    }

    /// Cancelled once the service has stopped listening and what it listened on is free.
    pub(crate) fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }

    /// Serves until `retire` or `shutdown`, then removes the sockets. A service that retires lets its commands end;
    /// at a shutdown they have a while for that, and are cut then; what is streamed ends at once.
    pub(crate) async fn run(self, retire: CancellationToken, shutdown: CancellationToken) {
        let closed = self.closed.drop_guard();
        let sessions = Arc::new(Sessions::new(self.context, self.limits, shutdown.clone()));
        let mut loops = JoinSet::new();
        for listener in self.unix {
            loops.spawn(accept(listener, sessions.clone()));
        }
        for listener in self.tcp {
            loops.spawn(accept(listener, sessions.clone()));
        }
        for listener in self.tls {
            loops.spawn(accept(listener, sessions.clone()));
        }
        for listener in self.mesh {
            loops.spawn(accept(listener, sessions.clone()));
        }
        tokio::select! {
            () = retire.cancelled() => {}
            () = shutdown.cancelled() => {}
        }
        sessions.stop.commands.cancel();
        while loops.join_next().await.is_some() {}
        drop(closed);
        sessions.end().await;
    }
}

/// Accepts clients until the service stops or the listener ends.
pub(super) async fn accept(mut listener: impl Accept, sessions: Arc<Sessions>) {
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            biased;
            () = sessions.stop.commands.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(Some(client)) => {
                failing = false;
                sessions.admit(client);
            }
            Ok(None) => {
                tracing::warn!("a control listener has ended");
                break;
            }
            Err(error) => {
                // Once for each time it begins to fail: it would fill the log.
                if !failing {
                    tracing::warn!(%error, "failed to accept a control client, trying on");
                }
                failing = true;
                sleep(REST).await;
            }
        }
    }
    listener.close().await;
}

/// All clients of the service.
pub(super) struct Sessions {
    context: Context,
    limits: ServerLimits,
    places: Shares<Places<Neighbour>>,
    tasks: TaskTracker,
    /// No new clients, no new commands, and no more of what is streamed.
    stop: Stop,
    /// Commands end where they are.
    cut: CancellationToken,
}

impl Sessions {
    pub(super) fn new(context: Context, limits: ServerLimits, daemon: CancellationToken) -> Self {
        let places = Shares::new(|| Places::new(limits.connections));
        let stop = Stop { commands: CancellationToken::new(), daemon };
        Self { context, limits, places, tasks: TaskTracker::new(), stop, cut: CancellationToken::new() }
    }

    /// Starts a client's session, or refuses it where there is no room. Waits for nothing.
    fn admit(self: &Arc<Self>, (mut link, peer): Arrival) {
        let neighbour = peer.neighbour(&self.context.node);
        let Some(place) = self.places.of(neighbour, peer.caller.may(Rights::Trusted)).take(&neighbour) else {
            tracing::warn!(peer = peer.name, limit = self.limits.connections, "too many control clients");
            let text = format!("ERROR: all {} control connections are in use\n", self.limits.connections);
            self.tasks.spawn(async move {
                // A client that does not take it in goes without.
                let _ = timeout(REFUSAL, link.write_all(text.as_bytes())).await;
            });
            return;
        };
        let span = tracing::info_span!("control", peer = peer.name);
        let sessions = self.clone();
        let session = async move {
            let _place = place;
            let Self { context, limits, stop, cut, .. } = &*sessions;
            tokio::select! {
                () = session::run(context, link, &peer, limits, stop) => {}
                () = cut.cancelled() => tracing::debug!("cut, the daemon stops"),
            }
        };
        self.tasks.spawn(session.instrument(span));
    }

    async fn end(&self) {
        self.tasks.close();
        let patience = async {
            self.stop.daemon.cancelled().await;
            sleep(self.limits.grace).await;
        };
        let ended = tokio::select! {
            () = self.tasks.wait() => true,
            () = patience => false,
        };
        if !ended {
            tracing::info!(sessions = self.tasks.len(), "control sessions are cut");
            self.cut.cancel();
            self.tasks.wait().await;
        }
    }
}
