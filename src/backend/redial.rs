//! How long to wait before dialing again.
//!
//! Its caller tells it what happened, and it answers with a delay. It does not sleep, and does not know why
//! sessions end.

use std::time::Duration;

use crate::os::back_off::BackOff;

/// The delay after the first loss or refusal. It is short, because a neighbour that only restarts is back within
/// moments.
const FIRST: Duration = Duration::from_millis(100);

/// The longest delay while the neighbour does not answer; a Go node has the same.
const LONGEST_DELAY: Duration = Duration::from_secs(20);

/// The longest delay while the neighbour answers and soon ends the session. It is short, so that an operator who
/// corrects the settings does not wait long.
const LONGEST_WHILE_REFUSED: Duration = Duration::from_secs(5);

/// A session shorter than this does not reset the delay, because a neighbour that accepts the connection and then
/// refuses the node must not be dialed ten times a second.
const STABLE: Duration = Duration::from_secs(5);

/// The delays between dials of one neighbour.
#[derive(Debug, Clone)]
pub struct Redial {
    again: bool,
    unanswered: BackOff,
    refused: BackOff,
}

impl Redial {
    /// With `again` false (the user's `redial: false`), there is one attempt only.
    pub fn new(again: bool) -> Self {
        Self {
            again,
            unanswered: BackOff::new(FIRST, LONGEST_DELAY),
            refused: BackOff::new(FIRST, LONGEST_WHILE_REFUSED),
        }
    }

    /// The delay after a dial that gave no session, or `None` to give up.
    pub fn after_failed_dial(&mut self) -> Option<Duration> {
        self.again.then(|| self.unanswered.next())
    }

    /// The delay after the end of a session that `lasted` this long, or `None` to give up.
    pub fn after_session(&mut self, lasted: Duration) -> Option<Duration> {
        self.unanswered.reset();
        if lasted >= STABLE {
            self.refused.reset();
        }
        self.again.then(|| self.refused.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(3);

    #[test]
    fn a_neighbour_that_is_away_is_dialed_ever_more_rarely() {
        let mut redial = Redial::new(true);
        assert!(redial.after_failed_dial().unwrap() <= FIRST);
        let last = (0..20).map(|_| redial.after_failed_dial().unwrap()).last().unwrap();
        assert!(last > LONGEST_DELAY / 2 && last <= LONGEST_DELAY, "{last:?}");
    }

    #[test]
    fn a_stable_session_resets_the_pace_and_a_short_one_does_not() {
        let mut redial = Redial::new(true);
        for _ in 0..20 {
            assert!(redial.after_session(SHORT).unwrap() <= LONGEST_WHILE_REFUSED);
            redial.after_failed_dial().unwrap();
        }
        assert!(redial.after_session(STABLE - SHORT).unwrap() > LONGEST_WHILE_REFUSED / 2);
        assert!(redial.after_session(STABLE).unwrap() <= FIRST);
        assert!(redial.after_failed_dial().unwrap() <= FIRST);
    }

    #[test]
    fn a_neighbour_that_refuses_every_session_is_dialed_seldom() {
        let mut redial = Redial::new(true);
        let (mut now, mut dials) = (Duration::ZERO, 0);
        while now < Duration::from_secs(600) {
            dials += 1;
            now += redial.after_session(SHORT).unwrap();
        }
        assert!((115..180).contains(&dials), "{dials} dials in ten minutes");
    }

    #[test]
    fn without_redial_there_is_one_attempt() {
        assert_eq!(Redial::new(false).after_failed_dial(), None);
        assert_eq!(Redial::new(false).after_session(Duration::from_secs(3600)), None);
    }
}
