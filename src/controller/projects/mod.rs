//! Projects of git repositories, as this control node keeps them: a mirror of each, and packed trees of single commits.
//!
//! A sync is a job of its own on this node, and `playbook` is what it reads. It fetches into the mirror, and leaves a tree
//! as a finished part of a runner's stream, so that nobody here ever walks through the files of a repository. This room
//! finds those trees, and deletes the ones that were not used for longest. It knows neither jobs nor the store.

mod playbook;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::Mutex;
use serde::Deserialize;

pub use self::playbook::{SyncOrder, search_paths};
use super::core::readable;
use super::header::ProjectSync;

const TREES: &str = "trees";
const MIRROR: &str = "mirror";
/// The longest answer of a sync that is read.
const LONGEST_ANSWER: u64 = 64 << 10;
/// The longest reason that is shown.
const LONGEST_REASON: usize = 2_000;

/// The projects of a control node. Clones share it.
#[derive(Debug, Clone)]
pub struct ProjectCache {
    directory: PathBuf,
    users: Users,
}

/// How many use each tree and mirror. A plain lock, held for a look, an entry or the deletion of one.
type Users = Arc<Mutex<BTreeMap<PathBuf, usize>>>;

/// The place of one repository, as one credential sees it: who may name another credential must fetch by that one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectPlace {
    /// Its directory.
    pub directory: PathBuf,
    /// The name of the directory, 32 hex digits.
    pub hash: String,
    /// What names of trees end with: trees with and without submodules and requirements differ.
    pub suffix: &'static str,
}

/// A packed tree or a mirror, which stays on disk as long as this exists.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    users: Users,
}

impl Held {
    fn new(path: PathBuf, users: &Users) -> Self {
        *users.lock().entry(path.clone()).or_default() += 1;
        Self { path, users: users.clone() }
    }

    /// The file or directory. A tree is the `zipfile` line of a runner's stream, and the zip in base64.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut users = self.users.lock();
        if let Some(count) = users.get_mut(&self.path) {
            *count -= 1;
            if *count == 0 {
                users.remove(&self.path);
            }
        }
    }
}

/// What a sync found, or why it found nothing.
pub type SyncAnswer = Result<String, String>;

impl ProjectCache {
    /// The projects below a directory, which need not exist.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, users: Users::default() }
    }

    /// Where a project lies.
    pub fn place(&self, sync: &ProjectSync) -> ProjectPlace {
        let credential = sync.credential.as_ref().map_or("", |name| name.as_str());
        let digest = digest(&SHA256, format!("{}\n{credential}", sync.url).as_bytes());
        let hash: String = digest.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let suffix = match (sync.submodules, sync.requirements) {
            (true, true) => "",
            (true, false) => "-bare",
            (false, true) => "-flat",
            (false, false) => "-flat-bare",
        };
        ProjectPlace { directory: self.directory.join(&hash), hash, suffix }
    }

    /// Keeps the mirror of a project while a sync may use it. It counts as used now.
    pub fn mirror(&self, place: &ProjectPlace) -> Held {
        let mirror = Held::new(place.directory.join(MIRROR), &self.users);
        if let Ok(directory) = File::open(&mirror.path) {
            touch(&directory);
        }
        mirror
    }

    /// The tree of a commit, if it is there. It counts as used now.
    pub fn tree(&self, place: &ProjectPlace, commit: &str) -> Option<Held> {
        if !is_commit(commit) {
            return None;
        }
        let path = place.directory.join(TREES).join(format!("{commit}{}", place.suffix));
        let tree = Held::new(path, &self.users);
        touch(&open_plain(&tree.path).ok()?);
        Some(tree)
    }

    /// Deletes the trees and mirrors that were not used for longest, until the others have at most that many bytes.
    ///
    /// # Errors
    /// The disk's.
    pub fn shrink(&self, most: u64) -> io::Result<()> {
        let mut found = Vec::new();
        for project in entries(&self.directory)? {
            let mirror = project.join(MIRROR);
            for path in entries(&project.join(TREES))?.into_iter().chain([mirror]) {
                if let Ok(facts) = fs::symlink_metadata(&path) {
                    found.push((facts.modified()?, size(&path)?, path));
                }
            }
        }
        let mut total: u64 = found.iter().map(|(_, size, _)| size).sum();
        found.sort();
        for (_, size, path) in found {
            if total <= most {
                break;
            }
            let users = self.users.lock();
            if !users.contains_key(&path) {
                if path.ends_with(MIRROR) {
                    fs::remove_dir_all(&path)?
                } else {
                    fs::remove_file(&path)?
                }
                total -= size;
            }
        }
        Ok(())
    }
}

impl ProjectPlace {
    /// Makes the directories.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn make(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(self.directory.join(TREES))
    }

    /// Where the sync with that number answers.
    pub fn answer_path(&self, job: i64) -> PathBuf {
        self.directory.join(format!("sync-{job}.json"))
    }

    /// What a sync answered: a commit, or why there is none. `None` if it left no answer.
    pub fn answer(&self, job: i64) -> Option<SyncAnswer> {
        #[derive(Deserialize)]
        struct AnswerFile {
            commit: Option<String>,
            error: Option<String>,
        }
        let mut text = String::new();
        let file = open_plain(&self.answer_path(job)).ok()?;
        file.take(LONGEST_ANSWER).read_to_string(&mut text).ok()?;
        let answer: AnswerFile = serde_json::from_str(&text).ok()?;
        match answer {
            AnswerFile { commit: Some(commit), error: None } if is_commit(&commit) => Some(Ok(commit)),
            AnswerFile { error: Some(error), .. } => Some(Err(readable(&error, LONGEST_REASON))),
            AnswerFile { .. } => None,
        }
    }

    /// Deletes an answer that was read.
    pub fn forget_answer(&self, job: i64) {
        if let Err(error) = fs::remove_file(self.answer_path(job)) {
            tracing::debug!(job, %error, "the answer of a sync stays");
        }
    }
}

/// A whole name of a commit, by SHA-1 or SHA-256.
pub fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Opens a regular file, and follows no link: syncs may run as another user than this process.
fn open_plain(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let facts = file.metadata()?;
    if facts.is_file() && facts.nlink() == 1 { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Its age decides only what is deleted first, so a disk that cannot be written is no matter.
fn touch(file: &File) {
    let _unless_read_only = file.set_modified(SystemTime::now());
}

/// What is in a directory; nothing if it is none.
fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// The bytes of a file, or of all files in a directory. Links are not followed.
fn size(path: &Path) -> io::Result<u64> {
    let facts = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        facts => facts?,
    };
    if facts.is_dir() { entries(path)?.iter().map(|path| size(path)).sum() } else { Ok(facts.len()) }
}

#[cfg(test)]
mod tests;
