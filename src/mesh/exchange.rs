//! New and slow neighbours are sent everything that this node knows, piece by piece, as their links have room.
//!
//! A new neighbour begins at the start. If a neighbour's link had no room for a message, it is sent everything once
//! more, because only the fact is remembered, not the message. The outside says how much room there is.

use bytes::Bytes;

use super::service_table::AdKey;
use super::{Event, Mesh, Now, QueueClass, SessionId};
use crate::wire::NodeId;

/// How far a neighbour has come in a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Position<K> {
    Start,
    After(K),
    #[default]
    End,
}

impl<K> Position<K> {
    fn last(&self) -> Option<&K> {
        match self {
            Self::After(last) => Some(last),
            Self::Start | Self::End => None,
        }
    }
}

/// How far a neighbour has been sent what this node knows.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    links: Position<NodeId>,
    services: Position<AdKey>,
    /// It has missed a message meanwhile.
    again: bool,
}

impl Exchange {
    fn is_complete(&self) -> bool {
        self.links == Position::End && self.services == Position::End && !self.again
    }
}

impl Mesh {
    /// Sends a new neighbour all known links at once, as ordinary updates, so that it need not wait for the next
    /// round of each node. Updates in its own name are included: it may have returned with its clock set back,
    /// and only it can correct its past.
    pub(super) fn send_all_links(&mut self, session: SessionId) {
        self.begin_exchange(session, |exchange| exchange.links = Position::Start);
    }

    /// Sends a new neighbour all services once it lists us: before, it would ignore them. Its own services are
    /// left out: a receptor node would believe and flood what it said before its restart.
    pub(super) fn send_all_services(&mut self, session: SessionId) {
        self.begin_exchange(session, |exchange| exchange.services = Position::Start);
    }

    /// A protocol message for a session found no room on its link and is lost.
    pub fn handle_no_room(&mut self, session: SessionId) {
        self.begin_exchange(session, |exchange| exchange.again = true);
    }

    fn begin_exchange(&mut self, session: SessionId, change: impl FnOnce(&mut Exchange)) {
        let Some(established) = self.established_mut(session) else { return };
        change(&mut established.exchange);
        if self.sessions.set_behind(session) {
            self.outbox.report(Event::Behind { session });
        }
    }

    /// The sessions for which [`Mesh::handle_room`] has more to send.
    pub fn behind(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.behind().iter().copied()
    }

    /// True if [`Mesh::handle_room`] has more to send on the session.
    pub fn is_behind(&self, session: SessionId) -> bool {
        self.sessions.behind().contains(&session)
    }

    /// A session's link has room for about `bytes` of protocol messages: sends its neighbour the next piece, at least
    /// one message.
    pub fn handle_room(&mut self, session: SessionId, bytes: usize, now: Now) {
        let Some(established) = self.established_mut(session) else { return };
        let (peer, listed) = (established.peer.clone(), established.listed.is_some());
        let mut exchange = std::mem::take(&mut established.exchange);
        let mut left = bytes.max(1);
        while left > 0 && !exchange.is_complete() {
            let piece = if exchange.links != Position::End {
                self.links_after(&mut exchange.links, left, now)
            } else if exchange.services != Position::End {
                self.services_after(&mut exchange.services, left, &peer, now)
            } else {
                let services = if listed { Position::Start } else { Position::End };
                exchange = Exchange { links: Position::Start, services, again: false };
                Vec::from([self.own_update.message()])
            };
            left = left.saturating_sub(piece.iter().map(Bytes::len).sum());
            piece.into_iter().for_each(|message| self.outbox.send(session, message, QueueClass::Control));
        }
        if exchange.is_complete() {
            self.sessions.clear_behind(session);
        }
        if let Some(established) = self.established_mut(session) {
            established.exchange = exchange;
        }
    }

    fn links_after(&self, position: &mut Position<NodeId>, bytes: usize, now: Now) -> Vec<Bytes> {
        let known = self.lsdb.messages_after(position.last());
        let fresh = known.filter(|(node, _)| self.is_fresh(node, now.tick));
        let (piece, next) = take_piece(fresh, bytes);
        *position = next;
        piece
    }

    fn services_after(
        &mut self,
        position: &mut Position<AdKey>,
        bytes: usize,
        peer: &NodeId,
        now: Now,
    ) -> Vec<Bytes> {
        let others = self.services.messages_after(position.last());
        let fresh = others.filter(|((node, _), _)| node != peer && self.is_fresh(node, now.tick));
        let (mut piece, next) = take_piece(fresh, bytes);
        *position = next;
        if *position == Position::End {
            piece.extend(self.services.announced_messages(now.wall));
        }
        piece
    }
}

/// Messages of about `bytes` in total, at least one if there are any, and where the next piece begins.
fn take_piece<'a, K: Clone + 'a>(
    messages: impl Iterator<Item = (&'a K, Bytes)>,
    bytes: usize,
) -> (Vec<Bytes>, Position<K>) {
    let (mut left, mut piece) = (bytes, Vec::new());
    for (key, message) in messages {
        left = left.saturating_sub(message.len());
        piece.push(message);
        if left == 0 {
            return (piece, Position::After(key.clone()));
        }
    }
    (piece, Position::End)
}
