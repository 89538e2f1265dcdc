//! Notices that a watched configuration file has changed, and asks for a reload.
//!
//! Watches the directory and not the file, because editors write a new file and rename it, and orchestrators swap
//! a symbolic link. Only different contents count as a change. Does not know what a reload does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::control::Reload;
use crate::os::directories::parent_of;
use crate::os::regular_file::{self, LONGEST};
use crate::os::watch::{Subscription, WatchFlags, Watcher};

/// How long nothing must happen until a change counts as complete.
const SETTLE: Duration = Duration::from_millis(200);
/// Time between two looks if the system has no inotify instance to give.
const POLL: Duration = Duration::from_secs(2);
/// The events that may end a change, however it is made.
const EVENTS: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::DELETE);

/// A [`Reload`] with files to watch.
pub(super) trait FileUser: Reload {
    /// The files of the configuration in force.
    fn files(&self) -> impl Future<Output = Vec<PathBuf>> + Send;
}

/// Watches the configuration's files until `stop`, if there are any. A change after this has returned is noticed.
pub(super) async fn spawn(reload: Arc<impl FileUser>, stop: CancellationToken) {
    let mut files = reload.files().await;
    if files.is_empty() {
        return;
    }
    let watcher = Watcher::new("the configuration", EVENTS, POLL);
    let mut changes = FileChanges::of(&watcher, &files).await;
    // Read after the watch has begun, so that no change is missed in between.
    let mut known = contents(&files).await;
    let watch = async move {
        loop {
            changes.next().await;
            changes.settle().await;
            let mut now = contents(&files).await;
            if now != known && now.values().any(Option::is_none) {
                // A missing file may come back in a moment.
                sleep(SETTLE).await;
                changes.settle().await;
                now = contents(&files).await;
            }
            if now == known {
                continue;
            }
            known = now;
            info!("a configuration file has changed");
            if let Err(error) = reload.reload().await {
                error!(%error, "reload failed, nothing was changed");
            }
            // The reload may have brought other files.
            let followed = reload.files().await;
            if followed != files && !followed.is_empty() {
                files = followed;
                changes = FileChanges::of(&watcher, &files).await;
                let mut found = contents(&files).await;
                // Files that were known before keep their old contents here, so that a change since the reload began is
                // found at the next look.
                found.extend(known.into_iter().filter(|(path, _)| files.contains(path)));
                known = found;
            }
        }
    };
    tokio::spawn(stop.run_until_cancelled_owned(watch));
}

/// The contents of the files; `None` for a file that cannot be read.
async fn contents(files: &[PathBuf]) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let files = files.to_vec();
    let read = move || {
        files.into_iter().map(|path| (path.clone(), regular_file::read(&path, LONGEST).ok())).collect()
    };
    tokio::task::spawn_blocking(read).await.unwrap_or_default()
}

/// The watched directories of the files.
struct FileChanges(Vec<Subscription>);

impl FileChanges {
    async fn of(watcher: &Watcher, files: &[PathBuf]) -> Self {
        let directories: BTreeSet<&Path> = files.iter().map(|file| parent_of(file)).collect();
        let mut subscriptions = Vec::new();
        for directory in directories {
            subscriptions.push(watcher.subscribe(directory).await);
        }
        Self(subscriptions)
    }

    /// Ready once nothing has happened for a while.
    async fn settle(&mut self) {
        while timeout(SETTLE, self.next()).await.is_ok() {}
    }

    /// Ready once something may have changed. Cancel safe.
    async fn next(&mut self) {
        select_all(self.0.iter_mut().map(|directory| Box::pin(directory.changed()))).await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use tokio::sync::mpsc;

    use super::*;
    use crate::control::ReloadError;

    /// Counts reloads, and follows those of its files that are there.
    struct Counter(mpsc::UnboundedSender<()>, Vec<PathBuf>);

    impl FileUser for Counter {
        async fn files(&self) -> Vec<PathBuf> {
            self.1.iter().filter(|path| path.exists()).cloned().collect()
        }
    }

    impl Reload for Counter {
        fn reload(&self) -> Pin<Box<dyn Future<Output = Result<(), ReloadError>> + Send + '_>> {
            self.0.send(()).unwrap();
            Box::pin(async { Ok(()) })
        }
    }

    async fn once(reloads: &mut mpsc::UnboundedReceiver<()>) {
        timeout(Duration::from_secs(20), reloads.recv()).await.expect("a reload").unwrap();
        // Longer than a change takes to settle, because one change must not count twice.
        assert!(timeout(SETTLE * 3, reloads.recv()).await.is_err(), "one reload is enough");
    }

    #[tokio::test]
    async fn a_change_counts_however_it_is_written_and_other_files_do_not() {
        let temp = tempfile::tempdir().unwrap();
        let path = |name: &str| temp.path().join(name);
        std::fs::write(path("c.yml"), "one").unwrap();
        let (sender, mut reloads) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let _end = stop.clone().drop_guard();
        spawn(Arc::new(Counter(sender, vec![path("c.yml")])), stop).await;
        // A first change, made again until a reload comes.
        while timeout(SETTLE * 3, reloads.recv()).await.is_err() {
            let text = std::fs::read_to_string(path("c.yml")).unwrap() + "x";
            std::fs::write(path("c.yml"), text).unwrap();
        }
        assert!(timeout(SETTLE * 3, reloads.recv()).await.is_err());

        std::fs::write(path(".c.yml.swp"), "two").unwrap();
        std::fs::rename(path(".c.yml.swp"), path("c.yml")).unwrap();
        once(&mut reloads).await;

        std::fs::write(path("other.yml"), "x").unwrap();
        std::fs::write(path("c.yml"), "two").unwrap();
        assert!(timeout(SETTLE * 4, reloads.recv()).await.is_err(), "nothing has changed");

        std::fs::remove_file(path("c.yml")).unwrap();
        std::fs::write(path("real"), "three").unwrap();
        std::os::unix::fs::symlink("real", path("c.yml")).unwrap();
        once(&mut reloads).await;
    }

    #[tokio::test]
    async fn a_file_that_goes_is_a_change_and_the_others_are_followed_on() {
        let temp = tempfile::tempdir().unwrap();
        let files = ["one.yml", "two.yml"].map(|name| temp.path().join(name)).to_vec();
        let write = |text: &str| std::fs::write(&files[0], text).unwrap();
        write("");
        std::fs::write(&files[1], "").unwrap();
        let (sender, mut reloads) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let _end = stop.clone().drop_guard();
        spawn(Arc::new(Counter(sender, files.clone())), stop).await;
        for text in (0..).map(|number| number.to_string()) {
            write(&text);
            if timeout(SETTLE * 4, reloads.recv()).await.is_ok() {
                break;
            }
        }
        assert!(timeout(SETTLE * 4, reloads.recv()).await.is_err());
        std::fs::remove_file(&files[1]).unwrap();
        once(&mut reloads).await;
        write("more");
        once(&mut reloads).await;
    }
}
