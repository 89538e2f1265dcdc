//! Sessions over WebSockets: one binary message is one packet.
//!
//! It owns which failure of a client is worth an operator's attention. `options` owns the options of listeners and
//! dialers, `upgrade` the upgrade of either side, `half` the halves of a session, `request` a listener's answers to
//! HTTP, and `proxy` the way through a proxy. Frames, masks and pongs belong to the library, certificates to the
//! room `tls`.

pub(super) mod half;
mod options;
mod proxy;
mod request;
mod upgrade;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

pub use self::options::{WsDialOptions, WsListenOptions};
pub use self::proxy::Proxy;
pub(crate) use self::proxy::tunnel;
use self::upgrade::UpgradeRefused;
use super::listener::{self, Accepted, Listener, REBIND_LIMIT, accept_tcp};
use super::{AcceptError, DIAL_LIMIT, DialFailure, Session};
use crate::os;

/// How long a client may take from connecting to the end of its upgrade.
const UPGRADE_LIMIT: Duration = Duration::from_secs(10);

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
        Ok(Err(UpgradeRefused::Tls(source))) => Some(Err(AcceptError::Tls { address: name, peer, source })),
        Ok(Err(UpgradeRefused::Upgrade(answer))) => {
            Some(Err(AcceptError::Upgrade { address: name, peer, answer }))
        }
        Ok(Err(UpgradeRefused::NotAsked)) => None,
        Ok(Err(UpgradeRefused::Broken(error))) => {
            debug!(%peer, %error, "the WebSocket handshake failed");
            None
        }
        Err(_elapsed) => {
            debug!(%peer, "the WebSocket handshake took too long");
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
