//! Time since a moment, also that in which the machine was suspended: others have counted on meanwhile.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// A clock that nobody sets.
#[derive(Debug)]
pub(crate) struct MachineClock {
    /// The runtime's, as for every timer.
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
