//! Whether the store's clock may decide what is old enough to be deleted. A machine that boots with a dead battery may
//! be years ahead until its clock is set: everything kept for months would be deleted at once.
//!
//! The latest time that was seen is remembered. A clock that is more than a day ahead of it is doubted, until it comes
//! back, an operator confirms it, or it has run for a day without another leap. A clock that is more than a day behind
//! is not doubted, because it deletes nothing too early. Once it has run like that for a day, it replaces the
//! remembered time, which was wrong, so that the next leap is noticed. This file reads no clock.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::time::Time;

/// A clock that differs by more has been set, or the whole installation was off for that long.
const LARGEST_STEP: Duration = Duration::from_secs(24 * 60 * 60);
/// How long such a clock must run to be believed.
const PROVEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// Time between two looks that are further apart does not count, because nobody saw the clock run.
const LONGEST_PAUSE: Duration = Duration::from_secs(60 * 60);
/// How old the stored record may become.
const NOTICEABLE: Duration = Duration::from_secs(10 * 60);

/// What is remembered of a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockRecord {
    /// The latest time that was believed.
    pub latest: Time,
    /// Set while the clock is far from `latest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<Doubt>,
}

/// A clock that is far from the latest time that was believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    /// The clock's time at the latest look.
    pub last: Time,
    /// How long the clock has run since the doubt began.
    pub ran: Duration,
}

impl ClockRecord {
    /// The record of a clock that is believed.
    pub fn believed(now: Time) -> Self {
        Self { latest: now, doubt: None }
    }

    /// Whether nothing may be deleted by a clock that says `now`.
    pub fn doubts(&self, now: Time) -> bool {
        now.since(self.latest) > LARGEST_STEP
    }

    /// The record after a look, at which the clock says `now`.
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

    /// Whether the record differs enough from the one before to be stored.
    pub fn is_news(&self, before: &Self) -> bool {
        let shown = |record: &Self| record.doubt.map_or(record.latest, |doubt| doubt.last);
        self.doubt.is_some() != before.doubt.is_some()
            || shown(self).since(shown(before)) >= NOTICEABLE
            || shown(before) > shown(self)
    }
}
