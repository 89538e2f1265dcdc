//! The address of a node as a new one dials it: over TCP, WebSocket or QUIC, always with TLS.
//!
//! Owns its text, which stands in tokens, records and command lines. It dials nobody.

use std::fmt;
use std::str::FromStr;

use super::record::address;
use crate::config::HostPort;

/// How an address is dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeTransport {
    /// TLS over TCP.
    Tcp,
    /// WebSocket over TLS.
    WebSocket,
    /// QUIC.
    Quic,
}

/// The address of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeAddress {
    /// How it is dialled.
    pub(crate) transport: NodeTransport,
    /// Where it listens.
    pub(crate) at: HostPort,
    /// The path of a WebSocket, with its slash; else empty.
    pub(crate) path: String,
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transport, at, path } = self;
        let scheme = match transport {
            NodeTransport::Tcp => "",
            NodeTransport::WebSocket => "wss://",
            NodeTransport::Quic => "quic://",
        };
        write!(f, "{scheme}{at}{path}")
    }
}

impl FromStr for NodeAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (transport, rest) = match text.split_once("://") {
            None => (NodeTransport::Tcp, text),
            Some(("wss", rest)) => (NodeTransport::WebSocket, rest),
            Some(("quic", rest)) => (NodeTransport::Quic, rest),
            Some((other, _)) => {
                return Err(format!(
                    "{other:?} is none of the ways to a node: write HOST:PORT, wss:// or quic://"
                ));
            }
        };
        let (place, path) = match (rest.find('/'), transport) {
            (Some(at), NodeTransport::WebSocket) => rest.split_at(at),
            (None, NodeTransport::WebSocket) => (rest, "/"),
            (_, NodeTransport::Tcp | NodeTransport::Quic) => (rest, ""),
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/.-_".contains(&byte);
        if !path.bytes().all(is_plain) {
            return Err(format!("{path:?} is not a path: use letters, digits and /.-_"));
        }
        let mut at = address(place)?;
        // As in a browser, because such a listener is reached where other ports are not.
        if transport == NodeTransport::WebSocket
            && address(&format!("{place}:1")).is_ok_and(|other| other.host == at.host)
        {
            at.port = 443;
        }
        Ok(Self { transport, at, path: path.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["h:1", "wss://h.example.org:443/a/b", "quic://192.0.2.1:27199", "[2001:db8::1]:1"] {
            assert_eq!(text.parse::<NodeAddress>().unwrap().to_string(), text);
        }
        assert_eq!("h".parse::<NodeAddress>().unwrap().to_string(), "h:27199");
        assert_eq!("wss://h/a".parse::<NodeAddress>().unwrap().to_string(), "wss://h:443/a");
        assert_eq!("wss://h:1".parse::<NodeAddress>().unwrap().to_string(), "wss://h:1/");
        for text in ["http://h:1", "wss://h:1/a?b", "h:0", "", "quic://h/x"] {
            text.parse::<NodeAddress>().unwrap_err();
        }
    }
}
