//! Decides when the results of a unit that a client cancelled may end. AWX sends a cancel, and shuts down its reader of
//! results once the cancel is answered. If the results end before that, the reader takes them for cut off. Owns how
//! long results stay open after the answer. Knows neither the cancel's outcome nor the readers.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How long results stay open once the answer to the cancel has gone out.
const AFTER_THE_ANSWER: Duration = Duration::from_secs(2);

/// The cancels of one unit that came before its end.
#[derive(Debug, Default)]
pub(crate) struct Farewell(watch::Sender<Cancels>);

#[derive(Debug, Default, Clone, Copy)]
struct Cancels {
    /// Cancels without an answer.
    open: usize,
    /// When the last cancel was answered.
    answered: Option<Instant>,
}

impl Farewell {
    /// Notes a new cancel.
    pub(super) fn ask(&self) {
        self.0.send_modify(|cancels| cancels.open += 1);
    }

    /// Notes that the answer to a cancel has gone out, or that nobody is left to get it.
    pub(super) fn answer(&self) {
        self.0.send_modify(|cancels| {
            (cancels.open, cancels.answered) = (cancels.open - 1, Some(Instant::now()))
        });
    }

    /// Notes that a cancel was refused.
    pub(super) fn refuse(&self) {
        self.0.send_modify(|cancels| cancels.open -= 1);
    }

    /// Waits until results may end.
    pub(crate) async fn passed(&self) {
        let mut changes = self.0.subscribe();
        loop {
            let Cancels { open, answered } = *changes.borrow_and_update();
            let end = match (open, answered) {
                (0, None) => return,
                (0, Some(answered)) => Some(answered + AFTER_THE_ANSWER),
                _ => None,
            };
            tokio::select! {
                () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => return,
                // `self` keeps the sender, so this cannot fail.
                _ = changes.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long results stay open from here on.
    async fn stays(farewell: &Farewell) -> Duration {
        let begun = Instant::now();
        farewell.passed().await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn results_end_two_seconds_after_the_last_answer_and_at_once_without_a_cancel() {
        let farewell = Farewell::default();
        assert_eq!(stays(&farewell).await, Duration::ZERO);
        farewell.ask();
        farewell.refuse();
        assert_eq!(stays(&farewell).await, Duration::ZERO);
        farewell.ask();
        farewell.ask();
        let answers = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            farewell.answer();
            tokio::time::sleep(Duration::from_secs(4)).await;
            farewell.answer();
        };
        let (stayed, ()) = tokio::join!(stays(&farewell), answers);
        assert_eq!(stayed, Duration::from_secs(7));
        assert_eq!(stays(&farewell).await, Duration::ZERO, "a reader that comes later need not wait");
    }
}
