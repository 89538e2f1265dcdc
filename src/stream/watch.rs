//! Connections whose far end is known to be gone: a notice `service unknown` ends them at once, instead of
//! when they have been silent for long enough.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio_util::sync::CancellationToken;

use super::socket::{MeshSocket, address};
use crate::wire::Problem;

/// Cancelled when the service at an address is known not to be there. Shared by all connections to it.
pub(super) type Gone = Arc<CancellationToken>;

/// The addresses that somebody is connected to.
#[derive(Debug, Default)]
pub(super) struct Watches {
    by_address: Mutex<HashMap<SocketAddr, Weak<CancellationToken>>>,
}

impl Watches {
    /// Watches an address for as long as the result is held.
    pub(super) fn watch(&self, address: SocketAddr) -> Gone {
        let mut watches = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
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
        let gone = self.by_address.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        if let Some(gone) = gone.and_then(|gone| gone.upgrade()) {
            gone.cancel();
        }
    }

    /// Takes the notices that come to a socket, until its node stops.
    pub(super) async fn listen(&self, socket: &MeshSocket) {
        while let Some((notice, _)) = socket.overlay().unreachable().await {
            // A node that is merely out of reach may come back; a service that is not there ends the talk.
            if notice.problem == Problem::ServiceUnknown {
                self.report(address(notice.to_node.hash(), notice.to_service));
            }
        }
    }
}
