//! One UDP port for many sessions, each of which gets the datagrams of its source.
//!
//! It owns the socket's life: the port is free as soon as the listener and its sessions are gone. `table` owns who
//! gets a place; `udp.rs` owns the task that reads the socket, and how a session looks to its owner.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::inbox::Inbox;
use super::socket::{DatagramRoute, DatagramSocket};
use super::table::{MAX_NEW, Table};
use crate::os::address::plain;
use crate::os::log_limiter::LogLimiter;

/// The interval in which at most one refused source is logged.
const REFUSALS: Duration = Duration::from_secs(10);

/// A port, shared by its listener, its sessions and the sorting task.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) socket: DatagramSocket,
    // A lock rather than a task, because each use is a look-up and a session's end must give its place back at
    // once.
    table: Mutex<Table>,
    /// Limits these warnings, because anybody can cause them as fast as they can send.
    refusals: Mutex<LogLimiter>,
    /// Ends the task, which itself does not keep the socket open.
    gone: CancellationToken,
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}

impl Hub {
    /// A port without sessions, and a token that is cancelled once neither its listener nor a session is left.
    pub(super) fn new(socket: DatagramSocket) -> (Arc<Self>, CancellationToken) {
        let gone = CancellationToken::new();
        let refusals = Mutex::new(LogLimiter::new(1, REFUSALS));
        (Arc::new(Self { socket, table: Mutex::default(), refusals, gone: gone.clone() }), gone)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// Gives a datagram to the session of its source; `false` if it has none.
    pub(super) fn deliver(&self, route: DatagramRoute, datagram: &[u8], now: Instant) -> bool {
        self.table().deliver(route.to, datagram, now)
    }

    /// Gives the source of a datagram a place, if one is free.
    pub(super) fn admit(
        self: &Arc<Self>,
        route: DatagramRoute,
        datagram: &[u8],
        now: Instant,
    ) -> Option<HubMember> {
        // Every session holds a reference to the hub. This also bounds the displaced sessions that have not ended
        // yet.
        if Arc::strong_count(self) > self.table().len() + 2 * MAX_NEW {
            return None;
        }
        let admitted = self.table().admit(route.to, now);
        let place = match admitted {
            Ok(place) => place,
            Err(why) => {
                if self.refusals.lock().take(now).is_some() {
                    warn!(source = %plain(route.to), "a UDP session has to wait: {why}");
                }
                return None;
            }
        };
        place.inbox.push(datagram);
        Some(HubMember { hub: self.clone(), route, serial: place.serial, inbox: place.inbox })
    }
}

/// One session's share of the port; gives its place back when dropped.
#[derive(Debug)]
pub(super) struct HubMember {
    pub(super) hub: Arc<Hub>,
    pub(super) route: DatagramRoute,
    pub(super) inbox: Arc<Inbox>,
    serial: u64,
}

impl Drop for HubMember {
    fn drop(&mut self) {
        self.inbox.close();
        self.hub.table().release(self.route.to, self.serial);
    }
}

#[cfg(test)]
impl Hub {
    /// How many sessions have a place.
    pub(super) fn sessions(&self) -> usize {
        self.table().len()
    }
}
