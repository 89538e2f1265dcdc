//! Two sessions with one neighbour: which of them stays, and whether a silent one is still alive.
//!
//! An established session is asked by a ping of ours; only a message that a peer sends after it has established the
//! session, too, counts as an answer. Whether a peer is let in at all is decided before, in `flood`.

use bytes::Bytes;

use super::{Class, CloseReason, Event, Mesh, Now, SessionId, Tick};
use crate::wire::{DataHeader, MAX_HOPS, NodeId, REJECT, ServiceName};

/// Where the answer to a ping or a probe comes back to. No user can have a service of this name: it begins with a
/// control character.
pub(super) const PROBE: ServiceName = ServiceName::from_wire(*b"\x01probe\0\0");

impl Mesh {
    /// The peer has a session already. A living one keeps its right; a dead one, whose end nobody has
    /// noticed yet, must not lock the peer out: it is asked, and has a moment to answer.
    ///
    /// Where two nodes dial each other at once, each may have established another one of the two sessions,
    /// which both look dead. The ends then wait for different times, so that one gives in and the other need
    /// not; otherwise they would close both, dial again together, and never meet.
    pub(super) fn contest(&mut self, session: SessionId, other: SessionId, peer: &NodeId, now: Now) {
        let probe_time = self.options.probe_time;
        let patience = if self.id < *peer { probe_time * 2 } else { probe_time };
        let Some(established) = self.established_mut(other) else { return };
        established.prove_alive_by.get_or_insert(now.tick + patience);
        if let Some(state) = self.sessions.get_mut(session) {
            state.contest(other);
        }
        self.ping(other, now.tick);
    }

    /// Asks a session's peer whether it is alive. It is asked when it is contested, and again and again after
    /// half the time that it may be silent: a link that loses messages may well lose two updates in a row,
    /// and is not dead.
    pub(super) fn ping(&mut self, session: SessionId, now: Tick) {
        let (from_node, interval) = (self.hash, self.options.greeting_interval);
        let Some(established) = self.established_mut(session) else { return };
        established.next_ping = now + interval;
        let ping = DataHeader {
            hops: MAX_HOPS,
            from_node,
            to_node: established.peer.hash(),
            from_service: PROBE,
            to_service: ServiceName::PING,
        };
        self.outbox.send(session, ping.message(&[]), Class::Control);
    }

    /// A message came in on a session that its peer only sends if it has established it, too: the sessions that
    /// contest it are rejected. The peer's own updates are not of that kind: they are greetings as well.
    pub(super) fn confirm_alive(&mut self, session: SessionId) {
        let Some(established) = self.established_mut(session) else { return };
        established.is_let_in = true;
        if established.prove_alive_by.take().is_none() {
            return;
        }
        let peer = established.peer.clone();
        for contester in self.sessions.contesters(session) {
            self.sessions.remove(contester);
            let (peer, reason) = (Some(peer.clone()), CloseReason::AlreadyConnected(peer.clone()));
            self.outbox.send(contester, Bytes::from_static(REJECT), Class::Control);
            self.outbox.report(Event::CloseSession { session: contester, peer, reason });
        }
    }

    /// A contested session's time is up. It stays if its contester has gone meanwhile.
    pub(super) fn end_contest(&mut self, session: SessionId, now: Now) {
        if !self.sessions.contesters(session).is_empty() {
            self.close(session, CloseReason::Superseded, now);
        } else if let Some(established) = self.established_mut(session) {
            established.prove_alive_by = None;
        }
    }

    /// A session with `peer` has ended: the newest of those that waited for this is established at once, for
    /// its other end may be long past its greetings.
    pub(super) fn promote_contester(&mut self, ended: SessionId, peer: NodeId, now: Now) {
        if let Some(&heir) = self.sessions.contesters(ended).last() {
            self.establish(heir, peer, now);
            // The other end may have established this session long ago, and sent its services when nobody listened.
            self.send_all_services(heir);
        }
    }
}
