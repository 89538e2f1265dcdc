//! What one neighbour's probes tell: whether it is of our kind, how far away it is, how much its link
//! loses, and when its silence means that it is gone.
//!
//! Pure bookkeeping about a single session. What a probe looks like, and what follows from a death, is
//! `probe`'s business.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Options, Tick};

/// How many times a neighbour of unknown kind is asked.
const ASK_UNKNOWN: u32 = 3;
/// Probes by which a new link is got to know, sent faster than later ones.
const LEARNING: u32 = 8;
/// Unanswered probes that end a session over a link that loses nothing.
const FEW: u32 = 4;
/// ... and over one that loses nearly all.
const MANY: u32 = 50;
/// The chance that a link which is only unlucky is taken for dead.
const MISJUDGED: f64 = 1e-8;
/// Probes whose answers are waited for.
const OUTSTANDING: usize = 64;

/// What a neighbour is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It has not answered yet.
    Unknown,
    /// It answers probes.
    Ours,
    /// It knows no probes: left to receptor's own timers.
    Other,
}

/// One neighbour's probes.
#[derive(Debug)]
pub(super) struct Life {
    kind: Kind,
    /// Number of the newest probe.
    sent: u32,
    /// Number of the newest probe that was answered.
    answered: u32,
    /// Probes since anything was heard.
    unanswered: u32,
    last_probe: Tick,
    /// When the neighbour last got a probe or an answer of ours.
    last_said: Tick,
    waiting: VecDeque<(u32, Tick)>,
    /// Fates of the last probes, newest in the lowest bit: 1 is lost.
    fates: u32,
    known_fates: u32,
    rtt: Option<Duration>,
}

impl Life {
    pub(super) fn new(now: Tick) -> Self {
        Self {
            kind: Kind::Unknown,
            sent: 0,
            answered: 0,
            unanswered: 0,
            last_probe: now,
            last_said: now,
            waiting: VecDeque::new(),
            fates: 0,
            known_fates: 0,
            rtt: None,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Smoothed time from probe to answer.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// Share of the last probes that stayed without an answer, from 0 to 1.
    pub(super) fn loss(&self) -> f64 {
        f64::from(self.fates.count_ones()) / f64::from(self.known_fates.max(1))
    }

    /// The neighbour was found to be of this kind.
    pub(super) fn is_a(&mut self, kind: Kind) {
        self.kind = kind;
    }

    /// When the next probe is due, `stagger` later than the neighbour's own.
    pub(super) fn next_probe(&self, options: &Options, stagger: Duration) -> Option<Tick> {
        let hurried = self.last_probe + options.probe_retry.max(self.rtt.unwrap_or_default() * 3 / 2);
        match self.kind {
            Kind::Other => None,
            Kind::Unknown if self.sent >= ASK_UNKNOWN => None,
            Kind::Unknown if self.sent == 0 => Some(self.last_probe),
            Kind::Unknown => Some(self.last_probe + options.probe_interval),
            Kind::Ours if self.unanswered > 0 || self.sent < LEARNING => Some(hurried),
            Kind::Ours => Some(self.last_said + options.probe_interval + stagger),
        }
    }

    /// The moment from which on silence means death; `None` while it does not mean anything yet.
    pub(super) fn ends(&self, last_heard: Tick, options: &Options) -> Option<Tick> {
        if self.kind != Kind::Ours || self.unanswered < self.enough() {
            return None;
        }
        let rtt = self.rtt.unwrap_or_default();
        let margin = options.probe_retry * 3 / 4;
        let silent = last_heard + options.peer_silence - margin + margin.max(rtt * 2);
        Some(silent.max(self.last_probe + margin))
    }

    /// Unanswered probes that no living neighbour would leave behind, as its link was so far.
    fn enough(&self) -> u32 {
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

    /// A probe goes out; its number.
    pub(super) fn probe(&mut self, now: Tick) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.unanswered += 1;
        (self.last_probe, self.last_said) = (now, now);
        if self.waiting.len() >= OUTSTANDING {
            self.waiting.pop_front();
        }
        self.waiting.push_back((self.sent, now));
        self.sent
    }

    /// An answer to the neighbour's probe goes out.
    pub(super) fn answers(&mut self, now: Tick) {
        self.last_said = now;
    }

    /// Anything at all was heard; true if a probe was still without an answer.
    pub(super) fn hears(&mut self) -> bool {
        std::mem::take(&mut self.unanswered) > 0
    }

    /// The answer to probe `number` has come. One that was not asked for, or comes twice, counts nothing.
    pub(super) fn take_answer(&mut self, number: u32, now: Tick) {
        while let Some(&(asked, when)) = self.waiting.front()
            && asked <= number
        {
            self.waiting.pop_front();
            self.kind = Kind::Ours;
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

    /// As TCP smooths it: an eighth of the new one.
    fn note_rtt(&mut self, sample: Duration) {
        self.rtt = Some(self.rtt.map_or(sample, |rtt| rtt * 7 / 8 + sample / 8));
    }
}
