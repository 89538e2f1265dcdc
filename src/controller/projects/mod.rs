//! Projects of git repositories, as this control node keeps them: a mirror of each, and packed trees of single commits.
//!
//! A sync is a job of its own on this node; `playbook` makes its input. It fetches into the mirror, and leaves a tree
//! as a finished part of a runner's stream, so that this process never reads the files of a repository. It may change
//! only its own directory and the mirror; `harvest` takes its results. This module finds trees, and deletes those that
//! have been unused for longest. It knows nothing of jobs or the store.

mod harvest;
mod playbook;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::Mutex;

pub use self::harvest::SyncAnswer;
pub use self::playbook::{SyncOrder, search_paths};
use super::header::ProjectSync;
use super::options::ControllerOptions;
use crate::confine::Confinement;
use crate::os::hex;
use crate::work::run_dir;

const TREES: &str = "trees";
const MIRROR: &str = "mirror";
/// Keys of servers. Each project has a file of this name, and an operator may make one for all projects, which is only
/// read.
const KNOWN_HOSTS: &str = "known_hosts";
/// The file in a sync's directory that stays after its end.
const ANSWER: &str = "answer.json";
/// The directory of a sync that is deleted at its end, and the home and temporary directories in it.
const RUN: &str = "run";
const HOME: &str = "home";
const TEMPORARY: &str = "tmp";
/// Ansible's settings on this machine, and an empty file that replaces them.
const ANSIBLE_SETTINGS: &str = "/etc/ansible/ansible.cfg";
const NO_SETTINGS: &str = "ansible.cfg";
/// Nobody reads an older answer: a sync takes an hour at most, and its job reads the answer at once, or when its
/// control node is back.
const FORGOTTEN: Duration = Duration::from_secs(7 * 24 * 3_600);
/// How long one removal may take. The next one removes what is left then.
const REMOVAL: Duration = Duration::from_secs(60);

/// The projects of a control node. Clones share it.
#[derive(Debug, Clone)]
pub struct ProjectCache {
    directory: PathBuf,
    users: Users,
}

/// How many users each tree and mirror has. The lock is held for a look, an entry or one deletion.
type Users = Arc<Mutex<BTreeMap<PathBuf, usize>>>;

/// The place of one repository under one credential. A job with another credential gets another place, because it must
/// fetch with its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectPlace {
    /// Its directory.
    pub directory: PathBuf,
    /// The name of the directory, 32 hex digits.
    pub hash: String,
    /// The end of the names of its trees, because trees with and without submodules and requirements differ.
    pub suffix: &'static str,
}

/// A packed tree or a mirror, which stays on disk while this exists.
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

impl ProjectCache {
    /// The projects below a directory, which need not exist.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, users: Users::default() }
    }

    /// The directory of the node whose projects they are.
    pub fn node_directory(&self) -> Option<PathBuf> {
        self.directory.ancestors().nth(2).map(Path::to_owned)
    }

    /// Where a project lies.
    pub fn place(&self, sync: &ProjectSync) -> ProjectPlace {
        let credential = sync.credential.as_ref().map_or("", |name| name.as_str());
        let digest = digest(&SHA256, format!("{}\n{credential}", sync.url).as_bytes());
        let hash = hex::print(&digest.as_ref()[..16]);
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
        let mirror = Held::new(place.mirror(), &self.users);
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

    /// Deletes trees and mirrors, the longest unused first, until the rest has at most `most` bytes.
    pub fn shrink(&self, most: u64) -> io::Result<()> {
        let mut found = Vec::new();
        for project in entries(&self.directory)? {
            remove_forgotten(&project)?;
            let mirror = project.join(MIRROR);
            for path in entries(&project.join(TREES))?.into_iter().chain([mirror]) {
                let Ok(facts) = fs::symlink_metadata(&path) else { continue };
                match size(&path) {
                    Ok(size) => found.push((facts.modified()?, size, path)),
                    // Bytes that cannot be counted must not stay, and the next sync makes a new mirror.
                    Err(_) => self.remove_unused(&path),
                }
            }
        }
        let mut total: u64 = found.iter().map(|(_, size, _)| size).sum();
        found.sort();
        for (_, size, path) in found {
            if total <= most {
                break;
            }
            self.remove_unused(&path);
            if !path.exists() {
                total -= size;
            }
        }
        Ok(())
    }

    fn remove_unused(&self, path: &Path) {
        let users = self.users.lock();
        if !users.contains_key(path) {
            remove(path);
        }
    }
}

impl ProjectPlace {
    /// Makes the directories of a project, and of one sync.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn make(&self, job: i64) -> io::Result<()> {
        let run = self.run_directory(job);
        for directory in [self.directory.join(TREES), self.mirror(), run.join(HOME), run.join(TEMPORARY)] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        // Follows no link, because an earlier sync that was interrupted may have left one in its place.
        let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(flags)
            .open(run.join(NO_SETTINGS))
            .map(drop)
    }

    /// The directory of the sync with that number.
    pub fn sync_directory(&self, job: i64) -> PathBuf {
        self.directory.join(format!("sync-{job}"))
    }

    fn run_directory(&self, job: i64) -> PathBuf {
        self.sync_directory(job).join(RUN)
    }

    fn mirror(&self) -> PathBuf {
        self.directory.join(MIRROR)
    }

    /// Where a sync unpacks what it reads.
    pub fn private_data_dir(&self, job: i64) -> PathBuf {
        self.run_directory(job).join("private")
    }

    /// What a sync may do on this machine. It must not see `hidden`.
    pub(crate) fn confinement(
        &self,
        job: i64,
        sync: &ProjectSync,
        options: &ControllerOptions,
        hidden: Vec<PathBuf>,
    ) -> Confinement {
        let for_all = self.directory.with_file_name(KNOWN_HOSTS);
        let mut read = options.sync_read.clone();
        read.extend([self.directory.join(TREES), self.directory.join(KNOWN_HOSTS), for_all]);
        read.extend(sync.url.local_path());
        let run = self.run_directory(job);
        Confinement {
            write: vec![self.sync_directory(job), self.mirror()],
            read,
            hidden,
            hosts: options.project_hosts.clone(),
            home: run.join(HOME),
            temporary: run.join(TEMPORARY),
            variables: ansible(&run, &options.sync_read),
        }
    }

    /// Deletes what a sync that has ended needs no more. Its answer stays.
    pub fn sweep(&self, job: i64) {
        remove(&self.run_directory(job));
    }

    /// Deletes the rest, once the answer was read.
    pub fn forget_answer(&self, job: i64) {
        remove(&self.sync_directory(job));
    }
}

/// Where Ansible has its files. Without these variables it looks up a home directory in the list of users, and fails if
/// its settings exist but cannot be read.
fn ansible(run: &Path, read: &[PathBuf]) -> BTreeMap<String, PathBuf> {
    let mut variables = BTreeMap::from([("ANSIBLE_REMOTE_TMP".to_owned(), run.join(TEMPORARY))]);
    if !read.iter().any(|path| Path::new(ANSIBLE_SETTINGS).starts_with(path)) {
        variables.insert("ANSIBLE_CONFIG".to_owned(), run.join(NO_SETTINGS));
    }
    variables
}

/// Deletes what is left of syncs whose answer nobody reads any more.
fn remove_forgotten(project: &Path) -> io::Result<()> {
    for path in entries(project)? {
        let is_of_sync = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"sync-"));
        let changed = fs::symlink_metadata(&path).and_then(|facts| facts.modified());
        let is_old = changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > FORGOTTEN));
        if is_of_sync && is_old {
            remove(&path);
        }
    }
    Ok(())
}

/// Removes what a sync left, which may be directories of any depth.
fn remove(path: &Path) {
    if let Err(error) = run_dir::remove(path, Instant::now() + REMOVAL) {
        tracing::warn!(path = %path.display(), %error, "cannot remove what is left of a sync");
    }
}

/// Whether a text is the full name of a commit, by SHA-1 or SHA-256.
pub fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Opens a regular file and no link, because syncs may run as another user than this process.
fn open_plain(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let facts = file.metadata()?;
    if facts.is_file() && facts.nlink() == 1 { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Marks a file as used now. A failure is ignored, because the age only decides what is deleted first.
fn touch(file: &File) {
    let _unless_read_only = file.set_modified(SystemTime::now());
}

/// The paths in a directory; none if it is no directory.
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
///
/// # Errors
/// Something in it cannot be examined, for example because its path is too long.
fn size(path: &Path) -> io::Result<u64> {
    let (mut sum, mut left) = (0, vec![path.to_owned()]);
    while let Some(path) = left.pop() {
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(facts) if facts.is_dir() => left.extend(entries(&path)?),
            Ok(facts) => sum += facts.len(),
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests;
