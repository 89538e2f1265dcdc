//! Connections that carry many streams, which only our own nodes understand: both ends agree on this by the protocol's
//! name in the handshake ([`Peer`](super::tls::Peer)). A dialer opens one connection for all streams to a service under
//! one TLS profile, counts the streams, and closes the connection when it has had none for a while. Does not know how a
//! connection is opened, nor what its streams carry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::timeout;

use super::connection::{ABORTED, Opened, Side, cancel, close, finish, spawn_or_close};
use super::far_end::FarDoubt;
use super::mesh_stream::{Carrier, Halves, MeshStream};
use super::windows::Windows;
use crate::tls::ClientProfile;
use crate::wire::{NameHash, ServiceName};

/// Streams that a listener allows on one connection.
pub(super) const MOST_STREAMS: u32 = 256;
/// Streams on a connection after which a dialer opens another one. Fewer than [`MOST_STREAMS`], because streams that
/// have ended at the dialer may still be open at the listener.
const ENOUGH_STREAMS: usize = 192;
/// How long a connection without streams is kept.
const KEPT: Duration = Duration::from_secs(10);

/// Counts the streams of one connection. Clones share the count.
#[derive(Debug, Clone)]
struct Leases(Arc<watch::Sender<LeaseCount>>);

#[derive(Debug, Default)]
struct LeaseCount {
    open: usize,
    /// Leases ever taken, to notice a stream that began and ended between two looks at `open`.
    taken: u64,
    /// Whether no more leases are given.
    retired: bool,
}

/// Held by one stream of a connection.
#[derive(Debug)]
pub(super) struct ConnectionLease(Leases);

impl Leases {
    fn new() -> Self {
        Self(Arc::new(watch::Sender::new(LeaseCount::default())))
    }

    /// One more lease, unless `most` are held or no more are given.
    fn take(&self, most: usize) -> Option<ConnectionLease> {
        let taken = self.0.send_if_modified(|count| {
            let room = !count.retired && count.open < most;
            count.open += usize::from(room);
            count.taken += u64::from(room);
            room
        });
        taken.then(|| ConnectionLease(self.clone()))
    }

    /// Gives no more leases.
    fn retire(&self) {
        self.0.send_modify(|count| count.retired = true);
    }

    /// Ready once no lease is held and no more are given.
    async fn ended(&self) {
        // The sender lives in self, so this cannot fail.
        let _ = self.0.subscribe().wait_for(|count| count.retired && count.open == 0).await;
    }

    /// Retires the leases once none was held for [`KEPT`]. Ready once they are retired, for whatever reason, and none
    /// is held.
    async fn idle(&self) {
        let mut counts = self.0.subscribe();
        loop {
            // The sender lives in self, so this cannot fail.
            let taken = counts.wait_for(|count| count.open == 0).await.map_or(0, |count| count.taken);
            let again = counts.wait_for(|count| count.taken != taken || count.retired);
            let over = timeout(KEPT, again).await.is_err();
            let mut ended = false;
            // Both in one step, so that no stream begins in between.
            self.0.send_if_modified(|count| {
                count.retired |= over && count.open == 0;
                ended = count.retired && count.open == 0;
                false
            });
            if ended {
                return;
            }
        }
    }
}

impl ConnectionLease {
    /// Lets no more streams begin on the connection, because this one failed.
    pub(super) fn retire_connection(&self) {
        self.0.retire();
    }
}

impl Drop for ConnectionLease {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| count.open -= 1);
    }
}

/// A stream's hold on a shared connection, which the stream must not close.
#[derive(Debug)]
pub(super) struct Shared {
    side: Side,
    lease: ConnectionLease,
}

impl Shared {
    /// Ends the stream at once. To the other end it does not look complete.
    pub(super) fn abort(self, Halves { mut send, mut recv, .. }: Halves) {
        let _already = send.reset(ABORTED);
        let _ended = recv.stop(ABORTED);
    }

    /// Ends the stream in good order if it was shut down. If the dialer received nothing on it, no more streams begin
    /// on the connection.
    pub(super) fn end(self, connection: Connection, mut halves: Halves) {
        if self.side == Side::Dialer && !halves.heard {
            self.lease.retire_connection();
        }
        if halves.shut {
            spawn_or_close(connection.clone(), async move {
                finish(&connection, halves, false).await;
                drop(self.lease);
            });
        } else {
            // Nothing that was written has to arrive any more.
            let _already = halves.send.reset(ABORTED);
            cancel(&mut halves.recv);
        }
    }
}

/// A connection that was opened for many streams.
#[derive(Debug, Clone)]
pub(super) struct SharedConnection {
    pub(super) connection: Connection,
    windows: Arc<Windows>,
    /// Changes when the far end may have restarted or be gone.
    doubts: watch::Receiver<Option<FarDoubt>>,
    profile: Option<ClientProfile>,
    leases: Leases,
}

impl SharedConnection {
    /// Takes over a connection that was just opened under a profile, and closes it when it has had no stream for a
    /// while.
    pub(super) fn new(mut opened: Opened, profile: Option<ClientProfile>) -> Self {
        opened.watch();
        opened.windows.allow_many(&opened.connection);
        let Opened { connection, far_end, windows, .. } = opened;
        let doubts = far_end.doubts();
        let shared = Self { connection, windows, doubts, profile, leases: Leases::new() };
        let (connection, leases) = (shared.connection.clone(), shared.leases.clone());
        tokio::spawn(async move {
            tokio::select! {
                _ended = connection.closed() => {}
                () = leases.idle() => close(&connection),
            }
        });
        shared
    }

    /// A lease for one more stream. `None` if the connection is unfit or full: then no more streams begin on it at all.
    pub(super) fn lease(&self, profile: Option<&ClientProfile>) -> Option<ConnectionLease> {
        let fit =
            self.is_open() && !self.doubts.has_changed().unwrap_or(true) && self.profile.as_ref() == profile;
        let lease = fit.then(|| self.leases.take(ENOUGH_STREAMS)).flatten();
        if lease.is_none() {
            self.leases.retire();
        }
        lease
    }

    fn is_open(&self) -> bool {
        self.connection.close_reason().is_none()
    }

    /// The stream over these halves, which has begun.
    pub(super) fn stream(&self, halves: (SendStream, RecvStream), lease: ConnectionLease) -> MeshStream {
        let carrier = Carrier::Shared(Shared { side: Side::Dialer, lease });
        MeshStream::new(self.connection.clone(), self.windows.clone(), halves, carrier)
    }
}

/// The streams that a dialer opens on a shared connection of ours.
#[derive(Debug)]
pub(super) struct Incoming {
    connection: Connection,
    windows: Arc<Windows>,
    leases: Leases,
}

impl Incoming {
    /// Takes over a connection that was just accepted.
    pub(super) fn new(mut opened: Opened) -> Self {
        opened.watch();
        opened.windows.allow_many(&opened.connection);
        opened.connection.set_max_concurrent_bi_streams(VarInt::from_u32(MOST_STREAMS));
        Self { connection: opened.connection, windows: opened.windows, leases: Leases::new() }
    }

    /// The next stream, whose first byte is still unread; `None` once the connection has ended. Cancel safe.
    pub(super) async fn accept(&self) -> Option<((SendStream, RecvStream), ConnectionLease)> {
        let halves = self.connection.accept_bi().await.ok()?;
        // The limit is QUIC's, which lets the dialer open at most `MOST_STREAMS`.
        Some((halves, self.leases.take(usize::MAX)?))
    }

    /// The stream over these halves, whose first byte was read and was right.
    pub(super) fn stream(&self, halves: (SendStream, RecvStream), lease: ConnectionLease) -> MeshStream {
        let carrier = Carrier::Shared(Shared { side: Side::Listener, lease });
        MeshStream::new(self.connection.clone(), self.windows.clone(), halves, carrier)
    }

    /// Closes the connection once its streams have ended.
    pub(super) async fn close(&self) {
        self.leases.retire();
        self.leases.ended().await;
        close(&self.connection);
    }
}

/// The service at the other end of a connection, and the name of the profile that it was opened under.
pub(super) type SharedKey = (NameHash, ServiceName, Option<String>);

/// The place of one connection. The dialer that opens the connection holds the lock, and the others wait for it.
type Slot = Arc<tokio::sync::Mutex<Option<SharedConnection>>>;

/// The shared connections that a node has opened.
#[derive(Debug, Default)]
pub(super) struct SharedConnections {
    by_key: Mutex<BTreeMap<SharedKey, Slot>>,
}

/// The result of looking for a shared connection.
pub(super) enum FoundConnection {
    /// A connection, and a lease for a stream on it.
    Open(SharedConnection, ConnectionLease),
    /// No connection: the dialer opens one and puts it here. Other dialers wait until then.
    Vacant(OwnedMutexGuard<Option<SharedConnection>>),
    /// No connection, and another dialer's attempt has just failed.
    Failed,
}

impl SharedConnections {
    /// A connection for a stream; waits while another dialer opens one.
    pub(super) async fn find(&self, key: &SharedKey, profile: Option<&ClientProfile>) -> FoundConnection {
        let slot = self.slot(key);
        let (mut slot, waited) = match slot.clone().try_lock_owned() {
            Ok(slot) => (slot, false),
            Err(_locked) => (slot.lock_owned().await, true),
        };
        match &*slot {
            Some(shared) => {
                if let Some(lease) = shared.lease(profile) {
                    return FoundConnection::Open(shared.clone(), lease);
                }
            }
            None if waited => return FoundConnection::Failed,
            None => {}
        }
        *slot = None;
        FoundConnection::Vacant(slot)
    }

    fn slot(&self, key: &SharedKey) -> Slot {
        let mut slots = self.by_key.lock();
        if let Some(slot) = slots.get(key) {
            return slot.clone();
        }
        slots.retain(|_, slot| {
            let is_open =
                |slot: &Option<SharedConnection>| slot.as_ref().is_some_and(SharedConnection::is_open);
            slot.try_lock().map_or(true, |slot| is_open(&slot))
        });
        slots.entry(key.clone()).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn streams_are_counted_and_end_when_there_are_none() {
        let streams = Leases::new();
        let idle = tokio::spawn({
            let streams = streams.clone();
            async move { streams.idle().await }
        });
        let first = streams.take(2).unwrap();
        let second = streams.take(2).unwrap();
        assert!(streams.take(2).is_none(), "there are enough");
        drop(first);
        tokio::time::sleep(KEPT * 3).await;
        assert!(!idle.is_finished(), "one stream keeps the connection");
        drop(second);
        tokio::time::sleep(KEPT / 2).await;
        drop(streams.take(2).expect("none for a moment is no end"));
        tokio::time::sleep(KEPT / 2 + Duration::from_secs(1)).await;
        assert!(!idle.is_finished(), "the time without streams begins again");
        idle.await.unwrap();
        assert!(streams.take(2).is_none(), "no stream begins on a connection that ends");
        streams.ended().await;
    }

    #[tokio::test(start_paused = true)]
    async fn retired_streams_end_with_the_last_one() {
        let streams = Leases::new();
        let lease = streams.take(2).unwrap();
        lease.retire_connection();
        assert!(streams.take(2).is_none());
        let ended = streams.idle();
        tokio::pin!(ended);
        assert!(timeout(KEPT * 3, &mut ended).await.is_err());
        drop(lease);
        timeout(Duration::from_millis(1), ended).await.unwrap();
    }

    #[tokio::test]
    async fn one_opens_and_the_others_wait() {
        let pool = SharedConnections::default();
        let key = (NameHash(1), ServiceName::CONTROL, None);
        let FoundConnection::Vacant(opening) = pool.find(&key, None).await else {
            panic!("the pool is empty")
        };
        let waiting = pool.find(&key, None);
        tokio::pin!(waiting);
        assert!(timeout(Duration::from_millis(1), &mut waiting).await.is_err(), "one is being opened");
        drop(opening);
        assert!(matches!(waiting.await, FoundConnection::Failed), "another attempt is not waited for");
        assert!(matches!(pool.find(&key, None).await, FoundConnection::Vacant(_)));
    }
}
