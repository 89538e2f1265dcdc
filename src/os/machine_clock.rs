//! Time since a moment, including the time in which the machine was suspended, because other machines counted on.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// A clock that nobody can set.
#[derive(Debug)]
pub(crate) struct MachineClock {
    /// A moment of the runtime's clock, as for every timer.
    began: Instant,
    suspended: Duration,
}

impl MachineClock {
    pub(crate) fn start() -> Self {
        Self { began: Instant::now(), suspended: suspended() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed() + suspended().saturating_sub(self.suspended)
    }
}

/// For how long the machine has been suspended since it booted.
fn suspended() -> Duration {
    let read = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    let running = read(ClockId::Monotonic);
    read(ClockId::Boottime).saturating_sub(running)
}
