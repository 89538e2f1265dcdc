//! A neighbour speaks for itself: what comes in its name by another way is told to nobody but the neighbour
//! (docs/protocol.md#first-hand).
//!
//! A neighbour that has really said it says it here as well, at about the same time. If it has not, it outdoes what it is
//! told, and the floods of a liar end here. What came last is kept until the neighbour speaks or its session ends: one
//! that has gone without a word may have begun another life elsewhere.

use bytes::Bytes;

use super::flood::Received;
use super::probe::PeerKind;
use super::{Class, Mesh, Now, SessionId};
use crate::wire::{Advertisement, NodeId};

impl Mesh {
    /// The session by which a node speaks for itself, once it has introduced itself to the end.
    pub(super) fn own_way(&self, node: &NodeId) -> Option<SessionId> {
        let session = *self.sessions.by_peer().get(node)?;
        self.sessions.established(session)?.listed.map(|_| session)
    }

    /// An update in the name of the neighbour on `own_way` came on another session.
    pub(super) fn withhold(&mut self, own_way: SessionId, session: SessionId, received: Received, now: Now) {
        let update = &received.update;
        let (Some(node), id) = (&update.node_id, &update.update_id) else { return };
        let version = (update.epoch, update.sequence);
        if update.suspected_duplicate == 0 && self.lsdb.is_stale(node.as_str(), version, id, now.tick) {
            return;
        }
        let message = self.forwarded(update.clone());
        let Some(established) = self.established_mut(own_way) else { return };
        // Others may believe an older word than the one before: only copies are left out.
        if established.held.as_ref().is_some_and(|(_, held)| held.update.update_id == *id) {
            return;
        }
        established.held = Some((session, received));
        if let Some(message) = message {
            self.outbox.send(own_way, message, Class::Control);
        }
    }

    /// An advertisement of that neighbour came on another session. A receptor node would believe what it hears of itself.
    pub(super) fn withhold_service(&mut self, own_way: SessionId, heard: &Advertisement, message: Bytes) {
        let kind = self.sessions.established(own_way).map(|established| established.liveness.kind());
        if kind == Some(PeerKind::Meshd) && self.services.is_newer(heard) {
            self.outbox.send(own_way, message, Class::Control);
        }
    }
}
