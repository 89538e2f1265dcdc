//! Sessions over UDP: one datagram is one packet.
//!
//! It owns the two kinds of sessions, a dialer's with a socket of its own and a listener's with a share of
//! one port. Nothing on the wire says that a session begins or ends: a dialed one exists at once, an accepted
//! one from the first routing update of its source, and either ends by silence, which is noticed elsewhere.

mod hub;
mod inbox;
mod socket;
mod table;

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::time::timeout;

use self::hub::{Hub, Member};
pub(super) use self::socket::enlarge_buffers;
use self::socket::{DatagramSocket, Route, Slots};
use super::listener::{self, Listener, REBIND_LIMIT};
use super::packet_pool::PacketPool;
use super::session::{TransportReader, TransportWriter};
use super::tcp::join;
use super::{
    DIAL_LIMIT, DialFailure, Direction, MAX_BATCH_BYTES, MAX_BATCH_PACKETS, Reader, Session, SessionEnd,
    SessionInfo, Writer,
};
use crate::os::address::{self, resolve};

const TRANSPORT: &str = "udp";

/// A UDP port to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpListenOptions {
    /// `host:port`; an IPv6 address stands in brackets, port 0 lets the system choose.
    pub bind: String,
}

impl UdpListenOptions {
    /// Joins host and port; a bare IPv6 address gets its brackets.
    pub fn new(host: &str, port: u16) -> Self {
        Self { bind: join(host, port) }
    }
}

/// A neighbour to dial over UDP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpDialOptions {
    /// `host:port`; an IPv6 address stands in brackets.
    pub address: String,
}

pub(super) async fn listen(options: &UdpListenOptions) -> io::Result<Listener> {
    let socket = listener::bind(TRANSPORT, &options.bind, REBIND_LIMIT, open).await?;
    let local = socket.local_addr()?.to_string();
    let (hub, accepted) = Hub::start(socket);
    Ok(Listener::new(TRANSPORT, local, accepted, hub))
}

fn open(address: SocketAddr) -> io::Result<DatagramSocket> {
    DatagramSocket::new(tokio::net::UdpSocket::from_std(address::udp(address)?)?)
}

/// A session with a socket of its own. It succeeds although nobody may be there: UDP does not ask.
pub(super) async fn dial(options: &UdpDialOptions) -> Result<Session, DialFailure> {
    let address = &options.address;
    let resolved = timeout(DIAL_LIMIT, resolve(address))
        .await
        .map_err(|_elapsed| DialFailure::TimedOut { address: address.clone(), limit: DIAL_LIMIT })?;
    let candidates = resolved.map_err(|source| DialFailure::Resolve { address: address.clone(), source })?;
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for candidate in candidates {
        match connect(candidate).await {
            Ok(socket) => return Ok(dialed_session(socket, candidate, address.clone())),
            Err(error) => last = error,
        }
    }
    Err(DialFailure::Connect { address: address.clone(), source: last })
}

/// The socket is connected, so that the kernel drops what others send and reports when nobody listens there.
async fn connect(peer: SocketAddr) -> io::Result<DatagramSocket> {
    let any = match peer {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = tokio::net::UdpSocket::bind(any).await?;
    socket.connect(peer).await?;
    DatagramSocket::new(socket)
}

fn dialed_session(socket: DatagramSocket, peer: SocketAddr, address: String) -> Session {
    let socket = Arc::new(socket);
    let source =
        DatagramSource::Own { socket: socket.clone(), slots: Slots::new(), pool: PacketPool::default() };
    let sink = Sink::Own { socket, route: Route { to: peer, from: None } };
    session(source, sink, address, Direction::Outbound)
}

fn accepted_session(member: Member) -> Session {
    let (peer, member) = (address::plain(member.route.to).to_string(), Arc::new(member));
    session(DatagramSource::Shared(member.clone()), Sink::Shared(member), peer, Direction::Inbound)
}

fn session(source: DatagramSource, sink: Sink, peer: String, direction: Direction) -> Session {
    Session {
        reader: Reader::new(TransportReader::Udp(UdpReader { source })),
        writer: Writer::new(TransportWriter::Udp(UdpWriter { sink })),
        info: SessionInfo { transport: TRANSPORT, peer, direction, certified_nodes: None },
    }
}

/// The receiving half of a UDP session.
#[derive(Debug)]
pub(super) struct UdpReader {
    source: DatagramSource,
}

#[derive(Debug)]
enum DatagramSource {
    Own { socket: Arc<DatagramSocket>, slots: Slots, pool: PacketPool },
    Shared(Arc<Member>),
}

impl UdpReader {
    pub(super) async fn read_batch(&mut self, out: &mut Vec<BytesMut>) -> Result<(), SessionEnd> {
        let read = match &mut self.source {
            DatagramSource::Own { socket, slots, pool } => receive(socket, slots, pool, out).await,
            DatagramSource::Shared(member) => member.inbox.take(out).await.map_err(|_closed| displaced()),
        };
        read.map_err(SessionEnd::Broken)
    }
}

fn displaced() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the session's place went to another source")
}

async fn receive(
    socket: &DatagramSocket,
    slots: &mut Slots,
    pool: &mut PacketPool,
    out: &mut Vec<BytesMut>,
) -> io::Result<()> {
    let (start, mut bytes) = (out.len(), 0);
    loop {
        let received = socket.try_receive(slots, |_route, datagram| {
            bytes += datagram.len();
            out.push(pool.copy(datagram));
        });
        match received {
            Ok(()) if out.len() - start >= MAX_BATCH_PACKETS || bytes >= MAX_BATCH_BYTES => return Ok(()),
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if out.len() > start {
                    return Ok(());
                }
                socket.readable().await?;
            }
            // Received datagrams come first; the socket repeats the error if it persists.
            Err(_) if out.len() > start => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// The sending half of a UDP session.
#[derive(Debug)]
pub(super) struct UdpWriter {
    sink: Sink,
}

#[derive(Debug)]
enum Sink {
    Own { socket: Arc<DatagramSocket>, route: Route },
    Shared(Arc<Member>),
}

impl UdpWriter {
    pub(super) async fn write_batch(&mut self, batch: &mut VecDeque<Bytes>) -> io::Result<()> {
        let (socket, route) = match &self.sink {
            Sink::Own { socket, route } => (&**socket, *route),
            Sink::Shared(member) => (&member.hub.socket, member.route),
        };
        while !batch.is_empty() {
            match socket.try_send(route, batch) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.writable().await?,
                Err(error) => match &self.sink {
                    Sink::Own { .. } => return Err(error),
                    // The port serves others too: a neighbour that cannot be reached falls silent.
                    Sink::Shared(_) => drop(batch.pop_front()),
                },
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
