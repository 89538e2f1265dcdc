//! Sessions over WebSockets: one binary message is one packet.
//!
//! It owns where to listen and whom to dial, and how a session's halves share one connection. The upgrade
//! of either side is in `upgrade`, the way through a proxy in `proxy`; frames, masks and pongs are the
//! library's business, certificates the room `tls`'s.

mod half;
mod proxy;
mod upgrade;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tracing::debug;

pub use self::half::{WsReader, WsWriter};
pub use self::proxy::Proxy;
use self::upgrade::Refused;
use super::tcp::{bind_first, cannot_listen, join, resolve};
use super::udp::bind_again;
use super::{AcceptError, DIAL_LIMIT, DialFailure, Session};
use crate::os;
use crate::tls::{ClientProfile, Handshakes, ServerProfile};

/// How long a client may take from its connection to the end of its upgrade.
const UPGRADE_LIMIT: Duration = Duration::from_secs(10);

/// Sessions that wait to be accepted.
const BACKLOG: usize = 64;

/// How long a bind waits for the tasks of a listener that has just been closed.
const REBIND_LIMIT: Duration = Duration::from_millis(300);

/// Where to listen for WebSockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WsListenOptions {
    /// `host:port`; an IPv6 address stands in brackets, port 0 lets the system choose.
    pub bind: String,
    /// The path to serve; one that ends with a slash stands for all below it.
    pub path: String,
    /// How to speak TLS; without, it is `ws`.
    pub tls: Option<ServerProfile>,
}

impl WsListenOptions {
    /// Joins host and port; a bare IPv6 address gets its brackets.
    pub fn new(host: &str, port: u16, path: &str, tls: Option<ServerProfile>) -> Self {
        Self { bind: join(host, port), path: path.to_owned(), tls }
    }

    pub(super) fn transport(&self) -> &'static str {
        transport(self.tls.is_some())
    }
}

/// Whom to dial for a WebSocket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WsDialOptions {
    /// A host name or IP address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Path and query, beginning with a slash.
    pub path: String,
    /// A further header of the request: name and value.
    pub extra_header: Option<(String, String)>,
    /// How to speak TLS; without, it is `ws`.
    pub tls: Option<ClientProfile>,
    /// The proxy to go through.
    pub proxy: Option<Proxy>,
}

impl WsDialOptions {
    pub(super) fn transport(&self) -> &'static str {
        transport(self.tls.is_some())
    }

    /// `host:port`, to connect to.
    pub(super) fn address(&self) -> String {
        join(&self.host, self.port)
    }
}

fn transport(secure: bool) -> &'static str {
    if secure { "wss" } else { "ws" }
}

/// A bound TCP port whose clients upgrade to WebSockets, beside each other, in a task of its own.
#[derive(Debug)]
pub struct WsListener {
    local: SocketAddr,
    transport: &'static str,
    accepted: mpsc::Receiver<Result<Session, AcceptError>>,
    task: AbortHandle,
}

impl WsListener {
    pub(super) async fn bind(options: &WsListenOptions) -> io::Result<Self> {
        let (address, transport) = (&options.bind, options.transport());
        let failed =
            |source: io::Error| io::Error::new(source.kind(), cannot_listen(transport, address, &source));
        let candidates = resolve(address).await.map_err(failed)?;
        let binding = bind_again(REBIND_LIMIT, || bind_first(candidates.clone(), os::tcp::listen));
        let socket = binding.await.map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        let (sessions, accepted) = mpsc::channel(BACKLOG);
        let task = tokio::spawn(serve(socket, Arc::new(options.clone()), sessions)).abort_handle();
        Ok(Self { local, transport, accepted, task })
    }

    pub(super) fn local_addr(&self) -> String {
        self.local.to_string()
    }

    pub(super) async fn accept(&mut self) -> Result<Session, AcceptError> {
        // The task ends with the listener only, unless it has panicked.
        self.accepted.recv().await.unwrap_or_else(|| {
            let address = format!("{} {}", self.transport, self.local);
            Err(AcceptError::Fatal { address, source: io::ErrorKind::NotConnected.into() })
        })
    }
}

impl Drop for WsListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    socket: tokio::net::TcpListener,
    options: Arc<WsListenOptions>,
    sessions: mpsc::Sender<Result<Session, AcceptError>>,
) {
    let local = socket.local_addr().map_or_else(|error| error.to_string(), |local| local.to_string());
    let name = format!("{} {local}", options.transport());
    let mut upgrades = Handshakes::default();
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            ended = upgrades.next() => {
                if let Some(outcome) = ended && sessions.send(outcome).await.is_err() {
                    return;
                }
                continue;
            }
        };
        match accepted {
            Ok((stream, peer)) => {
                upgrades.begin(upgrade_in_time(stream, peer.to_string(), options.clone(), name.clone()));
            }
            Err(source) => {
                let error = AcceptError::sort(name.clone(), source);
                let AcceptError::Transient { pause, .. } = error else {
                    let _closed = sessions.send(Err(error)).await;
                    return;
                };
                if sessions.send(Err(error)).await.is_err() {
                    return;
                }
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// What came of a connection; `None` for what is not worth a line in an operator's log.
async fn upgrade_in_time(
    stream: TcpStream,
    peer: String,
    options: Arc<WsListenOptions>,
    name: String,
) -> Option<Result<Session, AcceptError>> {
    match timeout(UPGRADE_LIMIT, upgrade::accept(stream, &options, &peer)).await {
        Ok(Ok(session)) => Some(Ok(session)),
        Ok(Err(Refused::Tls(source))) => Some(Err(AcceptError::Tls { address: name, peer, source })),
        Ok(Err(Refused::Http(error))) => {
            debug!(%peer, %error, "no WebSocket");
            None
        }
        Err(_elapsed) => {
            debug!(%peer, "no WebSocket: the client did not ask for one in time");
            None
        }
    }
}

pub(super) async fn dial(options: &WsDialOptions) -> Result<Session, DialFailure> {
    match timeout(DIAL_LIMIT, upgrade::connect(options)).await {
        Ok(connected) => connected,
        Err(_elapsed) => Err(DialFailure::TimedOut { address: options.address(), limit: DIAL_LIMIT }),
    }
}

#[cfg(test)]
mod tests;
