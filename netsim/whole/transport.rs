//! The transports of links, as neighbours configure them.

use std::net::Ipv4Addr;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;

/// A kind of link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    WebSocket,
    Udp,
}

impl Transport {
    pub(super) fn choose(rng: &mut SmallRng) -> Self {
        *[Self::Tcp, Self::Tcp, Self::WebSocket, Self::Udp].choose(rng).unwrap()
    }

    /// The listeners of a node that is dialled; only TCP if it uses certificates.
    pub(super) fn listeners(is_secured: bool) -> String {
        let tcp = format!("- tcp-listener: {{port: 7000{}}}\n", tls(is_secured));
        let others = "- ws-listener: {port: 7001}\n- udp-listener: {port: 7002}\n";
        if is_secured { tcp } else { tcp + others }
    }

    /// The peer of a node that dials this host.
    pub(super) fn peer(self, host: Ipv4Addr, is_secured: bool) -> String {
        match self {
            Self::Tcp => format!("- tcp-peer: {{address: '{host}:7000'{}}}\n", tls(is_secured)),
            Self::WebSocket => format!("- ws-peer: {{address: 'ws://{host}:7001/'}}\n"),
            Self::Udp => format!("- udp-peer: {{address: '{host}:7002'}}\n"),
        }
    }
}

fn tls(is_secured: bool) -> &'static str {
    if is_secured { ", tls: mesh" } else { "" }
}
