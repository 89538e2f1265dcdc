//! Sessions over QUIC connections between two nodes of this project.
//!
//! It owns endpoints, handshakes and the settings of a connection; `half` puts packets on streams. The room `tls`
//! owns certificates. This QUIC lies below the mesh: the streams of services lie above it and belong to another
//! room.

pub(super) mod half;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, IdleTimeout, Incoming, MtuDiscoveryConfig,
    ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::sync::mpsc;
use tokio::time::timeout;

use self::half::{LANES, LARGEST_RECEIVE_WINDOW, RECEIVE_WINDOW, halves};
use super::listener::{self, Accepted, Listener};
use super::session::{TransportReader, TransportWriter};
use super::tcp::{insist, join};
use super::udp::enlarge_buffers;
use super::{AcceptError, DIAL_LIMIT, DialFailure, Direction, Session, SessionInfo};
use crate::congestion::Congestion;
use crate::os::address::{self, resolve};
use crate::tls::{
    ClientProfile, Expected, Guard, HandshakeError, HandshakeVerdict, Handshakes, ServerProfile,
};

const TRANSPORT: &str = "quic";

/// Tells the other side that this is a link of the mesh, and its version.
const ALPN: &[u8] = b"meshd-link/1";

/// How long a handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// How long one address has to answer: a host that is up but does not listen sends nothing that QUIC notices.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// How long a bind waits for an address in use. Connections that were just closed keep it for some round trips, in
/// case their last packets have to be repeated.
const REBIND_LIMIT: Duration = Duration::from_secs(3);

/// A dead host is noticed after this time, even if no layer above sends anything.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// How often an idle connection sends: it keeps the way through firewalls open, and soon notices a changed address.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The largest packet tried on a path, in bytes: on one host or with Ethernet jumbo frames, larger packets mean
/// less work for the same data. The kernel sends up to ten with one call, and no more than 64 KiB.
const LARGEST_PACKET: u16 = 6_000;

/// Bytes that may be in flight on a path of which nothing is known yet (RFC 9002, section 7.2).
const IN_FLIGHT: u64 = 14_720;
/// The round trip assumed before one was measured. With QUIC's own guess, a lost first packet would be repeated
/// after a second, and then after two more.
const INITIAL_RTT: Duration = Duration::from_millis(150);

/// A UDP port to listen on for QUIC connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuicListenOptions {
    /// `host:port`; an IPv6 address is in brackets, and with port 0 the system chooses.
    pub bind: String,
    /// Our certificate, and the certificates that we accept.
    pub tls: ServerProfile,
    /// The congestion control, which decides how much may be in flight.
    pub congestion: Congestion,
}

impl QuicListenOptions {
    /// Joins host and port; a bare IPv6 address gets its brackets.
    pub fn new(host: &str, port: u16, tls: ServerProfile) -> Self {
        Self { bind: join(host, port), tls, congestion: Congestion::default() }
    }
}

/// A neighbour to dial over QUIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuicDialOptions {
    /// `host:port`; an IPv6 address is in brackets.
    pub address: String,
    /// Our certificate, and the certificates that we accept. The server's certificate must name the host dialled.
    pub tls: ClientProfile,
    /// The congestion control, which decides how much may be in flight.
    pub congestion: Congestion,
}

impl QuicDialOptions {
    /// The neighbour at `host:port`.
    pub fn new(address: String, tls: ClientProfile) -> Self {
        Self { address, tls, congestion: Congestion::default() }
    }
}

pub(super) async fn listen(options: &QuicListenOptions) -> io::Result<Listener> {
    let endpoint = listener::bind(TRANSPORT, &options.bind, REBIND_LIMIT, |address| {
        let endpoint = endpoint(address::udp(address)?)?;
        // This configuration only shows whether the profile can be used at all; each handshake makes its own.
        endpoint.set_server_config(Some(server_config(&options.tls, options.congestion)?.0));
        Ok(endpoint)
    });
    let endpoint = endpoint.await?;
    let (local, options) = (endpoint.local_addr()?, options.clone());
    Ok(Listener::serve(TRANSPORT, local, |name, sessions| serve(endpoint, options, name, sessions)))
}

async fn serve(
    endpoint: Endpoint,
    options: QuicListenOptions,
    name: String,
    sessions: mpsc::Sender<Accepted>,
) {
    let mut handshakes = Handshakes::default();
    loop {
        let incoming = tokio::select! {
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => incoming,
                None => return,
            },
            ended = handshakes.next() => {
                if sessions.send(ended).await.is_err() {
                    return;
                }
                continue;
            }
        };
        if handshakes.are_suspicious() && !incoming.remote_address_validated() {
            // `retry` fails only for an address that was validated before, and this one was not.
            let _validating = incoming.retry();
        } else {
            let (options, address) = (options.clone(), name.clone());
            handshakes.begin(async move {
                let peer = address::plain(incoming.remote_address()).to_string();
                let shaken = shake_hands(incoming, &options).await;
                shaken.map_err(|source| AcceptError::Tls { address, peer, source })
            });
        }
    }
}

/// Does the server's side of a handshake, with settings of its own because the profile's files may have changed.
async fn shake_hands(incoming: Incoming, options: &QuicListenOptions) -> Result<Session, HandshakeError> {
    let profile = &options.tls;
    let failed = |reason: String| HandshakeError::Failed { profile: profile.name().to_owned(), reason };
    let (config, verdict) =
        server_config(profile, options.congestion).map_err(|error| failed(error.to_string()))?;
    let connecting = incoming.accept_with(Arc::new(config)).map_err(|error| failed(error.to_string()))?;
    let connection = match timeout(HANDSHAKE_LIMIT, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return Err(explain(profile.name(), &error, &verdict)),
        Err(_elapsed) => return Err(failed("the handshake takes too long".to_owned())),
    };
    let chain = peer_chain(&connection);
    let certified_nodes = profile.certified_nodes(&chain);
    let guard = profile.admit(chain, profile.expected_neighbour());
    let peer = address::plain(connection.remote_address()).to_string();
    let (direction, is_newcomer) = (Direction::Inbound, verdict.is_newcomer());
    let info = SessionInfo { transport: TRANSPORT, peer, direction, certified_nodes, is_newcomer };
    Ok(session(connection, guard, info))
}

/// Why a handshake failed. The verdict on the certificate, if there is one, explains it best.
fn explain(profile: &str, error: &dyn std::error::Error, verdict: &HandshakeVerdict) -> HandshakeError {
    let profile = profile.to_owned();
    match verdict.rejection() {
        Some(rejection) => HandshakeError::Rejected { profile, rejection: Box::new(rejection.clone()) },
        None => HandshakeError::Failed { profile, reason: error.to_string() },
    }
}

pub(super) async fn dial(options: &QuicDialOptions) -> Result<Session, DialFailure> {
    match timeout(DIAL_LIMIT, connect(options)).await {
        Ok(connected) => connected,
        Err(_elapsed) => Err(DialFailure::TimedOut { address: options.address.clone(), limit: DIAL_LIMIT }),
    }
}

async fn connect(options: &QuicDialOptions) -> Result<Session, DialFailure> {
    let QuicDialOptions { address, tls, congestion } = options;
    let failed = |source: io::Error| DialFailure::Connect { address: address.clone(), source };
    let candidates =
        resolve(address).await.map_err(|source| DialFailure::Resolve { address: address.clone(), source })?;
    let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host).trim_matches(['[', ']']);
    let name = ServerName::try_from(host.to_owned()).map_err(|_| {
        failed(io::Error::other(format!("{host:?} is not a host name that a certificate could hold")))
    })?;
    let expected = Expected::Host(name);
    let (config, verdict) = client_config(tls, expected.clone(), *congestion).map_err(failed)?;
    let left = u32::try_from(candidates.len()).unwrap_or(1).max(1);
    let mut last = DialFailure::TimedOut { address: address.clone(), limit: ANSWER_LIMIT };
    for candidate in candidates {
        // Each address gets an equal share of the time, so that one that swallows packets does not hide the others.
        match insist(ANSWER_LIMIT.min(DIAL_LIMIT / left), || connect_to(candidate, host, &config)).await {
            Some(Ok(connection)) => return Ok(dialed(connection, tls, expected, address)),
            Some(Err(error)) if verdict.rejection().is_some() => {
                let source = explain(tls.name(), &error, &verdict);
                return Err(DialFailure::Tls { address: address.clone(), source });
            }
            Some(Err(error)) => last = failed(error),
            None => {}
        }
    }
    Err(last)
}

async fn connect_to(peer: SocketAddr, host: &str, config: &ClientConfig) -> io::Result<Connection> {
    let any = match peer {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    // Not bound to one address of this host, so that the connection goes on when that address changes.
    let endpoint = endpoint(std::net::UdpSocket::bind(any)?)?;
    let connecting = endpoint.connect_with(config.clone(), peer, host).map_err(io::Error::other)?;
    connecting.await.map_err(io::Error::from)
}

fn dialed(connection: Connection, tls: &ClientProfile, expected: Expected, address: &str) -> Session {
    let chain = peer_chain(&connection);
    let certified_nodes = tls.certified_nodes(&chain);
    let guard: Guard = tls.admit(chain, expected);
    let peer = address.to_owned();
    let (direction, is_newcomer) = (Direction::Outbound, false);
    let info = SessionInfo { transport: TRANSPORT, peer, direction, certified_nodes, is_newcomer };
    session(connection, guard, info)
}

fn session(connection: Connection, guard: Guard, info: SessionInfo) -> Session {
    let (reader, writer) = halves(connection, guard);
    Session::new(TransportReader::Quic(reader), TransportWriter::Quic(Box::new(writer)), info)
}

/// The certificate chain that the other side has shown.
fn peer_chain(connection: &Connection) -> Vec<CertificateDer<'static>> {
    let identity = connection.peer_identity();
    identity.and_then(|any| any.downcast().ok()).map_or_else(Vec::new, |chain| *chain)
}

fn server_config(
    profile: &ServerProfile,
    congestion: Congestion,
) -> io::Result<(ServerConfig, HandshakeVerdict)> {
    let (tls, verdict) = profile.quic_neighbour_config(ALPN).map_err(io::Error::other)?;
    let tls = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
    let mut config = ServerConfig::with_crypto(Arc::new(tls));
    config.transport_config(transport(congestion)).migration(true);
    Ok((config, verdict))
}

fn client_config(
    profile: &ClientProfile,
    expected: Expected,
    congestion: Congestion,
) -> io::Result<(ClientConfig, HandshakeVerdict)> {
    let (tls, verdict) = profile.quic_config(expected, ALPN).map_err(io::Error::other)?;
    let tls = QuicClientConfig::try_from(tls).map_err(io::Error::other)?;
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(transport(congestion));
    Ok((config, verdict))
}

fn endpoint(socket: std::net::UdpSocket) -> io::Result<Endpoint> {
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(LARGEST_PACKET).map_err(io::Error::other)?;
    // QUIC takes a full kernel buffer for a sign of a full network, and slows down.
    enlarge_buffers(&socket);
    Endpoint::new(config, None, socket, Arc::new(TokioRuntime))
}

/// The transport settings, which are the same on both sides.
fn transport(congestion: Congestion) -> Arc<TransportConfig> {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(LARGEST_PACKET);
    let mut config = TransportConfig::default();
    config
        .mtu_discovery_config(Some(discovery))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(LANES as u32))
        .max_idle_timeout(Some(idle_limit()))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .initial_rtt(INITIAL_RTT)
        .stream_receive_window(VarInt::from_u32(LARGEST_RECEIVE_WINDOW))
        .receive_window(VarInt::from_u32(RECEIVE_WINDOW))
        .datagram_receive_buffer_size(None)
        .congestion_controller_factory(congestion.factory(IN_FLIGHT));
    Arc::new(config)
}

fn idle_limit() -> IdleTimeout {
    const MILLIS: u32 = IDLE_LIMIT.as_millis() as u32;
    IdleTimeout::from(VarInt::from_u32(MILLIS))
}

#[cfg(test)]
pub(super) mod tests;
