//! How long to wait before dialing again.
//!
//! Pure: it takes what happened and a random number, and answers with a delay. It does not sleep, and does not know
//! why sessions end.

use std::time::Duration;

/// The delay after the first loss or refusal: a neighbour that only restarts is back within moments.
const FIRST: Duration = Duration::from_millis(100);

/// Up to here the delay doubles; from here on it grows as slowly as a Go node's.
const SLOW_FROM: Duration = Duration::from_secs(5);

/// The longest delay, jitter included.
const LONGEST: Duration = Duration::from_secs(20);

/// A session that did not last this long does not reset the pace: a neighbour that accepts the connection
/// and then refuses the node must not be dialed ten times a second.
const STABLE: Duration = Duration::from_secs(5);

/// The pace of dialing one neighbour.
///
/// 100 ms, doubling up to 5 s, then growing by half up to 20 s; each with a jitter of 10 % either way. A
/// session that lasted at least 5 s resets it; after a shorter one the delay is 5 s at most.
#[derive(Debug, Clone)]
pub struct Redial {
    again: bool,
    next: Duration,
}

impl Redial {
    /// With `again` false (the user's `redial: false`), there is one attempt only.
    pub fn new(again: bool) -> Self {
        Self { again, next: FIRST }
    }

    /// The delay after a dial that gave no session, or `None` to give up.
    ///
    /// `random` is any uniformly distributed number; it decides the jitter.
    pub fn after_failed_dial(&mut self, random: u32) -> Option<Duration> {
        if !self.again {
            return None;
        }
        let delay = self.next;
        self.next = following(delay);
        Some(jittered(delay, random))
    }

    /// The delay after the end of a session that `lasted` this long, or `None` to give up.
    pub fn after_session(&mut self, lasted: Duration, random: u32) -> Option<Duration> {
        self.next = self.next.min(if lasted >= STABLE { FIRST } else { SLOW_FROM });
        self.after_failed_dial(random)
    }
}

fn following(delay: Duration) -> Duration {
    // The limit leaves space for the jitter, so that nodes do not gather at exactly 20 s.
    if delay < SLOW_FROM { (delay * 2).min(SLOW_FROM) } else { (delay * 3 / 2).min(LONGEST * 10 / 11) }
}

/// The delay times 0.9 to 1.1.
fn jittered(delay: Duration, random: u32) -> Duration {
    delay.mul_f64(0.9 + 0.2 * f64::from(random) / f64::from(u32::MAX)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIDDLE: u32 = u32::MAX / 2;

    fn delays(redial: &mut Redial, count: usize) -> Vec<u128> {
        (0..count).map(|_| redial.after_failed_dial(MIDDLE).unwrap().as_millis()).collect()
    }

    #[test]
    fn delays_grow_fast_then_slowly_up_to_the_limit() {
        let mut redial = Redial::new(true);
        let expected = [100, 200, 400, 800, 1_600, 3_200, 5_000, 7_500, 11_250, 16_875, 18_181, 18_181];
        assert_eq!(delays(&mut redial, expected.len()), expected);
    }

    #[test]
    fn no_jitter_leaves_its_tenth_or_passes_the_limit() {
        for random in [0, 1, MIDDLE, u32::MAX - 1, u32::MAX] {
            let (mut redial, mut plain) = (Redial::new(true), FIRST);
            for _ in 0..30 {
                let delay = redial.after_failed_dial(random).unwrap();
                assert!(
                    delay >= plain.mul_f64(0.899) && delay <= plain.mul_f64(1.101),
                    "{delay:?} {plain:?}"
                );
                assert!(delay <= LONGEST);
                plain = following(plain);
            }
        }
        let spread = [0, u32::MAX].map(|random| Redial::new(true).after_failed_dial(random).unwrap());
        assert!(spread[1] - spread[0] >= FIRST / 6, "the random number does not matter: {spread:?}");
    }

    #[test]
    fn a_stable_session_resets_the_pace_and_a_short_one_does_not() {
        let mut redial = Redial::new(true);
        delays(&mut redial, 9);
        assert_eq!(
            redial.after_session(STABLE - Duration::from_millis(1), MIDDLE).unwrap().as_millis(),
            5_000
        );
        assert_eq!(redial.after_session(STABLE, MIDDLE).unwrap().as_millis(), 100);
        assert_eq!(delays(&mut redial, 1), [200]);
    }

    #[test]
    fn a_neighbour_that_refuses_every_session_is_dialed_seldom() {
        let mut redial = Redial::new(true);
        let (mut now, mut dials) = (Duration::ZERO, 0);
        while now < Duration::from_secs(600) {
            dials += 1;
            now += redial.after_session(Duration::from_millis(3), MIDDLE).unwrap();
        }
        assert!((115..130).contains(&dials), "{dials} dials in ten minutes");
    }

    #[test]
    fn without_redial_there_is_one_attempt() {
        assert_eq!(Redial::new(false).after_failed_dial(0), None);
        assert_eq!(Redial::new(false).after_session(Duration::from_secs(3600), 0), None);
    }
}
