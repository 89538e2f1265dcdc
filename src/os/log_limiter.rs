//! Limits for log lines that others can cause at any rate.
//!
//! Owns the counting alone. The caller writes the lines, and says in the next one how many were left out.

use std::collections::BTreeSet;
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
    /// At most that many lines in each `period`.
    pub(crate) fn new(lines: u32, period: Duration) -> Self {
        Self { lines, period, since: None, written: 0, left_out: 0 }
    }

    /// If a line may be written now: how many were left out since the last one.
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

/// Sources that are remembered.
const MOST_SOURCES: usize = 256;

/// Tells the first line about a source from those after it. Once there are too many sources it begins anew, so it does
/// not replace a [`LogLimiter`].
#[derive(Debug, Default)]
pub(crate) struct FirstOfEach(BTreeSet<String>);

impl FirstOfEach {
    /// True if nothing was noted of this source before.
    pub(crate) fn note(&mut self, source: &str) -> bool {
        if self.0.contains(source) {
            return false;
        }
        if self.0.len() >= MOST_SOURCES {
            self.0.clear();
        }
        self.0.insert(source.to_owned())
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

    #[test]
    fn a_source_is_told_from_new_ones_and_their_number_is_bounded() {
        let mut first = FirstOfEach::default();
        assert!(first.note("a") && !first.note("a") && first.note("b"));
        (0..10_000).for_each(|number| assert!(first.note(&number.to_string())));
        assert!(first.0.len() <= MOST_SOURCES && !first.note("9999"));
    }
}
