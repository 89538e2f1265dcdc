//! Starting a node, and the handle by which the other rooms use it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use rand::SeedableRng;
use rand::distr::{Alphanumeric, SampleString};
use rand::rngs::SmallRng;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::clock::Clock;
use super::dial::{DialStatus, Dials};
use super::driver::{Command, Driver, Input};
use super::forwarding::ForwardingPlane;
use super::link_log::LinkLog;
use super::socket::{BindError, OverlaySocket};
use super::stats::LinkStatus;
use crate::mesh::firewall::Rule;
use crate::mesh::{ForgetError, LocalService, Mesh, Options, SendError, SessionId, Status};
use crate::wire::{NameHash, NodeId, ServiceName, WorkCommand};

/// Messages that may wait for the driver; beyond that, links are read more slowly.
const INBOX: usize = 1024;

/// How a node is started.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// The node's ID.
    pub id: NodeId,
    /// Its epoch, greater than that of any earlier start; made from the clock if absent.
    pub epoch: Option<u64>,
    /// The protocol's timers.
    pub mesh: Options,
    /// Firewall rules.
    pub firewall: Vec<Rule>,
}

impl NodeOptions {
    /// A node with that ID and everything else by default.
    pub fn new(id: NodeId) -> Self {
        Self { id, epoch: None, mesh: Options::default(), firewall: Vec::new() }
    }
}

/// Why a node stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// It was asked to.
    Asked,
    /// Another node was there first under the same ID, and has proved it.
    Duplicate,
}

/// The queues inside a node, links' own ones aside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Queues {
    /// Messages that wait for the protocol's task.
    pub core: u64,
    /// Bytes of datagrams that have arrived at services of this node and have not been read.
    pub service_bytes: u64,
    /// Datagrams that found no room there so far.
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
    /// Neighbours are not dialled any more.
    no_dials: CancellationToken,
    dials: Dials,
}

/// With whom a node shares what there is of something. Anybody can invent names, but not links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CountedBy {
    /// With nobody: it has proved its name.
    Name(NameHash),
    /// With all that are reached by that link; by none are those that have just gone, and this node.
    Link(Option<SessionId>),
}

impl NodeHandle {
    /// Starts a node without links. The receiver gets the cause when the node stops.
    pub fn start(options: NodeOptions) -> (Self, oneshot::Receiver<StopCause>) {
        let clock = Clock::start();
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
        let shared = NodeShared { plane, inbox, commands, stop, no_dials, dials: Dials::default() };
        (Self { shared: Arc::new(shared) }, stopped)
    }

    /// The node's ID.
    pub fn id(&self) -> &NodeId {
        &self.shared.plane.id
    }

    /// What the node knows of its mesh. Empty once it has stopped.
    pub async fn status(&self) -> Status {
        self.ask(|driver| driver.mesh.status(driver.clock.now())).await.unwrap_or_default()
    }

    /// The sessions with neighbours, by name. Empty once the node has stopped.
    pub async fn links(&self) -> Vec<LinkStatus> {
        self.ask(|driver| driver.links()).await.unwrap_or_default()
    }

    /// The former neighbours without a link, and since when. Empty once the node has stopped.
    pub async fn lost(&self) -> BTreeMap<NodeId, Timestamp> {
        self.ask(|driver| driver.lost.clone()).await.unwrap_or_default()
    }

    /// The peers that the node dials, in the order in which they were added.
    pub fn dials(&self) -> Vec<DialStatus> {
        self.shared.dials.all()
    }

    pub(super) fn dial_table(&self) -> &Dials {
        &self.shared.dials
    }

    /// What waits inside this node.
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

    /// True if a way to that node is known at the moment.
    pub fn reaches(&self, node: NameHash) -> bool {
        self.shared.plane.reaches(node)
    }

    /// With whom a node is counted that has proved its name, or not.
    pub fn counted(&self, node: NameHash, has_proof: bool) -> CountedBy {
        match has_proof {
            true => CountedBy::Name(node),
            false => CountedBy::Link(self.shared.plane.link_to(node)),
        }
    }

    /// Other nodes that restart from now on.
    pub fn restarts(&self) -> broadcast::Receiver<NameHash> {
        self.shared.plane.restarted.subscribe()
    }

    /// Notices changes of routes and of what other nodes offer, from now on.
    pub fn changes(&self) -> Changes {
        let plane = &self.shared.plane;
        Changes { routes: plane.replaced.subscribe(), offers: plane.offers.subscribe() }
    }

    /// Ends when no way to that node is known; at once if there is none now.
    pub async fn disappears(&self, node: NameHash) {
        let mut replaced = self.shared.plane.replaced.subscribe();
        while self.reaches(node) {
            // The sender lives in the plane, which lives in this handle.
            let _ = replaced.changed().await;
        }
    }

    /// Ends when a way to that node appears that was not there; at the first one if there is none now.
    pub async fn appears(&self, node: NameHash) {
        let mut replaced = self.shared.plane.replaced.subscribe();
        for wanted in [false, true] {
            while self.reaches(node) != wanted {
                // The sender lives in the plane, which lives in this handle.
                let _ = replaced.changed().await;
            }
        }
    }

    /// The session by which datagrams for that node leave.
    pub fn way(&self, node: NameHash) -> Option<SessionId> {
        self.shared.plane.way(node)
    }

    /// Ends when they leave by another session than this one, or by any again after there was none, and says which.
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
            // The caller may have been dropped meanwhile.
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

    /// How long a link may be silent from now on.
    pub fn set_max_idle(&self, limit: Duration) {
        self.command(move |driver| driver.set_max_idle(limit));
    }

    /// How long unreachable nodes stay listed from now on.
    pub fn set_forget_time(&self, time: Duration) {
        self.command(move |driver| driver.mesh.set_forget_time(time, driver.clock.now()));
    }

    /// Dials no neighbour any more. Links that are up stay: services may have something to finish.
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

    /// Sends a datagram by the core, which says whether it could.
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

/// Waits for changes of what [`NodeHandle::status`] returns.
#[derive(Debug)]
pub struct Changes {
    routes: watch::Receiver<()>,
    offers: watch::Receiver<()>,
}

impl Changes {
    /// Returns when something may have changed since the last call returned; never once the node has stopped.
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
/// takes a random one. Here it is the fraction of the second: a node that restarts within the same second must not
/// look older than before, or the others would ignore it.
pub fn epoch(wall: jiff::Timestamp) -> u64 {
    let nanoseconds = u128::try_from(wall.as_nanosecond()).unwrap_or(0);
    u64::try_from((nanoseconds << 24) / 1_000_000_000).unwrap_or(u64::MAX)
}

/// How long the end of a link may take.
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
