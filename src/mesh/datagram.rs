//! What becomes of a data message, sent here or received: firewall first, then local delivery or the next
//! hop, else a notice to its sender (docs/protocol.md#forwarding).

use bytes::{Bytes, BytesMut};

use super::core::{Class, Event, Mesh};
use super::duplicate_session::PROBE;
use super::firewall::{self, Action, Names};
use super::{Now, SessionId};
use crate::wire::data::HOPS_OFFSET;
use crate::wire::{
    DATA_HEADER_LEN, DataHeader, MAX_HOPS, MAX_PAYLOAD, NodeId, Problem, ServiceName, Unreachable, WireError,
};

/// A datagram for a service of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// Whose, from where, and to what.
    pub header: DataHeader,
    /// What it carries.
    pub payload: Bytes,
}

/// Why a datagram of this node was not even sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No path to the node is known.
    #[error("no route to node")]
    NoRoute,
    /// It is for this node itself, where nobody listens on that service.
    #[error("service unknown")]
    ServiceUnknown,
    /// More than [`MAX_PAYLOAD`] bytes.
    #[error("datagram of {0} bytes exceeds the {MAX_PAYLOAD} bytes that the mesh carries")]
    TooLarge(usize),
}

impl Mesh {
    /// Sends a datagram from a service of this node. With `hops` 0 it goes nowhere, and the notice that it
    /// expired comes from this node: so a traceroute begins.
    ///
    /// # Errors
    /// [`SendError`]; what goes wrong later comes as [`Event::Unreachable`].
    pub fn send(
        &mut self,
        from_service: ServiceName,
        to_node: &NodeId,
        to_service: ServiceName,
        payload: &[u8],
        hops: u8,
        now: Now,
    ) -> Result<(), SendError> {
        let to = to_node.hash();
        // For the firewall and for notices; a name that nobody but a user knows is not kept.
        self.called = Some((to, to_node.clone()));
        let header = DataHeader { hops, from_node: self.own, to_node: to, from_service, to_service };
        let sent = self.originate(header, payload, now);
        self.called = None;
        sent
    }

    /// The same by hashes: `header` names this node as the sender.
    ///
    /// # Errors
    /// As [`Mesh::send`].
    pub fn originate(&mut self, header: DataHeader, payload: &[u8], now: Now) -> Result<(), SendError> {
        if payload.len() > MAX_PAYLOAD {
            return Err(SendError::TooLarge(payload.len()));
        }
        let to = header.to_service;
        if header.to_node == self.own && !to.is_reserved() && !self.ports.contains(&to) {
            return Err(SendError::ServiceUnknown);
        }
        self.route(header, header.message(payload), now)
    }

    /// A data message on an established session.
    pub(super) fn handle_datagram(
        &mut self,
        session: SessionId,
        message: Bytes,
        now: Now,
    ) -> Result<(), WireError> {
        let header = DataHeader::parse(&message)?;
        self.has_shown_life(session);
        if self.take_link_datagram(session, &header, &message, now) {
            return Ok(());
        }
        // Where there is no route, the sender is not told: receptor nodes stay silent as well.
        let _counted = self.route(header, message, now);
        Ok(())
    }

    fn route(&mut self, header: DataHeader, message: Bytes, now: Now) -> Result<(), SendError> {
        match self.judge(&header) {
            Action::Accept => {}
            Action::Drop => {
                self.counters.blocked += 1;
                return Ok(());
            }
            Action::Reject => {
                self.counters.blocked += 1;
                self.give_up(&header, Problem::BlockedByFirewall, now);
                return Ok(());
            }
        }
        if header.to_node == self.own {
            self.deliver(header, message.slice(DATA_HEADER_LEN..), now);
            return Ok(());
        }
        if header.hops == 0 {
            self.counters.expired += 1;
            self.give_up(&header, Problem::MessageExpired, now);
            return Ok(());
        }
        let Some(session) = self.routes.next_hop(header.to_node) else {
            self.counters.no_route += 1;
            return Err(SendError::NoRoute);
        };
        // In place if nobody else holds the buffer, which is so for all that came from a link.
        let mut message = message.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        message[HOPS_OFFSET] = header.hops - 1;
        self.transmit(session, message.freeze(), Class::Data);
        Ok(())
    }

    /// Rules speak of names; a message of which one is unknown cannot be judged and does not pass.
    fn judge(&mut self, header: &DataHeader) -> Action {
        if self.firewall.is_empty() {
            return Action::Accept;
        }
        let (from, to) = (self.name_of(header.from_node), self.name_of(header.to_node));
        let (Some(from_node), Some(to_node)) = (from, to) else {
            self.counters.unknown_name += 1;
            return Action::Drop;
        };
        let (from_service, to_service) = (header.from_service.to_text(), header.to_service.to_text());
        let names = Names {
            from_node: from_node.as_str(),
            to_node: to_node.as_str(),
            from_service: &from_service,
            to_service: &to_service,
        };
        firewall::decide(&self.firewall, names)
    }

    fn deliver(&mut self, header: DataHeader, payload: Bytes, now: Now) {
        match header.to_service {
            ServiceName::PING => self.answer_ping(&header, now),
            ServiceName::UNREACH => self.take_notice(&header, &payload),
            // That it came is all that a probe's answer has to say.
            PROBE => {}
            service if self.ports.contains(&service) => {
                self.events.push_back(Event::Deliver(Datagram { header, payload }));
            }
            _unknown => self.give_up(&header, Problem::ServiceUnknown, now),
        }
    }

    fn answer_ping(&mut self, ping: &DataHeader, now: Now) {
        // An answer to `ping` would be a ping again, and two nodes would never stop.
        if ping.from_service == ServiceName::PING {
            return;
        }
        let answer = DataHeader {
            hops: MAX_HOPS,
            from_node: self.own,
            to_node: ping.from_node,
            from_service: ServiceName::PING,
            to_service: ping.from_service,
        };
        let _no_route = self.route(answer, answer.message(&[]), now);
    }

    fn take_notice(&mut self, header: &DataHeader, payload: &[u8]) {
        let Ok(notice) = Unreachable::parse(payload) else {
            self.counters.malformed += 1;
            return;
        };
        let Some(reported_by) = self.name_of(header.from_node) else {
            self.counters.unknown_name += 1;
            return;
        };
        self.events.push_back(Event::Unreachable { notice, reported_by });
    }

    /// Tells the sender of a datagram why it goes no further; never about such a notice itself.
    fn give_up(&mut self, header: &DataHeader, problem: Problem, now: Now) {
        if header.from_service == ServiceName::UNREACH {
            return;
        }
        let (from, to) = (self.name_of(header.from_node), self.name_of(header.to_node));
        let (Some(from_node), Some(to_node)) = (from, to) else {
            self.counters.unknown_name += 1;
            return;
        };
        let (from_service, to_service) = (header.from_service, header.to_service);
        let notice = Unreachable { from_node, to_node, from_service, to_service, problem };
        let Ok(payload) = notice.payload() else { return };
        let answer = DataHeader {
            hops: MAX_HOPS,
            from_node: self.own,
            to_node: header.from_node,
            from_service: ServiceName::UNREACH,
            to_service: ServiceName::UNREACH,
        };
        let _no_route = self.route(answer, answer.message(&payload), now);
    }
}
