//! A service's socket on the mesh: datagrams to and from other services.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::driver::Input;
use super::forwarding::{Outlet, outgoing};
use super::handle::NodeHandle;
use super::port::{Notice, ServicePort};
use super::queue::{IfFull, Queue};
use crate::mesh::{Datagram, SendError};
use crate::wire::{DataHeader, MAX_HOPS, NameHash, NodeId, ServiceName, Unreachable};

/// Why a service could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The service is reserved or open already.
    #[error("service {0} is already listening")]
    InUse(ServiceName),
    /// The node has stopped.
    #[error("the node has stopped")]
    Stopped,
}

/// The link towards the destination has no room at the moment.
#[derive(Debug, Clone)]
pub struct Blocked(Arc<Queue>);

impl Blocked {
    /// Ready when the link has room again.
    pub fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.0.poll_room(cx.waker()) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// An open service. Closed, and withdrawn from the mesh, when dropped.
#[derive(Debug)]
pub struct OverlaySocket {
    node: NodeHandle,
    service: ServiceName,
    port: Arc<ServicePort>,
}

impl OverlaySocket {
    pub(super) fn new(node: NodeHandle, service: ServiceName, port: Arc<ServicePort>) -> Self {
        Self { node, service, port }
    }

    /// The service's name.
    pub fn service(&self) -> ServiceName {
        self.service
    }

    /// The node that it is on.
    pub fn node(&self) -> &NodeHandle {
        &self.node
    }

    /// Sends a datagram by the forwarding table, without waiting. If anything else than a full link prevents this,
    /// the datagram is lost, as on any datagram network.
    ///
    /// # Errors
    /// [`Blocked`] if the link has no room.
    pub fn try_send_to(&self, node: NameHash, service: ServiceName, payload: &[u8]) -> Result<(), Blocked> {
        let header = DataHeader {
            hops: MAX_HOPS,
            from_node: self.node.plane().own,
            to_node: node,
            from_service: self.service,
            to_service: service,
        };
        match self.node.plane().outlet(&header) {
            Outlet::Link(queue) => {
                let pushed = queue.push_data(&header, outgoing(&header, payload), IfFull::Wait);
                return pushed.map_err(|_full| Blocked(queue));
            }
            Outlet::Port(port) => port.push(Datagram { header, payload: Bytes::copy_from_slice(payload) }),
            Outlet::Core => {
                let input = Input::Originate(header, Bytes::copy_from_slice(payload));
                let _lost = self.node.inbox().try_send(input);
            }
        }
        Ok(())
    }

    /// Sends a datagram and reports whether it could be sent. With 0 `hops`, it is reported as expired.
    ///
    /// # Errors
    /// As [`crate::mesh::Mesh::send`], and [`SendError::NoRoute`] once the node has stopped.
    pub async fn send_to(
        &self,
        node: &NodeId,
        service: ServiceName,
        payload: Bytes,
        hops: u8,
    ) -> Result<(), SendError> {
        let sent = self.node.send(self.service, node.clone(), service, payload, hops).await;
        sent.unwrap_or(Err(SendError::NoRoute))
    }

    /// Passes arrived datagrams to `each` until it returns false, because it can take no more. `Ready(false)` once
    /// the node has stopped.
    pub fn poll_receive(&self, cx: &mut Context<'_>, each: impl FnMut(Datagram) -> bool) -> Poll<bool> {
        self.port.poll_take(cx, each)
    }

    /// The next datagram; `None` once the node has stopped.
    pub async fn receive(&self) -> Option<Datagram> {
        let mut received = None;
        std::future::poll_fn(|cx| {
            self.port.poll_take(cx, |datagram| {
                received = Some(datagram);
                false
            })
        })
        .await;
        received
    }

    /// The next notice that a datagram from this service did not arrive, with the node that reports it; `None`
    /// once the node has stopped.
    pub async fn unreachable(&self) -> Option<(Unreachable, NodeId)> {
        let notice = std::future::poll_fn(|cx| self.port.poll_notice(cx)).await;
        notice.map(|Notice { notice, reported_by }| (notice, reported_by))
    }
}

impl Drop for OverlaySocket {
    fn drop(&mut self) {
        self.port.close();
        self.node.unbind(self.service);
    }
}
