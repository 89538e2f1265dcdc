//! Waiting for what has to come.

use std::time::{Duration, Instant};

/// Nothing takes this long unless it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Asks until there is an answer.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
