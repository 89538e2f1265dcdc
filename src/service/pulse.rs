//! When something last showed life, to find flows and connections that are silent for too long. Refuses to know what
//! they carry.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// The time of the last sign of life. Clones share it. The lock is held for one assignment.
#[derive(Debug, Clone)]
pub(super) struct Pulse(Arc<Mutex<Instant>>);

impl Pulse {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    pub(super) fn beat(&self) {
        *self.0.lock() = Instant::now();
    }

    pub(super) fn last(&self) -> Instant {
        *self.0.lock()
    }

    /// Ready once there was no beat for as long as `limit`.
    pub(super) async fn silence(&self, limit: Duration) {
        loop {
            let deadline = self.last() + limit;
            if deadline <= Instant::now() {
                return;
            }
            sleep_until(deadline).await;
        }
    }
}
