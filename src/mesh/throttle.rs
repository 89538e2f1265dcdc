//! "Soon, but not too often": the first request is served at once, those that follow closely are gathered.
//!
//! [`Pace`] keeps a fixed distance; [`BackOff`] waits longer the longer it goes on, on the model of
//! RFC 8405, so that one change is acted on at once and a storm of them costs little.

use std::time::Duration;

use super::Tick;

/// Paces one recurring action.
#[derive(Debug)]
pub(super) struct Pace {
    hold: Duration,
    last: Option<Tick>,
    due: Option<Tick>,
}

impl Pace {
    /// At least `hold` between two servings.
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

    /// True once for each time that the action is due; it then counts as done at `now`.
    pub(super) fn take(&mut self, now: Tick) -> bool {
        let due = self.due.is_some_and(|due| due <= now);
        if due {
            self.served(now);
        }
        due
    }

    /// Notes that the action has just been done, for whatever cause.
    pub(super) fn served(&mut self, now: Tick) {
        self.due = None;
        self.last = Some(now);
    }
}

/// Requests that follow the first one within this time are still answered quickly.
const TIME_TO_LEARN: Duration = Duration::from_millis(500);
/// After this long without requests the next one is a first one again.
const HOLD_DOWN: Duration = Duration::from_secs(5);

/// Paces one recurring action, more slowly while requests go on.
#[derive(Debug)]
pub(super) struct BackOff {
    pace: Pace,
    short: Duration,
    long: Duration,
    /// When the present series of requests began, and its latest one.
    series: Option<(Tick, Tick)>,
}

impl BackOff {
    /// At least `short` between two servings at first, `long` once requests go on.
    pub(super) fn new(short: Duration, long: Duration) -> Self {
        Self { pace: Pace::new(short), short, long, series: None }
    }

    /// Makes the long distance longer: the action has become dearer.
    pub(super) fn set_long(&mut self, long: Duration) {
        self.long = long;
    }

    pub(super) fn request(&mut self, now: Tick) {
        let began = match self.series {
            Some((began, latest)) if now.since(latest) < HOLD_DOWN => began,
            Some(_) | None => now,
        };
        self.series = Some((began, now));
        self.pace.hold = if now.since(began) < TIME_TO_LEARN { self.short } else { self.long };
        // What is waited for already is not put off.
        if self.pace.due.is_none() {
            self.pace.request(now);
        }
    }

    pub(super) fn due(&self) -> Option<Tick> {
        self.pace.due()
    }

    pub(super) fn take(&mut self, now: Tick) -> bool {
        self.pace.take(now)
    }

    pub(super) fn served(&mut self, now: Tick) {
        self.pace.served(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::at(Duration::from_millis(millis))
    }

    #[test]
    fn one_change_is_served_at_once_and_a_storm_rarely() {
        let mut pace = BackOff::new(Duration::from_millis(20), Duration::from_millis(250));
        pace.request(at(10_000));
        assert!(pace.take(at(10_000)), "at once");
        let mut served = Vec::new();
        for millis in 10_001..12_000 {
            pace.request(at(millis));
            if pace.take(at(millis)) {
                served.push(millis);
            }
        }
        let (early, late): (Vec<u64>, Vec<u64>) = served.iter().partition(|&&millis| millis < 10_500);
        assert_eq!(early.len(), 24, "every 20 ms: {early:?}");
        assert!((5..=6).contains(&late.len()), "every 250 ms: {late:?}");
        pace.request(at(20_000));
        assert!(pace.take(at(20_000)), "at once again after a rest");
    }
}
