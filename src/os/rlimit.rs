//! How many files this process may have open at once.
//!
//! Most systems start a service with a soft limit of 1,024, which a few hundred strangers can use up on a public
//! port, but let it ask for many more. Programs that a node starts get the limit with which the node itself was
//! started, because some of them depend on small numbers. Owns this limit, and knows nothing of who opens files.

use std::sync::OnceLock;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use tracing::debug;

/// The limit that this process was started with, once it has been raised.
static ORIGINAL: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit to the highest one that the system allows.
pub(crate) fn raise() {
    let original = getrlimit(Resource::Nofile);
    let most = Rlimit { current: original.maximum, maximum: original.maximum };
    if original.current == original.maximum {
        return;
    }
    match setrlimit(Resource::Nofile, most) {
        Ok(()) => {
            debug!(from = original.current, to = most.current, "raised the limit of open files");
            let _raised_before = ORIGINAL.set(original);
        }
        Err(error) => debug!(%error, "failed to raise the limit of open files"),
    }
}

/// How many files this process may have open now.
pub(crate) fn open_files() -> usize {
    getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX)
}

/// Gives a program that this process has just started the limit from before [`raise`].
pub(crate) fn restore_for(child: u32) {
    let Some(original) = ORIGINAL.get() else { return };
    let Some(pid) = i32::try_from(child).ok().and_then(Pid::from_raw) else { return };
    if let Err(error) = prlimit(Some(pid), Resource::Nofile, *original) {
        debug!(child, %error, "failed to restore a program's limit of open files");
    }
}
