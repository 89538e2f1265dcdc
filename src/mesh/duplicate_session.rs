//! Two sessions with one neighbour: which of them stays, and whether a silent one is still alive.
//!
//! We ping the peer of the established session. Only a message that the peer sends on a session which it has
//! established, too, counts as an answer. Whether a peer is let in at all is decided earlier, in `flood`.

use bytes::Bytes;

use super::{CloseReason, Event, Mesh, Now, QueueClass, SessionId, Tick};
use crate::wire::{DataHeader, MAX_HOPS, NodeId, REJECT, ServiceName};

/// The service that receives the answers to pings and probes. No user can have a service of this name, because it
/// begins with a control character.
pub(super) const PROBE: ServiceName = ServiceName::from_wire(*b"\x01probe\0\0");

impl Mesh {
    /// The peer already has session `other`. If that session is alive, it stays. If it is dead and nobody has noticed
    /// yet, it must not lock the peer out. So its peer is pinged, and has a moment to answer.
    ///
    /// Where two nodes dial each other at once, each may have established a different one of the two sessions, and both
    /// sessions look dead. The two nodes wait for different times, so that only one gives up its session. Otherwise
    /// they would close both sessions, dial again at the same time, and never connect.
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

    /// Asks a session's peer whether it is alive: when its session is contested, and repeatedly once it has been silent
    /// for half the time allowed, because a lossy link may lose two updates in a row without being dead.
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
        self.outbox.send(session, ping.message(&[]), QueueClass::Control);
    }

    /// The peer has sent a message that it sends only on a session which it has established, too: rejects the sessions
    /// that contest this one. The peer's own updates prove nothing, because they are greetings as well.
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
            self.outbox.send(contester, Bytes::from_static(REJECT), QueueClass::Control);
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

    /// A session with `peer` has ended: establishes the newest session that waited for this end. It does so at once,
    /// because the other end may no longer send greetings.
    pub(super) fn promote_contester(&mut self, ended: SessionId, peer: NodeId, now: Now) {
        if let Some(&heir) = self.sessions.contesters(ended).last() {
            self.establish(heir, peer, now);
            // Usually the peer's next update starts this. But that may be far away, because the other end may have
            // established this session long ago.
            self.send_all_services(heir);
        }
    }
}
