//! A token bucket for the requests of one credential to one cluster. Owns the count; knows no requests.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::pods::environment::Rate;

/// A bucket, full at first.
#[derive(Debug)]
pub(super) struct RateLimit {
    /// Time between two tokens, and the time that it takes to fill the bucket.
    pace: Duration,
    burst: Duration,
    /// When the bucket is full again. The lock is held only for arithmetic.
    full_at: Mutex<Option<Instant>>,
}

impl RateLimit {
    pub(super) fn new(rate: Rate) -> Self {
        let pace = Duration::from_secs(1) / rate.qps.max(1);
        Self { pace, burst: pace * rate.burst.max(1), full_at: Mutex::new(None) }
    }

    /// Waits for a token.
    pub(super) async fn admit(&self) {
        let due = self.take(Instant::now());
        sleep_until(due).await;
    }

    /// Takes the next token and returns the moment from which it is valid.
    fn take(&self, now: Instant) -> Instant {
        let mut full_at = self.full_at.lock();
        let next = full_at.map_or(now, |at| at.max(now)) + self.pace;
        *full_at = Some(next);
        next.checked_sub(self.burst).map_or(now, |due| due.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_at_once_and_what_follows_at_the_rate() {
        let limit = RateLimit::new(Rate { qps: 10, burst: 3 });
        let now = Instant::now() + Duration::from_secs(1000);
        let waits: Vec<_> = (0..5).map(|_| (limit.take(now) - now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        let later = now + Duration::from_secs(60);
        assert_eq!(limit.take(later), later, "it has filled up again");
    }
}
