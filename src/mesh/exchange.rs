//! Neighbours that have not been told all that this node knows, and how they catch up: piece by piece, as their links
//! have room.
//!
//! A new neighbour begins at the start. One whose link had no room for a message goes through everything once more:
//! what it missed is not remembered, only that it missed something. How much room there is, is the outside's to say.

use bytes::Bytes;

use super::core::{Class, Event, Mesh};
use super::service_table::Key;
use super::{Now, SessionId};
use crate::wire::NodeId;

/// How far somebody has come in a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Place<K> {
    Start,
    After(K),
    #[default]
    End,
}

/// How far a neighbour has been told what this node knows.
#[derive(Debug, Default)]
pub(super) struct Catchup {
    links: Place<NodeId>,
    services: Place<Key>,
    /// It has missed something meanwhile.
    again: bool,
}

impl Catchup {
    fn is_through(&self) -> bool {
        self.links == Place::End && self.services == Place::End && !self.again
    }
}

impl Mesh {
    /// A new neighbour hears at once which links are known, as ordinary updates, rather than waiting for the
    /// next round of each node. What is known of itself is included: it may have come back with its clock
    /// set back, and only it can correct what its past has told.
    pub(super) fn tell_links(&mut self, session: SessionId) {
        self.catch_up(session, |catchup| catchup.links = Place::Start);
    }

    /// A new neighbour hears of all services once it has got to know us: before, it would not listen. Never
    /// of its own ones: a receptor node would believe what it said in an earlier life, and flood it.
    pub(super) fn tell_services(&mut self, session: SessionId) {
        self.catch_up(session, |catchup| catchup.services = Place::Start);
    }

    /// A protocol message that was polled for a session found no room on its link, and is lost.
    pub fn handle_no_room(&mut self, session: SessionId) {
        self.catch_up(session, |catchup| catchup.again = true);
    }

    fn catch_up(&mut self, session: SessionId, change: impl FnOnce(&mut Catchup)) {
        if self.options.receptor_like {
            return;
        }
        let Some(e) = self.established_mut(session) else { return };
        change(&mut e.catchup);
        if self.behind.insert(session) {
            self.events.push_back(Event::Behind { session });
        }
    }

    /// The sessions for which [`Mesh::handle_room`] has more.
    pub fn behind(&self) -> impl Iterator<Item = SessionId> {
        self.behind.iter().copied()
    }

    /// True if the session is one of those.
    pub fn is_behind(&self, session: SessionId) -> bool {
        self.behind.contains(&session)
    }

    /// About so many bytes of protocol messages have room on a session's link: tells its neighbour what is next. That
    /// is one message at least.
    pub fn handle_room(&mut self, session: SessionId, bytes: usize, now: Now) {
        let Some(e) = self.established_mut(session) else { return };
        let (peer, listed) = (e.peer.clone(), e.listed.is_some());
        let mut catchup = std::mem::take(&mut e.catchup);
        let mut left = bytes.max(1);
        while left > 0 && !catchup.is_through() {
            let told = if catchup.links != Place::End {
                self.links_after(&mut catchup.links, left, now)
            } else if catchup.services != Place::End {
                self.services_after(&mut catchup.services, left, &peer, now)
            } else {
                let services = if listed { Place::Start } else { Place::End };
                catchup = Catchup { links: Place::Start, services, again: false };
                Vec::from([self.told_message.clone()])
            };
            left = left.saturating_sub(told.iter().map(Bytes::len).sum());
            told.into_iter().for_each(|message| self.transmit(session, message, Class::Control));
        }
        if catchup.is_through() {
            self.behind.remove(&session);
        }
        if let Some(e) = self.established_mut(session) {
            e.catchup = catchup;
        }
    }

    fn links_after(&self, place: &mut Place<NodeId>, bytes: usize, now: Now) -> Vec<Bytes> {
        let names = self.links.names_in_order();
        let first = match &*place {
            Place::Start => 0,
            Place::After(last) => names.partition_point(|node| node <= last),
            Place::End => names.len(),
        };
        let worth = names[first..].iter().filter(|node| self.is_worth_telling(node, now.tick));
        let told = worth.filter_map(|node| Some((node.clone(), self.links.message(node)?)));
        take_piece(told, place, bytes)
    }

    fn services_after(
        &mut self,
        place: &mut Place<Key>,
        bytes: usize,
        peer: &NodeId,
        now: Now,
    ) -> Vec<Bytes> {
        let last = match &*place {
            Place::After(last) => Some(last.clone()),
            Place::Start | Place::End => None,
        };
        let others = self.adverts.messages_after(last.as_ref());
        let worth = others.filter(|((node, _), _)| node != peer && self.is_worth_telling(node, now.tick));
        let mut told = take_piece(worth.map(|(key, message)| (key.clone(), message)), place, bytes);
        if *place == Place::End {
            told.extend(self.standing_services(now));
        }
        told
    }
}

/// Messages of about so many bytes, at least one, and where the next piece begins.
fn take_piece<K>(
    messages: impl Iterator<Item = (K, Bytes)>,
    place: &mut Place<K>,
    bytes: usize,
) -> Vec<Bytes> {
    let (mut left, mut told) = (bytes, Vec::new());
    *place = Place::End;
    for (key, message) in messages {
        left = left.saturating_sub(message.len());
        told.push(message);
        if left == 0 {
            *place = Place::After(key);
            break;
        }
    }
    told
}
