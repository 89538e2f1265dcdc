//! The user of this machine at the other end of a TCP connection. Owns the query of the kernel's `sock_diag`, which
//! finds one socket at a time, however many there are.

use std::net::{IpAddr, SocketAddr};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

/// The message type of query and answer: a socket by its family.
const BY_FAMILY: [u8; 2] = 20_u16.to_ne_bytes();
const REQUEST: [u8; 2] = 1_u16.to_ne_bytes();
const TCP: u8 = 6;
/// The offset of the user in an answer: after the header, the state, both addresses, a timer and two queues.
const USER: usize = 16 + 4 + 48 + 12;

/// The user whose socket has the address `peer` and is connected to `local`; `None` if the kernel does not say.
pub(crate) fn peer_user(peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let ports = [peer.port().to_be_bytes(), local.port().to_be_bytes()].concat();
    let ends = [wide(peer.ip()), wide(local.ip())].concat();
    let what = [family.as_raw() as u8, TCP, 0, 0];
    let header = [&72_u32.to_ne_bytes()[..], &BY_FAMILY, &REQUEST, &[0; 8]].concat();
    // In any state, on any interface, with any cookie.
    let question = [&header[..], &what, &[0xff; 4], &ports, &ends, &[0; 4], &[0xff; 8]].concat();
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(SOCK_DIAG)).ok()?;
    sendto(&socket, &question, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).ok()?;
    let mut answer = [0; 512];
    // The kernel puts its answer in the queue before `sendto` returns.
    let (len, _) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
    let is_found = answer[..len].get(4..6) == Some(&BY_FAMILY[..]);
    let user = answer[..len].get(USER..USER + 4).filter(|_| is_found)?;
    user.try_into().ok().map(u32::from_ne_bytes)
}

fn wide(address: IpAddr) -> [u8; 16] {
    match address {
        // The kernel expects an IPv4 address in the first four bytes.
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96).to_be_bytes(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_other_end_of_a_connection_on_this_machine_has_a_user() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(host).unwrap();
            let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, peer) = listener.accept().unwrap();
            let local = stream.local_addr().unwrap();
            assert_eq!(peer_user(peer, local), Some(rustix::process::getuid().as_raw()), "{host}");
            assert_eq!(peer_user(SocketAddr::new(peer.ip(), 1), local), None);
        }
    }
}
