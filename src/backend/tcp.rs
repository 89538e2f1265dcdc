//! Sessions over TCP connections.
//!
//! It owns addresses, sockets and their options, and an end of the connection that loses nothing. Frames
//! are cut and joined by `frame_reader` and `frame_writer`, of which this is the thin edge to the kernel.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::frame_reader::FrameReader;
use super::frame_writer::FrameWriter;
use super::{AcceptError, DialFailure, Direction, Reader, Session, SessionEnd, SessionInfo, Writer};
use crate::os;
use crate::tls::{ClientProfile, Handshakes, ServerProfile};

const TRANSPORT: &str = "tcp";

/// How long one dial may take, all addresses of the host together.
pub const DIAL_LIMIT: Duration = Duration::from_secs(15);

/// How long a close waits for a peer that does not take the last packets.
pub(super) const CLOSE_LIMIT: Duration = Duration::from_secs(3);

/// A dead host is noticed after 15 + 3 * 5 s, even if nothing above asks.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(15))
    .with_interval(Duration::from_secs(5))
    .with_retries(3);

/// Bytes that the kernel may hold unsent. More would only sit in front of the routing traffic, which waits
/// in the node's own queues where it can overtake.
const UNSENT_LIMIT: u32 = 128 * 1024;

/// Where to listen for TCP connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpListenOptions {
    /// `host:port`; an IPv6 address stands in brackets, port 0 lets the system choose.
    pub bind: String,
    /// How to speak TLS; plain TCP without.
    pub tls: Option<ServerProfile>,
}

impl TcpListenOptions {
    /// The interface on which a listener without a bind address listens: all of them.
    pub const DEFAULT_HOST: &'static str = "0.0.0.0";

    /// Joins host and port; a bare IPv6 address gets its brackets.
    pub fn new(host: &str, port: u16) -> Self {
        Self { bind: join(host, port), tls: None }
    }

    /// The same over TLS.
    pub fn with_tls(self, tls: Option<ServerProfile>) -> Self {
        Self { tls, ..self }
    }

    pub(super) fn transport(&self) -> &'static str {
        if self.tls.is_some() { super::tls::TRANSPORT } else { TRANSPORT }
    }
}

/// Whom to dial over TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpDialOptions {
    /// `host:port`; an IPv6 address stands in brackets.
    pub address: String,
    /// How to speak TLS; plain TCP without. The server's certificate must name the host dialled.
    pub tls: Option<ClientProfile>,
}

impl TcpDialOptions {
    pub(super) fn transport(&self) -> &'static str {
        if self.tls.is_some() { super::tls::TRANSPORT } else { TRANSPORT }
    }
}

/// `host:port`; a bare IPv6 address gets its brackets.
pub(super) fn join(host: &str, port: u16) -> String {
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

/// A bound TCP port.
#[derive(Debug)]
pub struct TcpListener {
    socket: tokio::net::TcpListener,
    local: SocketAddr,
    tls: Option<ServerProfile>,
    handshakes: Handshakes<Result<Session, AcceptError>>,
}

impl TcpListener {
    pub(super) async fn bind(options: &TcpListenOptions) -> io::Result<Self> {
        let address = &options.bind;
        let failed =
            |source: io::Error| io::Error::new(source.kind(), cannot_listen(TRANSPORT, address, &source));
        let socket = bind_first(resolve(address).await.map_err(failed)?, os::tcp::listen).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        Ok(Self { socket, local, tls: options.tls.clone(), handshakes: Handshakes::default() })
    }

    pub(super) fn local_addr(&self) -> String {
        self.local.to_string()
    }

    pub(super) async fn accept(&mut self) -> Result<Session, AcceptError> {
        loop {
            let (stream, peer) = tokio::select! {
                accepted = self.socket.accept() => accepted
                    .map_err(|source| AcceptError::sort(format!("{TRANSPORT} {}", self.local), source))?,
                ended = self.handshakes.next() => return ended,
            };
            let peer = peer.to_string();
            match &self.tls {
                None => return Ok(session(stream, peer, Direction::Inbound)),
                Some(profile) => {
                    tune(&stream);
                    let (profile, local) = (profile.clone(), self.local);
                    self.handshakes.begin(async move {
                        let accepting = super::tls::accept(profile, stream, peer.clone());
                        let address = || format!("{} {local}", super::tls::TRANSPORT);
                        accepting.await.map_err(|source| AcceptError::Tls {
                            address: address(),
                            peer,
                            source,
                        })
                    });
                }
            }
        }
    }
}

/// Binds the first of a name's addresses, IPv4 before IPv6, that this host has. An address in use is
/// final: half the clients of a name would not find a listener on its other address.
pub(super) fn bind_first<T>(
    mut candidates: Vec<SocketAddr>,
    bind: impl Fn(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    candidates.sort_by_key(SocketAddr::is_ipv6);
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for candidate in candidates {
        match bind(candidate) {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => last = error,
            outcome => return outcome,
        }
    }
    Err(last)
}

/// What to tell the operator whose listener has not started.
pub(super) fn cannot_listen(transport: &str, address: &str, source: &io::Error) -> String {
    let advice = match source.kind() {
        io::ErrorKind::AddrInUse => {
            "; stop the program that holds the port (`ss -ltunp` names it) or choose another port"
        }
        io::ErrorKind::AddrNotAvailable => "; this host has no such address (`ip address` lists its own)",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need CAP_NET_BIND_SERVICE",
        _ => "",
    };
    format!("cannot listen on {transport} {address}: {source}{advice}")
}

pub(super) async fn dial(options: &TcpDialOptions) -> Result<Session, DialFailure> {
    let address = &options.address;
    let stream = match timeout(DIAL_LIMIT, connect(address)).await {
        Ok(connected) => connected?,
        Err(_elapsed) => return Err(DialFailure::TimedOut { address: address.clone(), limit: DIAL_LIMIT }),
    };
    match &options.tls {
        None => Ok(session(stream, address.clone(), Direction::Outbound)),
        Some(profile) => {
            tune(&stream);
            super::tls::connect(profile, stream, address).await
        }
    }
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

/// The addresses of `host:port`, at least one.
pub(super) async fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
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

/// Tries the addresses in turn, or gives the last error. Each gets an equal share of the time that is left,
/// so that one that swallows packets does not hide the others.
async fn first_that_answers(candidates: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::TimedOut.into();
    for (candidate, left) in candidates.iter().zip((1..=candidates.len() as u32).rev()) {
        let share = deadline.saturating_duration_since(Instant::now()) / left;
        match timeout(share, TcpStream::connect(candidate)).await {
            Ok(connected) => match connected.and_then(not_itself) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            },
            Err(_elapsed) => {}
        }
    }
    Err(last)
}

/// Who keeps dialing a free port of the same host gets that very port as its own one day, and TCP then
/// connects it to itself: a link to nobody that keeps the real listener from binding.
fn not_itself(stream: TcpStream) -> io::Result<TcpStream> {
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

fn session(stream: TcpStream, peer: String, direction: Direction) -> Session {
    tune(&stream);
    let (receiving, sending) = stream.into_split();
    let presence = Arc::new(());
    let writer = TcpWriter { frames: FrameWriter::new(sending), reader: Arc::downgrade(&presence) };
    let reader = TcpReader { frames: FrameReader::new(receiving), _presence: presence };
    Session {
        reader: Reader::Tcp(reader),
        writer: Writer::Tcp(writer),
        info: SessionInfo { transport: TRANSPORT, peer, direction, certified_nodes: None },
    }
}

/// Sets the socket's options. None of them is necessary for a session.
pub(super) fn tune(stream: &TcpStream) {
    os::tcp::tune(stream, &KEEPALIVE);
    if let Err(error) = SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_LIMIT) {
        debug!(%error, "failed to limit the unsent bytes of a TCP connection");
    }
}

/// The receiving half of a TCP session.
#[derive(Debug)]
pub struct TcpReader {
    frames: FrameReader<OwnedReadHalf>,
    /// Tells the writer whether somebody still reads.
    _presence: Arc<()>,
}

impl TcpReader {
    pub(super) async fn read_batch(&mut self, out: &mut Vec<BytesMut>) -> Result<(), SessionEnd> {
        self.frames.read_batch(out).await
    }
}

/// The sending half of a TCP session.
#[derive(Debug)]
pub struct TcpWriter {
    frames: FrameWriter<OwnedWriteHalf>,
    reader: Weak<()>,
}

impl TcpWriter {
    pub(super) async fn write_batch(&mut self, batch: &mut VecDeque<Bytes>) -> Result<(), SessionEnd> {
        self.frames.write_batch(batch).await
    }

    pub(super) fn unsent(&self) -> usize {
        self.frames.unsent()
    }

    pub(super) async fn close(mut self) {
        let closing = async {
            self.frames.finish().await?;
            // Closing a socket with unread bytes in it resets the connection, and the kernel then throws
            // away what it has not sent yet. So they are read, up to the peer's own end.
            while self.reader.strong_count() == 0 && self.discard().await? > 0 {}
            io::Result::Ok(())
        };
        match timeout(CLOSE_LIMIT, closing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, "the connection broke while it was closed"),
            Err(_elapsed) => debug!("the peer did not follow the close in time"),
        }
    }

    /// Reads and forgets what the peer sends; 0 at its end.
    async fn discard(&self) -> io::Result<usize> {
        let stream: &TcpStream = self.frames.io().as_ref();
        loop {
            stream.readable().await?;
            // Not kept across the wait: every session's task would be that much larger.
            match stream.try_read(&mut [0; 4096]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

#[cfg(test)]
mod tests;
