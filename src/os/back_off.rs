//! How long to wait before a further attempt. The pauses grow, so that an absent service is not hammered, and they
//! are scattered, so that many clients do not return at the same moment. Pure: it neither sleeps nor knows what is
//! tried.

use std::time::Duration;

use rand::{Rng, RngExt as _};

/// Pauses that grow by half with each failure in a row, from a first one to a longest one. A service that returns
/// after some time is found within half that time again. From 100 ms to 10 s, it takes a dozen attempts.
#[derive(Debug, Clone)]
pub(crate) struct BackOff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl BackOff {
    /// Pauses from `first` to `longest`.
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// The pause after this many failures in a row, not scattered: for a core where every node must get the same
    /// result.
    pub(crate) fn after(&self, failures: u32) -> Duration {
        // Beyond 64 steps every pause is the longest; the limit keeps the power finite.
        let growth = 1.5_f64.powi(failures.saturating_sub(1).min(64) as i32);
        Duration::try_from_secs_f64(self.first.as_secs_f64() * growth)
            .map_or(self.longest, |pause| pause.min(self.longest))
    }

    /// The pause after one more failure.
    pub(crate) fn next(&mut self) -> Duration {
        self.next_with(&mut rand::rng())
    }

    /// The pause after one more failure, with the caller's randomness. It is shortened by up to a quarter.
    pub(crate) fn next_with(&mut self, random: &mut impl Rng) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.after(self.failures).mul_f64(random.random_range(0.75..=1.0))
    }

    /// Begins again, after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Failures since the last success.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(200);
    const LONGEST: Duration = Duration::from_secs(30);

    #[test]
    fn pauses_grow_by_half_up_to_the_longest() {
        let pauses = BackOff::new(FIRST, LONGEST);
        let millis: Vec<u128> = [0, 1, 2, 3, 4, 13].map(|failures| pauses.after(failures).as_millis()).into();
        assert_eq!(millis, [200, 200, 300, 450, 675, 25_949]);
        assert_eq!([14, 100, u32::MAX].map(|failures| pauses.after(failures)), [LONGEST; 3]);
        assert_eq!(BackOff::new(Duration::MAX, Duration::MAX).after(9), Duration::MAX);
    }

    #[test]
    fn pauses_scatter_within_a_quarter_and_begin_again() {
        let mut pauses = BackOff::new(FIRST, LONGEST);
        let mut shares = Vec::new();
        for failures in 1..=200 {
            let share = pauses.next().as_secs_f64() / pauses.after(failures).as_secs_f64();
            assert!((0.749..=1.0).contains(&share), "{share}");
            shares.push(share);
        }
        let (least, most) =
            shares.iter().fold((1.0_f64, 0.0_f64), |(a, b), share| (a.min(*share), b.max(*share)));
        assert!(least < 0.8 && most > 0.95, "{least} to {most}: the pauses do not scatter");
        pauses.reset();
        assert!(pauses.failures() == 0 && pauses.next() <= FIRST);
    }
}
