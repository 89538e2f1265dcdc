//! The task that owns the mesh protocol: it feeds the core with inputs and carries out its outputs.
//!
//! It waits for inputs, commands, timers and freed room, but never for a full queue. [`Mesh`] decides everything about
//! the protocol; the driver logs the decisions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::budget::Budget;
use super::clock::TickClock;
use super::dial::Dial;
use super::forwarding::{ForwardingPlane, ForwardingTable};
use super::handle::StopCause;
use super::link_log::{Ended, LinkLog};
use super::port::{Notice, ServicePort};
use super::queue::IfFull;
use super::session::{SessionContext, SessionShared};
use super::stats::LinkStatus;
use crate::backend;
use crate::mesh::{
    CloseReason, ComputedRoutes, Event, LinkPolicy, Mesh, Neighbour, QueueClass, RouteComputation, SendError,
    SessionId,
};
use crate::wire::{Cost, DataHeader, NodeId, Problem, ServiceName, Unreachable};

/// Most inputs that are handled between two looks at the timers.
const BATCH: usize = 256;

/// Most former neighbours that are remembered, and most bytes of the reason, which the other end may have written.
const MOST_LOST: usize = 256;
const MOST_REASON: usize = 256;

/// Inputs from links and sockets, which reach the driver over a bounded channel.
#[derive(Debug)]
pub(super) enum Input {
    /// A message that the readers do not forward by themselves, with its permit to wait.
    Packet(SessionId, Bytes, OwnedSemaphorePermit),
    /// A link has come up.
    Opened(Box<NewSession>),
    /// A link has gone down, and why.
    Ended(SessionId, String),
    /// A datagram of this node about which the forwarding table does not decide.
    Originate(DataHeader, Bytes),
    /// The routes of a large mesh have been computed.
    Routes(ComputedRoutes),
}

/// A link that has come up.
#[derive(Debug)]
pub(super) struct NewSession {
    pub(super) session: backend::Session,
    pub(super) policy: LinkPolicy,
    pub(super) link: CancellationToken,
    /// The peer that was dialled, if one was.
    pub(super) dial: Option<Arc<Dial>>,
    /// Gets the session's shared state, which shows when the session has ended.
    pub(super) reply: oneshot::Sender<Arc<SessionShared>>,
}

/// A function that a [`NodeHandle`](super::NodeHandle) has the driver run.
pub(super) type Command = Box<dyn FnOnce(&mut Driver) + Send>;

/// The driver's state.
pub(super) struct Driver {
    pub(super) mesh: Mesh,
    pub(super) plane: Arc<ForwardingPlane>,
    pub(super) clock: TickClock,
    pub(super) max_idle: Duration,
    pub(super) inbox_sender: mpsc::Sender<Input>,
    pub(super) sessions: BTreeMap<SessionId, Arc<SessionShared>>,
    /// Sessions whose peers have introduced themselves, but may still refuse this node.
    pub(super) introduced: BTreeMap<SessionId, (NodeId, Cost)>,
    pub(super) link_log: LinkLog,
    /// Neighbours whose last link has ended, and why; for operators alone.
    pub(super) lost: BTreeMap<NodeId, String>,
    pub(super) next_session: u64,
    pub(super) stop: CancellationToken,
    pub(super) stop_cause: Option<oneshot::Sender<StopCause>>,
    /// The room for protocol messages on all links.
    pub(super) budget: Arc<Budget>,
}

impl Driver {
    /// Runs until the node is stopped.
    pub(super) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Input>,
        mut commands: mpsc::UnboundedReceiver<Command>,
    ) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            self.mesh.handle_wait(self.clock.tick());
            let wakeup = self.mesh.poll_timeout().map(|(tick, _)| self.clock.instant(tick));
            let timer = async {
                match wakeup {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => break,
                Some(command) = commands.recv() => command(&mut self),
                count = inbox.recv_many(&mut batch, BATCH) => {
                    debug_assert!(count > 0, "the driver holds a sender itself");
                    for input in batch.drain(..) {
                        self.take(input);
                        // Commands run in between, so that a flood of inputs does not delay this node's own clients.
                        if let Ok(command) = commands.try_recv() {
                            command(&mut self);
                        }
                    }
                }
                () = self.budget.freed() => self.offer_room(),
                () = timer => {}
            }
            if wakeup.is_some_and(|at| at <= Instant::now()) {
                self.report_activity();
                self.mesh.handle_timeout(self.clock.now());
            }
            self.flush();
        }
        self.shut_down();
    }

    /// Readers that forward packets only note the time; tells the core about it.
    fn report_activity(&mut self) {
        for (&id, shared) in &self.sessions {
            self.mesh.handle_activity(id, shared.heard());
        }
    }

    fn take(&mut self, input: Input) {
        let now = self.clock.now();
        match input {
            Input::Packet(session, message, _turn) => {
                self.mesh.handle_packet(session, message, now);
                self.flush();
                self.note_let_in(session);
            }
            Input::Opened(new) => self.open(*new),
            Input::Ended(session, cause) => {
                debug!(%session, %cause, "link ended");
                if let Some(shared) = self.sessions.get(&session) {
                    // Only the first cause counts.
                    let _known = shared.cause.set(cause);
                }
                self.mesh.handle_session_closed(session, now);
            }
            Input::Routes(computed) => self.mesh.handle_routes(&computed, now.tick),
            Input::Originate(header, payload) => {
                // As on any datagram network, the sender learns of a loss from a notice, or not at all.
                if self.mesh.originate(header, &payload, now) == Err(SendError::ServiceUnknown) {
                    self.notice_own_service_unknown(&header);
                }
            }
        }
        self.flush();
    }

    /// Gives the notice that a remote node would send for its own services.
    fn notice_own_service_unknown(&self, header: &DataHeader) {
        if let Some(port) = self.plane.port(header.from_service) {
            let id = &self.plane.id;
            let notice = Unreachable {
                from_node: id.clone(),
                to_node: id.clone(),
                from_service: header.from_service,
                to_service: header.to_service,
                problem: Problem::ServiceUnknown,
            };
            port.push_notice(Notice { notice, reported_by: id.clone() });
        }
    }

    fn open(&mut self, new: NewSession) {
        let id = SessionId(self.next_session);
        self.next_session += 1;
        let now = self.clock.now();
        let info = &new.session.info;
        let shared = SessionShared::new(id, info, self.budget.clone(), new.dial, now.tick);
        let shared = Arc::new(shared);
        if new.reply.send(shared.clone()).is_err() {
            return;
        }
        self.sessions.insert(id, shared.clone());
        let context = SessionContext {
            plane: self.plane.clone(),
            inbox: self.inbox_sender.clone(),
            clock: self.clock,
            max_idle: self.max_idle,
            link: new.link,
        };
        self.mesh.handle_session_opened(id, new.policy, now);
        super::session::spawn(new.session, shared, context);
    }

    /// False if the service is reserved or open already.
    pub(super) fn bind(&mut self, service: ServiceName, port: Arc<ServicePort>) -> bool {
        let bound = self.mesh.bind(service);
        if bound {
            self.plane.set_port(service, Some(port));
        }
        bound
    }

    pub(super) fn unbind(&mut self, service: ServiceName) {
        self.plane.set_port(service, None);
        self.mesh.unbind(service, self.clock.now());
    }

    pub(super) fn set_max_idle(&mut self, limit: Duration) {
        self.max_idle = limit;
        self.mesh.set_max_idle(limit);
    }

    /// The sessions with neighbours that have let this node in, by name.
    pub(super) fn links(&self) -> Vec<LinkStatus> {
        let status = |(peer, neighbour): (NodeId, Neighbour)| {
            let shared = self.sessions.get(&neighbour.session)?;
            Some(LinkStatus::of(peer, &neighbour, shared))
        };
        let all = self.mesh.neighbours().into_iter();
        all.filter(|(_, one)| !self.introduced.contains_key(&one.session)).filter_map(status).collect()
    }

    /// Carries out all outputs of the core.
    pub(super) fn flush(&mut self) {
        loop {
            while let Some(transmit) = self.mesh.poll_transmit() {
                self.transmit(transmit.session, transmit.message, transmit.class);
            }
            let Some(event) = self.mesh.poll_event() else { break };
            self.on_event(event);
        }
    }

    fn transmit(&mut self, session: SessionId, message: Bytes, class: QueueClass) {
        let Some(shared) = self.sessions.get(&session) else { return };
        match class {
            QueueClass::Data => {
                let Ok(header) = DataHeader::parse(&message) else { return };
                let _dropped = shared.queue.push_data(&header, message, IfFull::Drop);
            }
            QueueClass::Control if shared.queue.push_control(message) => {}
            QueueClass::Control => self.mesh.handle_no_room(session),
        }
    }

    /// There is room for protocol messages again: offers it to the sessions that are behind.
    fn offer_room(&mut self) {
        let behind: Vec<SessionId> = self.mesh.behind().collect();
        behind.into_iter().for_each(|session| self.send_missing(session));
        self.budget.want(self.mesh.behind().next().is_some());
    }

    /// Sends as much on a session that is behind as its link has room for.
    fn send_missing(&mut self, session: SessionId) {
        self.budget.want(true);
        let Some(shared) = self.sessions.get(&session) else { return };
        let queue = shared.queue.clone();
        if let Some(room) = queue.room() {
            self.mesh.handle_room(session, room, self.clock.now());
            while let Some(transmit) = self.mesh.poll_transmit() {
                self.transmit(transmit.session, transmit.message, transmit.class);
            }
        }
        queue.set_behind(self.mesh.is_behind(session));
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::SessionUp { session, peer, cost } => {
                if let Some(shared) = self.sessions.get(&session) {
                    shared.established.store(true, Ordering::Release);
                    shared.note_peer(&peer);
                }
                self.introduced.insert(session, (peer, cost));
                self.publish();
            }
            Event::Behind { session } => self.send_missing(session),
            Event::CloseSession { session, peer, reason } => self.on_close(session, peer.as_ref(), &reason),
            Event::ComputeRoutes(computation) => self.compute_routes(computation),
            Event::RoutesChanged(_) => self.publish(),
            Event::Deliver(datagram) => {
                if let Some(port) = self.plane.port(datagram.header.to_service) {
                    port.push(datagram);
                }
            }
            Event::Unreachable { notice, reported_by } => {
                debug!(to = %notice.to_node, service = %notice.to_service, problem = %notice.problem, %reported_by, "unreachable");
                if let Some(port) = self.plane.port(notice.from_service) {
                    port.push_notice(Notice { notice, reported_by });
                }
            }
            Event::Malformed { session, error } => self.on_malformed(session, &error),
            Event::TableFull { session, node } => self.on_table_full(session, &node),
            Event::FloodDetected { session, messages } => {
                let peer = self.peer(session);
                warn!(%session, peer, messages, "flooded with updates and advertisements: see status --links");
            }
            Event::OffersChanged => {
                self.plane.offers.send_replace(());
            }
            // The send fails if nobody listens, because no stream is open.
            Event::NodeRestarted(node) => drop(self.plane.restarted.send(node)),
            Event::SpokenFor { session, epoch } => warn!(
                node = %self.plane.id, peer = self.peer(session), epoch,
                "another node uses this node's ID, and its messages come through this neighbour: give each node an ID of its own"
            ),
            Event::WeAreDuplicate => {
                error!(node = %self.plane.id, "another node with this ID and a certificate for it was there first: stopping");
                self.stop_for(StopCause::Duplicate);
            }
            Event::UpdateTooLarge(error) => error!(%error, "routing update exceeds the frame limit"),
        }
    }

    /// Runs a long computation on another thread; its result comes back through the inbox.
    fn compute_routes(&self, computation: RouteComputation) {
        let inbox = self.inbox_sender.clone();
        // The send fails only if the node has stopped, which needs no routes then.
        tokio::task::spawn_blocking(move || drop(inbox.blocking_send(Input::Routes(computation.run()))));
    }

    /// Logs a link as up once its peer has let this node in.
    fn note_let_in(&mut self, session: SessionId) {
        if self.mesh.is_let_in(session)
            && let Some((peer, cost)) = self.introduced.remove(&session)
            && let Some(shared) = self.sessions.get(&session)
        {
            self.link_log.connected(&peer, cost, shared);
            self.lost.remove(&peer);
        }
    }

    fn on_close(&mut self, session: SessionId, peer: Option<&NodeId>, reason: &CloseReason) {
        let is_undecided = self.introduced.remove(&session).is_some();
        if let Some(shared) = self.sessions.remove(&session) {
            let was_up = !is_undecided && shared.established.load(Ordering::Acquire);
            let is_other = |id: &&SessionId| peer.is_some() && self.mesh.peer(**id) == peer;
            let other = self.sessions.keys().find(is_other).map(|id| self.sessions[id].direction);
            let ended = Ended { peer, on: &shared, reason, was_up, other };
            self.link_log.ended(&ended);
            if let Some(peer) = peer.filter(|_| was_up && other.is_none()) {
                if self.lost.len() >= MOST_LOST {
                    self.lost.pop_first();
                }
                let mut why = ended.why();
                why.truncate(why.floor_char_boundary(MOST_REASON));
                self.lost.insert(peer.clone(), why);
            }
            // A peer that was refused because it has another session is known as well.
            peer.into_iter().for_each(|peer| shared.note_peer(peer));
            shared.close();
        }
        self.publish();
    }

    fn on_malformed(&mut self, session: SessionId, error: &crate::wire::WireError) {
        let peer = self.peer(session);
        warn!(%session, peer, %error, "message dropped");
    }

    fn on_table_full(&mut self, session: SessionId, node: &NodeId) {
        let peer = self.peer(session);
        warn!(%session, peer, %node, "tables are full: dropped an update of a neighbour");
    }

    fn peer(&self, session: SessionId) -> &str {
        self.mesh.peer(session).map_or("unknown", NodeId::as_str)
    }

    /// Replaces the table that readers and senders use.
    fn publish(&self) {
        let established = self.sessions.iter().filter(|(_, c)| c.established.load(Ordering::Acquire));
        let queues: HashMap<_, _> = established.map(|(&id, c)| (id, c.queue.clone())).collect();
        let routes = self.mesh.routes().clone();
        self.plane.table.store(Arc::new(ForwardingTable { routes, queues }));
        self.plane.replaced.send_replace(());
    }

    fn stop_for(&mut self, cause: StopCause) {
        if let Some(sender) = self.stop_cause.take() {
            let _nobody_waits = sender.send(cause);
        }
        self.stop.cancel();
    }

    fn shut_down(&mut self) {
        for shared in self.sessions.values() {
            shared.close();
        }
        self.plane.close_ports();
        self.stop_for(StopCause::Asked);
    }
}
