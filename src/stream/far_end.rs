//! What the mesh says about the far ends of connections. Refuses to know what is done about it.
//!
//! None of it is proven. News that the node has restarted, or has no such service, is a reason to probe an open
//! connection, which ends if nobody answers. Notices end attempts to connect: `service unknown` only if it comes from
//! the node itself, because no other node knows its services, and `blocked by firewall` from any node.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use super::socket::{MeshSocket, address, service_at};
use crate::wire::{NameHash, NodeId, Problem, Unreachable};

/// What is known of the service at an address, for all connections to it.
#[derive(Debug, Default)]
pub(super) struct FarEnd {
    /// The latest reason to doubt that the far end is still there.
    doubts: watch::Sender<Option<FarDoubt>>,
    /// The latest refusal of a packet, at which pending attempts to connect fail.
    refusals: watch::Sender<Option<DialRefused>>,
}

/// Unproven news of a far end. If true, the far end has lost its connections.
#[derive(Debug, Clone, Copy)]
pub(super) enum FarDoubt {
    Restarted,
    ServiceUnknown,
}

/// Why a packet of ours was refused.
#[derive(Debug, Clone)]
pub(super) enum DialRefused {
    /// The node has no such service.
    ServiceUnknown,
    /// A firewall has rejected the packet.
    Blocked {
        /// The node that the packet was for.
        node: NodeId,
        /// The node whose firewall it was.
        by: NodeId,
    },
}

impl FarEnd {
    /// Changes with each new doubt.
    pub(super) fn doubts(&self) -> watch::Receiver<Option<FarDoubt>> {
        self.doubts.subscribe()
    }

    /// Ready at the next refusal of a packet to the address; earlier ones do not count.
    pub(super) fn refused(&self) -> impl Future<Output = DialRefused> + use<> {
        let mut refusals = self.refusals.subscribe();
        async move {
            while refusals.changed().await.is_ok() {
                if let Some(refused) = refusals.borrow_and_update().clone() {
                    return refused;
                }
            }
            std::future::pending().await
        }
    }
}

/// The far ends of a socket's connections.
#[derive(Debug, Default)]
pub(super) struct FarEnds {
    by_address: Mutex<HashMap<SocketAddr, Weak<FarEnd>>>,
}

impl FarEnds {
    /// The far end at an address. It gets news for as long as somebody holds it.
    pub(super) fn at(&self, address: SocketAddr) -> Arc<FarEnd> {
        let mut far_ends = self.by_address.lock();
        if let Some(far_end) = far_ends.get(&address).and_then(Weak::upgrade) {
            return far_end;
        }
        if far_ends.len() == far_ends.capacity() {
            far_ends.retain(|_, far_end| far_end.strong_count() > 0);
        }
        let far_end = Arc::<FarEnd>::default();
        far_ends.insert(address, Arc::downgrade(&far_end));
        far_end
    }

    fn on_restart(&self, node: NameHash) {
        let mut far_ends = self.by_address.lock();
        far_ends.retain(|address, far_end| {
            let Some(far_end) = far_end.upgrade() else { return false };
            if service_at(*address).is_some_and(|(at, _)| at == node) {
                far_end.doubts.send_replace(Some(FarDoubt::Restarted));
            }
            true
        });
    }

    fn on_notice(&self, notice: &Unreachable, by: NodeId) {
        let address = address(notice.to_node.hash(), notice.to_service);
        let Some(far_end) = self.by_address.lock().get(&address).and_then(Weak::upgrade) else { return };
        match notice.problem {
            Problem::ServiceUnknown if by == notice.to_node => {
                far_end.doubts.send_replace(Some(FarDoubt::ServiceUnknown));
                far_end.refusals.send_replace(Some(DialRefused::ServiceUnknown));
            }
            Problem::ServiceUnknown => {}
            Problem::BlockedByFirewall => {
                let node = notice.to_node.clone();
                far_end.refusals.send_replace(Some(DialRefused::Blocked { node, by }));
            }
            // A node that is merely out of reach may come back.
            Problem::MessageExpired | Problem::Other(_) => {}
        }
    }

    /// Passes on the notices that come to a socket, and news of restarts, until the node stops.
    pub(super) async fn follow(&self, socket: &MeshSocket) {
        let mut restarts = socket.overlay().node().restarts();
        loop {
            tokio::select! {
                notice = socket.overlay().unreachable() => match notice {
                    Some((notice, by)) => self.on_notice(&notice, by),
                    None => return,
                },
                restarted = restarts.recv() => match restarted {
                    Ok(node) => self.on_restart(node),
                    // A connection whose restart was missed ends later by its idle timeout.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::wire::ServiceName;

    #[test]
    fn that_a_service_is_unknown_only_its_node_can_say() {
        let far_ends = FarEnds::default();
        let node = |name| NodeId::new(name).unwrap();
        let notice = Unreachable {
            from_node: node("a"),
            to_node: node("b"),
            from_service: ServiceName::PING,
            to_service: ServiceName::CONTROL,
            problem: Problem::ServiceUnknown,
        };
        let far_end = far_ends.at(address(notice.to_node.hash(), notice.to_service));
        let (mut refused, doubts) = (Box::pin(far_end.refused()), far_end.doubts());
        far_ends.on_notice(&notice, node("evil"));
        assert!(refused.as_mut().now_or_never().is_none() && !doubts.has_changed().unwrap());
        far_ends.on_notice(&notice, node("b"));
        assert!(matches!(refused.now_or_never(), Some(DialRefused::ServiceUnknown)));
        assert!(doubts.has_changed().unwrap());
        // An attempt that begins now does not see the earlier refusal.
        assert!(Box::pin(far_end.refused()).now_or_never().is_none());
        // Any node may report a firewall, and that is no doubt about open connections.
        let blocked = Unreachable { problem: Problem::BlockedByFirewall, ..notice };
        let (refused, doubts) = (Box::pin(far_end.refused()), far_end.doubts());
        far_ends.on_notice(&blocked, node("hop"));
        assert!(matches!(refused.now_or_never(), Some(DialRefused::Blocked { .. })));
        assert!(!doubts.has_changed().unwrap());
    }
}
