//! Making the names in a directory durable for many callers with one fsync: whoever comes while one is under way
//! waits for the next, which one of the waiting does for all. Blocks, so it belongs off the runtime.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

/// The fsyncs of one directory.
#[derive(Debug, Default)]
pub(super) struct GroupSync {
    /// The round that has not begun. Held for taking or replacing it alone.
    next: Mutex<Arc<Round>>,
    /// Held by whoever syncs; the others of the round wait here, and find it done.
    busy: Mutex<()>,
}

/// One fsync for all that came before it began; an error is everybody's.
#[derive(Debug, Default)]
struct Round(OnceLock<Result<(), (io::ErrorKind, String)>>);

impl GroupSync {
    /// Returns when every change of names that was made before the call is durable.
    pub(super) fn sync(&self, directory: &Path) -> io::Result<()> {
        self.sync_with(|| File::open(directory)?.sync_all())
    }

    fn sync_with(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let round = self.next.lock().clone();
        let _busy = self.busy.lock();
        let outcome = round.0.get_or_init(|| {
            // Whoever comes from here on may have changed something that this fsync misses.
            *self.next.lock() = Arc::default();
            sync().map_err(|error| (error.kind(), error.to_string()))
        });
        outcome.clone().map_err(|(kind, text)| io::Error::new(kind, text))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn those_who_wait_share_one_and_its_error() {
        let group = GroupSync::default();
        let rounds = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let (begun, has_begun) = mpsc::channel();
            let (release, released) = mpsc::channel::<()>();
            let (group, rounds) = (&group, &rounds);
            let first = scope.spawn(move || {
                group.sync_with(|| {
                    begun.send(()).unwrap();
                    rounds.fetch_add(1, Ordering::SeqCst);
                    released.recv().map_err(io::Error::other)
                })
            });
            has_begun.recv().unwrap();
            let late = || {
                rounds.fetch_add(1, Ordering::SeqCst);
                Err(io::ErrorKind::StorageFull.into())
            };
            let waiting: Vec<_> = (0..8).map(|_| scope.spawn(move || group.sync_with(late))).collect();
            // All eight hold the next round, and this place and the test do, before the first one ends.
            while Arc::strong_count(&group.next.lock()) < 9 {
                std::thread::yield_now();
            }
            release.send(()).unwrap();
            assert!(first.join().unwrap().is_ok());
            for late in waiting {
                assert_eq!(late.join().unwrap().unwrap_err().kind(), io::ErrorKind::StorageFull);
            }
        });
        assert_eq!(rounds.load(Ordering::SeqCst), 2);
        assert!(group.sync(Path::new("/")).is_ok(), "an error is not for those who come later");
    }
}
