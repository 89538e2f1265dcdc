//! Telling readers that a unit's stdout may have grown: one inotify instance for all units that have readers.
//! Where the system grants no instance or no further watch, readers look every quarter of a second instead,
//! and one warning says so. Knows directories and wake-ups; reads no output.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::inotify;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::readiness;

/// Between looks where there is no inotify.
const POLL: Duration = Duration::from_millis(250);

/// The one watcher of a node.
#[derive(Debug, Clone)]
pub(crate) struct Watcher {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Set once, at the first subscription; `None` inside when the system refused.
    instance: tokio::sync::OnceCell<Option<Arc<AsyncFd<OwnedFd>>>>,
    /// Readers by watch descriptor. A plain lock, held for map operations alone and never across a wait.
    readers: Mutex<BTreeMap<i32, (usize, watch::Sender<()>)>>,
    warned: std::sync::Once,
}

impl Watcher {
    /// A watcher that takes an inotify instance when the first reader comes.
    pub(crate) fn new() -> Self {
        let (instance, readers) = (tokio::sync::OnceCell::new(), Mutex::default());
        Self { inner: Arc::new(Inner { instance, readers, warned: std::sync::Once::new() }) }
    }

    /// Starts watching a directory's files. Subscribe before looking, so that nothing falls in between.
    pub(crate) async fn subscribe(&self, dir: &Path) -> Subscription {
        let instance = self.inner.instance.get_or_init(|| async { self.open() }).await;
        let Some(instance) = instance else { return Subscription(Kind::Poll) };
        match self.add(instance, dir) {
            Ok((wd, changes)) => Subscription(Kind::Inotify { wd, changes, watcher: self.clone() }),
            Err(error) => {
                // A directory that is gone needs no warning: its unit was released.
                if error != rustix::io::Errno::NOENT {
                    self.warn(&error.into());
                }
                Subscription(Kind::Poll)
            }
        }
    }

    fn open(&self) -> Option<Arc<AsyncFd<OwnedFd>>> {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        let opened = inotify::init(flags)
            .map_err(io::Error::from)
            .and_then(|fd| readiness::register(fd, Interest::READABLE));
        match opened {
            Ok(instance) => {
                let instance = Arc::new(instance);
                tokio::spawn(pump(instance.clone(), Arc::downgrade(&self.inner)));
                Some(instance)
            }
            Err(error) => {
                self.warn(&error);
                None
            }
        }
    }

    fn add(&self, instance: &AsyncFd<OwnedFd>, dir: &Path) -> rustix::io::Result<(i32, watch::Receiver<()>)> {
        let mut readers = self.inner.readers.lock();
        let what = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::ONLYDIR;
        let wd = inotify::add_watch(instance.get_ref(), dir, what)?;
        let (count, sender) = readers.entry(wd).or_insert_with(|| (0, watch::Sender::new(())));
        *count += 1;
        Ok((wd, sender.subscribe()))
    }

    fn remove(&self, wd: i32) {
        let mut readers = self.inner.readers.lock();
        let Some((count, _)) = readers.get_mut(&wd) else { return };
        *count -= 1;
        if *count == 0 {
            readers.remove(&wd);
            if let Some(Some(instance)) = self.inner.instance.get() {
                // Fails when the directory is gone, and the kernel has dropped the watch itself.
                let _ = inotify::remove_watch(instance.get_ref(), wd);
            }
        }
    }

    fn warn(&self, error: &io::Error) {
        self.inner.warned.call_once(|| {
            tracing::warn!(%error, "no inotify for following output, looking every {POLL:?} instead; raise \
                fs.inotify.max_user_instances and max_user_watches");
        });
    }
}

/// Hands the kernel's events to the readers until the watcher is gone.
async fn pump(instance: Arc<AsyncFd<OwnedFd>>, inner: std::sync::Weak<Inner>) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    loop {
        let read = instance.async_io(Interest::READABLE, |fd| {
            let mut reader = inotify::Reader::new(fd, &mut buffer);
            let mut changed = vec![reader.next()?.wd()];
            while !reader.is_buffer_empty() {
                changed.push(reader.next()?.wd());
            }
            Ok(changed)
        });
        // Looking up now and then lets this end with its watcher.
        let changed = match tokio::time::timeout(Duration::from_secs(60), read).await {
            Ok(Ok(changed)) => changed,
            Ok(Err(_)) | Err(_) => Vec::new(),
        };
        let Some(inner) = inner.upgrade() else { return };
        let readers = inner.readers.lock();
        for wd in changed {
            // -1 tells of an overflow of the kernel's queue: anybody may have missed something.
            match readers.get(&wd) {
                Some((_, sender)) => sender.send_replace(()),
                None if wd < 0 => readers.values().for_each(|(_, sender)| sender.send_replace(())),
                None => {}
            }
        }
    }
}

/// One reader's wake-ups.
#[derive(Debug)]
pub(crate) struct Subscription(Kind);

#[derive(Debug)]
enum Kind {
    Inotify { wd: i32, changes: watch::Receiver<()>, watcher: Watcher },
    Poll,
}

impl Subscription {
    /// Waits until something may have changed since the last wait.
    pub(crate) async fn changed(&mut self) {
        match &mut self.0 {
            Kind::Inotify { changes, .. } => {
                if changes.changed().await.is_err() {
                    tokio::time::sleep(POLL).await;
                }
            }
            Kind::Poll => tokio::time::sleep(POLL).await,
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        match &self.0 {
            Kind::Inotify { wd, watcher, .. } => watcher.remove(*wd),
            Kind::Poll => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn readers_wake_when_a_file_grows_and_leave_nothing_behind() {
        let temp = tempfile::tempdir().unwrap();
        let watcher = Watcher::new();
        let mut one = watcher.subscribe(temp.path()).await;
        let mut two = watcher.subscribe(temp.path()).await;
        std::fs::write(temp.path().join("stdout"), "x").unwrap();
        let both = async { tokio::join!(one.changed(), two.changed()) };
        tokio::time::timeout(Duration::from_secs(10), both).await.unwrap();
        drop(one);
        assert_eq!(watcher.inner.readers.lock().len(), 1);
        drop(two);
        assert_eq!(watcher.inner.readers.lock().len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn without_inotify_readers_look_by_themselves() {
        let watcher = Watcher::new();
        let mut none = watcher.subscribe(Path::new("/nonexistent")).await;
        assert!(matches!(none.0, Kind::Poll));
        none.changed().await;
    }
}
