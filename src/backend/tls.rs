//! A TCP connection with or without TLS, for sessions over TCP and WebSockets.
//!
//! It owns the socket's options, and when the handshake happens in accepting and dialing. The room `tls` owns
//! certificates and trust.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_util::either::Either;
use tracing::debug;

use super::DialFailure;
use crate::os;
use crate::tls::{ClientProfile, HandshakeError, Secured, ServerProfile};

/// Finds a dead host after 15 + 3 * 5 s, even if no layer above sends anything.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(15))
    .with_interval(Duration::from_secs(5))
    .with_retries(3);

/// The most bytes that the kernel may hold unsent. More would only delay the routing traffic, which can overtake
/// other packets in the node's own queues but not in the kernel.
pub(super) const UNSENT_LIMIT: u32 = 128 * 1024;

/// A connection in the clear, or over TLS.
pub(super) type Io = Either<TcpStream, Box<Secured<TcpStream>>>;

/// A connection after its handshake, if there is one.
pub(super) struct Connected {
    pub(super) io: Io,
    /// The node IDs that the peer's certificate names.
    pub(super) certified_nodes: Option<Vec<String>>,
    /// Whether the peer was not asked for a certificate, because it wants one.
    pub(super) is_newcomer: bool,
}

impl Connected {
    fn plain(stream: TcpStream) -> Self {
        Self { io: Io::Left(stream), certified_nodes: None, is_newcomer: false }
    }

    fn secured(secured: Secured<TcpStream>) -> Self {
        let certified_nodes = secured.certified_nodes().map(<[String]>::to_vec);
        let is_newcomer = secured.is_newcomer();
        Self { io: Io::Right(Box::new(secured)), certified_nodes, is_newcomer }
    }
}

/// Does the server's side of the handshake.
pub(super) async fn accept(
    stream: TcpStream,
    profile: Option<&ServerProfile>,
) -> Result<Connected, HandshakeError> {
    tune(&stream);
    match profile {
        None => Ok(Connected::plain(stream)),
        Some(profile) => profile.accept_neighbour(stream).await.map(Connected::secured),
    }
}

/// Does the client's side of the handshake; the server's certificate must name `host`.
pub(super) async fn connect(
    stream: TcpStream,
    profile: Option<&ClientProfile>,
    host: &str,
    address: &str,
) -> Result<Connected, DialFailure> {
    tune(&stream);
    let Some(profile) = profile else { return Ok(Connected::plain(stream)) };
    let secured = profile.connect(stream, host).await.map(Connected::secured);
    secured.map_err(|source| DialFailure::Tls { address: address.to_owned(), source })
}

/// Sets the socket's options. A session works without any of them.
fn tune(stream: &TcpStream) {
    os::tcp::tune(stream, &KEEPALIVE);
    if let Err(error) = SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_LIMIT) {
        debug!(%error, "failed to limit the unsent bytes of a TCP connection");
    }
}
