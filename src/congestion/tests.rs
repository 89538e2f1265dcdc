//! The model on paths in virtual time: with a bottleneck, a buffer, a delay, losses, repeating links and late
//! receivers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::model::Model;
use super::{Control, Controller};

const PACKET: u64 = 1_400;
const FIRST: u64 = 14_720;

/// A path, with a sender that always has something to send.
#[derive(Clone, Copy)]
struct Way {
    /// Bytes a second.
    rate: u64,
    round_trip: Duration,
    /// The longest queue before the bottleneck; packets that do not fit are dropped.
    buffer: Duration,
    loss: f64,
    /// Whether a link repeats a lost packet, a round trip later, and holds back the packets after it.
    ordered: bool,
    /// How long a receiver may wait before it acknowledges.
    ack_delay: Duration,
    /// Acknowledgements arrive together, at this interval.
    gathered: Duration,
}

const NARROW: Way = Way {
    rate: 2_500_000,
    round_trip: Duration::from_millis(100),
    buffer: Duration::from_millis(100),
    loss: 0.0,
    ordered: false,
    ack_delay: Duration::ZERO,
    gathered: Duration::ZERO,
};
const FAST: Way = Way { rate: 60_000_000, ..NARROW };
const LIMIT: Duration = Duration::from_secs(20);
/// How much quinn sends at once after it was late, as a time.
const BURST: Duration = Duration::from_millis(2);

/// Measured in the second half of the time.
#[derive(Debug, Default)]
struct Outcome {
    /// Share of the rate that was delivered.
    used: f64,
    /// The mean time that packets waited.
    waited: Duration,
    /// Bytes that the buffer had no room for, since the beginning.
    dropped: u64,
}

enum Fate {
    Acked,
    Lost,
}

impl Way {
    fn run(self) -> Outcome {
        let (start, mut rng) = (Instant::now(), SmallRng::seed_from_u64(7));
        let mut model = Model::new(FIRST, PACKET, start);
        let (mut now, mut free_at, mut last_arrival) = (start, start, start);
        let mut fates: BTreeMap<(Instant, u64), (Instant, Fate)> = BTreeMap::new();
        let (mut sent, mut in_flight, mut delivered, mut dropped) = (0_u64, 0, 0, 0);
        let (mut waited, mut waits) = (Duration::ZERO, 0);
        let (mut pace, mut smoothed) = (start, self.round_trip);
        while now < start + LIMIT {
            let counts = now > start + LIMIT / 2;
            while in_flight + PACKET <= model.window() && pace <= now {
                // Paced as by quinn: a quarter more than a window in a round trip.
                pace = pace.max(now - BURST) + smoothed.mul_f64(PACKET as f64 / model.window() as f64 / 1.25);
                model.handle_sent(now);
                in_flight += PACKET;
                sent += 1;
                let wait = free_at.saturating_duration_since(now);
                let lost = rng.random_bool(self.loss);
                dropped += if wait > self.buffer { PACKET } else { 0 };
                if wait > self.buffer || (lost && !self.ordered) {
                    fates.insert((now + self.round_trip + wait.min(self.buffer), sent), (now, Fate::Lost));
                    continue;
                }
                free_at = now + wait + Duration::from_secs_f64(PACKET as f64 / self.rate as f64);
                let repeated = if lost { self.round_trip } else { Duration::ZERO };
                let arrival = free_at + self.round_trip / 2 + repeated;
                last_arrival = if self.ordered { last_arrival.max(arrival) } else { arrival };
                let delay = if sent.is_multiple_of(2) { Duration::ZERO } else { self.ack_delay };
                let acked = (last_arrival + self.round_trip / 2 + delay - start).as_nanos() as u64;
                let acked = acked.next_multiple_of(self.gathered.as_nanos().max(1) as u64);
                fates.insert((start + Duration::from_nanos(acked), sent), (now, Fate::Acked));
                (waited, waits) = if counts { (waited + wait, waits + 1) } else { (waited, waits) };
            }
            let next = fates.first_key_value().map(|((at, _), _)| *at);
            if in_flight + PACKET <= model.window() && next.is_none_or(|next| pace < next) {
                now = pace;
                continue;
            }
            let Some(at) = next else { panic!("the window is {}", model.window()) };
            now = at;
            while let Some(first) = fates.first_entry()
                && first.key().0 == at
            {
                let (when, fate) = first.remove();
                in_flight -= PACKET;
                smoothed = smoothed * 7 / 8 + (now - when) / 8;
                match fate {
                    Fate::Acked => model.handle_ack(now, when, PACKET, false),
                    Fate::Lost => model.handle_loss(PACKET, false),
                }
                delivered += if counts && matches!(fate, Fate::Acked) { PACKET } else { 0 };
            }
            model.handle_end_of_acks(now, in_flight);
        }
        let used = delivered as f64 / (LIMIT.as_secs_f64() / 2.0) / self.rate as f64;
        Outcome { used, waited: waited / waits, dropped }
    }
}

#[test]
fn a_way_is_filled_and_little_waits() {
    for way in [NARROW, FAST, Way { round_trip: Duration::from_millis(600), ..NARROW }] {
        let outcome = way.run();
        assert!(outcome.used > 0.95 && outcome.waited < Duration::from_millis(40), "{outcome:?}");
    }
}

#[test]
fn a_buffer_of_a_round_trip_does_not_overflow_at_the_beginning() {
    for way in [NARROW, FAST, Way { ack_delay: Duration::from_millis(25), ..NARROW }] {
        let outcome = way.run();
        assert!(outcome.used > 0.95 && outcome.dropped == 0, "{outcome:?}");
    }
}

#[test]
fn a_receiver_that_acknowledges_late_does_not_slow_it() {
    let outcome = Way { ack_delay: Duration::from_millis(25), ..FAST }.run();
    assert!(outcome.used > 0.95 && outcome.waited < Duration::from_millis(60), "{outcome:?}");
}

#[test]
fn acknowledgements_that_arrive_together_do_not_slow_it() {
    for (gathered, round_trip) in [(10, 101), (20, 101), (25, 97), (25, 101), (25, 123)] {
        let [gathered, round_trip] = [gathered, round_trip].map(Duration::from_millis);
        let outcome = Way { rate: 10_000_000, gathered, round_trip, ..NARROW }.run();
        assert!(outcome.used > 0.95 && outcome.waited < Duration::from_millis(40), "{outcome:?}");
    }
}

#[test]
fn a_short_way_that_is_drained_fills_again() {
    let gathered = Duration::from_millis(2);
    let outcome = Way { rate: 100_000_000, gathered, round_trip: Duration::from_millis(1), ..NARROW }.run();
    assert!(outcome.used > 0.95, "{outcome:?}");
}

/// How many windows quinn paces by, on a link with this round trip.
fn paced_windows(round_trip: Duration) -> u64 {
    let now = Instant::now();
    let mut model = Model::new(FIRST, PACKET, now);
    model.handle_sent(now);
    model.handle_ack(now + round_trip, now, PACKET, false);
    let link = Control { model, first_window: FIRST, is_fed_by_window: true, gauges: Arc::default() };
    link.window() / link.model.window()
}

#[test]
fn a_short_way_is_not_paced_by_a_timer_that_is_late() {
    assert_eq!(paced_windows(Duration::from_millis(1)), 2);
    assert_eq!(paced_windows(Duration::from_millis(50)), 1);
}

#[test]
fn a_lost_packet_is_no_reason_to_slow_down() {
    for way in [NARROW, FAST] {
        let outcome = Way { loss: 0.02, ..way }.run();
        assert!(outcome.used > 0.9 && outcome.waited < Duration::from_millis(60), "{outcome:?}");
    }
}

#[test]
fn a_link_that_repeats_what_is_lost_is_kept_full() {
    // The buffer of a relay may hold megabytes.
    let outcome = Way { loss: 0.001, ordered: true, buffer: Duration::from_secs(1), ..NARROW }.run();
    assert!(outcome.used > 0.85 && outcome.waited < Duration::from_millis(100), "{outcome:?}");
}

#[test]
fn a_buffer_that_overflows_is_left_room() {
    let outcome = Way { buffer: Duration::from_millis(10), ..NARROW }.run();
    assert!(outcome.used > 0.8, "{outcome:?}");
}

#[test]
fn a_way_that_lost_all_begins_again() {
    let start = Instant::now();
    let mut model = Model::new(FIRST, PACKET, start);
    let mut now = start;
    for _ in 0..10 {
        model.handle_sent(now);
        let sent = now;
        now += Duration::from_millis(100);
        model.handle_ack(now, sent, model.window(), false);
        model.handle_end_of_acks(now, PACKET);
    }
    assert!(model.window() > 1 << 20, "{}", model.window());
    model.handle_loss(model.window(), true);
    assert_eq!(model.window(), 14_720);
}
