//! The two accept loops of stream proxies: from a local listener into the mesh, and from a service of the mesh outward.
//!
//! Owns how many connections there may be in all and of one neighbour, and the order of dials. No connection, target or
//! listener that fails holds up the others. Refuses to know the kind of socket, which is the caller's.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::copy::{LocalSocket, copy};
use super::pulse::Pulse;
use crate::node::{CountedBy, NodeHandle};
use crate::os::accept::ClientAcceptor;
use crate::os::address::network_of;
use crate::os::places::{Places, Share};
use crate::stream::{MeshStream, StreamListener, Streams};
use crate::tls::ClientProfile;
use crate::wire::{NodeId, ServiceName};

/// Most connections of one neighbour to a proxy at a time; further ones are refused. All neighbours together may have
/// twice as many.
pub(super) const MOST: usize = 16_384;
/// Most dials of a proxy at a time.
const DIALS: usize = 32;
/// Most dials at a time for clients of one host.
const DIALS_OF_ONE: usize = DIALS / 2;
/// How long a connection waits for its turn to dial while no other gets a turn either.
const TURN_LIMIT: Duration = Duration::from_secs(30);
/// How long a target may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// An accepted connection, its peer's name for logs, and the host that it comes from, if it comes from a host.
pub(super) type Arrival<S> = (S, String, Option<IpAddr>);

/// A listener outside the mesh.
pub(super) trait AcceptSource: Send + Sync + 'static {
    /// An accepted connection.
    type Socket: Send + 'static;
    /// A connection that is ready to carry bytes.
    type Side: LocalSocket;

    /// The next connection, its peer's name for logs, and the host that it comes from. Cancel safe.
    fn accept(&self) -> impl Future<Output = io::Result<Arrival<Self::Socket>>> + Send;

    /// Makes a connection ready, which may include a handshake.
    fn open(&self, socket: Self::Socket) -> impl Future<Output = io::Result<Self::Side>> + Send + 'static;
}

/// A service of a node.
#[derive(Debug, Clone)]
pub(super) struct ServiceTarget {
    pub(super) streams: Streams,
    pub(super) node: NodeId,
    pub(super) service: ServiceName,
    /// The profile of streams to a service with TLS.
    pub(super) tls: Option<ClientProfile>,
}

/// Joins each connection of `source` to a stream of its own, until `stop`; then ends them all.
pub(super) async fn inward(source: impl AcceptSource, target: ServiceTarget, stop: CancellationToken) {
    let (mut crowd, mut turns) = (Crowd::new(MOST, stop), DialTurns::new());
    let mut acceptor = ClientAcceptor::new("proxy");
    loop {
        let accepted = tokio::select! {
            () = crowd.stop.cancelled() => break,
            accepted = source.accept() => accepted,
        };
        let Some((socket, peer, host)) = acceptor.sort(accepted).await else { continue };
        // A connection without a place is closed.
        let host = host.map(network_of);
        let Some(place) = crowd.place(&host) else { continue };
        let turn = turns.next(host);
        let (target, opening, stop) = (target.clone(), source.open(socket), crowd.stop.clone());
        crowd.spawn(place, async move {
            let dialled = stop.run_until_cancelled(open_both(opening, turn, target, peer)).await;
            if let Some(Some((socket, stream))) = dialled {
                copy(socket, stream, stop).await;
            }
        });
    }
    drop(source);
    crowd.end().await;
}

/// Makes a local connection ready and opens the stream that continues it. Logs why if that fails.
async fn open_both<L: LocalSocket>(
    opening: impl Future<Output = io::Result<L>>,
    turn: impl Future<Output = Option<DialTurn>>,
    target: ServiceTarget,
    peer: String,
) -> Option<(L, MeshStream)> {
    debug!(peer, node = %target.node, service = %target.service, "proxy connection");
    let refused = |error: io::Error| warn!(peer, %error, "proxy connection refused");
    let socket = opening.await.map_err(refused).ok()?;
    let late = || io::Error::other("the limit of dials at once is reached, and none of them ends");
    let _turn = turn.await.ok_or_else(late).map_err(refused).ok()?;
    let dialled = target.streams.dial_with(&target.node, target.service, target.tls.as_ref()).await;
    Some((socket, dialled.map_err(|error| refused(error.into())).ok()?))
}

/// Held while a dial is under way.
type DialTurn = [OwnedSemaphorePermit; 2];

/// Gives out turns to dial. No host has more than its share of them, however many clients it has.
struct DialTurns {
    all: Arc<Semaphore>,
    by_host: BTreeMap<Option<IpAddr>, Arc<Semaphore>>,
    /// Beats whenever a client gets its turn.
    progress: Pulse,
}

impl DialTurns {
    fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(DIALS)), by_host: BTreeMap::new(), progress: Pulse::new() }
    }

    /// Waits for the turn of a client of a host; `None` if nobody gets a turn for too long. A client waits first in its
    /// host's queue, then in everybody's, and both serve in the order of arrival. Unix clients have no host and may
    /// take all turns.
    fn next(&mut self, host: Option<IpAddr>) -> impl Future<Output = Option<DialTurn>> + Send + use<> {
        if !self.by_host.contains_key(&host) {
            self.by_host.retain(|_, turns| Arc::strong_count(turns) > 1);
        }
        let most = if host.is_some() { DIALS_OF_ONE } else { DIALS };
        let of_host = self.by_host.entry(host).or_insert_with(|| Arc::new(Semaphore::new(most)));
        let (of_host, of_all, progress) = (of_host.clone(), self.all.clone(), self.progress.clone());
        async move {
            let turn =
                async { Some([of_host.acquire_owned().await.ok()?, of_all.acquire_owned().await.ok()?]) };
            let stuck = async {
                sleep(TURN_LIMIT).await;
                progress.silence(TURN_LIMIT).await;
            };
            tokio::select! {
                biased;
                turn = turn => {
                    progress.beat();
                    turn
                }
                () = stuck => None,
            }
        }
    }
}

/// Hands each stream of `listener` to a task of its own, until `stop`; then waits for the tasks and closes the service.
/// Each task gets the token and has to end with it. A neighbour may have `most` streams at a time, and all neighbours
/// together twice as many.
pub(super) async fn outward<F>(
    node: &NodeHandle,
    mut listener: StreamListener,
    most: usize,
    serve: impl Fn(MeshStream, CancellationToken) -> F,
    stop: CancellationToken,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut crowd: Crowd<Option<CountedBy>> = Crowd::new(most, stop);
    loop {
        let stream = tokio::select! {
            () = crowd.stop.cancelled() => break,
            stream = listener.accept() => stream,
        };
        let Some(stream) = stream else { break };
        match crowd.place(&stream.remote().map(|(name, _)| node.counted(name, stream.is_certified()))) {
            Some(place) => crowd.spawn(place, serve(stream, crowd.stop.clone())),
            None => stream.abort("too many connections"),
        }
    }
    crowd.end().await;
    listener.close().await;
}

/// Joins a stream to the connection that `connect` makes.
pub(super) async fn join<L: LocalSocket>(
    connect: impl Future<Output = io::Result<L>> + Send,
    stream: MeshStream,
    target: String,
    stop: CancellationToken,
) {
    let connected = stop.run_until_cancelled(timeout(CONNECT_LIMIT, connect)).await;
    let Some(connected) = connected else { return stream.abort("proxy closed") };
    match connected.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into())) {
        Ok(socket) => copy(socket, stream, stop).await,
        Err(error) => {
            warn!(target, %error, "proxy stream refused: the target cannot be reached");
            stream.abort("target cannot be reached");
        }
    }
}

/// The connections of one proxy. `K` identifies a neighbour.
struct Crowd<K: Ord + Clone> {
    stop: CancellationToken,
    most: usize,
    places: Places<K>,
    tasks: TaskTracker,
    /// Whether the last connection was refused, so that further refusals are not logged.
    is_full: bool,
}

impl<K: Ord + Clone + Send + 'static> Crowd<K> {
    fn new(most: usize, stop: CancellationToken) -> Self {
        Self { stop, most, places: Places::new(most), tasks: TaskTracker::new(), is_full: false }
    }

    /// A place for one more of a neighbour's connections.
    fn place(&mut self, neighbour: &K) -> Option<Share<K>> {
        let place = self.places.take(neighbour);
        if place.is_none() && !self.is_full {
            warn!(connections = self.most, "a neighbour has reached its limit of connections to a proxy");
        }
        self.is_full = place.is_none();
        place
    }

    fn spawn(&self, place: Share<K>, connection: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            connection.await;
            drop(place);
        });
    }

    async fn end(self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// Lets clients of hosts dial, each for `dial` seconds, and returns the order of their turns.
    async fn order_of(clients: &[u8], dial: u64) -> Vec<u8> {
        let (mut turns, (seen, mut order)) = (DialTurns::new(), mpsc::unbounded_channel());
        for &host in clients {
            let (turn, seen) = (turns.next(Some([127, 0, 0, host].into())), seen.clone());
            tokio::spawn(async move {
                let Some(_turn) = turn.await else { return };
                seen.send(host).unwrap();
                sleep(Duration::from_secs(dial)).await;
            });
        }
        drop(seen);
        let mut all = Vec::new();
        while order.recv_many(&mut all, usize::MAX).await > 0 {}
        all
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_with_a_thousand_clients_keeps_no_other_waiting() {
        let order = order_of(&[&[1; 1000][..], &[2]].concat(), 1).await;
        assert_eq!(order.len(), 1001, "each has its turn");
        assert_eq!(order.iter().position(|&host| host == 2), Some(16), "it does not wait at all");
        let begun = tokio::time::Instant::now();
        order_of(&[1; 80], 1).await;
        assert_eq!(begun.elapsed().as_secs(), 5, "16 at a time");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_refused_once_nobody_comes_to_a_turn_any_more() {
        assert_eq!(order_of(&[1; 500], 29).await.len(), 500);
        assert_eq!(order_of(&[1; 500], 31).await.len(), 16);
    }

    #[tokio::test(start_paused = true)]
    async fn hosts_take_turns_and_a_proxy_dials_for_32_clients_at_a_time() {
        let crowd: Vec<u8> = (1..=10).flat_map(|host| [host; 100]).chain([11]).collect();
        let begun = tokio::time::Instant::now();
        let order = order_of(&crowd, 1).await;
        assert!(begun.elapsed().as_secs() >= 1001 / 32, "never more");
        let at = order.iter().position(|&host| host == 11).unwrap();
        assert!(at <= 160, "one turn of each host is before it: {at}");
    }

    #[test]
    fn hosts_without_clients_are_forgotten() {
        let mut turns = DialTurns::new();
        let kept = turns.next(Some([127, 0, 0, 1].into()));
        for host in 2..100 {
            drop(turns.next(Some([127, 0, 0, host].into())));
        }
        assert_eq!(turns.by_host.len(), 2);
        drop(kept);
    }
}
