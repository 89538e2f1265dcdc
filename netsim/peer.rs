//! A node as the simulator runs it: the product's core as it is, or a peer that does what receptor nodes do and no more.
//!
//! Such a peer is the same core without what our nodes add: at its edge its own probes are dropped and those of others
//! refused; a new neighbour is sent nothing but what is flooded, and rounds have receptor's length.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use bytes::Bytes;
use meshd::mesh::{Class, Event, Mesh, Now, Options, SessionId, Transmit};
use meshd::wire::{DataHeader, MAX_HOPS, MessageType, NodeId, Problem, ServiceName, Unreachable};
use rand::rngs::SmallRng;

/// Where our nodes send their probes.
const ALIVE: ServiceName = ServiceName::from_wire(*b"\x01alive\0\0");

/// One simulated node's core.
pub(crate) struct Peer {
    mesh: Mesh,
    receptor_like: bool,
    /// What it sends beside what its core sends.
    refusals: VecDeque<Transmit>,
}

impl Peer {
    pub(crate) fn new(id: NodeId, epoch: u64, receptor_like: bool, rng: SmallRng, now: Now) -> Self {
        let mut options = Options::default();
        if receptor_like {
            (options.relaxed_interval, options.relaxed_per_node) = (options.update_interval, Duration::ZERO);
            (options.answer_hold, options.answer_per_node) = (Duration::ZERO, Duration::ZERO);
            // It announces its services in its rounds alone.
            options.newcomer_hold = Duration::from_secs(1 << 30);
        }
        Self { mesh: Mesh::new(id, epoch, options, rng, now), receptor_like, refusals: VecDeque::new() }
    }

    pub(crate) fn handle_packet(&mut self, session: SessionId, message: Bytes, now: Now) {
        if self.receptor_like
            && let Some(header) = probe(&message)
            && let Some(neighbour) = self.mesh.peer(session).cloned()
            && header.to_node == self.mesh.id().hash()
        {
            self.mesh.handle_activity(session, now.tick);
            let message = refusal(&header, &neighbour, self.mesh.id());
            self.refusals.push_back(Transmit { session, message, class: Class::Control });
            return;
        }
        self.mesh.handle_packet(session, message, now);
    }

    pub(crate) fn poll_transmit(&mut self) -> Option<Transmit> {
        let of_core = std::iter::from_fn(|| self.mesh.poll_transmit());
        let receptor_like = self.receptor_like;
        let next = of_core.into_iter().find(|transmit| !receptor_like || probe(&transmit.message).is_none());
        next.or_else(|| self.refusals.pop_front())
    }

    /// The next event; links have room for everything here, and computations take no time.
    pub(crate) fn poll_event(&mut self, now: Now) -> Option<Event> {
        let event = self.mesh.poll_event()?;
        match &event {
            Event::Behind { session } if !self.receptor_like => {
                self.mesh.handle_room(*session, usize::MAX, now)
            }
            Event::ComputeRoutes(computation) => {
                self.mesh.handle_routes(&computation.clone().run(), now.tick);
            }
            _other => {}
        }
        Some(event)
    }
}

/// The header of a probe, if this is one.
fn probe(message: &[u8]) -> Option<DataHeader> {
    if MessageType::of(message).ok()? != MessageType::Data {
        return None;
    }
    DataHeader::parse(message).ok().filter(|header| header.to_service == ALIVE)
}

/// What a node without such a service answers to a probe.
fn refusal(probe: &DataHeader, asked_by: &NodeId, refused_by: &NodeId) -> Bytes {
    let notice = Unreachable {
        from_node: asked_by.clone(),
        to_node: refused_by.clone(),
        from_service: probe.from_service,
        to_service: probe.to_service,
        problem: Problem::ServiceUnknown,
    };
    let header = DataHeader {
        hops: MAX_HOPS,
        from_node: probe.to_node,
        to_node: probe.from_node,
        from_service: ServiceName::UNREACH,
        to_service: ServiceName::UNREACH,
    };
    header.message(&notice.payload().expect("it is small"))
}

impl Deref for Peer {
    type Target = Mesh;

    fn deref(&self) -> &Mesh {
        &self.mesh
    }
}

impl DerefMut for Peer {
    fn deref_mut(&mut self) -> &mut Mesh {
        &mut self.mesh
    }
}
