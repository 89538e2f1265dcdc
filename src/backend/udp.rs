//! Sessions over UDP: one datagram is one packet.
//!
//! It owns the two kinds of sessions: a dialer's has a socket of its own, a listener's has a share of one port. It
//! also owns the task that sorts by source what arrives at that port. No message begins or ends a session. A dialed
//! session exists at once, and an accepted one from the first routing update of its source. Either ends by silence,
//! which other rooms notice.

pub(super) mod half;
mod hub;
mod inbox;
mod socket;
mod table;

use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use self::half::{DatagramSink, DatagramSource, UdpReader, UdpWriter};
use self::hub::{Hub, HubMember};
pub(super) use self::socket::enlarge_buffers;
use self::socket::{DatagramRoute, DatagramSocket, Slots};
use super::listener::{self, Accepted, BACKLOG, Listener, REBIND_LIMIT};
use super::packet_pool::PacketPool;
use super::session::{TransportReader, TransportWriter};
use super::tcp::join;
use super::{DIAL_LIMIT, DialFailure, Direction, Session, SessionInfo};
use crate::os::address::{self, resolve};
use crate::wire::{MessageType, RoutingUpdate};

const TRANSPORT: &str = "udp";

/// The pause after an error of the socket, which only a change on the host can resolve.
const ERROR_PAUSE: Duration = Duration::from_millis(500);

/// A UDP port to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpListenOptions {
    /// `host:port`; an IPv6 address is in brackets, and with port 0 the system chooses.
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
    /// `host:port`; an IPv6 address is in brackets.
    pub address: String,
}

pub(super) async fn listen(options: &UdpListenOptions) -> io::Result<Listener> {
    let socket = listener::bind(TRANSPORT, &options.bind, REBIND_LIMIT, open).await?;
    let local = socket.local_addr()?.to_string();
    let (hub, gone) = Hub::new(socket);
    let (newcomers, accepted) = mpsc::channel(BACKLOG);
    let sorting = sort(Arc::downgrade(&hub), newcomers);
    tokio::spawn(gone.run_until_cancelled_owned(sorting));
    Ok(Listener::new(TRANSPORT, local, accepted, hub))
}

fn open(address: SocketAddr) -> io::Result<DatagramSocket> {
    DatagramSocket::new(tokio::net::UdpSocket::from_std(address::udp(address)?)?)
}

/// Whether this is a neighbour's first message, which it repeats until answered.
fn is_introduction(datagram: &[u8]) -> bool {
    matches!(MessageType::of(datagram), Ok(MessageType::RoutingUpdate))
        && RoutingUpdate::parse(datagram).is_ok()
}

/// Sorts datagrams until the hub is gone.
async fn sort(hub: Weak<Hub>, newcomers: mpsc::Sender<Accepted>) {
    let mut slots = Slots::new();
    loop {
        // The task holds no `Arc` of the hub while it waits, so the socket closes with the last session.
        let ready = poll_fn(|cx| match hub.upgrade() {
            Some(hub) => hub.socket.poll_readable(cx),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        });
        let ready = ready.await;
        let Some(hub) = hub.upgrade() else { return };
        match ready.and_then(|()| receive(&hub, &mut slots, &newcomers)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                drop(hub);
                debug!(%error, "cannot receive datagrams at the moment");
                sleep(ERROR_PAUSE).await;
            }
        }
        // Lets the neighbours' other tasks run, however much comes.
        tokio::task::yield_now().await;
    }
}

fn receive(hub: &Arc<Hub>, slots: &mut Slots, newcomers: &mpsc::Sender<Accepted>) -> io::Result<()> {
    let now = Instant::now();
    hub.socket.try_receive(slots, |route, datagram| {
        if hub.deliver(route, datagram, now) || !is_introduction(datagram) {
            return;
        }
        // If the queue is full, the source has to try again.
        let Ok(permit) = newcomers.try_reserve() else { return };
        if let Some(member) = hub.admit(route, datagram, now) {
            permit.send(Ok(accepted_session(member)));
        }
    })
}

/// Opens a session with a socket of its own. Succeeds even if nobody is there, because UDP has no handshake.
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

/// Connects the socket, so that the kernel drops datagrams of others and reports it when nobody listens there.
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
    let sink = DatagramSink::Own { socket, route: DatagramRoute { to: peer, from: None } };
    session(source, sink, address, Direction::Outbound)
}

fn accepted_session(member: HubMember) -> Session {
    let (peer, member) = (address::plain(member.route.to).to_string(), Arc::new(member));
    session(DatagramSource::Shared(member.clone()), DatagramSink::Shared(member), peer, Direction::Inbound)
}

fn session(source: DatagramSource, sink: DatagramSink, peer: String, direction: Direction) -> Session {
    let (reader, writer) = (UdpReader { source }, UdpWriter { sink });
    let info =
        SessionInfo { transport: TRANSPORT, peer, direction, certified_nodes: None, is_newcomer: false };
    Session::new(TransportReader::Udp(reader), TransportWriter::Udp(writer), info)
}

#[cfg(test)]
mod tests;
