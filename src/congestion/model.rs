//! What is known of one path, and the window that follows from it.
//!
//! Rates are measured over whole round trips, so that late acknowledgements which arrive together do not look like a
//! fast path. Pure: it is told what was sent, acknowledged and lost, and when. Knows nothing of quinn.

use std::time::{Duration, Instant};

/// The best rate of the last rounds counts: of this many.
const ROUNDS: usize = 10;
/// A round lasts at least this long: a few packets on a short path would only measure the scheduler.
const SHORTEST_ROUND: Duration = Duration::from_millis(4);
/// After this many rounds without growth by a quarter, a path counts as full.
const STALE_ROUNDS: u32 = 3;
/// Once in this many rounds, the window grows by a quarter to see whether the path carries more.
const CYCLE: u32 = 6;
/// How long the shortest delay counts. Then the queue is drained for a moment, to measure it again.
const DELAY_COUNTS: Duration = Duration::from_secs(10);
/// Delays that differ by less count as equal, because a busy host measures no better.
const JITTER: Duration = Duration::from_millis(1);
/// How much may wait on a path so that it never runs empty: as a time, and as a limit in bytes.
const QUEUE: Duration = Duration::from_millis(10);
const LONGEST_QUEUE: u64 = 1 << 20;
/// The longest delay of gathered acknowledgements for which the window makes up: receivers may delay them this long.
const LONGEST_BURST: Duration = Duration::from_millis(25);
/// The delay of a path counts as at least this, because busy hosts take as long to see what has arrived. With a smaller
/// window they work in small pieces, which takes twice the processor time.
const SHORTEST_WAY: Duration = Duration::from_millis(5);
/// If more than one byte in this many is lost, a buffer overflows.
const OVERFLOW: u64 = 7;
/// The shortest delay of this many packets shows whether they waited in a queue.
const ENOUGH: u32 = 8;
/// At least this many packets may always be in flight.
const FEWEST: u64 = 4;

/// The model of one path.
#[derive(Debug, Clone)]
pub(super) struct Model {
    window: u64,
    first_window: u64,
    packet: u64,
    phase: Phase,
    round: Round,
    /// The measurements of the last rounds.
    measured: [Measured; ROUNDS],
    rounds: usize,
    delay: Delay,
    recent: Recent,
    burst: Burst,
    /// A limit for the window, from how much the path delivered when a buffer last overflowed.
    ceiling: Option<u64>,
    /// Whether nothing is in flight.
    idle: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// The window grows with each round until the rate stops growing.
    Growing { best: u64, stale: u32 },
    /// The path is full.
    Full { rounds: u32 },
    /// The queue is drained.
    Draining { rounds: u32 },
}

const BEGIN: Phase = Phase::Growing { best: 0, stale: 0 };

/// A round trip from `began`: over once a packet is acknowledged that was sent after `began`.
#[derive(Debug, Clone, Copy)]
struct Round {
    began: Instant,
    acked: u64,
    lost: u64,
    over: bool,
    /// At times there was nothing to send, so the path may carry more than was measured.
    limited: bool,
    shortest: Duration,
    burst: u64,
}

impl Round {
    fn new(began: Instant) -> Self {
        Self { began, acked: 0, lost: 0, over: false, limited: false, shortest: Duration::MAX, burst: 0 }
    }
}

/// What a round has measured.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    /// Bytes a second.
    rate: u64,
    /// Bytes that were acknowledged ahead of that rate, because acknowledgements were gathered. As many more have to be
    /// in flight, or the path runs empty while acknowledgements wait.
    burst: u64,
}

/// The bytes acknowledged since acknowledgements began to come faster than the path's rate.
#[derive(Debug, Clone, Copy)]
struct Burst {
    began: Instant,
    acked: u64,
    /// Bytes that are acknowledged together.
    batch: u64,
}

impl Burst {
    /// Ends a batch. Returns how many bytes were acknowledged ahead of the rate.
    fn end_batch(&mut self, now: Instant, rate: u64) -> u64 {
        if self.acked <= product(rate, now - self.began) {
            (self.began, self.acked) = (now, 0);
        }
        self.acked += std::mem::take(&mut self.batch);
        self.acked.saturating_sub(product(rate, now - self.began))
    }
}

/// The delay of the path without queues, and when it was last measured.
#[derive(Debug, Clone, Copy)]
struct Delay {
    shortest: Duration,
    seen: Instant,
}

/// Whether the last few packets waited in a queue: while the window doubles, the next ones would wait twice as long.
#[derive(Debug, Clone, Copy)]
struct Recent {
    shortest: Duration,
    packets: u32,
    waited: bool,
}

impl Recent {
    const NONE: Self = Self { shortest: Duration::MAX, packets: 0, waited: false };

    fn handle_ack(&mut self, delay: Duration, shortest: Duration) {
        self.shortest = self.shortest.min(delay);
        self.packets += 1;
        if self.packets == ENOUGH {
            *self = Self { waited: self.shortest > shortest + shortest / 8 + JITTER, ..Self::NONE };
        }
    }
}

impl Model {
    pub(super) fn new(first_window: u64, packet: u64, now: Instant) -> Self {
        Self {
            window: first_window,
            first_window,
            packet,
            phase: BEGIN,
            round: Round::new(now),
            measured: [Measured::default(); ROUNDS],
            rounds: 0,
            delay: Delay { shortest: Duration::MAX, seen: now },
            recent: Recent::NONE,
            burst: Burst { began: now, acked: 0, batch: 0 },
            ceiling: None,
            idle: true,
        }
    }

    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// Whether the path's delay is shorter than that of busy hosts.
    pub(super) fn is_short(&self) -> bool {
        self.delay.shortest < SHORTEST_WAY
    }

    pub(super) fn packet(&self) -> u64 {
        self.packet
    }

    pub(super) fn set_packet(&mut self, packet: u64) {
        self.packet = packet;
        self.window = self.window.max(FEWEST * packet);
    }

    pub(super) fn handle_sent(&mut self, now: Instant) {
        // While the queue is drained, nothing may be in flight for a moment; such a round still counts.
        if std::mem::take(&mut self.idle) && !matches!(self.phase, Phase::Draining { .. }) {
            self.round = Round { limited: true, ..Round::new(now) };
        }
    }

    pub(super) fn handle_ack(&mut self, now: Instant, sent: Instant, bytes: u64, limited: bool) {
        self.round.acked += bytes;
        self.burst.batch += bytes;
        self.round.over |= sent >= self.round.began;
        self.round.limited |= limited;
        self.round.shortest = self.round.shortest.min(now - sent);
        if now - sent <= self.delay.shortest.saturating_add(JITTER) {
            self.delay = Delay { shortest: self.delay.shortest.min(now - sent), seen: now };
        }
        self.recent.handle_ack(now - sent, self.delay.shortest);
        if !(self.recent.waited && matches!(self.phase, Phase::Growing { .. })) {
            self.window += bytes;
        }
    }

    pub(super) fn handle_end_of_acks(&mut self, now: Instant, in_flight: u64) {
        let burst = self.burst.end_batch(now, self.rate());
        // While the window doubles, the rate lags, and bursts cannot be told from growth.
        if !matches!(self.phase, Phase::Growing { .. }) {
            self.round.burst = self.round.burst.max(burst);
        }
        if self.round.over && now - self.round.began >= SHORTEST_ROUND {
            self.end_round(now);
        }
        self.window = self.window.min(self.target()).max(FEWEST * self.packet);
        self.idle = in_flight == 0;
    }

    /// Bytes were lost. With `all_for_long`, so was everything else for some round trips.
    pub(super) fn handle_loss(&mut self, bytes: u64, all_for_long: bool) {
        self.round.lost += bytes;
        if all_for_long {
            (self.phase, self.window, self.ceiling) = (BEGIN, self.first_window, None);
            self.round.lost = 0;
        }
    }

    fn end_round(&mut self, now: Instant) {
        let round = std::mem::replace(&mut self.round, Round::new(now));
        let took = (now - round.began).as_nanos().max(1);
        let rate = u64::try_from(u128::from(round.acked) * 1_000_000_000 / took).unwrap_or(u64::MAX);
        let before = self.rate();
        if !round.limited || rate > before {
            self.measured[self.rounds % ROUNDS] = Measured { rate, burst: round.burst };
            self.rounds += 1;
        }
        let overflows = round.lost > FEWEST * self.packet && round.lost * OVERFLOW > round.acked + round.lost;
        self.ceiling = match self.ceiling {
            _ if overflows => Some(round.acked * 9 / 10),
            Some(ceiling) => Some(ceiling * 5 / 4).filter(|ceiling| *ceiling < self.filled() * 2),
            None => None,
        };
        self.phase = self.next_phase(&round, rate, before, overflows, now);
    }

    /// The phase after `round`, which had rate `rate`; `before` is the best rate before it.
    fn next_phase(&mut self, round: &Round, rate: u64, before: u64, overflows: bool, now: Instant) -> Phase {
        match self.phase {
            Phase::Growing { .. } if overflows => Phase::Full { rounds: 1 },
            Phase::Growing { best, .. } if rate >= best + best / 4 => Phase::Growing { best: rate, stale: 0 },
            Phase::Growing { .. } if round.limited => self.phase,
            Phase::Growing { stale, .. } if stale + 1 == STALE_ROUNDS => Phase::Full { rounds: 1 },
            Phase::Growing { best, stale } => Phase::Growing { best, stale: stale + 1 },
            Phase::Full { .. } if now - self.delay.seen > DELAY_COUNTS => Phase::Draining { rounds: 0 },
            Phase::Full { .. } if !overflows && rate > before + before / 8 => {
                Phase::Growing { best: rate, stale: 0 }
            }
            Phase::Full { rounds } => Phase::Full { rounds: rounds + 1 },
            Phase::Draining { rounds: 0 } => Phase::Draining { rounds: 1 },
            Phase::Draining { .. } => {
                let moved = round.shortest > self.delay.shortest.saturating_mul(2) + QUEUE;
                self.delay = Delay { shortest: round.shortest, seen: now };
                if moved { BEGIN } else { Phase::Full { rounds: 0 } }
            }
        }
    }

    /// The best rate of the last rounds, in bytes a second.
    fn rate(&self) -> u64 {
        self.measured.iter().map(|round| round.rate).max().unwrap_or_default()
    }

    /// Bytes that fill the path without a queue.
    fn filled(&self) -> u64 {
        product(self.rate(), self.delay.shortest.max(SHORTEST_WAY))
    }

    /// Bytes that may wait in a queue or for their acknowledgement.
    fn queue(&self) -> u64 {
        let burst = self.measured.iter().map(|round| round.burst).max().unwrap_or_default();
        let waits = product(self.rate(), QUEUE) + burst.min(product(self.rate(), LONGEST_BURST));
        waits.min(LONGEST_QUEUE).max(self.first_window)
    }

    fn target(&self) -> u64 {
        if self.rate() == 0 {
            return u64::MAX;
        }
        let filled = self.filled();
        let target = match self.phase {
            // The rate is a round old, and the window has doubled since.
            Phase::Growing { .. } => filled * 5 / 2 + self.queue(),
            Phase::Full { rounds } if rounds.is_multiple_of(CYCLE) => filled * 5 / 4 + self.queue(),
            Phase::Full { .. } => filled + self.queue(),
            Phase::Draining { .. } => product(self.rate(), self.delay.shortest) * 3 / 4,
        };
        target.min(self.ceiling.unwrap_or(u64::MAX))
    }
}

/// Bytes that pass in `time` at `rate` bytes a second.
fn product(rate: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(rate) * time.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
}
