//! The two accept loops of stream proxies: from a local listener into the mesh, and from a service of the mesh outward.
//!
//! Owns how many connections there may be, of one neighbour too, and that no connection, target or listener in trouble
//! holds up the others. The kind of socket is the caller's.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::copy::{Local, copy};
use crate::node::{CountedBy, NodeHandle};
use crate::os::address::network_of;
use crate::os::places::{Places, Share};
use crate::stream::{MeshStream, StreamListener, Streams};
use crate::tls::ClientProfile;
use crate::wire::{NodeId, ServiceName};

/// Connections of one neighbour at a time, at one proxy; more are refused. All neighbours together have twice as many.
const MOST: usize = 16_384;
/// Pause after the system could not accept, out of descriptors as a rule.
const REST: Duration = Duration::from_millis(200);
/// How long a target may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// A connection as it was accepted, who it is, for logs, and the host that it comes from, if it comes from one.
pub(super) type Arrival<S> = (S, String, Option<IpAddr>);

/// A listener outside the mesh.
pub(super) trait Source: Send + Sync + 'static {
    /// A connection as it was accepted.
    type Socket: Send + 'static;
    /// A connection that is ready to carry bytes.
    type Side: Local;

    /// The next connection, who it is, for logs, and the host that it comes from. Dropping the wait loses nobody.
    fn accept(&self) -> impl Future<Output = io::Result<Arrival<Self::Socket>>> + Send;

    /// Makes a connection ready, which may take what a handshake takes.
    fn open(&self, socket: Self::Socket) -> impl Future<Output = io::Result<Self::Side>> + Send + 'static;
}

/// A service of a node.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) streams: Streams,
    pub(super) node: NodeId,
    pub(super) service: ServiceName,
    /// How to speak TLS to it.
    pub(super) tls: Option<ClientProfile>,
}

/// Joins each connection of `source` to a stream of its own, until `stop`; then ends them all.
pub(super) async fn inward(source: impl Source, target: Target, stop: CancellationToken) {
    let mut crowd = Crowd::new(stop);
    loop {
        let accepted = tokio::select! {
            () = crowd.stop.cancelled() => break,
            accepted = source.accept() => accepted,
        };
        match accepted {
            Ok((socket, peer, host)) => {
                // One too many is closed.
                let Some(place) = crowd.place(&host.map(network_of)) else { continue };
                let (target, opening, stop) = (target.clone(), source.open(socket), crowd.stop.clone());
                crowd.spawn(place, async move {
                    let dialled = stop.run_until_cancelled(open_both(opening, target, peer)).await;
                    if let Some(Some((socket, stream))) = dialled {
                        copy(socket, stream, stop).await;
                    }
                });
            }
            Err(error) => {
                warn!(%error, "a proxy cannot accept, will go on trying");
                sleep(REST).await;
            }
        }
    }
    drop(source);
    crowd.end().await;
}

/// Makes a local connection ready and opens the stream that it goes on by, or says why not.
async fn open_both<L: Local>(
    opening: impl Future<Output = io::Result<L>>,
    target: Target,
    peer: String,
) -> Option<(L, MeshStream)> {
    debug!(peer, node = %target.node, service = %target.service, "proxy connection");
    let refused = |error: io::Error| warn!(peer, %error, "proxy connection refused");
    let socket = opening.await.map_err(refused).ok()?;
    match target.streams.dial_with(&target.node, target.service, target.tls.as_ref()).await {
        Ok(stream) => Some((socket, stream)),
        Err(error) => {
            refused(error.into());
            socket.abort();
            None
        }
    }
}

/// Hands each stream of `listener` to a task of its own, until `stop`; then waits for the tasks, which get
/// a token of their own, and closes the service.
pub(super) async fn outward<F>(
    node: &NodeHandle,
    mut listener: StreamListener,
    serve: impl Fn(MeshStream, CancellationToken) -> F,
    stop: CancellationToken,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut crowd: Crowd<Option<CountedBy>> = Crowd::new(stop);
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
pub(super) async fn join<L: Local>(
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

/// The connections of one proxy, whose neighbours are told apart by `K`.
struct Crowd<K: Ord + Clone> {
    stop: CancellationToken,
    places: Places<K>,
    tasks: TaskTracker,
    /// The last one was refused: it is told once.
    is_full: bool,
}

impl<K: Ord + Clone + Send + 'static> Crowd<K> {
    fn new(stop: CancellationToken) -> Self {
        Self { stop, places: Places::new(MOST), tasks: TaskTracker::new(), is_full: false }
    }

    /// A place for one more of a neighbour's connections.
    fn place(&mut self, neighbour: &K) -> Option<Share<K>> {
        let place = self.places.take(neighbour);
        if place.is_none() && !self.is_full {
            warn!(connections = MOST, "a neighbour has as many connections to a proxy as it may have");
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
