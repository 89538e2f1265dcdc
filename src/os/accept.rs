//! Accepts clients. Owns when a failed accept is tried again, and that the failure is logged once: accepts fail for
//! as long as the process has no descriptor left. Knows neither who comes nor how many may.

use std::io;
use std::time::Duration;

use tokio::time::sleep;

/// The pause after an accept that failed.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Accepts clients of one socket. `whose` names them in the log.
#[derive(Debug)]
pub(crate) struct ClientAcceptor {
    whose: &'static str,
    is_failing: bool,
}

impl ClientAcceptor {
    pub(crate) const fn new(whose: &'static str) -> Self {
        Self { whose, is_failing: false }
    }

    /// Gives the client that came. After a failure it waits for the pause and gives `None`.
    pub(crate) async fn sort<T>(&mut self, accepted: io::Result<T>) -> Option<T> {
        let was_failing = std::mem::replace(&mut self.is_failing, accepted.is_err());
        match accepted {
            Ok(client) => Some(client),
            Err(error) => {
                if !was_failing {
                    tracing::warn!(%error, clients = self.whose, "cannot accept clients, trying again");
                }
                sleep(ACCEPT_RETRY).await;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_accept_that_failed_is_repeated_after_a_pause() {
        let mut acceptor = ClientAcceptor::new("tests");
        let begun = tokio::time::Instant::now();
        for (accepted, pauses) in [(Some(1), 0), (None, 1), (None, 2), (Some(2), 2)] {
            let answer = accepted.ok_or_else(|| io::Error::other("no descriptor"));
            assert_eq!(acceptor.sort(answer).await, accepted);
            assert_eq!((begun.elapsed(), acceptor.is_failing), (pauses * ACCEPT_RETRY, accepted.is_none()));
        }
    }
}
