//! One UDP port for many sessions: a task reads the socket and sorts datagrams by their source.
//!
//! It owns the socket's life: the port is free as soon as the listener and its sessions are gone. Who gets a
//! place is `table`'s business; what a session is to its owner is in the file above.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::accepted_session;
use super::inbox::Inbox;
use super::socket::{DatagramSocket, Route, Slots};
use super::table::{MAX_NEW, Table};
use crate::backend::listener::{Accepted, BACKLOG};
use crate::os::address::plain;
use crate::os::log_limiter::LogLimiter;
use crate::wire::{MessageType, RoutingUpdate};

/// The pause after an error of the socket, which nobody but the host can resolve.
const ERROR_PAUSE: Duration = Duration::from_millis(500);

/// At most one refused source in this time is logged.
const REFUSALS: Duration = Duration::from_secs(10);

/// A port, shared by its listener, its sessions and its task.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) socket: DatagramSocket,
    // A lock and no task: each use is a look-up, and a session's end must give its place back at once.
    table: Mutex<Table>,
    /// Anybody can cause these as fast as they can send.
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
    /// Starts to sort the socket's datagrams; sessions come out of the channel.
    pub(super) fn start(socket: DatagramSocket) -> (Arc<Self>, mpsc::Receiver<Accepted>) {
        let gone = CancellationToken::new();
        let refusals = Mutex::new(LogLimiter::new(1, REFUSALS));
        let hub = Arc::new(Self { socket, table: Mutex::default(), refusals, gone: gone.clone() });
        let (newcomers, accepted) = mpsc::channel(BACKLOG);
        let sorting = sort(Arc::downgrade(&hub), newcomers);
        tokio::spawn(async move {
            tokio::select! {
                () = sorting => {}
                () = gone.cancelled() => {}
            }
        });
        (hub, accepted)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    fn receive(self: &Arc<Self>, slots: &mut Slots, newcomers: &mpsc::Sender<Accepted>) -> io::Result<()> {
        let now = Instant::now();
        self.socket.try_receive(slots, |route, datagram| {
            if !self.table().deliver(route.to, datagram, now) && is_introduction(datagram) {
                self.admit(route, datagram, newcomers, now);
            }
        })
    }

    fn admit(
        self: &Arc<Self>,
        route: Route,
        datagram: &[u8],
        newcomers: &mpsc::Sender<Accepted>,
        now: Instant,
    ) {
        // Without room, the source has to try again.
        let Ok(permit) = newcomers.try_reserve() else { return };
        // Every session holds this. Those that were displaced and have not ended yet are to be few as well.
        if Arc::strong_count(self) > self.table().len() + 2 * MAX_NEW {
            return;
        }
        let admitted = self.table().admit(route.to, now);
        let place = match admitted {
            Ok(place) => place,
            Err(why) => {
                if self.refusals.lock().take(now).is_some() {
                    warn!(source = %plain(route.to), "a UDP session has to wait: {why}");
                }
                return;
            }
        };
        place.inbox.push(datagram);
        let member = Member { hub: self.clone(), route, serial: place.serial, inbox: place.inbox };
        permit.send(Ok(accepted_session(member)));
    }
}

/// Whether it is the message with which a neighbour begins, and which it repeats until it is answered.
fn is_introduction(datagram: &[u8]) -> bool {
    matches!(MessageType::of(datagram), Ok(MessageType::RoutingUpdate))
        && RoutingUpdate::parse(datagram).is_ok()
}

/// Sorts datagrams until the hub is gone.
async fn sort(hub: Weak<Hub>, newcomers: mpsc::Sender<Accepted>) {
    let mut slots = Slots::new();
    loop {
        // While it waits, the task holds nothing: the last session's end closes the socket.
        let ready = poll_fn(|cx| match hub.upgrade() {
            Some(hub) => hub.socket.poll_readable(cx),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        });
        let ready = ready.await;
        let Some(hub) = hub.upgrade() else { return };
        match ready.and_then(|()| hub.receive(&mut slots, &newcomers)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                drop(hub);
                debug!(%error, "cannot receive datagrams at the moment");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
        // The neighbours' other tasks get their turn, however much comes.
        tokio::task::yield_now().await;
    }
}

/// One session's share of the port; gives its place back when dropped.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) hub: Arc<Hub>,
    pub(super) route: Route,
    pub(super) inbox: Arc<Inbox>,
    serial: u64,
}

impl Drop for Member {
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
