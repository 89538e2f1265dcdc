//! Ends processes for good. The caller knows which processes, and how a signal reaches one.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long killed processes may take to vanish, and the pause between looks.
const ENDED_WITHIN: Duration = Duration::from_secs(5);
const ENDED_EVERY: Duration = Duration::from_millis(2);

/// Kills the processes that `living` finds, and those that they start meanwhile, until none is left or the time is
/// up. Blocks. Gives the processes that are still there.
pub(crate) fn kill_all<P>(mut living: impl FnMut() -> Vec<P>, mut kill: impl FnMut(&P)) -> Vec<P> {
    let deadline = Instant::now() + ENDED_WITHIN;
    loop {
        let found = living();
        found.iter().for_each(&mut kill);
        if found.is_empty() || Instant::now() >= deadline {
            return found;
        }
        sleep(ENDED_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_killed_until_none_is_found() {
        let (mut left, mut killed) = (vec![vec![], vec![3], vec![1, 2]], Vec::new());
        assert!(kill_all(|| left.pop().unwrap(), |&one| killed.push(one)).is_empty());
        assert_eq!(killed, [1, 2, 3]);
    }
}
