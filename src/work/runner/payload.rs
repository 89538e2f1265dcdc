//! Removes the payload of a command once the command has read it, because other jobs of the same user could read it
//! too, and nothing else needs it. Owns when to check. A command can still read it again through its standard input.

use std::fs::File;
use std::io::{self, Seek as _};
use std::time::{Duration, Instant};

use crate::os::back_off::BackOff;
use crate::work::store::UnitDir;

/// The first and the longest pause between checks: most commands read at once, others for as long as they run.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A payload that has not been read to its end.
#[derive(Debug)]
pub(super) struct Payload {
    /// Shares its position with the command's standard input.
    file: File,
    length: u64,
    next: Instant,
    pauses: BackOff,
}

impl Payload {
    /// `None` if the payload is empty.
    pub(super) fn new(stdin: &File) -> io::Result<Option<Self>> {
        let (file, length) = (stdin.try_clone()?, stdin.metadata()?.len());
        let mut pauses = BackOff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let next = Instant::now() + pauses.next();
        Ok((length > 0).then_some(Self { file, length, next, pauses }))
    }

    /// When to check again.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Removes the payload if it is time to check and all of it has been read. Returns whether it did.
    pub(super) fn remove_if_read(&mut self, dir: &UnitDir, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        if self.file.stream_position().is_ok_and(|position| position >= self.length) {
            dir.remove_payload();
            return true;
        }
        self.next = now + self.pauses.next();
        false
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_payload_goes_once_all_of_it_is_read() {
        let temp = tempfile::tempdir().unwrap();
        let dir = UnitDir::at(temp.path());
        let path = dir.file("stdin");
        std::fs::write(&path, "secret").unwrap();
        let mut stdin = File::open(&path).unwrap();
        let mut payload = Payload::new(&stdin).unwrap().unwrap();
        let look = |payload: &mut Payload| payload.remove_if_read(&dir, payload.next());
        assert!(!look(&mut payload) && !look(&mut payload));
        stdin.read_exact(&mut [0; 5]).unwrap();
        assert!(!look(&mut payload) && path.exists());
        stdin.read_to_end(&mut Vec::new()).unwrap();
        assert!(
            !payload.remove_if_read(&dir, payload.next() - FIRST_PAUSE) && path.exists(),
            "not before its time"
        );
        assert!(look(&mut payload) && !path.exists());
        std::fs::write(&path, "").unwrap();
        assert!(Payload::new(&File::open(&path).unwrap()).unwrap().is_none());
        dir.remove_payload();
        assert!(path.exists(), "an empty one tells nothing");
    }
}
