//! Sessions over WebSockets: one binary message is one packet.
//!
//! It owns the options of listeners and dialers, and how a session's halves share one connection. The upgrade
//! of either side is in `upgrade`, what a listener answers to HTTP in `request`, the way through a proxy in `proxy`;
//! frames, masks and pongs are the library's business, certificates the room `tls`'s.

mod half;
mod proxy;
mod request;
mod upgrade;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

pub(super) use self::half::{WsReader, WsWriter};
pub use self::proxy::Proxy;
pub(crate) use self::proxy::tunnel;
use self::upgrade::Refused;
use super::listener::{self, Accepted, Listener, REBIND_LIMIT, accept_tcp};
use super::tcp::join;
use super::{AcceptError, DIAL_LIMIT, DialFailure, Session};
use crate::os;
use crate::tls::{ClientProfile, ServerProfile};

/// How long a client may take from its connection to the end of its upgrade.
const UPGRADE_LIMIT: Duration = Duration::from_secs(10);

/// A port to listen on for WebSockets.
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

/// A WebSocket server to dial.
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
    pub fn address(&self) -> String {
        join(&self.host, self.port)
    }
}

fn transport(secure: bool) -> &'static str {
    if secure { "wss" } else { "ws" }
}

pub(super) async fn listen(options: &WsListenOptions) -> io::Result<Listener> {
    let transport = options.transport();
    let socket = listener::bind(transport, &options.bind, REBIND_LIMIT, os::tcp::listen).await?;
    let (local, options) = (socket.local_addr()?, Arc::new(options.clone()));
    Ok(Listener::serve(transport, local, |name, sessions| {
        let address = name.clone();
        let open = move |stream, peer| upgrade_in_time(stream, peer, options.clone(), address.clone());
        accept_tcp(socket, name, sessions, open)
    }))
}

/// Opens a session on a connection; `None` for a failure that is not worth a line in an operator's log.
async fn upgrade_in_time(
    stream: TcpStream,
    peer: String,
    options: Arc<WsListenOptions>,
    name: String,
) -> Option<Accepted> {
    match timeout(UPGRADE_LIMIT, upgrade::accept(stream, &options, &peer)).await {
        Ok(Ok(session)) => Some(Ok(session)),
        Ok(Err(Refused::Tls(source))) => Some(Err(AcceptError::Tls { address: name, peer, source })),
        Ok(Err(Refused::Upgrade(answer))) => Some(Err(AcceptError::Upgrade { address: name, peer, answer })),
        Ok(Err(Refused::NotAsked)) => None,
        Ok(Err(Refused::Broken(error))) => {
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
