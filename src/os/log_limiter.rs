//! So many log lines in a while and no more, however often there is cause for one.
//!
//! Owns the counting alone; what is written, and that it also stands in a counter, is its owner's business.

use std::time::Duration;

use tokio::time::Instant;

/// What may still be said.
#[derive(Debug)]
pub(crate) struct Ration {
    lines: u32,
    time: Duration,
    since: Option<Instant>,
    said: u32,
    unsaid: u64,
}

impl Ration {
    /// At most that many lines in each `time`.
    pub(crate) fn new(lines: u32, time: Duration) -> Self {
        Self { lines, time, since: None, said: 0, unsaid: 0 }
    }

    /// If a line may be written now: how many were left out since the last one.
    pub(crate) fn take(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now - since >= self.time) {
            (self.since, self.said) = (Some(now), 0);
        }
        if self.said >= self.lines {
            self.unsaid += 1;
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_a_second_and_then_how_many_were_left_out() {
        let start = Instant::now();
        let mut ration = Ration::new(10, Duration::from_secs(1));
        let said = |ration: &mut Ration, millis| ration.take(start + Duration::from_millis(millis));
        let first: Vec<_> = (0..1_000).filter_map(|millis| said(&mut ration, millis)).collect();
        assert_eq!(first, [0; 10]);
        assert_eq!(said(&mut ration, 1_000), Some(990));
        assert_eq!(said(&mut ration, 1_001), Some(0));
    }
}
