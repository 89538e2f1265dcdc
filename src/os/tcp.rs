//! TCP listeners, and the options of TCP sockets that all rooms set alike.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use socket2::{SockRef, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tracing::debug;

use super::address;

/// Listens on an address, or on all addresses of both families.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::from_std(address::bind(address, Type::STREAM)?.into())
}

/// Makes the socket send at once, and the kernel check whether a silent peer is still there. A failure is only
/// logged, because a connection works without these options.
pub(crate) fn tune(stream: &TcpStream, keepalive: &TcpKeepalive) {
    let tuned = stream.set_nodelay(true).and_then(|()| SockRef::from(stream).set_tcp_keepalive(keepalive));
    if let Err(error) = tuned {
        debug!(%error, "failed to set options of a TCP connection");
    }
}

/// Sets the congestion control of a socket, and of the connections that it accepts.
///
/// # Errors
/// If the kernel lacks it, or does not let this program use it.
pub(crate) fn set_congestion(socket: &impl AsFd, name: &str) -> io::Result<()> {
    SockRef::from(socket).set_tcp_congestion(name.as_bytes()).map_err(|error| {
        let what = format!("the kernel does not offer the congestion control {name}");
        let list = "net.ipv4.tcp_allowed_congestion_control lists what it offers";
        io::Error::new(error.kind(), format!("{what} ({error}); {list}"))
    })
}
