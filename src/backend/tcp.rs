//! Sessions over TCP connections, with or without TLS.
//!
//! It owns addresses, and sockets with their options. Handshakes are in `tls`, the halves of a session in `framed`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use super::framed::framed;
use super::listener::{self, Listener, REBIND_LIMIT, accept_tcp};
use super::session::{TransportReader, TransportWriter};
use super::tls::{self, Connected, Io};
use super::{AcceptError, DialFailure, Direction, Reader, Session, SessionInfo, Writer};
use crate::congestion::Congestion;
use crate::os::{self, address::resolve};
use crate::tls::{ClientProfile, ServerProfile};

const TRANSPORT: &str = "tcp";
const TLS_TRANSPORT: &str = "tls";

/// How long one dial may take, all addresses of the host together.
pub const DIAL_LIMIT: Duration = Duration::from_secs(15);

/// An attempt without an answer for this long gets another one beside it, up to `MOST_ATTEMPTS`.
const INSIST: Duration = Duration::from_secs(1);
const MOST_ATTEMPTS: usize = 5;

/// A dead host is noticed after 15 + 3 * 5 s, even if nothing above asks.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(15))
    .with_interval(Duration::from_secs(5))
    .with_retries(3);

/// Bytes that the kernel may hold unsent. More would only sit in front of the routing traffic, which waits
/// in the node's own queues where it can overtake.
const UNSENT_LIMIT: u32 = 128 * 1024;

/// A TCP port to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpListenOptions {
    /// `host:port`; an IPv6 address stands in brackets, port 0 lets the system choose.
    pub bind: String,
    /// How to speak TLS; plain TCP without.
    pub tls: Option<ServerProfile>,
    /// How its connections react to congestion; as the kernel sees fit without.
    pub congestion: Option<Congestion>,
}

impl TcpListenOptions {
    /// Joins host and port; a bare IPv6 address gets its brackets.
    pub fn new(host: &str, port: u16) -> Self {
        Self { bind: join(host, port), tls: None, congestion: None }
    }

    /// The same over TLS.
    pub fn with_tls(self, tls: Option<ServerProfile>) -> Self {
        Self { tls, ..self }
    }

    pub(super) fn transport(&self) -> &'static str {
        if self.tls.is_some() { TLS_TRANSPORT } else { TRANSPORT }
    }
}

/// A neighbour to dial over TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpDialOptions {
    /// `host:port`; an IPv6 address stands in brackets.
    pub address: String,
    /// How to speak TLS; plain TCP without. The server's certificate must name the host dialled.
    pub tls: Option<ClientProfile>,
    /// How the connection reacts to congestion; as the kernel sees fit without.
    pub congestion: Option<Congestion>,
}

impl TcpDialOptions {
    pub(super) fn transport(&self) -> &'static str {
        if self.tls.is_some() { TLS_TRANSPORT } else { TRANSPORT }
    }
}

/// `host:port`; a bare IPv6 address gets its brackets.
pub(super) fn join(host: &str, port: u16) -> String {
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

pub(super) async fn listen(options: &TcpListenOptions) -> io::Result<Listener> {
    let socket = listener::bind(TRANSPORT, &options.bind, REBIND_LIMIT, os::tcp::listen).await?;
    if let Some(congestion) = options.congestion {
        os::tcp::set_congestion(&socket, congestion.name())?;
    }
    let (local, tls) = (socket.local_addr()?, options.tls.clone());
    let transport = options.transport();
    Ok(Listener::serve(transport, local, |name, sessions| {
        let address = name.clone();
        let open = move |stream, peer: String| {
            let (tls, address) = (tls.clone(), address.clone());
            async move {
                let opened = match tls::accept(stream, tls.as_ref()).await {
                    Ok(connected) => Ok(session(connected, peer, Direction::Inbound)),
                    Err(source) => Err(AcceptError::Tls { address, peer, source }),
                };
                Some(opened)
            }
        };
        accept_tcp(socket, name, sessions, open)
    }))
}

pub(super) async fn dial(options: &TcpDialOptions) -> Result<Session, DialFailure> {
    let address = &options.address;
    let stream = match timeout(DIAL_LIMIT, connect(address)).await {
        Ok(connected) => connected?,
        Err(_elapsed) => return Err(DialFailure::TimedOut { address: address.clone(), limit: DIAL_LIMIT }),
    };
    if let Some(congestion) = options.congestion {
        os::tcp::set_congestion(&stream, congestion.name())
            .map_err(|source| DialFailure::Connect { address: address.clone(), source })?;
    }
    let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
    let connected = tls::connect(stream, options.tls.as_ref(), host, address).await?;
    Ok(session(connected, address.clone(), Direction::Outbound))
}

pub(super) async fn connect(address: &str) -> Result<TcpStream, DialFailure> {
    let unresolved = |source| DialFailure::Resolve { address: address.to_owned(), source };
    let deadline = Instant::now() + DIAL_LIMIT;
    let candidates: Vec<SocketAddr> = resolve(address).await.map_err(unresolved)?;
    first_that_answers(&candidates, deadline).await.map_err(|source| match source.kind() {
        io::ErrorKind::TimedOut => DialFailure::TimedOut { address: address.to_owned(), limit: DIAL_LIMIT },
        _ => DialFailure::Connect { address: address.to_owned(), source },
    })
}

/// Tries the addresses in turn, or gives the last error. Each gets an equal share of the time that is left,
/// so that one that swallows packets does not hide the others.
async fn first_that_answers(candidates: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::TimedOut.into();
    for (candidate, left) in candidates.iter().zip((1..=candidates.len() as u32).rev()) {
        let share = deadline.saturating_duration_since(Instant::now()) / left;
        if let Some(connected) = insist(share, || TcpStream::connect(candidate)).await {
            match connected.and_then(not_itself) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
    }
    Err(last)
}

/// Tries to connect until an attempt ends, beside the others once more each second: the first packet of one may get
/// lost, and the system waits ever longer before it repeats it. `None` once the time is up.
pub(super) async fn insist<T, F>(limit: Duration, mut attempt: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = T>,
{
    let deadline = Instant::now() + limit;
    let mut attempts = FuturesUnordered::new();
    while Instant::now() < deadline {
        if attempts.len() < MOST_ATTEMPTS {
            attempts.push(attempt());
        }
        let next = deadline.min(Instant::now() + INSIST);
        if let Ok(Some(ended)) = timeout_at(next, attempts.next()).await {
            return Some(ended);
        }
    }
    None
}

/// A dialer that keeps trying a free port of its own host gets that very port as its local one some day, and TCP then
/// connects it to itself: a link to nobody that keeps the real listener from binding.
fn not_itself(stream: TcpStream) -> io::Result<TcpStream> {
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

fn session(connected: Connected, peer: String, direction: Direction) -> Session {
    let Connected { io, certified_nodes } = connected;
    let (reader, writer, transport) = match io {
        Io::Plain(stream) => {
            let (receiving, sending) = stream.into_split();
            let (reader, writer) = framed(receiving, sending);
            (TransportReader::Tcp(reader), TransportWriter::Tcp(writer), TRANSPORT)
        }
        Io::Secured(secured) => {
            let (receiving, sending) = tokio::io::split(*secured);
            let (reader, writer) = framed(receiving, sending);
            (TransportReader::Tls(reader), TransportWriter::Tls(writer), TLS_TRANSPORT)
        }
    };
    let info = SessionInfo { transport, peer, direction, certified_nodes };
    Session { reader: Reader::new(reader), writer: Writer::new(writer), info }
}

/// Sets the socket's options. None of them is necessary for a session.
pub(super) fn tune(stream: &TcpStream) {
    os::tcp::tune(stream, &KEEPALIVE);
    if let Err(error) = SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_LIMIT) {
        debug!(%error, "failed to limit the unsent bytes of a TCP connection");
    }
}

#[cfg(test)]
mod tests;
