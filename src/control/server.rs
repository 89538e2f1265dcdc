//! The life of the control service: accepts clients from every listener, one task for each, and ends in order.
//!
//! Owns how many clients there may be, in all and of one neighbour. A bad client, or a listener that cannot accept for
//! a while, never stops the others. Refuses to know what clients ask for.

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

use super::listen::{Accept, ClientArrival, MeshService, TcpPort, TlsPort};
use super::peer::{PeerAccount, Shares};
use super::session::{self, ServerLimits};
use super::stop::Stop;
use super::{Context, ListenError};
use crate::os::accept::ClientAcceptor;
use crate::os::address::{open_first, plain, resolve};
use crate::os::places::Places;
use crate::os::{self, unix_socket::UnixSocket};
use crate::tls::ServerProfile;
use crate::wire::ServiceName;
use crate::work::Rights;

/// How long a refused client may take to read the reason.
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

    /// Trusts the callers of all listeners added from now on, without proof.
    pub(crate) fn trust_everyone(&mut self) {
        self.trusts_everyone = true;
    }

    /// Binds a Unix socket with the permission bits `mode`. Clients can connect from now on. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`ListenError::Unix`], with `InUse` if another daemon serves this path.
    pub(crate) fn listen_unix(&mut self, path: &Path, mode: u32) -> Result<(), ListenError> {
        self.unix.push(UnixSocket::bind(path, mode)?);
        Ok(())
    }

    /// Binds a TCP address, `host:port`, and returns the bound address. Clients speak TLS if a profile is given.
    /// Clients are trusted on a loopback address, or if the profile requires a certificate and theirs does not name
    /// another node.
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

    /// Cancelled once the service has stopped listening and its addresses, paths and service names are free.
    pub(crate) fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }

    /// Serves until `retire` or `shutdown`, then removes the sockets. After `retire` running commands go on to their
    /// end. After `shutdown` streams end at once, and other commands are cut when the grace period is over.
    pub(crate) async fn run(self, retire: CancellationToken, shutdown: CancellationToken) {
        let closed = self.closed.drop_guard();
        let sessions = Arc::new(ClientSessions::new(self.context, self.limits, shutdown.clone()));
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
pub(super) async fn accept(mut listener: impl Accept, sessions: Arc<ClientSessions>) {
    let mut acceptor = ClientAcceptor::new("control service");
    loop {
        let accepted = tokio::select! {
            biased;
            () = sessions.stop.commands.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Some(accepted) = acceptor.sort(accepted).await else { continue };
        let Some(client) = accepted else {
            tracing::warn!("a control listener has ended");
            break;
        };
        sessions.admit(client);
    }
    listener.close().await;
}

/// All clients of the service.
pub(super) struct ClientSessions {
    context: Context,
    limits: ServerLimits,
    places: Shares<Places<PeerAccount>>,
    tasks: TaskTracker,
    /// Stops the accepting of clients and commands, and ends streams.
    stop: Stop,
    /// Cuts commands where they are.
    cut: CancellationToken,
}

impl ClientSessions {
    pub(super) fn new(context: Context, limits: ServerLimits, daemon: CancellationToken) -> Self {
        let places = Shares::new(|| Places::new(limits.connections));
        let stop = Stop { commands: CancellationToken::new(), daemon };
        Self { context, limits, places, tasks: TaskTracker::new(), stop, cut: CancellationToken::new() }
    }

    /// Starts a client's session, or refuses the client if there is no room. Does not wait.
    fn admit(self: &Arc<Self>, (mut link, peer): ClientArrival) {
        let neighbour = peer.neighbour(&self.context.node);
        let Some(place) = self.places.of(neighbour, peer.caller.may(Rights::Trusted)).take(&neighbour) else {
            tracing::warn!(peer = peer.name, limit = self.limits.connections, "too many control clients");
            let text = format!("ERROR: all {} control connections are in use\n", self.limits.connections);
            self.tasks.spawn(async move {
                // A client that does not read in time does not get the reason.
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
                () = cut.cancelled() => tracing::debug!("control session cut: the daemon is stopping"),
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
            tracing::info!(sessions = self.tasks.len(), "cutting the control sessions that are still open");
            self.cut.cancel();
            self.tasks.wait().await;
        }
    }
}
