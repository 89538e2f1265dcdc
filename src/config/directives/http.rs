//! What a node serves over HTTP.
//!
//! Owns the declaration, and the rule which addresses need TLS and a token. It refuses to open files.

use std::path::PathBuf;

use super::super::address::HostPort;
use super::super::declare::directive;
use super::super::parameters::{HttpAddress, TlsServerName};

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
