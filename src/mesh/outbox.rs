//! The core's outputs: messages to send and events to act on, queued until they are polled.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::{CloseReason, Datagram, RouteComputation, Routes, SessionId};
use crate::wire::{Cost, NameHash, NodeId, Unreachable, WireError};

/// Slots that the queue of messages keeps when it is empty.
const IDLE_SLOTS: usize = 256;

/// How a message ranks in a link's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueClass {
    /// Routing, advertisements, rejects: goes first. If a link has no room for the message, call
    /// [`super::Mesh::handle_no_room`].
    Control,
    /// Datagrams.
    Data,
}

/// A message to be sent on a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// The session.
    pub session: SessionId,
    /// The whole message.
    pub message: Bytes,
    /// How it ranks.
    pub class: QueueClass,
}

/// Something that the outside should know or do.
#[derive(Debug, Clone)]
pub enum Event {
    /// A neighbour introduced itself; the session carries traffic from now on.
    SessionUp {
        /// The session.
        session: SessionId,
        /// The neighbour.
        peer: NodeId,
        /// What the link costs.
        cost: Cost,
    },
    /// More is to be sent on a session: when its link has room, call [`super::Mesh::handle_room`], which sends the
    /// next piece.
    Behind {
        /// The session.
        session: SessionId,
    },
    /// Send what is queued for the session, then close it. The core has dropped it already.
    CloseSession {
        /// The session.
        session: SessionId,
        /// The neighbour, if it had introduced itself.
        peer: Option<NodeId>,
        /// Why.
        reason: CloseReason,
    },
    /// A datagram for a bound service.
    Deliver(Datagram),
    /// A datagram that this node sent did not arrive.
    Unreachable {
        /// Which datagram, and the problem.
        notice: Unreachable,
        /// The node that reports it.
        reported_by: NodeId,
    },
    /// Run this computation on another thread, and give the result to [`super::Mesh::handle_routes`].
    ComputeRoutes(RouteComputation),
    /// The forwarding table has changed.
    RoutesChanged(Arc<Routes>),
    /// The services of other nodes have changed.
    OffersChanged,
    /// A node restarted and lost its in-memory state.
    NodeRestarted(NameHash),
    /// A neighbour sent bytes that are no message.
    Malformed {
        /// Its session.
        session: SessionId,
        /// What is wrong.
        error: Arc<WireError>,
    },
    /// A table has no room for a node or a service that a neighbour reports.
    TableFull {
        /// The neighbour's session.
        session: SessionId,
        /// The node that it reported.
        node: NodeId,
    },
    /// A neighbour floods this node: that many updates and advertisements came within seconds.
    FloodDetected {
        /// Its session.
        session: SessionId,
        /// How many.
        messages: u32,
    },
    /// An update came in our name that this node has not sent, and that it outdoes: another node uses our ID, or
    /// somebody lies. Reported at most once a minute for each neighbour.
    SpokenFor {
        /// The session of the neighbour that brought it.
        session: SessionId,
        /// The update's epoch.
        epoch: u64,
    },
    /// Another node has opened a session under our ID, has proved by its certificate that it may, and was here first:
    /// this node must stop.
    WeAreDuplicate,
    /// Our links or services no longer fit into a message.
    UpdateTooLarge(Arc<WireError>),
}

/// The two queues.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
}

impl Outbox {
    pub(super) fn send(&mut self, session: SessionId, message: Bytes, class: QueueClass) {
        self.transmits.push_back(Transmit { session, message, class });
    }

    pub(super) fn report(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(super) fn next_transmit(&mut self) -> Option<Transmit> {
        let next = self.transmits.pop_front();
        if next.is_none() {
            // The queue grows large only when a new neighbour is sent everything, which is rare.
            self.transmits.shrink_to(IDLE_SLOTS);
        }
        next
    }

    pub(super) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
