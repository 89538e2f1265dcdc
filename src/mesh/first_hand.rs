//! A neighbour speaks for itself: an update in its name that came from another neighbour is passed on to nobody but the
//! named neighbour (docs/protocol.md#first-hand).
//!
//! If the neighbour has really sent the update, it sends it to us as well, at about the same time. If it has not, it
//! answers with a newer update, so the floods of a liar end here. The latest such update is kept until the neighbour
//! speaks or its session ends: a neighbour that left in silence may have restarted elsewhere. The same holds for
//! advertisements, except that none is passed to a receptor node: it would believe what it hears of itself.

use bytes::Bytes;

use super::flood::ReceivedUpdate;
use super::probe::PeerKind;
use super::{Mesh, Now, QueueClass, SessionId, Tick};
use crate::wire::advertisement::AdvertisementMessage;
use crate::wire::{NodeId, RoutingUpdate};

/// The latest update in a neighbour's name that came on another session.
#[derive(Debug)]
pub(super) struct HeldMessage {
    session: SessionId,
    by: NodeId,
    /// The update as it was passed on to the neighbour.
    message: Bytes,
}

impl Mesh {
    /// The node's own session, if it is another one than `session` and the node has listed us on it.
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
        // An older update counts, too, because other nodes may believe it: only copies are left out.
        if established.held.as_ref().is_none_or(|held| held.message != message) {
            established.held = Some(HeldMessage { session, by, message: message.clone() });
            self.outbox.send(own_way, message, QueueClass::Control);
        }
    }

    /// The neighbour in whose name the update was sent has gone: the update now counts like any other.
    pub(super) fn release(&mut self, held: HeldMessage, now: Now) {
        if let Ok(mut received) = ReceivedUpdate::parse(&held.message) {
            received.update.forwarding_node = held.by;
            self.apply_update(held.session, received, now);
        }
    }

    /// An advertisement of the neighbour on `own_way` came on another session: false if it counts nevertheless. A
    /// receptor node sends a new neighbour none, so others may speak for it until it has sent one itself.
    pub(super) fn withholds_service(
        &mut self,
        own_way: SessionId,
        ad: &AdvertisementMessage,
        message: &Bytes,
    ) -> bool {
        let kind = self.sessions.established(own_way).map(|established| established.liveness.kind());
        let is_meshd = kind == Some(PeerKind::Meshd);
        if is_meshd && self.services.is_newer(&ad.advertisement) {
            self.outbox.send(own_way, message.clone(), QueueClass::Control);
        }
        is_meshd || ad.cancel || self.services.remote.has_told(&ad.advertisement.node_id)
    }
}
