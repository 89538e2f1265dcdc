//! Two sessions with one neighbour: which of them stays, and whether a silent one still lives.
//!
//! An established session is asked by a ping of ours; only what a peer sends once it has established the
//! session, too, counts as an answer. Whether a peer is let in at all is decided before, in `flood`.

use bytes::Bytes;

use super::core::{Class, Event, Mesh};
use super::session::{Phase, Session};
use super::{CloseReason, Now, SessionId, Tick};
use crate::wire::{DataHeader, MAX_HOPS, NodeId, REJECT, ServiceName};

/// Where the answer to a probe comes back to. No user can have a service of this name: it begins with a
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
        let Some(Session { phase: Phase::Established(established), .. }) = self.sessions.get_mut(&other)
        else {
            return;
        };
        established.prove_alive_by.get_or_insert(now.tick + patience);
        if let Some(Session { phase: Phase::Greeting { contests, .. }, .. }) = self.sessions.get_mut(&session)
        {
            *contests = Some(other);
        }
        self.probe(other, now.tick);
    }

    /// Asks a session's peer whether it lives. It is asked when it is contested, and again and again after
    /// half the time that it may be silent: a link that loses messages may well lose two updates in a row,
    /// and is not dead.
    pub(super) fn probe(&mut self, session: SessionId, now: Tick) {
        let interval = self.options.greeting_interval;
        let Some(Session { phase: Phase::Established(established), .. }) = self.sessions.get_mut(&session)
        else {
            return;
        };
        established.next_probe = now + interval;
        let probe = DataHeader {
            hops: MAX_HOPS,
            from_node: self.own,
            to_node: established.peer.hash(),
            from_service: PROBE,
            to_service: ServiceName::PING,
        };
        self.transmit(session, probe.message(&[]), Class::Control);
    }

    /// Something came in on a session that its peer only sends if it has established it, too. The peer's
    /// own updates are not of that kind: they are greetings as well.
    pub(super) fn has_shown_life(&mut self, session: SessionId) {
        if let Some(Session { phase: Phase::Established(established), .. }) = self.sessions.get_mut(&session)
            && established.prove_alive_by.take().is_some()
        {
            let peer = established.peer.clone();
            self.reject_contesters(session, &peer);
        }
    }

    fn reject_contesters(&mut self, living: SessionId, peer: &NodeId) {
        for session in self.contesters(living) {
            self.sessions.remove(&session);
            let reason = CloseReason::AlreadyConnected(peer.clone());
            self.transmit(session, Bytes::from_static(REJECT), Class::Control);
            self.events.push_back(Event::CloseSession { session, peer: None, reason });
        }
    }

    /// A contested session's time is up. It stays if its rival has gone meanwhile.
    pub(super) fn end_contest(&mut self, session: SessionId, now: Now) {
        if !self.contesters(session).is_empty() {
            self.close(session, CloseReason::Superseded, now);
        } else if let Some(Session { phase: Phase::Established(e), .. }) = self.sessions.get_mut(&session) {
            e.prove_alive_by = None;
        }
    }

    /// A session with `peer` has ended: the newest of those that waited for this takes over at once, for
    /// its other end may be long past its greetings.
    pub(super) fn succeed(&mut self, ended: SessionId, peer: NodeId, now: Now) {
        if let Some(&heir) = self.contesters(ended).last() {
            self.establish(heir, peer, now);
            // The other end may have established this session long ago, and said so when nobody listened.
            self.tell_services(heir);
        }
    }

    pub(super) fn is_contester(&self, session: SessionId) -> bool {
        self.contested_peer(session).is_some()
    }

    /// Whom a session is with that waits for the end of another one.
    pub(super) fn contested_peer(&self, session: SessionId) -> Option<&NodeId> {
        match &self.sessions.get(&session)?.phase {
            Phase::Greeting { contests, .. } => self.peer((*contests)?),
            Phase::Established(_) => None,
        }
    }

    /// The sessions that wait for the end of `living`, oldest first.
    fn contesters(&self, living: SessionId) -> Vec<SessionId> {
        self.sessions.iter().filter(|(_, s)| s.contests(living)).map(|(&id, _)| id).collect()
    }
}
