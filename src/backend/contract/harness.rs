//! How the suite reaches each backend: addresses, and bytes below the frames.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::backend::{
    DialSpec, ListenSpec, Listener, MemoryDialOptions, MemoryListenOptions, MemoryNet, QuicDialOptions,
    QuicListenOptions, TcpDialOptions, TcpListenOptions, UdpDialOptions, UdpListenOptions, WsDialOptions,
    WsListenOptions, memory,
};

/// One backend under test; `default()` makes a separate world.
pub(super) trait Harness: Default {
    /// A free address.
    fn anywhere(&self) -> ListenSpec;
    /// The address that a listener has bound.
    fn same(&self, listener: &Listener) -> ListenSpec;
    /// How to dial a listener.
    fn to(&self, listener: &Listener) -> DialSpec;
}

/// A backend whose sessions are frames in a byte stream.
pub(super) trait StreamHarness: Harness {
    /// A connection without any framing.
    type Raw: AsyncRead + AsyncWrite + Unpin;
    /// Connects to the listener.
    fn raw(&self, listener: &Listener) -> impl Future<Output = Self::Raw>;
}

#[derive(Default)]
pub(super) struct TcpHarness;

impl Harness for TcpHarness {
    fn anywhere(&self) -> ListenSpec {
        ListenSpec::Tcp(TcpListenOptions::new("127.0.0.1", 0))
    }

    fn same(&self, listener: &Listener) -> ListenSpec {
        ListenSpec::Tcp(TcpListenOptions { bind: listener.local_addr(), tls: None, congestion: None })
    }

    fn to(&self, listener: &Listener) -> DialSpec {
        DialSpec::Tcp(TcpDialOptions { address: listener.local_addr(), tls: None, congestion: None })
    }
}

impl StreamHarness for TcpHarness {
    type Raw = TcpStream;

    async fn raw(&self, listener: &Listener) -> TcpStream {
        let stream = TcpStream::connect(listener.local_addr()).await.expect("connect");
        stream.set_nodelay(true).expect("no delay");
        stream
    }
}

/// UDP: sessions begin with a routing update, and bursts stay below what the kernel holds.
#[derive(Default)]
pub(super) struct UdpHarness;

impl Harness for UdpHarness {
    fn anywhere(&self) -> ListenSpec {
        ListenSpec::Udp(UdpListenOptions::new("127.0.0.1", 0))
    }

    fn same(&self, listener: &Listener) -> ListenSpec {
        ListenSpec::Udp(UdpListenOptions { bind: listener.local_addr() })
    }

    fn to(&self, listener: &Listener) -> DialSpec {
        DialSpec::Udp(UdpDialOptions { address: listener.local_addr() })
    }
}

/// TLS over TCP, both ends with certificates of one authority.
pub(super) struct TlsHarness {
    server: crate::tls::ServerProfile,
    client: crate::tls::ClientProfile,
}

impl Default for TlsHarness {
    fn default() -> Self {
        let pki = crate::tls::tests::pki::Pki::new();
        pki.node("n");
        Self { server: pki.server("n"), client: pki.client("n") }
    }
}

impl Harness for TlsHarness {
    fn anywhere(&self) -> ListenSpec {
        ListenSpec::Tcp(TcpListenOptions::new("127.0.0.1", 0).with_tls(Some(self.server.clone())))
    }

    fn same(&self, listener: &Listener) -> ListenSpec {
        ListenSpec::Tcp(TcpListenOptions {
            bind: listener.local_addr(),
            tls: Some(self.server.clone()),
            congestion: None,
        })
    }

    fn to(&self, listener: &Listener) -> DialSpec {
        DialSpec::Tcp(TcpDialOptions {
            address: listener.local_addr(),
            tls: Some(self.client.clone()),
            congestion: None,
        })
    }
}

fn ws_dial(listener: &Listener, tls: Option<crate::tls::ClientProfile>) -> DialSpec {
    let address: std::net::SocketAddr = listener.local_addr().parse().expect("an address");
    DialSpec::WebSocket(WsDialOptions {
        host: address.ip().to_string(),
        port: address.port(),
        path: "/".into(),
        extra_header: None,
        tls,
        proxy: None,
    })
}

#[derive(Default)]
pub(super) struct WsHarness;

impl Harness for WsHarness {
    fn anywhere(&self) -> ListenSpec {
        ListenSpec::WebSocket(WsListenOptions::new("127.0.0.1", 0, "/", None))
    }

    fn same(&self, listener: &Listener) -> ListenSpec {
        let bind = listener.local_addr();
        ListenSpec::WebSocket(WsListenOptions { bind, path: "/".into(), tls: None })
    }

    fn to(&self, listener: &Listener) -> DialSpec {
        ws_dial(listener, None)
    }
}

/// WebSockets over TLS.
#[derive(Default)]
pub(super) struct WssHarness(TlsHarness);

impl Harness for WssHarness {
    fn anywhere(&self) -> ListenSpec {
        ListenSpec::WebSocket(WsListenOptions::new("127.0.0.1", 0, "/", Some(self.0.server.clone())))
    }

    fn same(&self, listener: &Listener) -> ListenSpec {
        let (bind, tls) = (listener.local_addr(), Some(self.0.server.clone()));
        ListenSpec::WebSocket(WsListenOptions { bind, path: "/".into(), tls })
    }

    fn to(&self, listener: &Listener) -> DialSpec {
        ws_dial(listener, Some(self.0.client.clone()))
    }
}

/// QUIC, where each flow uses one of many streams.
#[derive(Default)]
pub(super) struct QuicHarness(TlsHarness);

impl Harness for QuicHarness {
    fn anywhere(&self) -> ListenSpec {
        ListenSpec::Quic(QuicListenOptions::new("127.0.0.1", 0, self.0.server.clone()))
    }

    fn same(&self, listener: &Listener) -> ListenSpec {
        ListenSpec::Quic(QuicListenOptions {
            bind: listener.local_addr(),
            ..QuicListenOptions::new("", 0, self.0.server.clone())
        })
    }

    fn to(&self, listener: &Listener) -> DialSpec {
        DialSpec::Quic(QuicDialOptions::new(listener.local_addr(), self.0.client.clone()))
    }
}

#[derive(Default)]
pub(super) struct MemoryHarness {
    net: MemoryNet,
    names: AtomicUsize,
}

impl MemoryHarness {
    fn options(&self, listener: &Listener) -> MemoryDialOptions {
        MemoryDialOptions { net: self.net.clone(), from: "dialer".into(), to: listener.local_addr() }
    }
}

impl Harness for MemoryHarness {
    fn anywhere(&self) -> ListenSpec {
        let name = format!("listener-{}", self.names.fetch_add(1, Ordering::Relaxed));
        ListenSpec::Memory(MemoryListenOptions { net: self.net.clone(), name })
    }

    fn same(&self, listener: &Listener) -> ListenSpec {
        ListenSpec::Memory(MemoryListenOptions { net: self.net.clone(), name: listener.local_addr() })
    }

    fn to(&self, listener: &Listener) -> DialSpec {
        DialSpec::Memory(self.options(listener))
    }
}

impl StreamHarness for MemoryHarness {
    type Raw = memory::RawLink;

    async fn raw(&self, listener: &Listener) -> memory::RawLink {
        memory::dial_raw(&self.options(listener))
    }
}
