//! An overlay socket as a UDP socket for quinn.
//!
//! A node's 64-bit hash and a service's 8 bytes together have the size of an IPv6 address, so no table translates
//! between the two. The port number means nothing and is always the same. Refuses to know what quinn sends.

use std::io::{self, IoSliceMut};
use std::net::{Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::{Mutex, MutexGuard};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::node::{Blocked, OverlaySocket};
use crate::wire::{NameHash, ServiceName};

/// QUIC refuses port 0.
const PORT: u16 = 1;

/// Packets that quinn may hand over in one call.
const SEND_SEGMENTS: usize = 10;

/// The address of a service on a node.
pub(super) fn address(node: NameHash, service: ServiceName) -> SocketAddr {
    let mut octets = [0; 16];
    octets[..8].copy_from_slice(&node.0.to_be_bytes());
    octets[8..].copy_from_slice(&service.to_wire());
    SocketAddr::from((Ipv6Addr::from(octets), PORT))
}

/// The service that an address stands for; `None` for an IPv4 address, which [`address`] never makes.
pub(super) fn service_at(address: SocketAddr) -> Option<(NameHash, ServiceName)> {
    let SocketAddr::V6(address) = address else { return None };
    let octets = address.ip().octets();
    let (node, service) = octets.split_first_chunk::<8>()?;
    let service = service.first_chunk::<8>()?;
    Some((NameHash(u64::from_be_bytes(*node)), ServiceName::from_wire(*service)))
}

/// An overlay socket for quinn.
#[derive(Debug)]
pub(super) struct MeshSocket {
    // Dropped first: the service is free before the guard announces it.
    overlay: OverlaySocket,
    released: DropGuard,
    /// The link that had no room at the last refused send.
    blocked: Mutex<Option<Blocked>>,
}

impl MeshSocket {
    pub(super) fn new(overlay: OverlaySocket) -> Self {
        Self { overlay, released: CancellationToken::new().drop_guard(), blocked: Mutex::new(None) }
    }

    /// Cancelled once the socket is closed and its service can be opened again.
    pub(super) fn released(&self) -> CancellationToken {
        self.released.token().clone()
    }

    /// The overlay socket underneath.
    pub(super) fn overlay(&self) -> &OverlaySocket {
        &self.overlay
    }

    fn blocked(&self) -> MutexGuard<'_, Option<Blocked>> {
        self.blocked.lock()
    }
}

impl AsyncUdpSocket for MeshSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller(self))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some((node, service)) = service_at(transmit.destination) else {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        };
        let size = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        for (sent, segment) in transmit.contents.chunks(size).enumerate() {
            if let Err(blocked) = self.overlay.try_send_to(node, service, segment) {
                *self.blocked() = Some(blocked);
                // Packets of a batch that were sent cannot be taken back: the rest counts as lost, and QUIC sends it
                // again. Only a batch of which nothing was sent can wait.
                return if sent == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) };
            }
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let most = bufs.len().min(meta.len());
        let mut count = 0;
        let open = ready!(self.overlay.poll_receive(cx, |datagram| {
            let payload = &datagram.payload;
            // A datagram larger than the size we announced does not come from QUIC.
            if let Some(buf) = bufs[count].get_mut(..payload.len()) {
                buf.copy_from_slice(payload);
                let addr = address(datagram.header.from_node, datagram.header.from_service);
                let (len, stride) = (payload.len(), payload.len().max(1));
                meta[count] = RecvMeta { addr, len, stride, ecn: None, dst_ip: None };
                count += 1;
            }
            count < most
        }));
        if !open {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::NotConnected, "the node has stopped")));
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(address(self.overlay.node().id().hash(), self.overlay.service()))
    }

    fn max_transmit_segments(&self) -> usize {
        SEND_SEGMENTS
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct Poller(Arc<MeshSocket>);

impl UdpPoller for Poller {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let blocked = self.0.blocked().clone();
        if let Some(blocked) = blocked {
            ready!(blocked.poll_room(cx));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_service_and_back() {
        let (node, service) = (NameHash::of("node1"), ServiceName::CONTROL);
        assert_eq!(service_at(address(node, service)), Some((node, service)));
        assert_eq!(service_at(SocketAddr::from(([127, 0, 0, 1], 1))), None);
    }
}
