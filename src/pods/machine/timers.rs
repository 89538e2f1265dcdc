//! The timers of a unit's owner, one of each kind. This module reads no clock.

use std::time::Instant;

/// What a wake-up is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The pod was pending for as long as the submission allows.
    Pending,
    /// Something that a container needs was missing for too long.
    Grace,
    /// Create the pod again.
    Create,
    /// Attach to stdin again.
    Attach,
    /// The server has not confirmed that all of stdin arrived.
    StdinStatus,
    /// Stdin broke off, and `worker` has not ended since.
    Verdict,
    /// Open the log again.
    Log,
    /// `worker` has ended, but the log stream has not.
    Linger,
    /// Get the pod again.
    Get,
    /// The API server, or the kubelet, has not answered for too long.
    Outage,
    /// The pod is gone, but the log stream has not ended.
    Gone,
    /// The pod's last event has not arrived.
    Events,
    /// Delete the pod again.
    Delete,
    /// The pod of a released unit could not be deleted for too long.
    GiveUp,
}

/// The number of timers.
const KINDS: usize = Timer::GiveUp as usize + 1;

const ALL: [Timer; KINDS] = [
    Timer::Pending,
    Timer::Grace,
    Timer::Create,
    Timer::Attach,
    Timer::StdinStatus,
    Timer::Verdict,
    Timer::Log,
    Timer::Linger,
    Timer::Get,
    Timer::Outage,
    Timer::Gone,
    Timer::Events,
    Timer::Delete,
    Timer::GiveUp,
];

/// The deadline of each timer, if it runs.
#[derive(Debug, Clone, Default)]
pub(super) struct PodTimers([Option<Instant>; KINDS]);

impl PodTimers {
    pub(super) fn set(&mut self, timer: Timer, at: Instant) {
        self.0[timer as usize] = Some(at);
    }

    /// Starts a timer, unless it runs.
    pub(super) fn start(&mut self, timer: Timer, at: Instant) {
        self.0[timer as usize].get_or_insert(at);
    }

    /// Moves a running timer to `at`, if that is earlier.
    pub(super) fn advance(&mut self, timer: Timer, at: Instant) {
        if let Some(moment) = &mut self.0[timer as usize] {
            *moment = at.min(*moment);
        }
    }

    pub(super) fn stop(&mut self, timer: Timer) {
        self.0[timer as usize] = None;
    }

    pub(super) fn runs(&self, timer: Timer) -> bool {
        self.0[timer as usize].is_some()
    }

    /// The next deadline, and its timer.
    pub(super) fn next(&self) -> Option<(Instant, Timer)> {
        ALL.iter().filter_map(|timer| Some((self.0[*timer as usize]?, *timer))).min()
    }

    /// Takes an expired timer.
    pub(super) fn expired(&mut self, now: Instant) -> Option<Timer> {
        let (at, timer) = self.next()?;
        if at > now {
            return None;
        }
        self.stop(timer);
        Some(timer)
    }

    /// Stops the timers of the unit's work; the deletion of its pod continues.
    pub(super) fn stop_work(&mut self) {
        for timer in ALL {
            if timer != Timer::Delete && timer != Timer::GiveUp {
                self.stop(timer);
            }
        }
    }
}
