//! "Soon, but not too often": the first request is granted at once, and requests that follow closely are combined.
//!
//! [`Throttle`] keeps a fixed distance between two actions. [`SlowingThrottle`] waits longer while requests go on, as
//! in RFC 8405, so that a single change takes effect at once and a storm of changes costs little. Knows no actions.

use std::time::Duration;

use super::Tick;

/// Limits how often one action is done.
#[derive(Debug)]
pub(super) struct Throttle {
    hold: Duration,
    last: Option<Tick>,
    due: Option<Tick>,
}

impl Throttle {
    /// Keeps two actions at least `hold` apart.
    pub(super) fn new(hold: Duration) -> Self {
        Self { hold, last: None, due: None }
    }

    /// Asks for the action: now, or once the hold time since the last one is over.
    pub(super) fn request(&mut self, now: Tick) {
        let earliest = self.last.map_or(now, |last| (last + self.hold).max(now));
        self.due = Some(self.due.map_or(earliest, |due| due.min(earliest)));
    }

    /// When the action is due, if it was asked for.
    pub(super) fn due(&self) -> Option<Tick> {
        self.due
    }

    /// True if the action is due; it then counts as done at `now`.
    pub(super) fn take(&mut self, now: Tick) -> bool {
        let due = self.due.is_some_and(|due| due <= now);
        if due {
            self.note_done(now);
        }
        due
    }

    /// The action has just been done, for whatever cause.
    pub(super) fn note_done(&mut self, now: Tick) {
        self.due = None;
        self.last = Some(now);
    }
}

/// Requests within this time after the first one are still granted quickly.
const TIME_TO_LEARN: Duration = Duration::from_millis(500);
/// After this long without requests, the next one counts as a first one again.
const HOLD_DOWN: Duration = Duration::from_secs(5);

/// A [`Throttle`] that slows down while requests go on.
#[derive(Debug)]
pub(super) struct SlowingThrottle {
    throttle: Throttle,
    short: Duration,
    long: Duration,
    /// When the present series of requests began, and when its latest request came.
    series: Option<(Tick, Tick)>,
}

impl SlowingThrottle {
    /// Keeps two actions at least `short` apart at first, and `long` once requests go on.
    pub(super) fn new(short: Duration, long: Duration) -> Self {
        Self { throttle: Throttle::new(short), short, long, series: None }
    }

    /// Replaces the long distance, because the cost of the action has changed.
    pub(super) fn set_long(&mut self, long: Duration) {
        self.long = long;
    }

    pub(super) fn request(&mut self, now: Tick) {
        let began = match self.series {
            Some((began, latest)) if now.since(latest) < HOLD_DOWN => began,
            Some(_) | None => now,
        };
        self.series = Some((began, now));
        self.throttle.hold = if now.since(began) < TIME_TO_LEARN { self.short } else { self.long };
        // An action that is due already is not put off.
        if self.throttle.due.is_none() {
            self.throttle.request(now);
        }
    }

    pub(super) fn due(&self) -> Option<Tick> {
        self.throttle.due()
    }

    pub(super) fn take(&mut self, now: Tick) -> bool {
        self.throttle.take(now)
    }

    pub(super) fn note_done(&mut self, now: Tick) {
        self.throttle.note_done(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::at(Duration::from_millis(millis))
    }

    #[test]
    fn one_change_is_done_at_once_and_a_storm_rarely() {
        let mut throttle = SlowingThrottle::new(Duration::from_millis(20), Duration::from_millis(250));
        throttle.request(at(10_000));
        assert!(throttle.take(at(10_000)), "at once");
        let mut done = Vec::new();
        for millis in 10_001..12_000 {
            throttle.request(at(millis));
            if throttle.take(at(millis)) {
                done.push(millis);
            }
        }
        let (early, late): (Vec<u64>, Vec<u64>) = done.iter().partition(|&&millis| millis < 10_500);
        assert_eq!(early.len(), 24, "every 20 ms: {early:?}");
        assert!((5..=6).contains(&late.len()), "every 250 ms: {late:?}");
        throttle.request(at(20_000));
        assert!(throttle.take(at(20_000)), "at once again after a rest");
    }
}
