//! The node's epoch across restarts: other nodes believe the greatest one they have received.
//!
//! It is made from the clock (docs/protocol.md#epochs), which may have been set back since the last start. The last
//! epoch is therefore kept in a file next to the node's units. The next epoch exceeds it, and also all later epochs
//! that the node took while it ran (docs/protocol.md#duplicates). Does not know what epochs are for.

use std::io;
use std::path::Path;

use crate::os::regular_file::read_text;
use crate::os::replace::replace;

/// The file's name; no unit has a name like it.
const FILE: &str = ".epoch";

/// How many epochs are reserved for one run, because a node that is suspected takes later epochs. The clock passes them
/// in a sixteenth of a second.
const OF_ONE_RUN: u64 = 1 << 20;

/// The epoch of this start, durable in `directory` before it is returned: `clock`, or one more than the last epoch if
/// the clock is behind that. A file without a number counts as absent.
///
/// # Errors
/// If the number cannot be made durable. The caller may go on with `clock`.
pub(super) fn next(directory: &Path, clock: u64) -> io::Result<u64> {
    let path = directory.join(FILE);
    let last = match read_text(&path) {
        Ok(text) => text.trim().parse::<u64>().unwrap_or(0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let epoch = clock.max(last.saturating_add(1));
    let last = epoch.saturating_add(OF_ONE_RUN);
    replace(&path, format!("{last}\n").as_bytes(), 0o600)?;
    Ok(epoch)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn it_always_grows() {
        let temp = tempfile::tempdir().unwrap();
        let at = |second: u64| second << 24;
        let started: Vec<u64> =
            [50, 90, 40, 40, 91].map(|second| next(temp.path(), at(second)).unwrap()).into();
        let after = |more: u64| at(90) + more * (OF_ONE_RUN + 1);
        assert_eq!(started, [at(50), at(90), after(1), after(2), at(91)]);
    }

    #[test]
    fn what_is_no_number_is_replaced_and_what_cannot_be_written_is_told() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join(FILE), "\0garbage").unwrap();
        assert_eq!(next(temp.path(), 7).unwrap(), 7);
        assert_eq!(next(temp.path(), 7).unwrap(), 8 + OF_ONE_RUN);
        assert!(next(&temp.path().join("missing"), 7).is_err());
    }
}
