//! Starting a node, and the handle by which the other rooms use it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::SeedableRng;
use rand::distr::{Alphanumeric, SampleString};
use rand::rngs::SmallRng;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::clock::Clock;
use super::driver::{Ask, Driver, Input, SendAsk};
use super::forwarding::Switch;
use super::link_log::Comings;
use super::socket::{BindError, OverlaySocket};
use super::stats::LinkStatus;
use crate::mesh::firewall::Rule;
use crate::mesh::{ForgetError, LocalService, Mesh, Options, SendError, Status};
use crate::os::log_limiter::LogLimiter;
use crate::wire::{NameHash, NodeId, ServiceName, WorkCommand};

/// Messages that may wait for the driver; beyond that, links are read more slowly.
const INBOX: usize = 1024;

/// How a node is started.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// The node's ID.
    pub id: NodeId,
    /// The number of its life, greater than that of any earlier one; made from the clock if absent.
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
    /// Another node was in the mesh first under the same ID.
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
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    switch: Arc<Switch>,
    inbox: mpsc::Sender<Input>,
    asks: mpsc::UnboundedSender<Ask>,
    stop: CancellationToken,
}

impl NodeHandle {
    /// Starts a node without links. The receiver is told once why the node stopped.
    pub fn start(options: NodeOptions) -> (Self, oneshot::Receiver<StopCause>) {
        let clock = Clock::start();
        let now = clock.now();
        let rng: SmallRng = SmallRng::from_rng(&mut rand::rng());
        let epoch = options.epoch.unwrap_or_else(|| epoch(now.wall));
        let max_idle = options.mesh.max_idle;
        let mut mesh = Mesh::new(options.id.clone(), epoch, options.mesh, rng, now);
        mesh.set_firewall(options.firewall);
        let switch = Arc::new(Switch::new(options.id));
        let (inbox, inbox_receiver) = mpsc::channel(INBOX);
        let (asks, asks_receiver) = mpsc::unbounded_channel();
        let (stop_cause, stopped) = oneshot::channel();
        let stop = CancellationToken::new();
        let driver = Driver {
            mesh,
            switch: switch.clone(),
            clock,
            max_idle,
            inbox_sender: inbox.clone(),
            channels: BTreeMap::new(),
            next_session: 1,
            stop: stop.clone(),
            stop_cause: Some(stop_cause),
            budget: Arc::default(),
            complaints: LogLimiter::new(10, Duration::from_secs(1)),
            comings: Comings::default(),
        };
        tokio::spawn(driver.run(inbox_receiver, asks_receiver));
        let inner = Inner { switch, inbox, asks, stop };
        (Self { inner: Arc::new(inner) }, stopped)
    }

    /// The node's ID.
    pub fn id(&self) -> &NodeId {
        &self.inner.switch.id
    }

    /// What the node knows of its mesh. Empty once it has stopped.
    pub async fn status(&self) -> Status {
        self.ask(Ask::Status).await.unwrap_or_default()
    }

    /// The sessions with neighbours, by name. Empty once the node has stopped.
    pub async fn links(&self) -> Vec<LinkStatus> {
        self.ask(Ask::Links).await.unwrap_or_default()
    }

    /// What waits inside this node.
    pub fn queues(&self) -> Queues {
        let (service_bytes, service_dropped) = self.inner.switch.stand_of_ports();
        let waiting = self.inner.inbox.max_capacity() - self.inner.inbox.capacity();
        Queues { core: waiting as u64, service_bytes: service_bytes as u64, service_dropped }
    }

    /// The name behind a hash, if this node has learned it.
    pub async fn name_of(&self, node: NameHash) -> Option<NodeId> {
        self.ask(|reply| Ask::NameOf(node, reply)).await.flatten()
    }

    /// Forgets a node that cannot be reached any more.
    ///
    /// # Errors
    /// [`ForgetError`] says why not; `Unknown` also once this node has stopped.
    pub async fn forget(&self, node: &NodeId) -> Result<(), ForgetError> {
        let forgotten = self.ask(|reply| Ask::Forget(node.clone(), reply)).await;
        forgotten.unwrap_or_else(|| Err(ForgetError::Unknown(node.clone())))
    }

    /// True if a way to that node is known at the moment.
    pub fn reaches(&self, node: NameHash) -> bool {
        self.inner.switch.reaches(node)
    }

    /// Tells of other nodes that have started anew, from now on.
    pub fn restarts(&self) -> broadcast::Receiver<NameHash> {
        self.inner.switch.restarted.subscribe()
    }

    /// Tells of changes of routes and of what other nodes offer, from now on.
    pub fn changes(&self) -> Changes {
        let switch = &self.inner.switch;
        Changes { routes: switch.replaced.subscribe(), offers: switch.offers.subscribe() }
    }

    /// Ends when no way to that node is known; at once if there is none now.
    pub async fn disappears(&self, node: NameHash) {
        let mut replaced = self.inner.switch.replaced.subscribe();
        while self.reaches(node) {
            // The sender lives in the switch, which lives in this handle.
            let _ = replaced.changed().await;
        }
    }

    /// Ends when a way to that node appears that was not there; at the first one if there is none now.
    pub async fn appears(&self, node: NameHash) {
        let mut replaced = self.inner.switch.replaced.subscribe();
        for wanted in [false, true] {
            while self.reaches(node) != wanted {
                // The sender lives in the switch, which lives in this handle.
                let _ = replaced.changed().await;
            }
        }
    }

    /// Opens a service for datagrams.
    ///
    /// # Errors
    /// If it is reserved or open already, or the node has stopped.
    pub async fn bind(&self, service: ServiceName) -> Result<OverlaySocket, BindError> {
        let port = self.switch().new_port();
        let bound = self.ask(|reply| Ask::Bind(service, port.clone(), reply)).await;
        match bound {
            Some(true) => Ok(OverlaySocket::new(self.clone(), service, port)),
            Some(false) => Err(BindError::InUse(service)),
            None => Err(BindError::Stopped),
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

    /// Tells the mesh of a bound service, until it is closed.
    pub fn advertise(&self, service: ServiceName, offer: LocalService) {
        self.tell(Ask::Advertise(service, offer));
    }

    /// Replaces the work types that this node tells the mesh of.
    pub fn set_work_commands(&self, commands: Vec<WorkCommand>) {
        self.tell(Ask::WorkCommands(commands));
    }

    /// Replaces the firewall's rules; returns once they hold.
    pub async fn set_firewall(&self, rules: Vec<Rule>) {
        let _stopped = self.ask(|reply| Ask::Firewall(rules, reply)).await;
    }

    /// How long a link may be silent from now on.
    pub fn set_max_idle(&self, limit: Duration) {
        self.tell(Ask::MaxIdle(limit));
    }

    /// How long unreachable nodes stay listed from now on.
    pub fn set_forget_time(&self, time: Duration) {
        self.tell(Ask::ForgetTime(time));
    }

    /// Stops the node: links are closed in order, services end.
    pub fn stop(&self) {
        self.inner.stop.cancel();
    }

    /// Cancelled when the node stops.
    pub(super) fn stop_token(&self) -> &CancellationToken {
        &self.inner.stop
    }

    pub(super) fn inbox(&self) -> &mpsc::Sender<Input> {
        &self.inner.inbox
    }

    pub(super) fn switch(&self) -> &Switch {
        &self.inner.switch
    }

    pub(super) fn unbind(&self, service: ServiceName) {
        self.tell(Ask::Unbind(service));
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
        let ask = SendAsk { from_service, to_node, to_service, payload, hops };
        self.ask(|reply| Ask::Send(ask, reply)).await
    }

    fn tell(&self, ask: Ask) {
        // A stopped node has nothing left to be told.
        let _stopped = self.inner.asks.send(ask);
    }

    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.tell(ask(reply));
        answer.await.ok()
    }
}

/// Word of changes of what [`NodeHandle::status`] says.
#[derive(Debug)]
pub struct Changes {
    routes: watch::Receiver<()>,
    offers: watch::Receiver<()>,
}

impl Changes {
    /// Ends when something may have changed since the last call ended. For ever once the node is gone.
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

/// The number of a life that begins now.
///
/// Seconds since 1970 shifted left by 24 bits, plus a number of 24 bits (docs/protocol.md#epochs). A Go node
/// takes a random one. Here it is the fraction of the second: a node that is started again within the same
/// second must not look older than its former self, which nobody would listen to.
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
