//! What the mesh says about the far ends of connections.
//!
//! A notice `service unknown` ends connections at once, instead of when they have been silent for long enough. News that
//! the node has restarted is a reason to ask: anybody can spread it. A notice `blocked by firewall` ends attempts to
//! connect only: rules may change back under a connection that stands.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::socket::{MeshSocket, address, service_at};
use crate::wire::{NameHash, NodeId, Problem, Unreachable};

/// What is known of the service at an address, for all connections to it.
#[derive(Debug, Default)]
pub(super) struct FarEnd {
    /// There is no such service. Ends attempts to connect, too.
    pub(super) unknown: CancellationToken,
    /// How often the node is said to have restarted: then it has lost its connections.
    restarts: watch::Sender<u64>,
    /// The last rejection of a packet. Attempts to connect that are under way fail.
    blocked: watch::Sender<Option<Blocked>>,
}

/// A firewall has rejected a packet of ours.
#[derive(Debug, Clone)]
pub(super) struct Blocked {
    /// The node that it was for.
    pub(super) node: NodeId,
    /// The node whose rule it was.
    pub(super) by: NodeId,
}

impl FarEnd {
    /// Changes whenever the node is said to have restarted.
    pub(super) fn restarts(&self) -> watch::Receiver<u64> {
        self.restarts.subscribe()
    }

    /// Ready once a firewall rejects a packet to the address, from now on.
    pub(super) fn blocked(&self) -> impl Future<Output = Blocked> + use<> {
        let mut blocked = self.blocked.subscribe();
        async move {
            while blocked.changed().await.is_ok() {
                if let Some(blocked) = blocked.borrow_and_update().clone() {
                    return blocked;
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
    /// The far end at an address; news of it come for as long as somebody holds it.
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
                far_end.restarts.send_modify(|count| *count += 1);
            }
            true
        });
    }

    fn on_notice(&self, notice: &Unreachable, by: NodeId) {
        let address = address(notice.to_node.hash(), notice.to_service);
        let mut far_ends = self.by_address.lock();
        let Some(far_end) = far_ends.get(&address).and_then(Weak::upgrade) else { return };
        match notice.problem {
            Problem::ServiceUnknown => {
                far_ends.remove(&address);
                far_end.unknown.cancel();
            }
            Problem::BlockedByFirewall => {
                far_end.blocked.send_replace(Some(Blocked { node: notice.to_node.clone(), by }));
            }
            // A node that is merely out of reach may come back.
            Problem::MessageExpired | Problem::Other(_) => {}
        }
    }

    /// Takes the notices that come to a socket, and news of restarts, until its node stops.
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
                    // Connections whose end was missed end by their silence.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                },
            }
        }
    }
}
