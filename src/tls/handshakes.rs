//! The handshakes of a listener, beside each other and bounded in number.
//!
//! Owns who has to go when there are too many: the oldest, since an honest client needs a moment only, so that
//! those who never finish displace each other and keep nobody out. It knows no protocol and no clock; a
//! handshake brings its own limit of time.

use std::collections::VecDeque;
use std::future::Future;

use tokio::task::{AbortHandle, JoinSet};

/// Handshakes under way at once on one listener.
pub const MOST_HANDSHAKES: usize = 2_048;
/// From this many on, clients that may have made up their address have to show first that they get answers there.
const SUSPICIOUS_HANDSHAKES: usize = 64;

/// Handshakes under way, each of which leads to a `T`.
#[derive(Debug)]
pub struct Handshakes<T> {
    running: JoinSet<T>,
    /// Oldest first; those that have ended are let go when room is needed.
    begun: VecDeque<AbortHandle>,
    most: usize,
}

impl<T> Default for Handshakes<T> {
    fn default() -> Self {
        Self { running: JoinSet::new(), begun: VecDeque::new(), most: MOST_HANDSHAKES }
    }
}

impl<T: Send + 'static> Handshakes<T> {
    /// Begins one. If there are too many, the oldest is cut.
    pub fn begin(&mut self, handshake: impl Future<Output = T> + Send + 'static) {
        if self.begun.len() >= self.most {
            self.begun.retain(|one| !one.is_finished());
        }
        if self.begun.len() >= self.most
            && let Some(oldest) = self.begun.pop_front()
        {
            oldest.abort();
        }
        self.begun.push_back(self.running.spawn(handshake));
    }

    /// How many have not ended.
    pub fn under_way(&self) -> usize {
        self.begun.iter().filter(|one| !one.is_finished()).count()
    }

    /// Whether there are more of them than honest clients make.
    pub fn are_suspicious(&self) -> bool {
        self.under_way() >= SUSPICIOUS_HANDSHAKES
    }

    /// What the next one to end has led to; pending while there are none. Cancel safe.
    pub async fn next(&mut self) -> T {
        loop {
            match self.running.join_next().await {
                Some(Ok(ended)) => return ended,
                // One that was cut or has panicked is gone; the listener goes on.
                Some(Err(_gone)) => {}
                None => return std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn who_never_finishes_is_displaced_and_who_does_is_not() {
        let mut handshakes = Handshakes { most: 10, ..Handshakes::default() };
        for round in 0..100 {
            handshakes.begin(async { pending::<u32>().await });
            handshakes.begin(ready(round));
            assert_eq!(handshakes.next().await, round);
            assert!(handshakes.under_way() <= 10);
            assert!(handshakes.running.len() <= 20, "{} tasks are kept", handshakes.running.len());
        }
        assert_eq!(handshakes.under_way(), 9, "silent ones stay while there is room");
    }
}
