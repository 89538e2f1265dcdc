//! Starts a node, and gives other rooms the handle to use it. Decides nothing of the protocol.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::SeedableRng;
use rand::distr::{Alphanumeric, SampleString};
use rand::rngs::SmallRng;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::clock::TickClock;
use super::dial::{DialStatus, Dials};
use super::driver::{Command, Driver, Input};
use super::forwarding::ForwardingPlane;
use super::link_log::LinkLog;
use super::socket::{BindError, OverlaySocket};
use super::stats::LinkStatus;
use crate::backend::Session;
use crate::mesh::firewall::Rule;
use crate::mesh::{ForgetError, LocalService, Mesh, MeshStatus, Options, SendError, SessionId};
use crate::wire::{NameHash, NodeId, ServiceName, WorkCommand};

/// Most messages that wait for the driver; links are read more slowly when it is full.
const INBOX: usize = 1024;

/// How a node is started.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// The node's ID.
    pub id: NodeId,
    /// Its epoch, greater than that of any earlier start. Made from the clock if `None`.
    pub epoch: Option<u64>,
    /// The protocol's timers.
    pub mesh: Options,
    /// Firewall rules.
    pub firewall: Vec<Rule>,
    /// Where listeners send hosts that want to become nodes; without it they are sent away.
    pub newcomers: Option<mpsc::Sender<Session>>,
}

impl NodeOptions {
    /// A node with that ID and everything else by default.
    pub fn new(id: NodeId) -> Self {
        Self { id, epoch: None, mesh: Options::default(), firewall: Vec::new(), newcomers: None }
    }
}

/// Why a node stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// It was asked to stop.
    Asked,
    /// Another node with a certificate for this ID was there first.
    Duplicate,
}

/// The queues inside a node, except those of links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Queues {
    /// Messages that wait for the protocol's task.
    pub core: u64,
    /// Bytes of datagrams that have arrived at this node's services and wait to be read.
    pub service_bytes: u64,
    /// Datagrams that found no room at services so far.
    pub service_dropped: u64,
}

/// A running node. Clones are the same node.
#[derive(Debug, Clone)]
pub struct NodeHandle {
    shared: Arc<NodeShared>,
}

#[derive(Debug)]
struct NodeShared {
    plane: Arc<ForwardingPlane>,
    inbox: mpsc::Sender<Input>,
    commands: mpsc::UnboundedSender<Command>,
    stop: CancellationToken,
    /// Cancelled once neighbours are not dialled any more.
    no_dials: CancellationToken,
    dials: Dials,
    newcomers: Option<mpsc::Sender<Session>>,
}

/// To whose share of a bounded resource a remote node is counted. Anybody can invent names, but not links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CountedBy {
    /// To a share of its own, because it has proved its name.
    Name(NameHash),
    /// To the share of all nodes that are reached by this link. `None` is for nodes without a route and for this node
    /// itself.
    Link(Option<SessionId>),
}

impl NodeHandle {
    /// Starts a node without links. The receiver gets the cause when the node stops.
    pub fn start(options: NodeOptions) -> (Self, oneshot::Receiver<StopCause>) {
        let clock = TickClock::start();
        let now = clock.now();
        let rng: SmallRng = SmallRng::from_rng(&mut rand::rng());
        let epoch = options.epoch.unwrap_or_else(|| epoch(now.wall));
        let max_idle = options.mesh.max_idle;
        let mut mesh = Mesh::new(options.id.clone(), epoch, options.mesh, rng, now);
        mesh.set_firewall(options.firewall);
        let plane = Arc::new(ForwardingPlane::new(options.id));
        let (inbox, inbox_receiver) = mpsc::channel(INBOX);
        let (commands, commands_receiver) = mpsc::unbounded_channel();
        let (stop_cause, stopped) = oneshot::channel();
        let stop = CancellationToken::new();
        let driver = Driver {
            mesh,
            plane: plane.clone(),
            clock,
            max_idle,
            inbox_sender: inbox.clone(),
            sessions: BTreeMap::new(),
            introduced: BTreeMap::new(),
            link_log: LinkLog::default(),
            lost: BTreeMap::new(),
            next_session: 1,
            stop: stop.clone(),
            stop_cause: Some(stop_cause),
            budget: Arc::default(),
        };
        tokio::spawn(driver.run(inbox_receiver, commands_receiver));
        let no_dials = stop.child_token();
        let (dials, newcomers) = (Dials::default(), options.newcomers);
        let shared = NodeShared { plane, inbox, commands, stop, no_dials, dials, newcomers };
        (Self { shared: Arc::new(shared) }, stopped)
    }

    /// The node's ID.
    pub fn id(&self) -> &NodeId {
        &self.shared.plane.id
    }

    /// What the node knows of its mesh. Empty once it has stopped.
    pub async fn status(&self) -> MeshStatus {
        self.ask(|driver| driver.mesh.status(driver.clock.now())).await.unwrap_or_default()
    }

    /// The sessions with neighbours, by name. Empty once the node has stopped.
    pub async fn links(&self) -> Vec<LinkStatus> {
        self.ask(|driver| driver.links()).await.unwrap_or_default()
    }

    /// The former neighbours without a link, and why it ended. Empty once the node has stopped.
    pub async fn lost(&self) -> BTreeMap<NodeId, String> {
        self.ask(|driver| driver.lost.clone()).await.unwrap_or_default()
    }

    /// The peers that the node dials, in the order in which they were added.
    pub fn dials(&self) -> Vec<DialStatus> {
        self.shared.dials.all()
    }

    /// Where listeners send newcomers.
    pub(super) fn newcomers(&self) -> Option<mpsc::Sender<Session>> {
        self.shared.newcomers.clone()
    }

    pub(super) fn dial_table(&self) -> &Dials {
        &self.shared.dials
    }

    /// How much waits inside this node.
    pub fn queues(&self) -> Queues {
        let (service_bytes, service_dropped) = self.shared.plane.port_stats();
        let waiting = self.shared.inbox.max_capacity() - self.shared.inbox.capacity();
        Queues { core: waiting as u64, service_bytes: service_bytes as u64, service_dropped }
    }

    /// The name behind a hash, if this node has learned it.
    pub async fn name_of(&self, node: NameHash) -> Option<NodeId> {
        self.ask(move |driver| driver.mesh.name_of(node)).await.flatten()
    }

    /// Forgets a node that cannot be reached any more.
    ///
    /// # Errors
    /// [`ForgetError`] says why not; `Unknown` also once this node has stopped.
    pub async fn forget(&self, node: &NodeId) -> Result<(), ForgetError> {
        let name = node.clone();
        let forgotten = self.ask(move |driver| driver.mesh.forget(&name, driver.clock.now())).await;
        forgotten.unwrap_or_else(|| Err(ForgetError::Unknown(node.clone())))
    }

    /// True if a route to that node is known now.
    pub fn reaches(&self, node: NameHash) -> bool {
        self.shared.plane.reaches(node)
    }

    /// To whose share a remote node is counted; `has_proof` if it has proved its name.
    pub fn counted(&self, node: NameHash, has_proof: bool) -> CountedBy {
        match has_proof {
            true => CountedBy::Name(node),
            false => CountedBy::Link(self.shared.plane.way(node)),
        }
    }

    /// Other nodes that restart from now on.
    pub fn restarts(&self) -> broadcast::Receiver<NameHash> {
        self.shared.plane.restarted.subscribe()
    }

    /// Notices changes of routes and of other nodes' services, from now on.
    pub fn changes(&self) -> Changes {
        let plane = &self.shared.plane;
        Changes { routes: plane.replaced.subscribe(), offers: plane.offers.subscribe() }
    }

    /// Returns when no route to that node is known; at once if there is none now.
    pub async fn disappears(&self, node: NameHash) {
        let mut replaced = self.shared.plane.replaced.subscribe();
        while self.reaches(node) {
            // The sender lives in the plane, which lives in this handle.
            let _ = replaced.changed().await;
        }
    }

    /// Returns when a route to that node appears after there was none. If there is one now, it has to disappear first.
    pub async fn appears(&self, node: NameHash) {
        let mut replaced = self.shared.plane.replaced.subscribe();
        for wanted in [false, true] {
            while self.reaches(node) != wanted {
                // The sender lives in the plane, which lives in this handle.
                let _ = replaced.changed().await;
            }
        }
    }

    /// The session by which datagrams for that node leave this one.
    pub fn way(&self, node: NameHash) -> Option<SessionId> {
        self.shared.plane.way(node)
    }

    /// Waits until datagrams for that node leave by another session than `session`, or by any after there was none;
    /// returns it.
    pub async fn other_way(&self, node: NameHash, mut session: Option<SessionId>) -> SessionId {
        let mut replaced = self.shared.plane.replaced.subscribe();
        loop {
            match self.way(node) {
                Some(now) if session != Some(now) => return now,
                now => session = now,
            }
            // The sender lives in the plane, which lives in this handle.
            let _ = replaced.changed().await;
        }
    }

    /// Opens a service for datagrams.
    ///
    /// # Errors
    /// If it is reserved or open already, or the node has stopped.
    pub async fn bind(&self, service: ServiceName) -> Result<OverlaySocket, BindError> {
        let port = self.plane().new_port();
        let (reply, answer) = oneshot::channel();
        let opened = port.clone();
        self.command(move |driver| {
            let bound = driver.bind(service, opened);
            // The caller may have gone meanwhile.
            if reply.send(bound).is_err() && bound {
                driver.unbind(service);
            }
        });
        match answer.await {
            Ok(true) => Ok(OverlaySocket::new(self.clone(), service, port)),
            Ok(false) => Err(BindError::InUse(service)),
            Err(_) => Err(BindError::Stopped),
        }
    }

    /// Opens a service under a fresh random name, the counterpart of an ephemeral port.
    ///
    /// # Errors
    /// If the node has stopped.
    pub async fn bind_ephemeral(&self) -> Result<OverlaySocket, BindError> {
        loop {
            let name = Alphanumeric.sample_string(&mut rand::rng(), 8);
            let Ok(service) = ServiceName::new(&name) else { continue };
            match self.bind(service).await {
                Err(BindError::InUse(_)) => {}
                result => return result,
            }
        }
    }

    /// Advertises a bound service to the mesh until it is closed.
    pub fn advertise(&self, service: ServiceName, offer: LocalService) {
        self.command(move |driver| driver.mesh.advertise(service, offer, driver.clock.now()));
    }

    /// Replaces the work types that this node advertises.
    pub fn set_work_commands(&self, commands: Vec<WorkCommand>) {
        self.command(move |driver| driver.mesh.set_work_commands(commands, driver.clock.now()));
    }

    /// Replaces the firewall's rules; returns once they hold.
    pub async fn set_firewall(&self, rules: Vec<Rule>) {
        let set = self.ask(move |driver| {
            driver.mesh.set_firewall(rules);
            driver.flush();
        });
        let _stopped = set.await;
    }

    /// Sets how long a link may be silent.
    pub fn set_max_idle(&self, limit: Duration) {
        self.command(move |driver| driver.set_max_idle(limit));
    }

    /// Sets how long unreachable nodes stay listed.
    pub fn set_forget_time(&self, time: Duration) {
        self.command(move |driver| driver.mesh.set_forget_time(time, driver.clock.now()));
    }

    /// Stops dialling neighbours. Links that are up stay, because services may have something to finish.
    pub fn stop_dialling(&self) {
        self.shared.no_dials.cancel();
    }

    /// Cancelled once no neighbour is to be dialled.
    pub(super) fn no_dials(&self) -> &CancellationToken {
        &self.shared.no_dials
    }

    /// Stops the node: links are closed in order, services end.
    pub fn stop(&self) {
        self.shared.stop.cancel();
    }

    /// Cancelled when the node stops.
    pub(super) fn stop_token(&self) -> &CancellationToken {
        &self.shared.stop
    }

    pub(super) fn inbox(&self) -> &mpsc::Sender<Input> {
        &self.shared.inbox
    }

    pub(super) fn plane(&self) -> &ForwardingPlane {
        &self.shared.plane
    }

    pub(super) fn unbind(&self, service: ServiceName) {
        self.command(move |driver| driver.unbind(service));
    }

    /// Sends a datagram through the core, and returns whether it could be sent.
    pub(super) async fn send(
        &self,
        from_service: ServiceName,
        to_node: NodeId,
        to_service: ServiceName,
        payload: Bytes,
        hops: u8,
    ) -> Option<Result<(), SendError>> {
        let send = move |driver: &mut Driver| {
            let now = driver.clock.now();
            driver.mesh.send(from_service, &to_node, to_service, &payload, hops, now)
        };
        self.ask(send).await
    }

    /// Has the driver do something, unless the node has stopped.
    fn command(&self, run: impl FnOnce(&mut Driver) + Send + 'static) {
        let _stopped = self.shared.commands.send(Box::new(run));
    }

    /// Has the driver do something and waits for its answer; `None` if the node has stopped.
    async fn ask<T: Send + 'static>(&self, run: impl FnOnce(&mut Driver) -> T + Send + 'static) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.command(move |driver| {
            let _gone = reply.send(run(driver));
        });
        answer.await.ok()
    }
}

/// Waits for changes of routes and of other nodes' services in [`NodeHandle::status`].
#[derive(Debug)]
pub struct Changes {
    routes: watch::Receiver<()>,
    offers: watch::Receiver<()>,
}

impl Changes {
    /// Returns once something may have changed since the last call returned; never after the node has stopped.
    pub async fn next(&mut self) {
        let changed = tokio::select! {
            changed = self.routes.changed() => changed,
            changed = self.offers.changed() => changed,
        };
        if changed.is_err() {
            std::future::pending().await
        }
    }
}

/// The epoch of a node that starts now.
///
/// Seconds since 1970 shifted left by 24 bits, plus a number of 24 bits (docs/protocol.md#epochs). A Go node
/// takes a random number. Here it is the fraction of the second: a node that restarts within the same second must
/// not look older than before, or others would ignore it.
pub fn epoch(wall: jiff::Timestamp) -> u64 {
    let nanoseconds = u128::try_from(wall.as_nanosecond()).unwrap_or(0);
    u64::try_from((nanoseconds << 24) / 1_000_000_000).unwrap_or(u64::MAX)
}

/// How long [`LinkHandle::stop`](super::LinkHandle::stop) waits for a link's end.
pub(super) const LINK_STOP_LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_start_in_the_same_second_has_the_later_epoch() {
        let at = |nanoseconds| epoch(jiff::Timestamp::new(1_800_000_000, nanoseconds).unwrap());
        assert_eq!(at(0), 1_800_000_000 << 24);
        assert!(at(1_000) > at(0) && at(999_999_999) > at(999_000_000));
        assert!(at(999_999_999) < 1_800_000_001 << 24);
    }
}
