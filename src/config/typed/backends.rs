//! Links to neighbours: listeners and peers over TCP, UDP, WebSocket and QUIC.
//!
//! Owns their settings and the terms that all of them share. It refuses to know sockets: addresses are
//! checked for their form and not looked up.

use std::collections::{BTreeMap, BTreeSet};

use super::super::address::{ANY, HostPort, WsUrl, bind_host};
use super::super::fields::Fields;
use crate::wire::{Cost, NodeId};

/// On what terms a listener accepts neighbours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenTerms {
    /// The cost of each link.
    pub cost: Cost,
    /// Other costs for single neighbours.
    pub node_costs: BTreeMap<NodeId, Cost>,
    /// Who may connect; empty for everybody.
    pub allowed_peers: BTreeSet<NodeId>,
}

/// On what terms a neighbour is dialled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialTerms {
    /// True to connect again after a loss.
    pub redial: bool,
    /// The cost of the link.
    pub cost: Cost,
    /// Who may answer; empty for everybody.
    pub allowed_peers: BTreeSet<NodeId>,
}

/// The directive `tcp-listener`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpListener {
    /// Where to listen.
    pub bind: HostPort,
    /// Name of a `tls-server`.
    pub tls: Option<String>,
    /// On what terms.
    pub terms: ListenTerms,
}

/// The directive `tcp-peer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpPeer {
    /// Where to connect to.
    pub address: HostPort,
    /// Name of a `tls-client`.
    pub tls: Option<String>,
    /// On what terms.
    pub terms: DialTerms,
}

/// The directive `udp-listener`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpListener {
    /// Where to listen.
    pub bind: HostPort,
    /// On what terms.
    pub terms: ListenTerms,
}

/// The directive `udp-peer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpPeer {
    /// Where to send to.
    pub address: HostPort,
    /// On what terms.
    pub terms: DialTerms,
}

/// The directive `ws-listener`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WsListener {
    /// Where to listen.
    pub bind: HostPort,
    /// The WebSocket's path on the HTTP server, beginning with a slash.
    pub path: String,
    /// Name of a `tls-server`.
    pub tls: Option<String>,
    /// On what terms.
    pub terms: ListenTerms,
}

/// The directive `ws-peer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WsPeer {
    /// Where to connect to.
    pub address: WsUrl,
    /// A header to add to the request: name and value.
    pub extra_header: Option<(String, String)>,
    /// Name of a `tls-client`.
    pub tls: Option<String>,
    /// On what terms.
    pub terms: DialTerms,
}

/// The directive `quic-listener`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuicListener {
    /// Where to listen.
    pub bind: HostPort,
    /// Name of a `tls-server`.
    pub tls: String,
    /// On what terms.
    pub terms: ListenTerms,
}

/// The directive `quic-peer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuicPeer {
    /// Where to connect to.
    pub address: HostPort,
    /// Name of a `tls-client`.
    pub tls: String,
    /// On what terms.
    pub terms: DialTerms,
}

/// A link of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// `tcp-listener`
    TcpListener(TcpListener),
    /// `tcp-peer`
    TcpPeer(TcpPeer),
    /// `udp-listener`
    UdpListener(UdpListener),
    /// `udp-peer`
    UdpPeer(UdpPeer),
    /// `ws-listener`
    WsListener(WsListener),
    /// `ws-peer`
    WsPeer(WsPeer),
    /// `quic-listener`
    QuicListener(QuicListener),
    /// `quic-peer`
    QuicPeer(QuicPeer),
}

pub(super) fn tcp_listener(fields: &mut Fields<'_>) -> Option<TcpListener> {
    let bind = bind(fields);
    let terms = listen_terms(fields);
    Some(TcpListener { bind: bind?, tls: fields.string("tls"), terms: terms? })
}

pub(super) fn tcp_peer(fields: &mut Fields<'_>) -> Option<TcpPeer> {
    let address = fields.must_parse("address", HostPort::to_dial);
    let terms = dial_terms(fields);
    Some(TcpPeer { address: address?, tls: fields.string("tls"), terms: terms? })
}

pub(super) fn udp_listener(fields: &mut Fields<'_>) -> Option<UdpListener> {
    let bind = bind(fields);
    let terms = listen_terms(fields);
    Some(UdpListener { bind: bind?, terms: terms? })
}

pub(super) fn udp_peer(fields: &mut Fields<'_>) -> Option<UdpPeer> {
    let address = fields.must_parse("address", HostPort::to_dial);
    let terms = dial_terms(fields);
    Some(UdpPeer { address: address?, terms: terms? })
}

pub(super) fn ws_listener(fields: &mut Fields<'_>) -> Option<WsListener> {
    let bind = bind(fields);
    let path = fields.parse("path", ws_path);
    let terms = listen_terms(fields);
    let path = path?.unwrap_or_else(|| "/".to_owned());
    Some(WsListener { bind: bind?, path, tls: fields.string("tls"), terms: terms? })
}

pub(super) fn ws_peer(fields: &mut Fields<'_>) -> Option<WsPeer> {
    let tls = fields.string("tls");
    let address = fields.must_parse("address", |text| WsUrl::parse(text, tls.is_some()));
    let extra_header = fields.parse("extraheader", header);
    let terms = dial_terms(fields);
    Some(WsPeer { address: address?, extra_header: extra_header?, tls, terms: terms? })
}

pub(super) fn quic_listener(fields: &mut Fields<'_>) -> Option<QuicListener> {
    let bind = bind(fields);
    let tls = fields.must("tls");
    let terms = listen_terms(fields);
    Some(QuicListener { bind: bind?, tls: tls?, terms: terms? })
}

pub(super) fn quic_peer(fields: &mut Fields<'_>) -> Option<QuicPeer> {
    let address = fields.must_parse("address", HostPort::to_dial);
    let tls = fields.must("tls");
    let terms = dial_terms(fields);
    Some(QuicPeer { address: address?, tls: tls?, terms: terms? })
}

/// Where to listen: `bindaddr`, which is all addresses if it is empty, and `port`.
pub(super) fn bind(fields: &mut Fields<'_>) -> Option<HostPort> {
    let host = fields.parse("bindaddr", bind_host);
    let port = fields.port("port");
    Some(HostPort { host: host?.unwrap_or_else(|| ANY.to_owned()), port: port? })
}

fn ws_path(text: &str) -> Result<String, &'static str> {
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

fn listen_terms(fields: &mut Fields<'_>) -> Option<ListenTerms> {
    let cost = cost(fields);
    let node_costs = node_costs(fields);
    let allowed_peers = allowed_peers(fields);
    Some(ListenTerms { cost: cost?, node_costs: node_costs?, allowed_peers: allowed_peers? })
}

fn dial_terms(fields: &mut Fields<'_>) -> Option<DialTerms> {
    let cost = cost(fields);
    let allowed_peers = allowed_peers(fields);
    Some(DialTerms { redial: fields.flag("redial"), cost: cost?, allowed_peers: allowed_peers? })
}

fn cost(fields: &mut Fields<'_>) -> Option<Cost> {
    let number = fields.float("cost")?;
    let cost = Cost::new(number).map_err(|_| "a cost is a number above zero");
    cost.map_err(|reason| fields.refuse("cost", number.to_string(), reason)).ok()
}

fn node_costs(fields: &mut Fields<'_>) -> Option<BTreeMap<NodeId, Cost>> {
    let given: Vec<_> = fields.costs("nodecost").collect();
    let entry = |(node, number): &(&str, f64)| {
        let result = NodeId::new(node).map_err(|error| error.to_string()).and_then(|node| {
            let cost =
                Cost::new(*number).map_err(|_| format!("a cost is a number above zero, not {number}"))?;
            Ok((node, cost))
        });
        fields.entry("nodecost", node, result)
    };
    let costs: BTreeMap<_, _> = given.iter().filter_map(entry).collect();
    (costs.len() == given.len()).then_some(costs)
}

fn allowed_peers(fields: &mut Fields<'_>) -> Option<BTreeSet<NodeId>> {
    fields.each("allowedpeers", str::parse::<NodeId>).map(BTreeSet::from_iter)
}
