//! Delays between attempts: they grow, and they are randomised so that many units do not return to a server
//! at the same moment. This module knows neither the clock nor the task that is retried.

use std::time::Duration;

/// Random numbers of one unit.
#[derive(Debug, Clone)]
pub struct RandomNumbers(u64);

impl RandomNumbers {
    /// A generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number (splitmix64).
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// Delays that double from a first one up to a longest one.
#[derive(Debug, Clone)]
pub struct BackOff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl BackOff {
    /// Delays from `first` to `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most: most.max(first), failures: 0 }
    }

    /// The delay after one more failure; up to a quarter of it is taken off at random.
    pub fn next(&mut self, random: &mut RandomNumbers) -> Duration {
        let doubled = self.first.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.failures = (self.failures + 1).min(31);
        let pause = doubled.min(self.most);
        let scatter = (random.roll() % 256) as u32;
        pause - pause * scatter / 1024
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_scatter() {
        let (mut pauses, mut random) =
            (BackOff::new(Duration::from_millis(200), Duration::from_secs(30)), RandomNumbers::new(7));
        let mut expected = Duration::from_millis(200);
        for _ in 0..100 {
            let pause = pauses.next(&mut random);
            assert!(pause <= expected && pause * 4 > expected * 3, "{pause:?} of {expected:?}");
            expected = (expected * 2).min(Duration::from_secs(30));
        }
        pauses.reset();
        assert!(pauses.next(&mut random) <= Duration::from_millis(200));
    }
}
