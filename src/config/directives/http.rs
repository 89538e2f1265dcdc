//! What a node serves over HTTP.
//!
//! Owns the declarations, and the rules about which addresses need TLS and tokens. It refuses to open files.

use std::path::PathBuf;

use http::Uri;

use super::super::address::HostPort;
use super::super::components::SoleResource;
use super::super::declare::directive;
use super::super::parameters::{HttpAddress, TlsClientName, TlsServerName, grammar, number, parsed};
use crate::tls::AccessLevel;

directive! {
    /// Serves metrics and health over HTTP
    "metrics" in Services [singleton];
    struct Metrics {
        /// host:port to listen on
        address: HttpAddress = "127.0.0.1:27190",
        /// tls-server profile
        tls: Option<TlsServerName>,
        /// file of the token for /metrics, mode 0600
        token_file "tokenfile": Option<PathBuf>,
        /// names that clients use, beside addresses
        hosts: Vec<WebHost>,
    }
    check open_to_others(address, tls, token_file);
}

fn open_to_others<A, B>(address: &HostPort, tls: &Option<A>, token: &Option<B>) -> Option<&'static str> {
    let needs = !address.is_loopback() && (tls.is_none() || token.is_none());
    needs.then_some(
        "other hosts reach this address, and would read the names of neighbours, groups and work types: give `tls` and \
         `tokenfile`, or listen on 127.0.0.1",
    )
}

grammar! {
    impl AccessLevel => AccessLevel = Text parsed(str::parse::<AccessLevel>);
}

grammar! {
    /// What a browser calls a server: a name or an address, and a port if only that one is meant.
    struct WebHost => String = Text parsed(host_name);
}

directive! {
    /// Serves the page and its API over HTTP
    "web" in Services [singleton];
    struct WebDirective {
        /// host:port to listen on
        address: HttpAddress = "127.0.0.1:27191",
        /// tls-server profile
        tls: Option<TlsServerName>,
        /// of certificates: none, read, operate, admin
        client_level "clientlevel": AccessLevel = "none",
        /// common names that have it; all but nodes if not given
        client_names "clientnames": Vec<String>,
        /// file of tokens; without it, /etc/meshd/web.tokens
        tokens: Option<PathBuf>,
        /// highest level: read, operate, admin
        allow: AccessLevel = "read",
        /// names that clients use; those of its address if not given
        hosts: Vec<WebHost>,
    }
    check web_to_others(address, tls, client_level, tokens);
    check certificates_without_tls(tls, client_level);
    check nothing_allowed(allow);
    warn nodes_left_out(client_level, client_names);
}

directive! {
    /// Sends events and the controller's audit to a receiver
    "events-sink" in Services [singleton];
    struct EventsSink {
        /// URL: tcp, tcp+tls, http or https
        address: SinkAddress [required],
        /// tls-client profile
        tls: Option<TlsClientName>,
        /// file of the token for HTTP, mode 0600
        token_file "tokenfile": Option<PathBuf>,
        /// most bytes that wait on disk
        buffer: SinkBytes = "67108864",
        /// events, audit; both if not given
        what: Vec<SinkWord>,
    }
    check sink_contradicts(address, tls, token_file);
    warn sink_in_the_clear(address, tls);
}

grammar! {
    /// Where a receiver is. There is one buffer, so the former sink ends before the next begins.
    struct SinkAddress => Uri = Text parsed(sink_address), describe |address, facts| {
        facts.label(address);
        facts.claims.push(SoleResource::File("events-sink".into()));
    };
    /// The bytes that may wait: some segments of a MiB.
    struct SinkBytes => u64 = Int number(4 << 20.., "the buffer needs at least 4194304 bytes");
    /// What is sent.
    struct SinkWord => String = Text parsed(|text: &str| match text {
        "events" | "audit" => Ok(text.to_owned()),
        _ => Err("it is events or audit"),
    });
}

fn sink_address(text: &str) -> Result<Uri, &'static str> {
    let uri: Option<Uri> = text.parse().ok();
    let uri = uri.filter(|uri| !uri.authority().is_some_and(|authority| authority.as_str().contains('@')));
    let Some(uri) = uri.filter(|uri| uri.host().is_some_and(|host| !host.is_empty())) else {
        return Err(SINK);
    };
    match (uri.scheme_str(), uri.port_u16(), uri.path()) {
        (Some("tcp" | "tcp+tls"), Some(_), "" | "/") | (Some("http" | "https"), _, _) => Ok(uri),
        _ => Err(SINK),
    }
}

const SINK: &str = "write tcp+tls://HOST:PORT, https://HOST/PATH, tcp://HOST:PORT or http://HOST/PATH";

fn sink_contradicts<A, B>(address: &Uri, tls: &Option<A>, token: &Option<B>) -> Option<&'static str> {
    let scheme = address.scheme_str().unwrap_or_default();
    let is_secured = ["tcp+tls", "https"].contains(&scheme);
    match (is_secured, tls.is_some()) {
        (true, false) => Some("this address needs `tls`, the name of a tls-client"),
        (false, true) => Some("`tls` goes with tcp+tls:// and https://"),
        _ => (token.is_some() && !scheme.starts_with("http")).then_some("`tokenfile` goes with HTTP"),
    }
}

fn sink_in_the_clear<A>(address: &Uri, tls: &Option<A>) -> Option<&'static str> {
    let host = address.host().unwrap_or_default();
    let is_here = HostPort { host: host.trim_matches(['[', ']']).to_owned(), port: 0 }.is_loopback();
    (tls.is_none() && !is_here).then_some(
        "names of nodes, jobs and users cross the network in the clear, for whoever is there to read and change: use \
         tcp+tls:// or https:// with `tls`",
    )
}

fn host_name(text: &str) -> Result<String, &'static str> {
    const WANTED: &str =
        "write a name or an address as clients do, such as mesh.example.org, [2001:db8::1] or 192.0.2.7:443";
    let is_host = |letter: u8| letter.is_ascii_alphanumeric() || b".-_:[]".contains(&letter);
    if text.bytes().all(is_host) { Ok(text.to_ascii_lowercase()) } else { Err(WANTED) }
}

fn web_to_others<A, B>(
    address: &HostPort,
    tls: &Option<A>,
    client_level: &AccessLevel,
    tokens: &Option<B>,
) -> Option<&'static str> {
    let is_guarded = tls.is_some() && (tokens.is_some() || *client_level != AccessLevel::None);
    (!address.is_loopback() && !is_guarded).then_some(
        "other hosts reach this address: give `tls`, and `tokens` or a `clientlevel` for client certificates, or listen on \
         127.0.0.1",
    )
}

fn certificates_without_tls<A>(tls: &Option<A>, client_level: &AccessLevel) -> Option<&'static str> {
    (tls.is_none() && *client_level != AccessLevel::None).then_some(
        "`clientlevel` is for clients that show a certificate: give `tls`, a profile with `clientcas`",
    )
}

fn nodes_left_out(client_level: &AccessLevel, names: &[String]) -> Option<&'static str> {
    (*client_level != AccessLevel::None && names.is_empty()).then_some(
        "`clientlevel` would apply to every certificate that `clientcas` has signed and that names no node: name \
         whose it is, as in `clientnames: [alice]`",
    )
}

fn nothing_allowed(allow: &AccessLevel) -> Option<&'static str> {
    (*allow == AccessLevel::None)
        .then_some("`allow` is read, operate or admin: leave the directive out to allow nothing")
}
