//! How many files this process may have open at once.
//!
//! Most systems start a service with a soft limit of 1,024, which a few hundred strangers can use up on a public
//! port, and let it ask for many more. Programs that a node starts get the limit that the node itself was started
//! with: some of them depend on small numbers. Owns that limit and the room in the kernel's table below it, and knows
//! nothing of who opens files.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::{Builder, JoinHandle};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use tracing::debug;

/// The limit that this process was started with, once it has been raised.
static ORIGINAL: OnceLock<Rlimit> = OnceLock::new();

/// Places that the kernel's table of this process's files has from the start: 8 KiB.
const FIRST_PLACES: RawFd = 1024;
/// By how much the table grows: seldom, and not to much more than is used.
const GROWTH: RawFd = 4;

/// Places in that table, as far as it was asked for.
static PLACES: AtomicI32 = AtomicI32::new(FIRST_PLACES);

/// Takes as many as the system allows. To be called before there are threads.
pub fn raise() {
    reserve(FIRST_PLACES);
    let original = getrlimit(Resource::Nofile);
    let most = Rlimit { current: original.maximum, maximum: original.maximum };
    if original.current == original.maximum {
        return;
    }
    match setrlimit(Resource::Nofile, most) {
        Ok(()) => {
            debug!(from = original.current, to = most.current, "raised the number of open files");
            let _raised_before = ORIGINAL.set(original);
        }
        Err(error) => debug!(%error, "cannot raise the number of open files"),
    }
}

/// How many this process may have open now.
pub fn allowed() -> usize {
    getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX)
}

/// Makes room for more files than this newest one, before they are opened.
///
/// A process with threads that opens a file for which its table has no place waits until the kernel has made a larger
/// one, 8 to 16 ms, and all that its thread has in hand waits with it. So a thread of its own does it in good time.
pub fn keep_ahead(newest: &impl AsRawFd) {
    let _under_way = grow(&PLACES, newest.as_raw_fd());
}

fn grow(known: &AtomicI32, newest: RawFd) -> Option<JoinHandle<()>> {
    let places = known.load(Ordering::Relaxed);
    if newest < places / 2 {
        return None;
    }
    let more = RawFd::try_from(allowed()).unwrap_or(RawFd::MAX).min(places.saturating_mul(GROWTH));
    let ours =
        more > places && known.compare_exchange(places, more, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    // Without a thread to spare the next file but many waits for itself.
    ours.then(|| Builder::new().name("descriptors".to_owned()).spawn(move || reserve(more)).ok())?
}

/// The table has as many places from now on: a file is given the last one of them for a moment.
fn reserve(places: RawFd) {
    let reserved = File::open("/dev/null")
        .and_then(|file| rustix::io::fcntl_dupfd_cloexec(&file, places - 1).map_err(Into::into));
    if let Err(error) = reserved {
        debug!(places, %error, "cannot make room for more open files");
    }
}

/// Gives a program that this process has just started the limit from before [`raise`].
pub fn give_back(child: u32) {
    let Some(original) = ORIGINAL.get() else { return };
    let Some(pid) = i32::try_from(child).ok().and_then(Pid::from_raw) else { return };
    if let Err(error) = prlimit(Some(pid), Resource::Nofile, *original) {
        debug!(child, %error, "cannot give a program its number of open files back");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> RawFd {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        line.trim().parse().unwrap()
    }

    #[test]
    fn there_is_room_for_many_more_files_before_they_are_opened() {
        raise();
        assert!(places() >= FIRST_PLACES);
        let known = AtomicI32::new(FIRST_PLACES);
        assert!(grow(&known, FIRST_PLACES / 2 - 1).is_none(), "half of the places are free");
        // As it is where a test may have many files.
        if allowed() >= (FIRST_PLACES * GROWTH) as usize {
            grow(&known, FIRST_PLACES / 2).expect("a thread").join().unwrap();
            assert!(places() >= FIRST_PLACES * GROWTH, "{} places", places());
            assert!(grow(&known, FIRST_PLACES / 2).is_none(), "that is done");
        }
    }
}
