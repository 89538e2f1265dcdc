//! How far a payload has come on its way to another node, for the Detail of its unit. Owns when that is worth a word, and
//! the words. Bytes count once the stream has taken them.

use std::time::Duration;

use tokio::time::Instant;

/// A payload that is sent faster needs no words, and words need not come more often.
const EVERY: Duration = Duration::from_secs(1);

/// A payload that is being sent.
pub(super) struct SendProgress {
    sent: u64,
    begun: Instant,
    said: Instant,
}

impl SendProgress {
    pub(super) fn begin() -> Self {
        let begun = Instant::now();
        Self { sent: 0, begun, said: begun }
    }

    /// More was sent. Returns what is to be said of it; `total` is asked for all of it, if that is known.
    pub(super) fn add(&mut self, bytes: usize, total: impl FnOnce() -> Option<u64>) -> Option<String> {
        self.sent += bytes as u64;
        if self.said.elapsed() < EVERY {
            return None;
        }
        self.said = Instant::now();
        Some(words(self.sent, total(), self.begun.elapsed()))
    }
}

/// `Sending payload: 120.0 of 200.0 MiB, 5.0 MiB/s, 16 s left`.
fn words(sent: u64, total: Option<u64>, time: Duration) -> String {
    let mebi = |bytes: f64| bytes / f64::from(1 << 20);
    let rate = sent as f64 / time.as_secs_f64().max(0.001);
    let (of, left) = match total {
        Some(total) => {
            let seconds = total.saturating_sub(sent) as f64 / rate.max(1.0);
            (format!(" of {:.1}", mebi(total as f64)), format!(", {seconds:.0} s left"))
        }
        None => (String::new(), String::new()),
    };
    format!("Sending payload: {:.1}{of} MiB, {:.1} MiB/s{left}", mebi(sent as f64), mebi(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_payload_is_told_of_once_a_second_with_what_is_left() {
        let mut progress = SendProgress::begin();
        let mut add = |bytes| progress.add(bytes, || Some(200 << 20));
        assert_eq!(add(100 << 20), None);
        tokio::time::advance(Duration::from_secs(24)).await;
        let told = "Sending payload: 120.0 of 200.0 MiB, 5.0 MiB/s, 16 s left";
        assert_eq!(add(20 << 20).as_deref(), Some(told));
        assert_eq!(add(1), None);
        let unknown = words(3 << 20, None, Duration::from_secs(2));
        assert_eq!(unknown, "Sending payload: 3.0 MiB, 1.5 MiB/s");
    }
}
