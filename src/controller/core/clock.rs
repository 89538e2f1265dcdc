//! Whether the store's clock can be believed where something is deleted by it. A machine that boots with a dead battery is
//! years ahead until its clock is set, and what was to be kept for months would be over at once.
//!
//! The latest time that was seen is remembered. A clock that is more than a day ahead of it is doubted, until it comes
//! back, an operator confirms it, or it has run for a day without another leap. One that is more than a day behind deletes
//! nothing too early and is not doubted; once it has run so for a day, what was remembered was wrong and is forgotten, so
//! that the next leap is noticed. This file reads no clock.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::time::Time;

/// A clock that is further away has been set, or everything was off for so long.
const LARGEST_STEP: Duration = Duration::from_secs(24 * 60 * 60);
/// How long such a clock has to run.
const PROVEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// Between two looks that are further apart nobody was there to see the clock run.
const LONGEST_PAUSE: Duration = Duration::from_secs(60 * 60);
/// What is remembered may be that old.
const NOTICEABLE: Duration = Duration::from_secs(10 * 60);

/// What is remembered of a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockRecord {
    /// The latest time that was believed.
    pub latest: Time,
    /// It is far from that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<Doubt>,
}

/// A clock that is far from the latest time that was believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    /// What it said at the latest look.
    pub last: Time,
    /// How long it has run since it was first seen there.
    pub ran: Duration,
}

impl ClockRecord {
    /// This time is right.
    pub fn believed(now: Time) -> Self {
        Self { latest: now, doubt: None }
    }

    /// Whether nothing may be deleted by a clock that says `now`.
    pub fn doubts(&self, now: Time) -> bool {
        now.since(self.latest) > LARGEST_STEP
    }

    /// The clock says `now`.
    pub fn looked_at(self, now: Time) -> Self {
        if now.since(self.latest).max(self.latest.since(now)) <= LARGEST_STEP {
            return Self::believed(self.latest.max(now));
        }
        let doubt = match self.doubt {
            None => Doubt { last: now, ran: Duration::ZERO },
            Some(Doubt { last, ran }) => {
                let step = Some(now.since(last)).filter(|step| *step <= LONGEST_PAUSE);
                Doubt { last: now, ran: ran + step.unwrap_or_default() }
            }
        };
        if doubt.ran >= PROVEN_AFTER { Self::believed(now) } else { Self { doubt: Some(doubt), ..self } }
    }

    /// Whether a record that follows another one says enough more to be written down.
    pub fn is_news(&self, before: &Self) -> bool {
        let shown = |record: &Self| record.doubt.map_or(record.latest, |doubt| doubt.last);
        self.doubt.is_some() != before.doubt.is_some()
            || shown(self).since(shown(before)) >= NOTICEABLE
            || shown(before) > shown(self)
    }
}
