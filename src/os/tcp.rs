//! TCP listeners, and the options of TCP sockets that all rooms set alike.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

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

/// Sets how a socket, and what it accepts, reacts to congestion.
///
/// # Errors
/// If the kernel does not have that, or does not let this program use it.
pub(crate) fn set_congestion(socket: &impl AsFd, name: &str) -> io::Result<()> {
    SockRef::from(socket).set_tcp_congestion(name.as_bytes()).map_err(|error| {
        let what = format!("the kernel does not offer the congestion control {name}");
        let list = "net.ipv4.tcp_allowed_congestion_control lists what it offers";
        io::Error::new(error.kind(), format!("{what} ({error}); {list}"))
    })
}
