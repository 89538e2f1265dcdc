//! The clocks that give the times which the core gets as arguments. Decides nothing.

use jiff::Timestamp;
use tokio::time::Instant;

use crate::mesh::{Now, Tick};

/// Converts tokio's monotonic clock into the core's ticks.
#[derive(Debug, Clone, Copy)]
pub(super) struct TickClock {
    origin: Instant,
}

impl TickClock {
    pub(super) fn start() -> Self {
        Self { origin: Instant::now() }
    }

    pub(super) fn tick(&self) -> Tick {
        Tick::at(self.origin.elapsed())
    }

    pub(super) fn now(&self) -> Now {
        Now { tick: self.tick(), wall: Timestamp::now() }
    }

    pub(super) fn instant(&self, tick: Tick) -> Instant {
        self.origin + tick.since_origin()
    }
}
