//! Links to neighbours: listeners and peers over TCP, UDP, WebSocket and QUIC.
//!
//! Owns their declarations. It refuses to know sockets: it checks the form of addresses, and looks none up.

use super::super::address::WsUrl;
use super::super::components::SoleResource;
use super::super::declare::{DirectiveReader, directive};
use super::super::parameters::{
    DialPolicy, ListenPolicy, PeerAddress, TcpBind, TlsClientName, TlsServerName, UdpBind, grammar, parsed,
};
use super::super::value::Located;
use crate::congestion::Congestion;

directive! {
    /// Accepts neighbours over TCP
    "tcp-listener" in Backends;
    struct TcpListener {
        /// TCP port to listen on
        bind "port": TcpBind [required, bare],
        /// tls-server profile
        tls: Option<TlsServerName>,
        /// congestion control: bbr, or cubic; the kernel's if not given
        congestion: Option<Congestion>,
        /// what holds for its links
        policy: ListenPolicy,
    }
}

directive! {
    /// Connects to a neighbour over TCP
    "tcp-peer" in Backends;
    struct TcpPeer {
        /// host:port to connect to
        address: PeerAddress [required, bare],
        /// connect again after a loss
        redial: bool = "true",
        /// tls-client profile
        tls: Option<TlsClientName>,
        /// congestion control: bbr, or cubic; the kernel's if not given
        congestion: Option<Congestion>,
        /// what holds for the link
        policy: DialPolicy,
    }
}

directive! {
    /// Accepts neighbours over UDP
    "udp-listener" in Backends;
    struct UdpListener {
        /// UDP port to listen on
        bind "port": UdpBind [required, bare],
        /// what holds for its links
        policy: ListenPolicy,
    }
}

directive! {
    /// Connects to a neighbour over UDP
    "udp-peer" in Backends;
    struct UdpPeer {
        /// host:port to connect to
        address: PeerAddress [required, bare],
        /// connect again after a loss
        redial: bool = "true",
        /// what holds for the link
        policy: DialPolicy,
    }
}

directive! {
    /// Accepts neighbours over WebSocket
    "ws-listener" in Backends;
    struct WebSocketListener {
        /// TCP port of the HTTP server
        bind "port": TcpBind [required, bare],
        /// path of the WebSocket on that server
        path: UrlPath [empty_is_default] = "/",
        /// tls-server profile
        tls: Option<TlsServerName>,
        /// what holds for its links
        policy: ListenPolicy,
    }
}

directive! {
    /// Connects to a neighbour over WebSocket
    "ws-peer" in Backends;
    struct WebSocketPeer {
        /// URL to connect to, ws:// or wss://
        address: WsUrl [required, bare],
        /// connect again after a loss
        redial: bool = "true",
        /// a further HTTP header, name:value
        extra_header "extraheader": Option<HeaderField>,
        /// tls-client profile
        tls: Option<TlsClientName>,
        /// what holds for the link
        policy: DialPolicy,
    }
}

directive! {
    /// Accepts neighbours over QUIC
    "quic-listener" in Backends;
    struct QuicListener {
        /// UDP port to listen on
        bind "port": UdpBind [required, bare],
        /// tls-server profile
        tls: TlsServerName [required],
        /// congestion control: bbr, or cubic
        congestion: Congestion = "bbr",
        /// what holds for its links
        policy: ListenPolicy,
    }
}

directive! {
    /// Connects to a neighbour over QUIC
    "quic-peer" in Backends;
    struct QuicPeer {
        /// host:port to connect to
        address: PeerAddress [required, bare],
        /// connect again after a loss
        redial: bool = "true",
        /// tls-client profile
        tls: TlsClientName [required],
        /// congestion control: bbr, or cubic
        congestion: Congestion = "bbr",
        /// what holds for the link
        policy: DialPolicy,
    }
}

grammar! {
    impl Congestion => Congestion =
        Text parsed(|text| Congestion::named(text).ok_or("a congestion control is bbr or cubic"));
}

grammar! {
    /// The path of a WebSocket, beginning with a slash.
    struct UrlPath => String = Text parsed(url_path);
    /// A header to add to a request: name and value.
    struct HeaderField => (String, String) = Text parsed(header);
}

grammar! {
    impl WsUrl => WsUrl = Text ws_url, describe |url, facts| {
        facts.label(url);
        facts.claims.push(SoleResource::Neighbour);
    };
}

/// The URL of a neighbour. Without a scheme, a TLS profile means `wss`.
fn ws_url(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<WsUrl> {
    let has_tls = reader.is_given("tls");
    reader.parse(given?.name(), |text| WsUrl::parse(text, has_tls))
}

fn url_path(text: &str) -> Result<String, &'static str> {
    let fits = text.starts_with('/') && !text.chars().any(|c| c.is_whitespace() || c.is_control());
    if fits { Ok(text.to_owned()) } else { Err("a path begins with a slash and holds no blanks") }
}

fn header(text: &str) -> Result<(String, String), &'static str> {
    const WANTED: &str = "a header is name:value";
    let (name, value) = text.split_once(':').ok_or(WANTED)?;
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) || value.chars().any(char::is_control) {
        return Err(WANTED);
    }
    Ok((name.to_owned(), value.trim().to_owned()))
}
