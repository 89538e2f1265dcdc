//! TCP proxies: from a local port into the mesh, and from a service of the mesh to an address.
//!
//! Owns the TCP side: the port, the options of sockets, the way to the address. Bytes are `carry`'s and
//! connections `relay`'s business.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::relay::{self, Source, Target};
use crate::stream::{ListenError, StreamListener, Streams};
use crate::wire::{NodeId, ServiceName};

/// After how much silence the kernel asks the other side whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A local port whose connections lead to a service of the mesh.
#[derive(Debug)]
pub struct TcpIn {
    listener: TcpListener,
    target: Target,
}

impl TcpIn {
    /// Opens the port.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub async fn bind(
        address: &str,
        streams: Streams,
        node: NodeId,
        service: ServiceName,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self { listener, target: Target { streams, node, service } })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`; the port is free again once this returns.
    pub async fn run(self, stop: CancellationToken) {
        relay::inward(self.listener, self.target, stop).await;
    }
}

impl Source for TcpListener {
    type Socket = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, String)> {
        let (socket, peer) = Self::accept(self).await?;
        tune(&socket);
        Ok((socket, peer.to_string()))
    }
}

/// A service of the mesh whose streams lead to a TCP address.
#[derive(Debug)]
pub struct TcpOut {
    listener: StreamListener,
    address: String,
}

impl TcpOut {
    /// Opens the service and tells the mesh of it. Whether anybody listens at the address shows with each stream.
    ///
    /// # Errors
    /// If the service cannot be had.
    pub async fn listen(
        streams: &Streams,
        service: ServiceName,
        address: String,
    ) -> Result<Self, ListenError> {
        let tags = BTreeMap::from([
            ("type".to_owned(), "TCP Proxy".to_owned()),
            ("address".to_owned(), address.clone()),
        ]);
        let listener = streams.listen(service, Some(tags)).await?;
        info!(%service, %address, "proxy service open");
        Ok(Self { listener, address })
    }

    /// Serves until `stop`; the service is free again once this returns.
    pub async fn run(self, stop: CancellationToken) {
        let connect = || {
            let address = self.address.clone();
            async move {
                let socket = TcpStream::connect(address).await?;
                tune(&socket);
                Ok(socket)
            }
        };
        relay::outward(self.listener, connect, &self.address, stop).await;
    }
}

/// What comes is sent on at once, and a machine that died is noticed.
fn tune(socket: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4);
    let tuned = socket.set_nodelay(true).and_then(|()| SockRef::from(socket).set_tcp_keepalive(&keepalive));
    if let Err(error) = tuned {
        debug!(%error, "failed to set options of a proxied connection");
    }
}
