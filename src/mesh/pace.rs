//! "Soon, but not too often": the first request is served at once, those that follow closely are gathered.

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
