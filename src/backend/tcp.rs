//! Sessions over TCP connections, with or without TLS.
//!
//! It owns addresses and dialing. `tls` owns the socket's options and handshakes, `framed` the halves of a session.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::framed::framed;
use super::listener::{self, Listener, REBIND_LIMIT, accept_tcp};
use super::session::{TransportReader, TransportWriter};
use super::tls::{self, Connected, Io};
use super::{AcceptError, DialFailure, Direction, Session, SessionInfo};
use crate::congestion::Congestion;
use crate::os::{self, address::resolve};
use crate::tls::{ClientProfile, ServerProfile};

const TRANSPORT: &str = "tcp";
const TLS_TRANSPORT: &str = "tls";

/// How long one dial may take, for all addresses of the host together.
pub const DIAL_LIMIT: Duration = Duration::from_secs(15);

/// After this long without an answer, a further attempt starts, up to `MOST_ATTEMPTS` at once.
const INSIST: Duration = Duration::from_secs(1);
const MOST_ATTEMPTS: usize = 5;

/// A TCP port to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpListenOptions {
    /// `host:port`; an IPv6 address is in brackets, and with port 0 the system chooses.
    pub bind: String,
    /// How to speak TLS; plain TCP if `None`.
    pub tls: Option<ServerProfile>,
    /// The congestion control of its connections; the kernel's default if `None`.
    pub congestion: Option<Congestion>,
}

impl TcpListenOptions {
    /// Joins host and port; a bare IPv6 address gets its brackets.
    pub fn new(host: &str, port: u16) -> Self {
        Self { bind: join(host, port), tls: None, congestion: None }
    }

    /// The same options with this TLS profile.
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
    /// `host:port`; an IPv6 address is in brackets.
    pub address: String,
    /// How to speak TLS; plain TCP if `None`. The server's certificate must name the host dialled.
    pub tls: Option<ClientProfile>,
    /// The congestion control of the connection; the kernel's default if `None`.
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

/// Tries the addresses in turn, and gives the last error if none answers. Each gets an equal share of the time
/// left, so that an address that swallows packets does not hide the others.
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

/// Starts an attempt each second, beside those still running, and gives the first result: an attempt's first packet
/// may get lost, and the system waits ever longer before repeating it. `None` once the time is up.
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

/// Refuses a connection to itself. A dialer that keeps trying a free port of its own host will some day get that
/// very port as its local one, and TCP then connects the socket to itself. Such a link would lead nowhere and keep
/// the real listener from binding.
fn not_itself(stream: TcpStream) -> io::Result<TcpStream> {
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

fn session(connected: Connected, peer: String, direction: Direction) -> Session {
    let Connected { io, certified_nodes, is_newcomer } = connected;
    let (reader, writer, transport) = match io {
        Io::Left(stream) => {
            let (receiving, sending) = stream.into_split();
            let (reader, writer) = framed(receiving, sending);
            (TransportReader::Tcp(reader), TransportWriter::Tcp(writer), TRANSPORT)
        }
        Io::Right(secured) => {
            let (receiving, sending) = tokio::io::split(*secured);
            let (reader, writer) = framed(receiving, sending);
            (TransportReader::Tls(reader), TransportWriter::Tls(writer), TLS_TRANSPORT)
        }
    };
    let info = SessionInfo { transport, peer, direction, certified_nodes, is_newcomer };
    Session::new(reader, writer, info)
}

#[cfg(test)]
mod tests;
