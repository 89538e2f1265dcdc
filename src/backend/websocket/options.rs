//! The options of a WebSocket listener and of a dialer: addresses, paths, headers, TLS and the proxy. It refuses to
//! know connections.

use super::proxy::Proxy;
use crate::backend::tcp::join;
use crate::tls::{ClientProfile, ServerProfile};

/// A port to listen on for WebSockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WsListenOptions {
    /// `host:port`; an IPv6 address is in brackets, and with port 0 the system chooses.
    pub bind: String,
    /// The path to serve; a path that ends with a slash stands for all below it.
    pub path: String,
    /// How to speak TLS; plain `ws` if `None`.
    pub tls: Option<ServerProfile>,
}

impl WsListenOptions {
    /// Joins host and port; a bare IPv6 address gets its brackets.
    pub fn new(host: &str, port: u16, path: &str, tls: Option<ServerProfile>) -> Self {
        Self { bind: join(host, port), path: path.to_owned(), tls }
    }

    pub(in crate::backend) fn transport(&self) -> &'static str {
        transport(self.tls.is_some())
    }
}

/// A WebSocket server to dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WsDialOptions {
    /// A host name or IP address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Path and query, beginning with a slash.
    pub path: String,
    /// A further header of the request: name and value.
    pub extra_header: Option<(String, String)>,
    /// How to speak TLS; plain `ws` if `None`.
    pub tls: Option<ClientProfile>,
    /// The proxy to go through.
    pub proxy: Option<Proxy>,
}

impl WsDialOptions {
    pub(in crate::backend) fn transport(&self) -> &'static str {
        transport(self.tls.is_some())
    }

    /// The `host:port` to connect to.
    pub fn address(&self) -> String {
        join(&self.host, self.port)
    }
}

/// The transport's name, which is also the scheme of its URLs.
pub(super) fn transport(secure: bool) -> &'static str {
    if secure { "wss" } else { "ws" }
}
