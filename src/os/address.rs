//! Addresses: resolving names, binding, and how addresses of peers are written.
//!
//! Owns what "all addresses" means: as in Go programs, `0.0.0.0` stands for all addresses of both families. It
//! refuses to know what is spoken on a socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use rustix::io::Errno;
use socket2::{Domain, Socket, Type};
use tokio::net::lookup_host;
use tracing::{debug, warn};

/// Connections that the kernel holds for a listener between two accepts; the kernel lowers it to `somaxconn`. A
/// client that finds no room may believe that it is connected when it is not.
const BACKLOG: i32 = 4096;

/// The addresses of `host:port`, at least one.
///
/// # Errors
/// If the name has no address, or the text is no `host:port`.
pub(crate) async fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    let found = lookup_host(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => {
            io::Error::new(error.kind(), format!("{error}; write it as host:port"))
        }
        _ => error,
    })?;
    let found: Vec<SocketAddr> = found.collect();
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(found)
}

/// The network that stands for a host when hosts are counted, because an owner of IPv6 addresses has whole
/// networks.
pub(crate) fn network_of(host: IpAddr) -> IpAddr {
    match host {
        IpAddr::V4(_) => host,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

/// Opens the first of a name's addresses that this host has, IPv4 before IPv6. An address in use is final: on
/// another address, half the clients of the name would not find the listener.
///
/// # Errors
/// The last error of `open`.
pub(crate) fn open_first<T>(
    mut candidates: Vec<SocketAddr>,
    open: impl Fn(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    candidates.sort_by_key(SocketAddr::is_ipv6);
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for candidate in candidates {
        match open(candidate) {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => last = error,
            outcome => return outcome,
        }
    }
    Err(last)
}

/// A socket for datagrams on this address, or on all addresses of both families.
pub(crate) fn udp(address: SocketAddr) -> io::Result<UdpSocket> {
    bind(address, Type::DGRAM).map(UdpSocket::from)
}

/// A non-blocking socket of this kind on an address, or on all addresses of both families; a stream socket listens.
///
/// # Errors
/// As the system's `bind` and `listen`.
pub(crate) fn bind(address: SocketAddr, kind: Type) -> io::Result<Socket> {
    on_both_families(address, |address| {
        let socket = Socket::new(Domain::for_address(address), kind, None)?;
        socket.set_nonblocking(true)?;
        if address.ip() == Ipv6Addr::UNSPECIFIED {
            // Some hosts have the opposite default.
            socket.set_only_v6(false)?;
        }
        if kind == Type::STREAM {
            // A restarted daemon must not wait for the old one's connections to leave TIME_WAIT.
            socket.set_reuse_address(true)?;
        }
        socket.bind(&address.into())?;
        if kind == Type::STREAM {
            socket.listen(BACKLOG)?;
        }
        Ok(socket)
    })
}

/// Opens all addresses of IPv6 too when asked for all of IPv4, if it can.
fn on_both_families<T>(address: SocketAddr, open: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    if address.ip() != Ipv4Addr::UNSPECIFIED {
        return open(address);
    }
    open((Ipv6Addr::UNSPECIFIED, address.port()).into()).or_else(|error| {
        let socket = open(address)?;
        let has_no_ipv6 =
            matches!(Errno::from_io_error(&error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL));
        if has_no_ipv6 {
            debug!(%address, %error, "this host has no IPv6");
        } else {
            warn!(%address, %error, "listening on IPv4 only: the port is not available on IPv6");
        }
        Ok(socket)
    })
}

/// The address as its owner knows it: a socket of both families gives 192.0.2.1 as ::ffff:192.0.2.1. Datagrams are
/// still sent to the address that the socket gave.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => (ip, address.port()).into(),
        // Unchanged, so that it keeps its zone.
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn all(port: u16) -> SocketAddr {
        (Ipv4Addr::UNSPECIFIED, port).into()
    }

    fn port(socket: &Socket) -> u16 {
        socket.local_addr().unwrap().as_socket().unwrap().port()
    }

    #[test]
    fn all_addresses_are_those_of_both_families() {
        for wanted in [all(0), (Ipv6Addr::UNSPECIFIED, 0).into()] {
            let socket = bind(wanted, Type::STREAM).unwrap();
            socket.set_nonblocking(false).unwrap();
            let port = port(&socket);
            let listener = TcpListener::from(socket);
            for host in ["127.0.0.1", "::1"] {
                let client = TcpStream::connect((host, port)).unwrap();
                let (_server, peer) = listener.accept().unwrap();
                assert_eq!(plain(peer), client.local_addr().unwrap());
            }
        }
    }

    #[test]
    fn one_address_stays_one() {
        for host in ["127.0.0.1", "::1"] {
            let address = SocketAddr::new(host.parse().unwrap(), 0);
            assert_eq!(udp(address).unwrap().local_addr().unwrap().ip(), address.ip());
        }
    }

    #[test]
    fn without_ipv6_it_is_ipv4_alone() {
        // The port is taken on IPv6.
        let holder = bind((Ipv6Addr::LOCALHOST, 0).into(), Type::STREAM).unwrap();
        let socket = bind(all(port(&holder)), Type::STREAM).unwrap();
        assert!(socket.local_addr().unwrap().as_socket().unwrap().is_ipv4());
        // The host has no IPv6.
        let opened = on_both_families(all(7), |address| {
            if address.is_ipv6() { Err(Errno::AFNOSUPPORT.into()) } else { Ok(address) }
        });
        assert_eq!(opened.unwrap(), all(7));
        let holder = bind(all(0), Type::STREAM).unwrap();
        let taken = bind(all(port(&holder)), Type::STREAM).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn mapped_addresses_are_written_as_what_they_are() {
        for (given, written) in [
            ("[::ffff:192.0.2.1]:5", "192.0.2.1:5"),
            ("[::ffff:127.0.0.1]:5", "127.0.0.1:5"),
            ("192.0.2.1:5", "192.0.2.1:5"),
            ("[::1]:5", "[::1]:5"),
            ("[fe80::1%3]:5", "[fe80::1%3]:5"),
            ("[::192.0.2.1]:5", "[::192.0.2.1]:5"),
        ] {
            assert_eq!(
                plain(given.parse().unwrap()).to_string(),
                written.parse::<SocketAddr>().unwrap().to_string()
            );
        }
    }
}
