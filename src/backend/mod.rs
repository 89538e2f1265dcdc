//! Links to neighbours: dialing, listening, redialing, and sessions that carry whole packets.
//!
//! A [`Session`] is a pair of halves: a [`Reader`] that gives whole packets in batches and a [`Writer`] that
//! takes them in batches. Every transport is one variant of [`Reader`], [`Writer`], [`Listener`],
//! [`ListenSpec`] and [`DialSpec`], and passes the one contract suite in `contract.rs`.
//!
//! This room knows bytes and sockets. What a packet means, who the peer is and when a silent session counts
//! as dead is decided elsewhere: it has never heard of `mesh`.

mod error;
mod frame_reader;
mod frame_writer;
pub mod memory;
mod packet_pool;
mod quic;
mod read_buffer;
mod redial;
mod tcp;
mod tls;
mod udp;
mod websocket;

use std::collections::VecDeque;
use std::{fmt, io};

use bytes::{Bytes, BytesMut};

pub use error::{AcceptError, DialFailure, SessionEnd};
pub use frame_reader::{MAX_BATCH_BYTES, MAX_BATCH_PACKETS};
pub use memory::{MemoryDialOptions, MemoryListenOptions, MemoryNet};
pub(crate) use packet_pool::PacketPool;
pub use quic::{QuicDialOptions, QuicListenOptions};
pub use redial::Redial;
pub use tcp::{DIAL_LIMIT, TcpDialOptions, TcpListenOptions};
pub use udp::{UdpDialOptions, UdpListenOptions};
pub use websocket::{Proxy, WsDialOptions, WsListenOptions};

/// A link to one neighbour that carries whole packets both ways.
///
/// The halves are independent: each may be moved to a task of its own. The peer sees an orderly end through
/// [`Writer::close`], and an end of some sort once both halves are dropped.
#[derive(Debug)]
pub struct Session {
    /// What the neighbour sends.
    pub reader: Reader,
    /// What the neighbour shall receive.
    pub writer: Writer,
    /// Where the session came from, for logs and status.
    pub info: SessionInfo,
}

/// Where a session came from; meant for people, but for the certified nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// The transport's name: `tcp`, `tls`, `udp`, `ws`, `wss`, `quic`, `memory`.
    pub transport: &'static str,
    /// The other end's address, as text: numeric for accepted sessions, as configured for dialed ones.
    pub peer: String,
    /// Who opened the session.
    pub direction: Direction,
    /// The node IDs that the neighbour's certificate names: it must be one of them. `None` where there is no
    /// certificate, or it names none, or its profile says not to look.
    pub certified_nodes: Option<Vec<String>>,
}

/// Who opened a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// The neighbour dialed one of our listeners.
    Inbound,
    /// We dialed the neighbour.
    Outbound,
}

/// The receiving half of a session.
#[derive(Debug)]
pub enum Reader {
    /// Frames from a TCP connection.
    Tcp(tcp::TcpReader),
    /// Datagrams.
    Udp(udp::UdpReader),
    /// Messages of a WebSocket.
    WebSocket(websocket::WsReader),
    /// Datagrams and a stream of QUIC.
    Quic(quic::QuicReader),
    /// Frames from a TLS connection.
    Tls(tls::TlsReader),
    /// Frames from an in-process link.
    Memory(memory::MemoryReader),
}

impl Reader {
    /// Waits for at least one whole packet, then appends every packet that is already at hand to `out`, up
    /// to [`MAX_BATCH_PACKETS`] or about [`MAX_BATCH_BYTES`].
    ///
    /// Packets share the session's read buffer: a kept packet keeps up to 320 KiB alive, so whoever stores
    /// packets for long (rather than queueing them for a while) copies them. A frame of length zero is
    /// delivered as an empty packet. Cancel safe: no byte is lost when the future is dropped.
    ///
    /// # Errors
    /// The session is over for good. The first error says why; every later call gives
    /// [`SessionEnd::AlreadyOver`] at once.
    pub async fn read_batch(&mut self, out: &mut Vec<BytesMut>) -> Result<(), SessionEnd> {
        match self {
            Self::Tcp(reader) => reader.read_batch(out).await,
            Self::Udp(reader) => reader.read_batch(out).await,
            Self::WebSocket(reader) => reader.read_batch(out).await,
            Self::Quic(reader) => reader.read_batch(out).await,
            Self::Tls(reader) => reader.read_batch(out).await,
            Self::Memory(reader) => reader.read_batch(out).await,
        }
    }
}

/// The sending half of a session. Dropped without [`Writer::close`], it may lose what was written last.
#[derive(Debug)]
pub enum Writer {
    /// Frames to a TCP connection.
    Tcp(tcp::TcpWriter),
    /// Datagrams.
    Udp(udp::UdpWriter),
    /// Messages of a WebSocket.
    WebSocket(websocket::WsWriter),
    /// Datagrams and a stream of QUIC.
    Quic(quic::QuicWriter),
    /// Frames to a TLS connection.
    Tls(tls::TlsWriter),
    /// Frames to an in-process link.
    Memory(memory::MemoryWriter),
}

impl Writer {
    /// Hands all packets of the batch to the transport, in order, and drains `batch`; waits while the peer
    /// is slow.
    ///
    /// A packet beyond [`crate::wire::MAX_MESSAGE`] is the caller's mistake: it is dropped with an error in
    /// the log and the packets around it are sent. Cancel safe: packets that were taken out of `batch` are
    /// sent by the next call or by [`Writer::close`], the others are still in `batch`.
    ///
    /// # Errors
    /// The session is over for good; what was left in `batch` has not been sent.
    pub async fn write_batch(&mut self, batch: &mut VecDeque<Bytes>) -> Result<(), SessionEnd> {
        match self {
            Self::Tcp(writer) => writer.write_batch(batch).await,
            Self::Udp(writer) => writer.write_batch(batch).await,
            Self::WebSocket(writer) => writer.write_batch(batch).await,
            Self::Quic(writer) => writer.write_batch(batch).await,
            Self::Tls(writer) => writer.write_batch(batch).await,
            Self::Memory(writer) => writer.write_batch(batch).await,
        }
    }

    /// Bytes that were taken out of a batch and that the transport has not taken yet, as far as it tells: between
    /// two looks, less of them or of the batch means that the link moves.
    pub fn unsent(&self) -> usize {
        match self {
            Self::Tcp(writer) => writer.unsent(),
            Self::Quic(writer) => writer.unsent(),
            Self::Tls(writer) => writer.unsent(),
            Self::Memory(writer) => writer.unsent(),
            // They keep no more than the packet at hand.
            Self::Udp(_) | Self::WebSocket(_) => 0,
        }
    }

    /// Ends the sending direction in order: what was written arrives, then the peer reads
    /// [`SessionEnd::Closed`]. Takes a few seconds at most, however slow the peer is.
    ///
    /// Drop the [`Reader`] first when nothing more shall be read: the close can then also swallow what the
    /// peer still sends, which would otherwise make the kernel discard our last packets.
    pub async fn close(self) {
        match self {
            Self::Tcp(writer) => writer.close().await,
            Self::Udp(writer) => writer.close(),
            Self::WebSocket(writer) => writer.close().await,
            Self::Quic(writer) => writer.close().await,
            Self::Tls(writer) => writer.close().await,
            Self::Memory(writer) => writer.close().await,
        }
    }
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenSpec {
    /// A TCP port.
    Tcp(TcpListenOptions),
    /// A UDP port.
    Udp(UdpListenOptions),
    /// A TCP port for WebSockets.
    WebSocket(WsListenOptions),
    /// A UDP port for QUIC.
    Quic(QuicListenOptions),
    /// A name on an in-process switchboard.
    Memory(MemoryListenOptions),
}

impl fmt::Display for ListenSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(options) => write!(f, "udp {}", options.bind),
            Self::WebSocket(options) => write!(f, "{} {}{}", options.transport(), options.bind, options.path),
            Self::Quic(options) => write!(f, "quic {}", options.bind),
            Self::Tcp(options) => write!(f, "{} {}", options.transport(), options.bind),
            Self::Memory(options) => write!(f, "memory {}", options.name),
        }
    }
}

/// Whom to dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialSpec {
    /// A TCP host and port.
    Tcp(TcpDialOptions),
    /// A UDP host and port.
    Udp(UdpDialOptions),
    /// A WebSocket server.
    WebSocket(WsDialOptions),
    /// A UDP host and port that speaks QUIC.
    Quic(QuicDialOptions),
    /// A name on an in-process switchboard.
    Memory(MemoryDialOptions),
}

impl fmt::Display for DialSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(options) => write!(f, "udp {}", options.address),
            Self::WebSocket(options) => {
                write!(f, "{} {}{}", options.transport(), options.address(), options.path)
            }
            Self::Quic(options) => write!(f, "quic {}", options.address),
            Self::Tcp(options) => write!(f, "{} {}", options.transport(), options.address),
            Self::Memory(options) => write!(f, "memory {}", options.to),
        }
    }
}

/// A bound address at which neighbours can open sessions. Dropping it frees the address.
///
/// A transport whose sessions begin with a handshake runs the handshakes beside each other inside its
/// listener, so that a silent client never keeps others from being accepted.
#[derive(Debug)]
pub enum Listener {
    /// Accepts TCP connections.
    Tcp(tcp::TcpListener),
    /// Tells UDP sessions apart.
    Udp(udp::UdpListener),
    /// Accepts WebSockets.
    WebSocket(websocket::WsListener),
    /// Accepts QUIC connections.
    Quic(quic::QuicListener),
    /// Accepts in-process links.
    Memory(memory::MemoryListener),
}

impl Listener {
    /// Binds the address; from the moment it returns, dialers get through.
    ///
    /// # Errors
    /// The text names the address, and for an address in use says what to do.
    pub async fn bind(spec: &ListenSpec) -> io::Result<Self> {
        match spec {
            ListenSpec::Tcp(options) => tcp::TcpListener::bind(options).await.map(Self::Tcp),
            ListenSpec::Udp(options) => udp::UdpListener::bind(options).await.map(Self::Udp),
            ListenSpec::WebSocket(options) => websocket::WsListener::bind(options).await.map(Self::WebSocket),
            ListenSpec::Quic(options) => quic::QuicListener::bind(options).await.map(Self::Quic),
            ListenSpec::Memory(options) => memory::MemoryListener::bind(options).map(Self::Memory),
        }
    }

    /// The address that was bound, with the real port where the configured one was 0.
    pub fn local_addr(&self) -> String {
        match self {
            Self::Tcp(listener) => listener.local_addr(),
            Self::Udp(listener) => listener.local_addr(),
            Self::WebSocket(listener) => listener.local_addr(),
            Self::Quic(listener) => listener.local_addr(),
            Self::Memory(listener) => listener.local_addr(),
        }
    }

    /// Waits for the next session. Cancel safe.
    ///
    /// # Errors
    /// [`AcceptError::Transient`]: call again after the pause it names. [`AcceptError::Fatal`]: this
    /// listener will never accept again.
    pub async fn accept(&mut self) -> Result<Session, AcceptError> {
        match self {
            Self::Tcp(listener) => listener.accept().await,
            Self::Udp(listener) => listener.accept().await,
            Self::WebSocket(listener) => listener.accept().await,
            Self::Quic(listener) => listener.accept().await,
            Self::Memory(listener) => listener.accept().await,
        }
    }
}

/// Opens one session; tries once, within [`DIAL_LIMIT`]. Host names are resolved at each call.
///
/// # Errors
/// [`DialFailure`], which names the address.
pub async fn dial(spec: &DialSpec) -> Result<Session, DialFailure> {
    match spec {
        DialSpec::Tcp(options) => tcp::dial(options).await,
        DialSpec::Udp(options) => udp::dial(options).await,
        DialSpec::WebSocket(options) => websocket::dial(options).await,
        DialSpec::Quic(options) => quic::dial(options).await,
        DialSpec::Memory(options) => memory::dial(options),
    }
}

#[cfg(test)]
mod contract;
