//! Whether neighbours are alive: meshd nodes probe each other over each link.
//!
//! A probe is a datagram to a service that no user can have. A meshd node answers it. A receptor node reports that it
//! knows no such service, and receptor's own timers apply to it. Probes and answers carry a digest of what their sender
//! knows of the mesh, which `anti_entropy` compares. The firewall does not see them: like greetings, they belong to the
//! link.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use super::anti_entropy::{DIGEST_LEN, Digest};
use super::duplicate_session::PROBE;
use super::session::{Established, SessionState};
use super::{CloseReason, Mesh, Now, Options, QueueClass, SessionId, Tick};
use crate::wire::{DATA_HEADER_LEN, DataHeader, MAX_HOPS, ServiceName, Unreachable};

/// The service that probes go to. No user can have a service of this name, because it begins with a control character.
pub(super) const ALIVE: ServiceName = ServiceName::from_wire(*b"\x01alive\0\0");

/// Payload of a probe and of its answer: the probe's number, then the sender's digest.
const LEN: usize = 4 + DIGEST_LEN;

/// Of two neighbours, the one with the greater name waits this much longer before it probes. So usually only
/// one of them probes, and the other's answers suffice.
const STAGGER: Duration = Duration::from_millis(200);

/// A wake-up later than this extends the deadlines of all neighbours.
const LATE: Duration = Duration::from_millis(100);

/// Most probes of a neighbour whose kind is unknown.
const ASK_UNKNOWN: u32 = 3;
/// The first probes on a link, which show its delay and loss, and are sent faster than later ones.
const LEARNING: u32 = 8;
/// Unanswered probes that end a session over a link that loses nothing.
const FEW: u32 = 4;
/// The same over a link that loses nearly all.
const MANY: u32 = 50;
/// The accepted chance that a living link with bad luck is taken for dead.
const MISJUDGED: f64 = 1e-8;
/// Most probes whose answers are awaited.
const OUTSTANDING: usize = 64;

/// What kind of node a neighbour is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerKind {
    /// It has not answered yet.
    Unknown,
    /// It answers probes.
    Meshd,
    /// It knows no probes: receptor's own timers apply.
    Other,
}

/// One neighbour's probes and what they show: the neighbour's kind, the delay and loss of its link, and when its
/// silence means that it is gone.
#[derive(Debug)]
pub(super) struct Liveness {
    kind: PeerKind,
    /// Number of the newest probe.
    sent: u32,
    /// Number of the newest probe that was answered.
    answered: u32,
    /// Probes since anything was heard.
    unanswered: u32,
    last_probe: Tick,
    /// When the neighbour was last sent a probe or an answer.
    last_sent: Tick,
    waiting: VecDeque<(u32, Tick)>,
    /// Fates of the last probes, newest in the lowest bit: 1 is lost.
    fates: u32,
    known_fates: u32,
    rtt: Option<Duration>,
}

impl Liveness {
    pub(super) fn new(now: Tick) -> Self {
        Self {
            kind: PeerKind::Unknown,
            sent: 0,
            answered: 0,
            unanswered: 0,
            last_probe: now,
            last_sent: now,
            waiting: VecDeque::new(),
            fates: 0,
            known_fates: 0,
            rtt: None,
        }
    }

    pub(super) fn kind(&self) -> PeerKind {
        self.kind
    }

    /// Smoothed time from probe to answer.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// Share of the last probes that were not answered, from 0 to 1.
    pub(super) fn loss(&self) -> f64 {
        f64::from(self.fates.count_ones()) / f64::from(self.known_fates.max(1))
    }

    pub(super) fn set_kind(&mut self, kind: PeerKind) {
        self.kind = kind;
    }

    /// When the next probe is due: `stagger` later than the neighbour's own, as a rule.
    pub(super) fn next_probe(&self, options: &Options, stagger: Duration) -> Option<Tick> {
        let hurried = self.last_probe + options.probe_retry.max(self.rtt.unwrap_or_default() * 3 / 2);
        match self.kind {
            PeerKind::Other => None,
            PeerKind::Unknown if self.sent >= ASK_UNKNOWN => None,
            PeerKind::Unknown if self.sent == 0 => Some(self.last_probe),
            PeerKind::Unknown => Some(self.last_probe + options.probe_interval),
            PeerKind::Meshd if self.unanswered > 0 || self.sent < LEARNING => Some(hurried),
            PeerKind::Meshd => Some(self.last_sent + options.probe_interval + stagger),
        }
    }

    /// When silence means that the neighbour is gone; `None` while it means nothing yet.
    pub(super) fn dead_at(&self, last_heard: Tick, options: &Options) -> Option<Tick> {
        if self.kind != PeerKind::Meshd || self.unanswered < self.unanswered_limit() {
            return None;
        }
        let rtt = self.rtt.unwrap_or_default();
        let margin = options.probe_retry * 3 / 4;
        let silent = last_heard + options.peer_silence - margin + margin.max(rtt * 2);
        Some(silent.max(self.last_probe + margin))
    }

    /// So many unanswered probes mean that the neighbour is gone, judged by the loss on its link so far.
    fn unanswered_limit(&self) -> u32 {
        if self.known_fates < LEARNING {
            return MANY / 2;
        }
        let lost = self.fates.count_ones();
        if lost == 0 {
            return FEW;
        }
        let loss = (f64::from(lost) + 1.0) / (f64::from(self.known_fates) + 2.0);
        let needed = MISJUDGED.ln() / loss.ln();
        (needed.ceil() as u32).clamp(FEW, MANY)
    }

    /// A probe goes out: returns its number.
    pub(super) fn count_probe(&mut self, now: Tick) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.unanswered += 1;
        (self.last_probe, self.last_sent) = (now, now);
        if self.waiting.len() >= OUTSTANDING {
            self.waiting.pop_front();
        }
        self.waiting.push_back((self.sent, now));
        self.sent
    }

    /// An answer to the neighbour's probe goes out.
    pub(super) fn note_answered(&mut self, now: Tick) {
        self.last_sent = now;
    }

    /// The neighbour was heard, whatever it sent.
    pub(super) fn note_heard(&mut self) {
        self.unanswered = 0;
    }

    /// The answer to probe `number` has come. Ignored if no such probe waits for one.
    pub(super) fn take_answer(&mut self, number: u32, now: Tick) {
        while let Some(&(asked, when)) = self.waiting.front()
            && asked <= number
        {
            self.waiting.pop_front();
            self.kind = PeerKind::Meshd;
            self.note_fate(asked != number);
            if asked == number {
                self.answered = number;
                self.note_rtt(now.since(when));
            }
        }
    }

    fn note_fate(&mut self, lost: bool) {
        self.fates = self.fates << 1 | u32::from(lost);
        self.known_fates = (self.known_fates + 1).min(u32::BITS);
    }

    /// Smooths as TCP does: a new sample counts an eighth.
    fn note_rtt(&mut self, sample: Duration) {
        self.rtt = Some(self.rtt.map_or(sample, |rtt| rtt * 7 / 8 + sample / 8));
    }
}

impl Mesh {
    /// When the session's peer is to be probed or given up.
    pub(super) fn probe_due(&self, session: &SessionState, established: &Established) -> Option<Tick> {
        // A peer answers only once it has established the session, too.
        established.listed?;
        let stagger = if established.is_first { STAGGER } else { Duration::ZERO };
        let liveness = &established.liveness;
        let probe = liveness.next_probe(&self.options, stagger);
        [probe, liveness.dead_at(session.last_heard(), &self.options)].into_iter().flatten().min()
    }

    /// Probes the session's peer, or closes the session if the peer's silence has lasted too long.
    pub(super) fn probe_or_close(&mut self, session: SessionId, now: Now) {
        let Some(state) = self.sessions.get(session) else { return };
        let Some(established) = state.established() else { return };
        let dead_at = established.liveness.dead_at(state.last_heard(), &self.options);
        if dead_at.is_some_and(|dead_at| dead_at <= now.tick) {
            let silence = now.tick.since(state.last_heard());
            self.counters.silent_neighbours += 1;
            return self.close(session, CloseReason::Silent(silence), now);
        }
        let digest = self.digest();
        if let Some(established) = self.established_mut(session) {
            let number = established.liveness.count_probe(now.tick);
            self.counters.probes += 1;
            self.send_to_peer(session, PROBE, ALIVE, &payload(number, &digest));
        }
    }

    fn send_to_peer(&mut self, session: SessionId, from: ServiceName, service: ServiceName, payload: &[u8]) {
        let Some(peer) = self.sessions.peer(session) else { return };
        let header = DataHeader {
            hops: MAX_HOPS,
            from_node: self.hash,
            to_node: peer.hash(),
            from_service: from,
            to_service: service,
        };
        self.outbox.send(session, header.message(payload), QueueClass::Control);
    }

    /// Handles a datagram that is about the link itself; false for any other.
    pub(super) fn handle_link_datagram(
        &mut self,
        session: SessionId,
        header: &DataHeader,
        message: &Bytes,
        now: Now,
    ) -> bool {
        let about_link = matches!(header.to_service, ALIVE | PROBE | ServiceName::UNREACH);
        if !about_link || header.to_node != self.hash {
            return false;
        }
        let payload = message.slice(DATA_HEADER_LEN..);
        if self.sessions.peer(session).is_none_or(|peer| header.from_node != peer.hash()) {
            return false;
        }
        match header.to_service {
            ALIVE => self.answer_probe(session, &payload, now),
            PROBE => self.handle_answer(session, &payload, now),
            _unreach => return self.handle_probe_refusal(session, &payload, now.tick),
        }
        true
    }

    fn answer_probe(&mut self, session: SessionId, probe: &[u8], now: Now) {
        let Some((number, theirs)) = parse(probe) else { return };
        let ours = self.digest();
        let Some(established) = self.established_mut(session) else { return };
        // Only meshd nodes send probes.
        established.liveness.set_kind(PeerKind::Meshd);
        established.liveness.note_answered(now.tick);
        self.send_to_peer(session, ALIVE, PROBE, &payload(number, &ours));
        self.compare(session, &ours, &theirs, now);
    }

    fn handle_answer(&mut self, session: SessionId, answer: &[u8], now: Now) {
        // An empty payload answers a ping: only its arrival counts.
        let Some((number, theirs)) = parse(answer) else { return };
        let ours = self.digest();
        let Some(established) = self.established_mut(session) else { return };
        established.liveness.take_answer(number, now.tick);
        self.compare(session, &ours, &theirs, now);
    }

    /// A notice about a probe of ours: the neighbour is no meshd node. False if the notice is about something else.
    fn handle_probe_refusal(&mut self, session: SessionId, notice: &[u8], now: Tick) -> bool {
        let about_probe = |notice: Unreachable| notice.from_service == PROBE;
        if !Unreachable::parse(notice).is_ok_and(about_probe) {
            return false;
        }
        let update_interval = self.options.update_interval;
        if let Some(established) = self.established_mut(session)
            && established.liveness.kind() == PeerKind::Unknown
        {
            established.liveness.set_kind(PeerKind::Other);
            // A receptor node expects updates at receptor's interval.
            self.own_update.bring_forward(now + update_interval);
        }
        true
    }

    /// This node was woken later than it asked for: it was busy, so its neighbours get that time in addition.
    pub(super) fn forgive_lateness(&mut self, due: Tick, now: Tick) {
        let late = now.since(due);
        if late >= LATE {
            self.counters.late_wakeups += 1;
            self.sessions.forgive(late, self.options.max_idle / 2, now);
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
