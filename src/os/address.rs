//! Addresses: which ones a name has, binding them, and how those of peers are written.
//!
//! Owns what "all addresses" means: `0.0.0.0` stands for those of both families, as in Go programs. It refuses to know
//! what is spoken on a socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use rustix::io::Errno;
use socket2::{Domain, Socket, Type};
use tokio::net::lookup_host;
use tracing::{debug, warn};

/// Connections that the kernel holds for a listener between two accepts; it cuts this down to `somaxconn`. A client
/// that finds no room may believe that it is connected when it is not.
const BACKLOG: i32 = 4096;

/// The addresses of `host:port`, at least one.
///
/// # Errors
/// If the name has none, or it is no `host:port`.
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

/// The network of a host that others are counted with: an owner of IPv6 addresses has whole networks of them.
pub(crate) fn network_of(host: IpAddr) -> IpAddr {
    match host {
        IpAddr::V4(_) => host,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

/// Opens the first of a name's addresses, IPv4 before IPv6, that this host has. An address in use is final: half the
/// clients of a name would not find a listener on its other address.
///
/// # Errors
/// The last one of `open`.
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

/// A socket for datagrams on that address, or on all of both families.
///
/// # Errors
/// As the system's `bind`.
pub(crate) fn udp(address: SocketAddr) -> io::Result<UdpSocket> {
    bind(address, Type::DGRAM).map(UdpSocket::from)
}

/// A socket of that kind on an address, or on all of both families; a stream's listens. It never blocks.
///
/// # Errors
/// As the system's `bind` and `listen`.
pub(crate) fn bind(address: SocketAddr, kind: Type) -> io::Result<Socket> {
    on_both_families(address, |address| {
        let socket = Socket::new(Domain::for_address(address), kind, None)?;
        socket.set_nonblocking(true)?;
        if address.ip() == Ipv6Addr::UNSPECIFIED {
            // Some hosts have it otherwise by default.
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

/// All addresses of IPv4 stand for those of IPv6 too, if they can be had.
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
            warn!(%address, %error, "listening on IPv4 alone: the port cannot be had on IPv6");
        }
        Ok(socket)
    })
}

/// The address as its owner knows it: on a socket of both families the system writes 192.0.2.1 as ::ffff:192.0.2.1.
/// Datagrams are still sent to the address as the socket gave it.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => (ip, address.port()).into(),
        // With its zone.
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
        // Somebody has the port on IPv6.
        let holder = bind((Ipv6Addr::LOCALHOST, 0).into(), Type::STREAM).unwrap();
        let socket = bind(all(port(&holder)), Type::STREAM).unwrap();
        assert!(socket.local_addr().unwrap().as_socket().unwrap().is_ipv4());
        // Or the host has no such thing.
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
