//! Limits log lines that others can cause at any rate, where the log's own bound on each statement is too wide.
//!
//! Owns only the counting. The caller writes the lines, and says in each how many were left out before it.

use std::time::Duration;

use tokio::time::Instant;

/// Lets a number of lines through in each period.
#[derive(Debug)]
pub(crate) struct LogLimiter {
    lines: u32,
    period: Duration,
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl LogLimiter {
    /// At most this many lines in each `period`.
    pub(crate) fn new(lines: u32, period: Duration) -> Self {
        Self { lines, period, since: None, written: 0, left_out: 0 }
    }

    /// If a line may be written now, the number of lines left out since the last one.
    pub(crate) fn take(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now - since >= self.period) {
            (self.since, self.written) = (Some(now), 0);
        }
        if self.written >= self.lines {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_a_second_and_then_how_many_were_left_out() {
        let start = Instant::now();
        let mut limiter = LogLimiter::new(10, Duration::from_secs(1));
        let taken = |limiter: &mut LogLimiter, millis| limiter.take(start + Duration::from_millis(millis));
        let first: Vec<_> = (0..1_000).filter_map(|millis| taken(&mut limiter, millis)).collect();
        assert_eq!(first, [0; 10]);
        assert_eq!(taken(&mut limiter, 1_000), Some(990));
        assert_eq!(taken(&mut limiter, 1_001), Some(0));
    }
}
