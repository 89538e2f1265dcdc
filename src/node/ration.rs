//! So many log lines a second and no more, however often there is cause for one.
//!
//! Owns the counting alone; what is written, and that it also stands in a counter, is its owner's business.

use std::time::Duration;

use tokio::time::Instant;

/// Lines in a second.
const LINES: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// What may still be said in this second.
#[derive(Debug, Default)]
pub(super) struct Ration {
    since: Option<Instant>,
    said: u32,
    unsaid: u64,
}

impl Ration {
    /// If a line may be written now: how many were left out since the last one.
    pub(super) fn take(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now - since >= SECOND) {
            (self.since, self.said) = (Some(now), 0);
        }
        if self.said >= LINES {
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
        let mut ration = Ration::default();
        let said = |ration: &mut Ration, millis| ration.take(start + Duration::from_millis(millis));
        let first: Vec<_> = (0..1_000).filter_map(|millis| said(&mut ration, millis)).collect();
        assert_eq!(first, [0; 10]);
        assert_eq!(said(&mut ration, 1_000), Some(990));
        assert_eq!(said(&mut ration, 1_001), Some(0));
    }
}
