//! Whether neighbours live: probes between nodes of our kind, answered link by link.
//!
//! A probe is a datagram to a service that no user can have. A node of our kind answers it; a receptor node
//! says once that it knows no such service, and is left to its own timers. Both carry a digest of what
//! their sender knows of the mesh, which `anti_entropy` compares. They stand before the firewall: they are part
//! of the link, as greetings are.

use std::time::Duration;

use bytes::Bytes;

use super::anti_entropy::{DIGEST_LEN, Digest};
use super::core::{Class, Mesh};
use super::duplicate_session::PROBE;
use super::life::Kind;
use super::session::{Established, Phase, Session};
use super::{CloseReason, Now, SessionId, Tick};
use crate::wire::{DATA_HEADER_LEN, DataHeader, MAX_HOPS, ServiceName, Unreachable};

/// Where probes go: beginning with a control character, no user's service has that name.
pub(super) const ALIVE: ServiceName = ServiceName::from_wire(*b"\x01alive\0\0");

/// Payload of a probe and of its answer: the probe's number, then the sender's digest.
const LEN: usize = 4 + DIGEST_LEN;

/// Of two neighbours, the one with the greater name waits that much longer, so that one asks and the
/// other's silence is filled by its answers.
const STAGGER: Duration = Duration::from_millis(200);

/// Being woken later than this is noticed, and forgiven to all neighbours.
const LATE: Duration = Duration::from_millis(100);

impl Mesh {
    /// When the session's peer is to be asked, or given up.
    pub(super) fn liveness_due(&self, state: &Session, established: &Established) -> Option<Tick> {
        // Before the peer has established the session, too, it would not answer.
        established.listed?;
        if self.options.receptor_like {
            return None;
        }
        let stagger = if established.is_first { STAGGER } else { Duration::ZERO };
        let life = &established.life;
        let probe = life.next_probe(&self.options, stagger);
        [probe, life.ends(state.last_heard, &self.options)].into_iter().flatten().min()
    }

    /// Asks the session's peer, or gives it up, if that is due.
    pub(super) fn check_life(&mut self, session: SessionId, now: Now) {
        let Some(state @ Session { phase: Phase::Established(e), .. }) = self.sessions.get(&session) else {
            return;
        };
        if e.life.ends(state.last_heard, &self.options).is_some_and(|end| end <= now.tick) {
            let silence = now.tick.since(state.last_heard);
            self.counters.silent_neighbours += 1;
            return self.close(session, CloseReason::Silent(silence), now);
        }
        let digest = self.digest();
        if let Some(e) = self.established_mut(session) {
            let number = e.life.probe(now.tick);
            let (to, message) = (e.peer.hash(), payload(number, &digest));
            self.counters.probes += 1;
            self.say(session, to, PROBE, ALIVE, &message);
        }
    }

    fn say(
        &mut self,
        to: SessionId,
        node: crate::wire::NameHash,
        from: ServiceName,
        service: ServiceName,
        payload: &[u8],
    ) {
        let header = DataHeader {
            hops: MAX_HOPS,
            from_node: self.own,
            to_node: node,
            from_service: from,
            to_service: service,
        };
        self.transmit(to, header.message(payload), Class::Control);
    }

    /// Takes a datagram that is about the link itself; false if it is none.
    pub(super) fn take_link_datagram(
        &mut self,
        session: SessionId,
        header: &DataHeader,
        message: &Bytes,
        now: Now,
    ) -> bool {
        let about_link = matches!(header.to_service, ALIVE | PROBE | ServiceName::UNREACH);
        if !about_link || header.to_node != self.own || self.options.receptor_like {
            return false;
        }
        let payload = message.slice(DATA_HEADER_LEN..);
        let Some(e) = self.established_mut(session) else { return false };
        if header.from_node != e.peer.hash() {
            return false;
        }
        match header.to_service {
            ALIVE => self.answer_probe(session, &payload, now),
            PROBE => self.take_answer(session, &payload, now),
            _unreach => return self.take_refusal(session, &payload, now.tick),
        }
        true
    }

    fn answer_probe(&mut self, session: SessionId, asked: &[u8], now: Now) {
        let Some((number, theirs)) = parse(asked) else { return };
        let ours = self.digest();
        let Some(e) = self.established_mut(session) else { return };
        // Whoever asks is of our kind.
        e.life.is_a(Kind::Ours);
        e.life.answers(now.tick);
        let to = e.peer.hash();
        self.say(session, to, ALIVE, PROBE, &payload(number, &ours));
        self.compare(session, &ours, &theirs, now);
    }

    fn take_answer(&mut self, session: SessionId, answer: &[u8], now: Now) {
        // The empty one is a receptor node's answer to a ping: that it came is all it says.
        let Some((number, theirs)) = parse(answer) else { return };
        let ours = self.digest();
        let Some(e) = self.established_mut(session) else { return };
        e.life.take_answer(number, now.tick);
        self.compare(session, &ours, &theirs, now);
    }

    /// A notice about a probe of ours: the neighbour is not of our kind.
    fn take_refusal(&mut self, session: SessionId, notice: &[u8], now: Tick) -> bool {
        let about_probe = |notice: Unreachable| notice.from_service == PROBE;
        if !Unreachable::parse(notice).is_ok_and(about_probe) {
            return false;
        }
        let update_interval = self.options.update_interval;
        if let Some(e) = self.established_mut(session)
            && e.life.kind() == Kind::Unknown
        {
            e.life.is_a(Kind::Other);
            // It counts on receptor's rounds.
            self.next_update = self.next_update.min(now + update_interval);
        }
        true
    }

    /// This node was woken later than it asked for: it was busy, so nobody is blamed for that time.
    pub(super) fn forgive_lateness(&mut self, due: Tick, now: Tick) {
        let late = now.since(due);
        if late < LATE {
            return;
        }
        self.counters.late_wakeups += 1;
        let most = self.options.max_idle / 2;
        self.sessions.values_mut().for_each(|state| state.forgive(late, most, now));
    }

    /// True if nobody but nodes of our kind is linked to this one.
    pub(super) fn is_among_its_kind(&self) -> bool {
        if self.options.receptor_like {
            return false;
        }
        let kind = |session| Some(self.sessions.get(session)?.established()?.life.kind());
        self.by_peer.values().all(|session| kind(session) == Some(Kind::Ours))
    }

    pub(super) fn established_mut(&mut self, session: SessionId) -> Option<&mut Established> {
        match &mut self.sessions.get_mut(&session)?.phase {
            Phase::Established(established) => Some(established),
            Phase::Greeting { .. } => None,
        }
    }
}

fn payload(number: u32, digest: &Digest) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes[4..].copy_from_slice(&digest.to_bytes());
    bytes
}

fn parse(payload: &[u8]) -> Option<(u32, Digest)> {
    let (number, digest) = payload.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*number), Digest::from_bytes(digest.first_chunk()?)))
}
