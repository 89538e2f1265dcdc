//! Options of TCP sockets that all rooms set alike.

use std::io;
use std::net::SocketAddr;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tracing::debug;

/// Connections that the kernel holds for a listener between two accepts; it cuts this down to `somaxconn`. A client
/// that finds no room may believe that it is connected when it is not.
const BACKLOG: u32 = 4096;

/// Listens on an address.
///
/// # Errors
/// As the system's `bind`.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted daemon must not wait for the old one's connections to leave TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Sends what is written at once, and has the kernel find out whether a silent peer is still there. Both make a
/// connection better and neither makes it possible, so a failure is logged only.
pub(crate) fn tune(stream: &TcpStream, keepalive: &TcpKeepalive) {
    let tuned = stream.set_nodelay(true).and_then(|()| SockRef::from(stream).set_tcp_keepalive(keepalive));
    if let Err(error) = tuned {
        debug!(%error, "failed to set options of a TCP connection");
    }
}
