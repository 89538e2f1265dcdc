//! Pauses between attempts. Owns their growth and their scatter, so that many units do not come back to a server at
//! the same moment; knows neither the clock nor what is tried.

use std::time::Duration;

/// Random numbers of one unit, from the seed that it is given.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Numbers that depend on the seed alone.
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

/// Pauses that double from a first one to a longest.
#[derive(Debug, Clone)]
pub struct BackOff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl BackOff {
    /// Pauses from `first` to `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most: most.max(first), failures: 0 }
    }

    /// The pause after one more failure: a quarter of it is left to chance.
    pub fn next(&mut self, dice: &mut Dice) -> Duration {
        let doubled = self.first.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.failures = (self.failures + 1).min(31);
        let pause = doubled.min(self.most);
        let scatter = (dice.roll() % 256) as u32;
        pause - pause * scatter / 1024
    }

    /// It worked.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Failures since it worked last.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_scatter() {
        let (mut pauses, mut dice) =
            (BackOff::new(Duration::from_millis(200), Duration::from_secs(30)), Dice::new(7));
        let mut expected = Duration::from_millis(200);
        for _ in 0..100 {
            let pause = pauses.next(&mut dice);
            assert!(pause <= expected && pause * 4 > expected * 3, "{pause:?} of {expected:?}");
            expected = (expected * 2).min(Duration::from_secs(30));
        }
        pauses.reset();
        assert!(pauses.next(&mut dice) <= Duration::from_millis(200));
    }
}
