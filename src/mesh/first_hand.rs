//! A neighbour speaks for itself: an update in its name that comes by another way is told to nobody but the neighbour
//! (docs/protocol.md#first-hand).
//!
//! A neighbour that has really said it says it here as well, at about the same time. If it has not, it outdoes what it is
//! told, and the floods of a liar end here. What came last is kept until the neighbour speaks or its session ends: one
//! that has gone without a word may have begun another life elsewhere. So it is with advertisements, except that a receptor
//! node is told none: it would believe what it hears of itself.

use bytes::Bytes;

use super::flood::Received;
use super::probe::PeerKind;
use super::{Class, Mesh, Now, SessionId, Tick};
use crate::wire::advertisement::AdvertisementMessage;
use crate::wire::{NodeId, RoutingUpdate};

/// What came last in a neighbour's name by another session.
#[derive(Debug)]
pub(super) struct HeldMessage {
    session: SessionId,
    by: NodeId,
    /// As it was passed on to the neighbour.
    message: Bytes,
}

impl Mesh {
    /// The session by which a node speaks for itself, once it has introduced itself to the end, if it is not this one.
    pub(super) fn own_way(&self, node: &NodeId, session: SessionId) -> Option<SessionId> {
        let own_way = *self.sessions.by_peer().get(node)?;
        self.sessions.established(own_way)?.listed.filter(|_| own_way != session).map(|_| own_way)
    }

    /// An update in the name of the neighbour on `own_way` came on another session.
    pub(super) fn withhold(
        &mut self,
        own_way: SessionId,
        session: SessionId,
        update: RoutingUpdate,
        now: Tick,
    ) {
        if update.suspected_duplicate == 0 && self.lsdb.outdoes(&update, now) {
            return;
        }
        let by = update.forwarding_node.clone();
        let message = self.forwarded(update);
        let (Some(message), Some(established)) = (message, self.established_mut(own_way)) else { return };
        // Others may believe an older word than the one before: only copies are left out.
        if established.held.as_ref().is_none_or(|held| held.message != message) {
            established.held = Some(HeldMessage { session, by, message: message.clone() });
            self.outbox.send(own_way, message, Class::Control);
        }
    }

    /// The neighbour in whose name that was said has gone: it counts like any other update.
    pub(super) fn release(&mut self, held: HeldMessage, now: Now) {
        if let Ok(mut received) = Received::parse(&held.message) {
            received.update.forwarding_node = held.by;
            self.apply_update(held.session, received, now);
        }
    }

    /// An advertisement of that neighbour came on another session: false if it counts nevertheless. A receptor node sends
    /// a new neighbour none, so others may speak for it until it has told one itself.
    pub(super) fn withholds_service(
        &mut self,
        own_way: SessionId,
        ad: &AdvertisementMessage,
        message: &Bytes,
    ) -> bool {
        let kind = self.sessions.established(own_way).map(|established| established.liveness.kind());
        let is_meshd = kind == Some(PeerKind::Meshd);
        if is_meshd && self.services.is_newer(&ad.advertisement) {
            self.outbox.send(own_way, message.clone(), Class::Control);
        }
        is_meshd || ad.cancel || self.services.remote.has_told(&ad.advertisement.node_id)
    }
}
