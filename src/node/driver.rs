//! The task that owns the mesh protocol: hands it what happens, does what it says.
//!
//! It waits for its inbox, for the protocol's timers and for nothing else: queues that are full are their
//! own trouble. All decisions are [`Mesh`]'s; logging them is done here.

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
use super::clock::Clock;
use super::forwarding::{Forwarding, Switch};
use super::handle::StopCause;
use super::link_log::Comings;
use super::port::{Notice, Port};
use super::queue::IfFull;
use super::session::{Channel, Surroundings};
use super::stats::LinkStatus;
use crate::backend;
use crate::mesh::firewall::Rule;
use crate::mesh::{
    Class, CloseReason, ComputedRoutes, Event, ForgetError, LinkPolicy, LocalService, Mesh, Neighbour,
    RouteComputation, SendError, SessionId, Status,
};
use crate::os::log_limiter::LogLimiter;
use crate::wire::{DataHeader, NameHash, NodeId, Problem, ServiceName, Unreachable, WorkCommand};

/// Inputs handled between two looks at the timers.
const BATCH: usize = 256;

/// What reaches the driver from links and sockets, in a bounded channel.
#[derive(Debug)]
pub(super) enum Input {
    /// A message that the readers could not carry on by themselves, with its session's place in the queue.
    Packet(SessionId, Bytes, OwnedSemaphorePermit),
    /// A link has come up.
    Opened(Box<NewSession>),
    /// A link has gone down, and why.
    Ended(SessionId, String),
    /// A datagram of this node that needs the core's judgement.
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
    /// Told what says when the session is over.
    pub(super) reply: oneshot::Sender<Arc<Channel>>,
}

/// What this node's own rooms ask for.
#[derive(Debug)]
pub(super) enum Ask {
    Bind(ServiceName, Arc<Port>, oneshot::Sender<bool>),
    Unbind(ServiceName),
    Advertise(ServiceName, LocalService),
    WorkCommands(Vec<WorkCommand>),
    Firewall(Vec<Rule>, oneshot::Sender<()>),
    MaxIdle(Duration),
    ForgetTime(Duration),
    Send(SendAsk, oneshot::Sender<Result<(), SendError>>),
    Status(oneshot::Sender<Status>),
    Links(oneshot::Sender<Vec<LinkStatus>>),
    Forget(NodeId, oneshot::Sender<Result<(), ForgetError>>),
    NameOf(NameHash, oneshot::Sender<Option<NodeId>>),
}

/// A datagram whose sender wants to know whether it could be sent.
#[derive(Debug)]
pub(super) struct SendAsk {
    pub(super) from_service: ServiceName,
    pub(super) to_node: NodeId,
    pub(super) to_service: ServiceName,
    pub(super) payload: Bytes,
    pub(super) hops: u8,
}

/// The driver's state.
pub(super) struct Driver {
    pub(super) mesh: Mesh,
    pub(super) switch: Arc<Switch>,
    pub(super) clock: Clock,
    pub(super) max_idle: Duration,
    pub(super) inbox_sender: mpsc::Sender<Input>,
    pub(super) channels: BTreeMap<SessionId, Arc<Channel>>,
    pub(super) next_session: u64,
    pub(super) stop: CancellationToken,
    pub(super) stop_cause: Option<oneshot::Sender<StopCause>>,
    /// The room for protocol messages on all links.
    pub(super) budget: Arc<Budget>,
    /// For lines that a neighbour can cause as fast as it can write.
    pub(super) complaints: LogLimiter,
    pub(super) comings: Comings,
}

impl Driver {
    /// Runs until the node is stopped.
    pub(super) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Input>,
        mut asks: mpsc::UnboundedReceiver<Ask>,
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
                Some(ask) = asks.recv() => self.answer(ask),
                count = inbox.recv_many(&mut batch, BATCH) => {
                    debug_assert!(count > 0, "the driver holds a sender itself");
                    for input in batch.drain(..) {
                        self.take(input);
                        // A flood of inputs must not keep this node's own clients waiting.
                        if let Ok(ask) = asks.try_recv() {
                            self.answer(ask);
                        }
                    }
                }
                () = self.budget.freed() => self.share_room(),
                () = timer => {}
            }
            if wakeup.is_some_and(|at| at <= Instant::now()) {
                self.tell_activity();
                self.mesh.handle_timeout(self.clock.now());
            }
            self.flush();
        }
        self.shut_down();
    }

    /// Readers that carry packets by themselves note only when they heard something.
    fn tell_activity(&mut self) {
        for (&id, channel) in &self.channels {
            self.mesh.handle_activity(id, channel.heard());
        }
    }

    fn take(&mut self, input: Input) {
        let now = self.clock.now();
        match input {
            Input::Packet(session, message, _turn) => self.mesh.handle_packet(session, message, now),
            Input::Opened(new) => self.open(*new),
            Input::Ended(session, cause) => {
                debug!(%session, %cause, "link ended");
                if let Some(channel) = self.channels.get(&session) {
                    // The first one is the true one.
                    let _told = channel.cause.set(cause);
                }
                self.mesh.handle_session_closed(session, now);
            }
            Input::Routes(computed) => self.mesh.handle_routes(&computed, now.tick),
            Input::Originate(header, payload) => {
                // As with any datagram network, its sender finds out by silence or by a notice.
                if self.mesh.originate(header, &payload, now) == Err(SendError::ServiceUnknown) {
                    self.notice_own_service_unknown(&header);
                }
            }
        }
        self.flush();
    }

    /// What another node would answer about its services, this node answers about its own.
    fn notice_own_service_unknown(&self, header: &DataHeader) {
        if let Some(port) = self.switch.port(header.from_service) {
            let id = &self.switch.id;
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
        let channel = Arc::new(Channel::new(id, &new.session.info, self.budget.clone(), now.tick));
        if new.reply.send(channel.clone()).is_err() {
            return;
        }
        self.channels.insert(id, channel.clone());
        let around = Surroundings {
            switch: self.switch.clone(),
            inbox: self.inbox_sender.clone(),
            clock: self.clock,
            max_idle: self.max_idle,
            link: new.link,
        };
        self.mesh.handle_session_opened(id, new.policy, now);
        super::session::spawn(new.session, channel, around);
    }

    fn answer(&mut self, ask: Ask) {
        let now = self.clock.now();
        match ask {
            Ask::Bind(service, port, reply) => {
                let bound = self.mesh.bind(service);
                if bound {
                    self.switch.set_port(service, Some(port));
                }
                if reply.send(bound).is_err() && bound {
                    self.unbind(service);
                }
            }
            Ask::Unbind(service) => self.unbind(service),
            Ask::Advertise(service, offer) => self.mesh.advertise(service, offer, now),
            Ask::WorkCommands(commands) => self.mesh.set_work_commands(commands, now),
            Ask::Firewall(rules, reply) => {
                self.mesh.set_firewall(rules);
                self.flush();
                let _gone = reply.send(());
            }
            Ask::MaxIdle(limit) => {
                self.max_idle = limit;
                self.mesh.set_max_idle(limit);
            }
            Ask::ForgetTime(time) => self.mesh.set_forget_time(time, now),
            Ask::Links(reply) => {
                let _gone = reply.send(self.links());
            }
            Ask::Forget(node, reply) => {
                let _gone = reply.send(self.mesh.forget(&node, now));
            }
            Ask::NameOf(node, reply) => {
                let _gone = reply.send(self.mesh.name_of(node));
            }
            Ask::Send(ask, reply) => {
                let SendAsk { from_service, to_node, to_service, payload, hops } = ask;
                let sent = self.mesh.send(from_service, &to_node, to_service, &payload, hops, now);
                let _gone = reply.send(sent);
            }
            Ask::Status(reply) => {
                let _gone = reply.send(self.mesh.status(now));
            }
        }
    }

    fn links(&self) -> Vec<LinkStatus> {
        let status = |(peer, neighbour): (NodeId, Neighbour)| {
            let channel = self.channels.get(&neighbour.session)?;
            Some(LinkStatus::of(peer, &neighbour, channel))
        };
        self.mesh.neighbours().into_iter().filter_map(status).collect()
    }

    fn unbind(&mut self, service: ServiceName) {
        self.switch.set_port(service, None);
        self.mesh.unbind(service, self.clock.now());
    }

    /// Does all that the core wants done.
    fn flush(&mut self) {
        loop {
            while let Some(transmit) = self.mesh.poll_transmit() {
                self.transmit(transmit.session, transmit.message, transmit.class);
            }
            let Some(event) = self.mesh.poll_event() else { break };
            self.on_event(event);
        }
    }

    fn transmit(&mut self, session: SessionId, message: Bytes, class: Class) {
        let Some(channel) = self.channels.get(&session) else { return };
        match class {
            Class::Data => {
                let Ok(header) = DataHeader::parse(&message) else { return };
                let _dropped = channel.queue.push_data(&header, message, IfFull::Drop);
            }
            Class::Control if channel.queue.push_control(message) => {}
            Class::Control => self.mesh.handle_no_room(session),
        }
    }

    /// There is room for protocol messages: those who wait for some are told more.
    fn share_room(&mut self) {
        let behind: Vec<SessionId> = self.mesh.behind().collect();
        behind.into_iter().for_each(|session| self.tell_more(session));
        self.budget.want(self.mesh.behind().next().is_some());
    }

    /// Tells a session that is behind as much as its link has room for.
    fn tell_more(&mut self, session: SessionId) {
        self.budget.want(true);
        let Some(channel) = self.channels.get(&session) else { return };
        let queue = channel.queue.clone();
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
                let channel = self.channels.get(&session);
                if let Some(channel) = channel {
                    channel.established.store(true, Ordering::Release);
                }
                self.comings.connected(session, &peer, cost, channel.map(|channel| &**channel));
                self.publish();
            }
            Event::Behind { session } => self.tell_more(session),
            Event::CloseSession { session, peer, reason } => self.on_close(session, peer.as_ref(), &reason),
            Event::ComputeRoutes(computation) => self.compute_routes(computation),
            Event::RoutesChanged(_) => self.publish(),
            Event::Deliver(datagram) => {
                if let Some(port) = self.switch.port(datagram.header.to_service) {
                    port.push(datagram);
                }
            }
            Event::Unreachable { notice, reported_by } => {
                debug!(to = %notice.to_node, service = %notice.to_service, problem = %notice.problem, %reported_by, "unreachable");
                if let Some(port) = self.switch.port(notice.from_service) {
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
                self.switch.offers.send_replace(());
            }
            // Nobody listens where nothing is connected.
            Event::NodeRestarted(node) => drop(self.switch.restarted.send(node)),
            Event::DuplicateNode { epoch } => {
                warn!(node = %self.switch.id, epoch, "another node uses our ID: give each node an ID of its own");
            }
            Event::Suspected { epoch } => warn!(
                node = %self.switch.id, epoch,
                "told that another node was here first under our ID: if this goes on this node will stop"
            ),
            Event::WeAreDuplicate => {
                error!(node = %self.switch.id, "another node was here first under our ID: stopping");
                self.stop_for(StopCause::Duplicate);
            }
            Event::UpdateTooLarge(error) => error!(%error, "too much to tell the mesh"),
        }
    }

    /// Runs a long computation on another thread; its result comes back through the inbox.
    fn compute_routes(&self, computation: RouteComputation) {
        let inbox = self.inbox_sender.clone();
        // A node that has stopped needs no routes.
        tokio::task::spawn_blocking(move || drop(inbox.blocking_send(Input::Routes(computation.run()))));
    }

    fn on_close(&mut self, session: SessionId, peer: Option<&NodeId>, reason: &CloseReason) {
        let channel = self.channels.remove(&session);
        self.comings.ended(session, peer, channel.as_deref(), reason);
        if let Some(channel) = channel {
            channel.close();
        }
        self.publish();
    }

    fn on_malformed(&mut self, session: SessionId, error: &crate::wire::WireError) {
        if let Some(unsaid) = self.complaints.take(Instant::now()) {
            let peer = self.peer(session);
            warn!(%session, peer, %error, unsaid, "message dropped");
        }
    }

    fn on_table_full(&mut self, session: SessionId, node: &NodeId) {
        if let Some(unsaid) = self.complaints.take(Instant::now()) {
            let peer = self.peer(session);
            warn!(%session, peer, %node, unsaid, "no room for what a neighbour tells of");
        }
    }

    fn peer(&self, session: SessionId) -> &str {
        self.mesh.peer(session).map_or("unknown", NodeId::as_str)
    }

    /// Replaces the table that readers and senders go by.
    fn publish(&self) {
        let established = self.channels.iter().filter(|(_, c)| c.established.load(Ordering::Acquire));
        let queues: HashMap<_, _> = established.map(|(&id, c)| (id, c.queue.clone())).collect();
        let routes = self.mesh.routes().clone();
        self.switch.forwarding.store(Arc::new(Forwarding { routes, queues }));
        self.switch.replaced.send_replace(());
    }

    fn stop_for(&mut self, cause: StopCause) {
        if let Some(sender) = self.stop_cause.take() {
            let _nobody_waits = sender.send(cause);
        }
        self.stop.cancel();
    }

    fn shut_down(&mut self) {
        for channel in self.channels.values() {
            channel.close();
        }
        self.switch.close_ports();
        self.stop_for(StopCause::Asked);
    }
}
