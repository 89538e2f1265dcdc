//! Connections that carry many streams, which only our own nodes understand: both ends agree on it by the
//! protocol's name in the handshake. A connection is opened once for all who dial the same service under the
//! same profile, counts its streams, and ends when it has had none for a while.
//! Knows nothing of how a connection is opened, nor of what its streams carry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use quinn::crypto::rustls::HandshakeData;
use quinn::{Connection, VarInt};
use tokio::sync::watch;
use tokio::time::timeout;

use super::far_end::Gone;
use super::trust::ALPN;
use super::windows::Windows;
use crate::tls::ClientProfile;
use crate::wire::{NameHash, ServiceName};

/// What speaks at the other end of a connection, as the name of the protocol that both have agreed on says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A Go node, or anything else that knows receptor's protocol alone: one stream on a connection.
    Receptor,
    /// A node of ours from before units had one ID on both nodes.
    Earlier,
    /// A node of ours. A submission can be repeated there under the ID that its submitter chose.
    Current,
}

impl Peer {
    /// Those that many streams can be opened to on one connection, best first.
    pub(super) const OURS: [Self; 2] = [Self::Current, Self::Earlier];

    /// The protocol's name in the handshake.
    pub(super) const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Receptor => ALPN,
            Self::Earlier => b"meshd",
            Self::Current => b"meshd/2",
        }
    }

    /// What is at the other end of an open connection.
    pub(super) fn of(connection: &Connection) -> Self {
        let data = connection.handshake_data().and_then(|any| any.downcast::<HandshakeData>().ok());
        let agreed = data.and_then(|data| data.protocol);
        let ours = Self::OURS.into_iter().find(|peer| agreed.as_deref() == Some(peer.alpn()));
        ours.unwrap_or(Self::Receptor)
    }
}

/// Streams on one connection. A dialer opens another connection in good time, as those that end here may not have
/// ended there yet.
pub(super) const MOST_STREAMS: u32 = 256;
const ENOUGH_STREAMS: usize = 192;
/// How long a connection without streams is kept.
const KEPT: Duration = Duration::from_secs(10);

/// Whether both ends of a connection have agreed on many streams.
pub(super) fn is_agreed(connection: &Connection) -> bool {
    match Peer::of(connection) {
        Peer::Current | Peer::Earlier => true,
        Peer::Receptor => false,
    }
}

/// Lets the dialer open many streams.
pub(super) fn allow_streams(connection: &Connection) {
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(MOST_STREAMS));
}

/// The streams of one connection. Clones count together.
#[derive(Debug, Clone)]
pub(super) struct Streams(Arc<watch::Sender<Count>>);

#[derive(Debug, Default)]
struct Count {
    open: usize,
    /// Streams ever begun: one may come and go between two looks.
    begun: u64,
    /// No more are begun.
    retired: bool,
}

/// Held by one stream of a connection.
#[derive(Debug)]
pub(super) struct Lease(Streams);

impl Streams {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Count::default())))
    }

    /// One more; none when there are enough, or when no more may be begun.
    pub(super) fn lease(&self, most: usize) -> Option<Lease> {
        let taken = self.0.send_if_modified(|count| {
            let room = !count.retired && count.open < most;
            count.open += usize::from(room);
            count.begun += u64::from(room);
            room
        });
        taken.then(|| Lease(self.clone()))
    }

    /// No more are begun.
    pub(super) fn retire(&self) {
        self.0.send_modify(|count| count.retired = true);
    }

    /// Ready once all have ended and no more are begun.
    pub(super) async fn ended(&self) {
        // The sender lives in self, so this cannot fail.
        let _ = self.0.subscribe().wait_for(|count| count.retired && count.open == 0).await;
    }

    /// Retires them once there has been none for a while, or somebody else does; ready once they have ended.
    async fn idle(&self) {
        let mut counts = self.0.subscribe();
        loop {
            // The sender lives in self, so this cannot fail.
            let begun = counts.wait_for(|count| count.open == 0).await.map_or(0, |count| count.begun);
            let again = counts.wait_for(|count| count.begun != begun || count.retired);
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

impl Lease {
    /// The stream was of no use: others shall try another connection.
    pub(super) fn retire_connection(&self) {
        self.0.retire();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| count.open -= 1);
    }
}

/// An open connection that others may use.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) connection: Connection,
    /// Keeps the watch on the far end alive.
    pub(super) gone: Gone,
    pub(super) windows: Arc<Windows>,
    /// Changed since: the node at the far end may be another one by now.
    restarts: watch::Receiver<u64>,
    profile: Option<ClientProfile>,
    streams: Streams,
}

impl Shared {
    /// Takes a connection that was just opened.
    pub(super) fn new(
        connection: Connection,
        gone: Gone,
        windows: Arc<Windows>,
        profile: Option<ClientProfile>,
    ) -> Self {
        let restarts = gone.restarts();
        let shared = Self { connection, gone, windows, restarts, profile, streams: Streams::new() };
        let (connection, streams) = (shared.connection.clone(), shared.streams.clone());
        tokio::spawn(async move {
            tokio::select! {
                _ended = connection.closed() => {}
                () = streams.idle() => super::connection::close(&connection),
            }
        });
        shared
    }

    /// A place for a stream, if the connection is fit for another under that profile.
    pub(super) fn lease(&self, profile: Option<&ClientProfile>) -> Option<Lease> {
        let alive = self.connection.close_reason().is_none()
            && !self.restarts.has_changed().unwrap_or(true)
            && !self.gone.unknown.is_cancelled();
        if !alive || self.profile.as_ref() != profile {
            self.streams.retire();
            return None;
        }
        let lease = self.streams.lease(ENOUGH_STREAMS);
        if lease.is_none() {
            self.streams.retire();
        }
        lease
    }
}

/// Whom a connection leads to, and the name of the profile it was made under.
pub(super) type Key = (NameHash, ServiceName, Option<String>);

/// The connections of a node that may be shared.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// A plain lock, held for map operations alone.
    by_key: Mutex<BTreeMap<Key, Place>>,
}

#[derive(Debug, Clone)]
enum Place {
    /// Somebody opens one: the sender is dropped when that has ended, for good or ill.
    Opening(watch::Receiver<()>),
    Open(Shared),
}

/// What a dialer finds in the pool.
pub(super) enum Found {
    /// A connection with a place for a stream.
    Open(Shared, Lease),
    /// Somebody opens one: look again when that has ended.
    Wait(watch::Receiver<()>),
    /// Nothing: whoever asked opens one.
    Nothing(Opening),
}

/// The right to open a connection for all. Dropped, it lets the others go on.
pub(super) struct Opening {
    pool: Arc<Pool>,
    key: Key,
    _waiting: watch::Sender<()>,
}

impl Pool {
    /// A connection for a stream, or what to do about there being none.
    pub(super) fn find(self: &Arc<Self>, key: &Key, profile: Option<&ClientProfile>) -> Found {
        let mut places = self.places();
        match places.get(key) {
            Some(Place::Opening(ended)) => return Found::Wait(ended.clone()),
            Some(Place::Open(shared)) => {
                if let Some(lease) = shared.lease(profile) {
                    return Found::Open(shared.clone(), lease);
                }
            }
            None => {}
        }
        places.retain(|_, place| match place {
            Place::Opening(_) => true,
            Place::Open(shared) => shared.connection.close_reason().is_none(),
        });
        let (waiting, ended) = watch::channel(());
        places.insert(key.clone(), Place::Opening(ended));
        Found::Nothing(Opening { pool: self.clone(), key: key.clone(), _waiting: waiting })
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<Key, Place>> {
        self.by_key.lock()
    }
}

impl Opening {
    /// The connection is open, for all who wait.
    pub(super) fn succeed(self, shared: Shared) {
        self.pool.places().insert(self.key.clone(), Place::Open(shared));
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let mut places = self.pool.places();
        if matches!(places.get(&self.key), Some(Place::Opening(_))) {
            places.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn streams_are_counted_and_end_when_there_are_none() {
        let streams = Streams::new();
        let idle = tokio::spawn({
            let streams = streams.clone();
            async move { streams.idle().await }
        });
        let first = streams.lease(2).unwrap();
        let second = streams.lease(2).unwrap();
        assert!(streams.lease(2).is_none(), "there are enough");
        drop(first);
        tokio::time::sleep(KEPT * 3).await;
        assert!(!idle.is_finished(), "one stream keeps the connection");
        drop(second);
        tokio::time::sleep(KEPT / 2).await;
        drop(streams.lease(2).expect("none for a moment is no end"));
        tokio::time::sleep(KEPT / 2 + Duration::from_secs(1)).await;
        assert!(!idle.is_finished(), "the time without streams begins anew");
        idle.await.unwrap();
        assert!(streams.lease(2).is_none(), "no stream begins on a connection that ends");
        streams.ended().await;
    }

    #[tokio::test(start_paused = true)]
    async fn retired_streams_end_with_the_last_one() {
        let streams = Streams::new();
        let lease = streams.lease(2).unwrap();
        lease.retire_connection();
        assert!(streams.lease(2).is_none());
        let ended = streams.idle();
        tokio::pin!(ended);
        assert!(timeout(KEPT * 3, &mut ended).await.is_err());
        drop(lease);
        timeout(Duration::from_millis(1), ended).await.unwrap();
    }

    #[test]
    fn one_opens_and_the_others_wait() {
        let pool = Arc::new(Pool::default());
        let key = (NameHash(1), ServiceName::CONTROL, None);
        let Found::Nothing(opening) = pool.find(&key, None) else { panic!("the pool is empty") };
        let Found::Wait(waiting) = pool.find(&key, None) else { panic!("one is being opened") };
        assert!(waiting.has_changed().is_ok());
        drop(opening);
        assert!(waiting.has_changed().is_err(), "whoever waits is told");
        assert!(matches!(pool.find(&key, None), Found::Nothing(_)));
    }
}
