//! TCP listeners, and the options of TCP sockets that all rooms set alike.

use std::io;
use std::net::SocketAddr;

use socket2::{SockRef, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tracing::debug;

use super::address;

/// Listens on an address, or on all of both families.
///
/// # Errors
/// As the system's `bind`.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::from_std(address::bind(address, Type::STREAM)?.into())
}

/// Sends what is written at once, and has the kernel find out whether a silent peer is still there. Both make a
/// connection better and neither makes it possible, so a failure is logged only.
pub(crate) fn tune(stream: &TcpStream, keepalive: &TcpKeepalive) {
    let tuned = stream.set_nodelay(true).and_then(|()| SockRef::from(stream).set_tcp_keepalive(keepalive));
    if let Err(error) = tuned {
        debug!(%error, "failed to set options of a TCP connection");
    }
}
