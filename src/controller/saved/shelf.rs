//! The saved jobs that are in force on this node, which a reload replaces. Reads them off the threads that carry links, and
//! logs what is wrong with files, once for each fault.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::SavedJobs;

/// Faults that are logged one by one.
const TOLD: usize = 20;

/// The saved jobs of a node. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct SavedShelf {
    jobs: Arc<ArcSwap<SavedJobs>>,
    news: Arc<Notify>,
    /// The node's own directory, which no job may bring along.
    node_directory: Arc<Path>,
}

impl SavedShelf {
    /// An empty one.
    pub(crate) fn new(node_directory: PathBuf) -> Self {
        Self { jobs: Arc::default(), news: Arc::default(), node_directory: node_directory.into() }
    }

    /// The saved jobs as they are now.
    pub(crate) fn now(&self) -> Arc<SavedJobs> {
        self.jobs.load_full()
    }

    /// Returns once they were read again, or something about them has changed.
    pub(crate) async fn changed(&self) {
        self.news.notified().await;
    }

    /// Something about them has changed.
    pub(crate) fn note_change(&self) {
        self.news.notify_one();
    }

    /// The node's own directory.
    pub(crate) fn node_directory(&self) -> &Path {
        &self.node_directory
    }

    /// Reads the directory again.
    pub(crate) async fn reload(&self, directory: Option<PathBuf>) {
        let former = self.now();
        let Some(directory) = directory else { return self.jobs.store(Arc::default()) };
        let known: BTreeSet<String> = former.all_faults().map(ToString::to_string).collect();
        // It leaves the jobs themselves free to go.
        let before = Arc::downgrade(&former);
        let shelf = self.jobs.clone();
        let read = move || SavedJobs::load(&directory, former, |some| shelf.store(some));
        let jobs = match tokio::task::spawn_blocking(read).await {
            Ok(jobs) => jobs,
            Err(error) => {
                return tracing::error!(%error, "cannot read all saved jobs, others stay as they were");
            }
        };
        let news = jobs.all_faults().filter(|fault| !known.contains(&fault.to_string()));
        news.take(TOLD).for_each(|fault| {
            tracing::warn!(fault = %fault, "a saved job is broken, its last good version stays");
        });
        let (count, broken) = jobs.counts();
        if !std::ptr::eq(Arc::as_ptr(&jobs), before.as_ptr()) {
            tracing::info!(count, broken, "read the saved jobs");
        }
        self.jobs.store(jobs);
        self.note_change();
    }
}
