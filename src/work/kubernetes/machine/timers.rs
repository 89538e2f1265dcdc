//! The moments at which a unit's owner wants to be woken, one of each kind. Asks no clock.

use std::time::Instant;

/// What a wake-up is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// The pod has been pending for as long as the submission allows.
    Pending,
    /// What a container needs has been missing for too long.
    Grace,
    /// The pod is to be created again.
    Create,
    /// Stdin is to be attached to again.
    Attach,
    /// The server has not said whether all of stdin arrived.
    StdinStatus,
    /// Stdin broke off, and `worker` has not ended by it.
    Verdict,
    /// The log is to be opened again.
    Log,
    /// `worker` has ended, and the log stream has not.
    Linger,
    /// The pod is to be looked at again.
    Get,
    /// The API server, or the kubelet, has not answered for too long.
    Outage,
    /// The pod is gone, and the log stream has not ended.
    Gone,
    /// The pod's last event has not come.
    Events,
    /// The pod is to be deleted again.
    Delete,
    /// The pod of a released unit could not be deleted for too long.
    GiveUp,
}

/// How many kinds there are.
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

/// A moment of each kind, or none.
#[derive(Debug, Clone, Default)]
pub(super) struct Timers([Option<Instant>; KINDS]);

impl Timers {
    pub(super) fn set(&mut self, timer: Timer, at: Instant) {
        self.0[timer as usize] = Some(at);
    }

    /// Sets a timer that does not run yet.
    pub(super) fn start(&mut self, timer: Timer, at: Instant) {
        self.0[timer as usize].get_or_insert(at);
    }

    /// Moves a timer that runs to an earlier moment.
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

    /// The nearest moment, and what it is for.
    pub(super) fn next(&self) -> Option<(Instant, Timer)> {
        ALL.iter().filter_map(|timer| Some((self.0[*timer as usize]?, *timer))).min()
    }

    /// Takes one whose moment has come.
    pub(super) fn expired(&mut self, now: Instant) -> Option<Timer> {
        let (at, timer) = self.next()?;
        if at > now {
            return None;
        }
        self.stop(timer);
        Some(timer)
    }

    /// Stops those that have to do with the unit's work; its pod's deletion goes on.
    pub(super) fn stop_work(&mut self) {
        for timer in ALL {
            if timer != Timer::Delete && timer != Timer::GiveUp {
                self.stop(timer);
            }
        }
    }
}
