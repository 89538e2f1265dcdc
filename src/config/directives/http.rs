//! What a node serves over HTTP.
//!
//! Owns the declarations, and the rules about which addresses need TLS and tokens. It refuses to open files.

use std::path::PathBuf;

use super::super::address::HostPort;
use super::super::declare::directive;
use super::super::parameters::{HttpAddress, TlsServerName, grammar, parsed};
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
