//! Links to neighbours: dialing, listening, redialing, and sessions that carry whole packets.
//!
//! A [`Session`] is a pair of halves: a [`Reader`] that gives whole packets in batches and a [`Writer`] that takes
//! them in batches. Every transport is one variant each of [`ListenSpec`], [`DialSpec`] and the halves' inner
//! enums, and passes the one contract suite in `contract.rs`.
//!
//! This room knows bytes and sockets. Other rooms decide what a packet means, who the peer is and when a silent
//! session counts as dead: this one knows nothing of `mesh`.

mod error;
mod frame_reader;
mod frame_writer;
mod framed;
mod listener;
mod packet_pool;
mod quic;
mod read_buffer;
mod redial;
mod session;
mod tcp;
mod tls;
mod udp;
mod websocket;

use std::fmt;
use std::io;

pub use error::{AcceptError, DialFailure, SessionEnd};
pub use frame_reader::{MAX_BATCH_BYTES, MAX_BATCH_PACKETS};
pub use listener::Listener;
#[cfg(test)]
pub(crate) use memory::{MemoryDialOptions, MemoryListenOptions, MemoryNet};
pub(crate) use packet_pool::PacketPool;
#[cfg(test)]
pub(crate) use quic::tests::wan;
pub use quic::{QuicDialOptions, QuicListenOptions};
pub use redial::Redial;
pub use session::{Direction, Reader, Session, SessionInfo, Writer};
pub use tcp::{DIAL_LIMIT, TcpDialOptions, TcpListenOptions};
pub use udp::{UdpDialOptions, UdpListenOptions};
pub(crate) use websocket::tunnel;
pub use websocket::{Proxy, WsDialOptions, WsListenOptions};

/// An address to listen on.
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
    /// A name on an in-process switchboard, for tests.
    #[cfg(test)]
    Memory(MemoryListenOptions),
}

impl fmt::Display for ListenSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(options) => write!(f, "udp {}", options.bind),
            Self::WebSocket(options) => write!(f, "{} {}{}", options.transport(), options.bind, options.path),
            Self::Quic(options) => write!(f, "quic {}", options.bind),
            Self::Tcp(options) => write!(f, "{} {}", options.transport(), options.bind),
            #[cfg(test)]
            Self::Memory(options) => write!(f, "memory {}", options.name),
        }
    }
}

/// A neighbour to dial.
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
    /// A name on an in-process switchboard, for tests.
    #[cfg(test)]
    Memory(MemoryDialOptions),
}

impl DialSpec {
    /// The host and port that a session reports as its peer.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Tcp(options) => options.address.clone(),
            Self::Udp(options) => options.address.clone(),
            Self::WebSocket(options) => options.address(),
            Self::Quic(options) => options.address.clone(),
            #[cfg(test)]
            Self::Memory(options) => options.to.clone(),
        }
    }
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
            #[cfg(test)]
            Self::Memory(options) => write!(f, "memory {}", options.to),
        }
    }
}

impl Listener {
    /// Binds the address. Dialers get through as soon as this returns.
    ///
    /// # Errors
    /// The text names the address and the reason, and for common reasons what to do.
    pub async fn bind(spec: &ListenSpec) -> io::Result<Self> {
        match spec {
            ListenSpec::Tcp(options) => tcp::listen(options).await,
            ListenSpec::Udp(options) => udp::listen(options).await,
            ListenSpec::WebSocket(options) => websocket::listen(options).await,
            ListenSpec::Quic(options) => quic::listen(options).await,
            #[cfg(test)]
            ListenSpec::Memory(options) => memory::listen(options),
        }
    }
}

/// Opens one session: one attempt, within [`DIAL_LIMIT`]. Host names are resolved at each call.
///
/// # Errors
/// [`DialFailure`], which names the address.
pub async fn dial(spec: &DialSpec) -> Result<Session, DialFailure> {
    match spec {
        DialSpec::Tcp(options) => tcp::dial(options).await,
        DialSpec::Udp(options) => udp::dial(options).await,
        DialSpec::WebSocket(options) => websocket::dial(options).await,
        DialSpec::Quic(options) => quic::dial(options).await,
        #[cfg(test)]
        DialSpec::Memory(options) => memory::dial(options),
    }
}

#[cfg(test)]
mod contract;
#[cfg(test)]
mod memory;
