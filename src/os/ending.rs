//! Ending processes for good. Which ones, and how a signal reaches one, the caller knows.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long killed processes get to vanish, and between looks.
const LIMIT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(2);

/// Kills those that `living` finds, and those that they start meanwhile, until none is left or time is up. Blocks. Returns
/// those that are still there.
pub(crate) fn kill_all<P>(mut living: impl FnMut() -> Vec<P>, mut kill: impl FnMut(&P)) -> Vec<P> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let found = living();
        found.iter().for_each(&mut kill);
        if found.is_empty() || Instant::now() >= deadline {
            return found;
        }
        sleep(LOOK);
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
