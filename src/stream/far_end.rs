//! What the mesh says about the far ends of connections. A notice `service unknown` ends them at once, instead of when
//! they have been silent for long enough. Word that the node has started again is a reason to ask: anybody can spread
//! it. A notice `blocked by firewall` ends attempts to connect only: rules may change back under a connection that
//! stands.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::socket::{MeshSocket, address, service_at};
use crate::wire::{NameHash, NodeId, Problem, Unreachable};

/// What is said of an address. Shared by all connections to it.
pub(super) type Gone = Arc<Ends>;

/// What is said of a connection's far end.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// There is no such service. Ends attempts to connect, too.
    pub(super) unknown: CancellationToken,
    /// How often the node is said to have started again, in which case it knows of no connection.
    restarts: watch::Sender<u64>,
    /// Told who has turned a packet away. Attempts to connect that are under way fail.
    blocked: watch::Sender<Option<Blocked>>,
}

/// A firewall has turned a packet of ours away.
#[derive(Debug, Clone)]
pub(super) struct Blocked {
    /// The node that it was for.
    pub(super) node: NodeId,
    /// The node whose rule it was.
    pub(super) by: NodeId,
}

impl Ends {
    /// Changes whenever the node is said to have started again.
    pub(super) fn restarts(&self) -> watch::Receiver<u64> {
        self.restarts.subscribe()
    }

    /// Ends once a firewall turns a packet to the address away, from now on.
    pub(super) fn blocked(&self) -> impl Future<Output = Blocked> + use<> {
        let mut told = self.blocked.subscribe();
        async move {
            loop {
                if told.changed().await.is_err() {
                    return std::future::pending().await;
                }
                if let Some(blocked) = told.borrow_and_update().clone() {
                    return blocked;
                }
            }
        }
    }
}

/// The addresses that somebody is connected to.
#[derive(Debug, Default)]
pub(super) struct Watches {
    by_address: Mutex<HashMap<SocketAddr, Weak<Ends>>>,
}

impl Watches {
    /// Watches an address for as long as the result is held.
    pub(super) fn watch(&self, address: SocketAddr) -> Gone {
        let mut watches = self.by_address.lock();
        if let Some(gone) = watches.get(&address).and_then(Weak::upgrade) {
            return gone;
        }
        if watches.len() == watches.capacity() {
            watches.retain(|_, gone| gone.strong_count() > 0);
        }
        let gone = Gone::default();
        watches.insert(address, Arc::downgrade(&gone));
        gone
    }

    /// The service at that address is not there.
    fn report(&self, address: SocketAddr) {
        let gone = self.by_address.lock().remove(&address);
        if let Some(gone) = gone.and_then(|gone| gone.upgrade()) {
            gone.unknown.cancel();
        }
    }

    /// A packet for that address was turned away by a firewall.
    fn report_blocked(&self, address: SocketAddr, blocked: Blocked) {
        let watches = self.by_address.lock();
        if let Some(gone) = watches.get(&address).and_then(Weak::upgrade) {
            gone.blocked.send_replace(Some(blocked));
        }
    }

    /// That node is said to have started again.
    fn report_restart(&self, node: NameHash) {
        let mut watches = self.by_address.lock();
        watches.retain(|address, gone| {
            let Some(gone) = gone.upgrade() else { return false };
            if service_at(*address).is_some_and(|(at, _)| at == node) {
                gone.restarts.send_modify(|count| *count += 1);
            }
            true
        });
    }

    fn take(&self, notice: &Unreachable, by: NodeId) {
        let address = address(notice.to_node.hash(), notice.to_service);
        match notice.problem {
            Problem::ServiceUnknown => self.report(address),
            Problem::BlockedByFirewall => {
                self.report_blocked(address, Blocked { node: notice.to_node.clone(), by });
            }
            // A node that is merely out of reach may come back.
            Problem::MessageExpired | Problem::Other(_) => {}
        }
    }

    /// Takes the notices that come to a socket, and word of restarts, until its node stops.
    pub(super) async fn listen(&self, socket: &MeshSocket) {
        let mut restarts = socket.overlay().node().restarts();
        loop {
            tokio::select! {
                notice = socket.overlay().unreachable() => match notice {
                    Some((notice, by)) => self.take(&notice, by),
                    None => return,
                },
                restarted = restarts.recv() => match restarted {
                    Ok(node) => self.report_restart(node),
                    // Connections whose end was missed end by their silence.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                },
            }
        }
    }
}
