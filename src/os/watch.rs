//! Noticing that files in a directory may have changed: one inotify instance for all directories of a watcher.
//! Where the system grants no instance or no further watch, subscribers look at intervals instead, and one warning
//! says so. Knows directories and wake-ups; reads no file.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::inotify;
pub(crate) use rustix::fs::inotify::WatchFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OnceCell, watch};

use super::readiness;

/// Watches directories for one purpose. Clones share the watches.
#[derive(Debug, Clone)]
pub(crate) struct Watcher {
    inner: Arc<WatcherShared>,
}

#[derive(Debug)]
struct WatcherShared {
    /// What the changes are used for; the log names it.
    purpose: &'static str,
    events: WatchFlags,
    /// The interval between looks without inotify.
    poll: Duration,
    /// Set at the first subscription; `None` inside if the system refused.
    instance: OnceCell<Option<Arc<AsyncFd<OwnedFd>>>>,
    /// Subscribers by watch descriptor. Locked for map operations only, never across a wait.
    directories: Mutex<BTreeMap<i32, (usize, watch::Sender<()>)>>,
    warned: Once,
}

impl Watcher {
    /// A watcher for these events. It takes an inotify instance with its first subscriber. Without inotify,
    /// subscribers look at intervals of `poll`.
    pub(crate) fn new(purpose: &'static str, events: WatchFlags, poll: Duration) -> Self {
        let (instance, directories, warned) = (OnceCell::new(), Mutex::default(), Once::new());
        Self { inner: Arc::new(WatcherShared { purpose, events, poll, instance, directories, warned }) }
    }

    /// Starts watching a directory's files. Subscribe before the first look, so that no change is missed.
    pub(crate) async fn subscribe(&self, dir: &Path) -> Subscription {
        let watcher = self.clone();
        let instance = self.inner.instance.get_or_init(|| async { self.open() }).await;
        let added = instance.as_ref().map(|instance| self.add(instance, dir));
        let watched = match added {
            Some(Ok(watched)) => Some(watched),
            // A missing directory needs no warning: no file in it will change.
            Some(Err(rustix::io::Errno::NOENT)) | None => None,
            Some(Err(error)) => {
                self.warn(&error.into());
                None
            }
        };
        Subscription { watched, watcher }
    }

    fn open(&self) -> Option<Arc<AsyncFd<OwnedFd>>> {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        let opened = inotify::init(flags)
            .map_err(io::Error::from)
            .and_then(|fd| readiness::register(fd, Interest::READABLE));
        let instance = Arc::new(opened.inspect_err(|error| self.warn(error)).ok()?);
        tokio::spawn(pump(instance.clone(), Arc::downgrade(&self.inner)));
        Some(instance)
    }

    fn add(&self, instance: &AsyncFd<OwnedFd>, dir: &Path) -> rustix::io::Result<(i32, watch::Receiver<()>)> {
        let mut directories = self.inner.directories.lock();
        let wd = inotify::add_watch(instance.get_ref(), dir, self.inner.events | WatchFlags::ONLYDIR)?;
        let (count, sender) = directories.entry(wd).or_insert_with(|| (0, watch::Sender::new(())));
        *count += 1;
        Ok((wd, sender.subscribe()))
    }

    fn remove(&self, wd: i32) {
        let mut directories = self.inner.directories.lock();
        let Some((count, _)) = directories.get_mut(&wd) else { return };
        *count -= 1;
        if *count == 0 {
            directories.remove(&wd);
            if let Some(Some(instance)) = self.inner.instance.get() {
                // Fails if the directory is gone, because the kernel has then dropped the watch itself.
                let _ = inotify::remove_watch(instance.get_ref(), wd);
            }
        }
    }

    fn warn(&self, error: &io::Error) {
        let WatcherShared { purpose, poll, .. } = &*self.inner;
        self.inner.warned.call_once(|| {
            tracing::warn!(%error, "no inotify for {purpose}, looking every {poll:?} instead; raise \
                fs.inotify.max_user_instances and max_user_watches");
        });
    }
}

/// Hands the kernel's events to the subscribers until the watcher is gone.
async fn pump(instance: Arc<AsyncFd<OwnedFd>>, inner: Weak<WatcherShared>) {
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
        // The limit lets this task end with its watcher.
        let changed = match tokio::time::timeout(Duration::from_secs(60), read).await {
            Ok(Ok(changed)) => changed,
            Ok(Err(_)) | Err(_) => Vec::new(),
        };
        let Some(inner) = inner.upgrade() else { return };
        let directories = inner.directories.lock();
        for wd in changed {
            // -1 means that the kernel's queue has overflowed, so any subscriber may have missed a change.
            match directories.get(&wd) {
                Some((_, sender)) => sender.send_replace(()),
                None if wd < 0 => directories.values().for_each(|(_, sender)| sender.send_replace(())),
                None => {}
            }
        }
    }
}

/// One subscriber's wake-ups.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// The watch descriptor and its changes; `None` without inotify.
    watched: Option<(i32, watch::Receiver<()>)>,
    watcher: Watcher,
}

impl Subscription {
    /// Waits until something may have changed since the last wait. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        let changed = match &mut self.watched {
            Some((_, changes)) => changes.changed().await.is_ok(),
            None => false,
        };
        if !changed {
            tokio::time::sleep(self.watcher.inner.poll).await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some((wd, _)) = self.watched {
            self.watcher.remove(wd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watcher() -> Watcher {
        Watcher::new("tests", WatchFlags::MODIFY | WatchFlags::CREATE, Duration::from_millis(250))
    }

    #[tokio::test]
    async fn subscribers_wake_when_a_file_grows_and_leave_nothing_behind() {
        let temp = tempfile::tempdir().unwrap();
        let watcher = watcher();
        let mut one = watcher.subscribe(temp.path()).await;
        let mut two = watcher.subscribe(temp.path()).await;
        std::fs::write(temp.path().join("stdout"), "x").unwrap();
        let both = async { tokio::join!(one.changed(), two.changed()) };
        tokio::time::timeout(Duration::from_secs(10), both).await.unwrap();
        drop(one);
        assert_eq!(watcher.inner.directories.lock().len(), 1);
        drop(two);
        assert_eq!(watcher.inner.directories.lock().len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn without_inotify_readers_look_by_themselves() {
        let watcher = watcher();
        let mut none = watcher.subscribe(Path::new("/nonexistent")).await;
        assert!(none.watched.is_none());
        none.changed().await;
    }
}
