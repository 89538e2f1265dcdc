//! "Soon, but not too often": the first request is granted at once, those that follow closely are combined.
//!
//! [`Throttle`] keeps a fixed distance; [`BackOff`] waits longer while requests go on, on the model of RFC 8405, so that
//! one change takes effect at once and a storm of them costs little.

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
    /// At least `hold` between two of them.
    pub(super) fn new(hold: Duration) -> Self {
        Self { hold, last: None, due: None }
    }

    /// Asks for the action: now if it has rested for the hold time, else when it has.
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

    /// The action has just been done, whatever the cause.
    pub(super) fn note_done(&mut self, now: Tick) {
        self.due = None;
        self.last = Some(now);
    }
}

/// Requests that follow the first one within this time are still answered quickly.
const TIME_TO_LEARN: Duration = Duration::from_millis(500);
/// After this long without requests the next one is a first one again.
const HOLD_DOWN: Duration = Duration::from_secs(5);

/// The same, more slowly while requests go on.
#[derive(Debug)]
pub(super) struct BackOff {
    throttle: Throttle,
    short: Duration,
    long: Duration,
    /// When the present series of requests began, and its latest one.
    series: Option<(Tick, Tick)>,
}

impl BackOff {
    /// At least `short` between two of them at first, `long` once requests go on.
    pub(super) fn new(short: Duration, long: Duration) -> Self {
        Self { throttle: Throttle::new(short), short, long, series: None }
    }

    /// Makes the long distance longer: the action has become more expensive.
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
        // What is waited for already is not put off.
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
        let mut throttle = BackOff::new(Duration::from_millis(20), Duration::from_millis(250));
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
