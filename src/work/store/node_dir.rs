//! The directory of one node within a data directory. Owns that nobody else can change it, and that only one daemon at
//! a time holds it. Knows nothing of the units in it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use tokio::time::Instant;

use super::disk::open_file;
use crate::os::{container, directories};
use crate::wire::NodeId;
use crate::work::OpenError;

/// The file that is locked. No unit's name begins with a dot.
const LOCK: &str = ".lock";
/// How long a daemon waits for another that is still ending, and between attempts.
const LOCK_WITHIN: Duration = Duration::from_secs(10);
const LOCK_EVERY: Duration = Duration::from_millis(50);
/// The write permissions of group and others, which a directory of ours must not give.
const OTHERS_WRITE: u32 = 0o022;

/// A node's directory. As long as this value lives, no other daemon can take it.
#[derive(Debug)]
pub struct NodeDirectory {
    path: PathBuf,
    /// Closed on exec, so that neither runners nor jobs hold the lock.
    _lock: File,
}

impl NodeDirectory {
    /// Takes the directory. If another daemon has it, waits a moment for that one to end.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong with the directory, or who has it.
    pub async fn take(data_dir: &Path, node: &NodeId) -> Result<Self, OpenError> {
        let path = node_directory(data_dir, node)?;
        for made in path.ancestors().take(2) {
            // An earlier daemon may have ended before the names were flushed. Failures are ignored: on a volume we may
            // not flush.
            let _ = directories::flush_name(made);
        }
        let lock = lock(&path).await?;
        Ok(Self { path, _lock: lock })
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

async fn lock(directory: &Path) -> Result<File, OpenError> {
    let path = directory.join(LOCK);
    let fail = |source| OpenError::Io { what: "lock", path: path.clone(), source };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    let mut file = open_file(&path, &mut options).map_err(fail)?;
    let deadline = Instant::now() + LOCK_WITHIN;
    let mut is_told = false;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                if !std::mem::replace(&mut is_told, true) {
                    let holder = holder(&mut file);
                    tracing::warn!(directory = %directory.display(), %holder, "waiting for another daemon to end");
                }
                tokio::time::sleep(LOCK_EVERY).await;
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(OpenError::InUse { path: directory.to_owned(), holder: holder(&mut file) });
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(fail(error.into())),
        }
    }
    let program = std::env::current_exe().unwrap_or_default();
    let holder = format!("process {} ({})\n", std::process::id(), program.display());
    file.set_len(0).and_then(|()| file.rewind()).map_err(fail)?;
    file.write_all(holder.as_bytes()).map_err(fail)?;
    Ok(file)
}

/// The process that has the directory, as its lock file names it.
fn holder(file: &mut File) -> String {
    let mut holder = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut holder));
    match (read, holder.trim()) {
        (Err(_), _) | (_, "") => "an unknown process".to_owned(),
        (Ok(_), holder) => holder.to_owned(),
    }
}

/// Returns the directory of a node within `data_dir`. Makes it if it is missing; refuses it if others can change it.
///
/// # Errors
/// [`OpenError`] says what is wrong with it.
pub(super) fn node_directory(data_dir: &Path, node: &NodeId) -> Result<PathBuf, OpenError> {
    let name = node.as_str();
    if name.contains('/') || name == "." || name == ".." {
        return Err(OpenError::NodeId(name.to_owned()));
    }
    let data_dir = &std::path::absolute(data_dir).map_err(|source| OpenError::Io {
        what: "find",
        path: data_dir.to_owned(),
        source,
    })?;
    let root = data_dir.join(name);
    match own_directory(data_dir) {
        Ok(()) => {}
        Err(error) => make_safe(data_dir, &root, error)?,
    }
    own_directory(&root)?;
    Ok(root)
}

/// Decides about a data directory that failed the check. Outside of a container it stays refused. In a container, which
/// keeps others out, it may have been writable by others: if it is ours, their write permission is removed. A volume
/// that belongs to root, which we cannot change, is accepted, because the node's own directory in it is closed.
///
/// # Errors
/// `found`, if none of that applies, or that the permissions cannot be changed.
fn make_safe(data_dir: &Path, root: &Path, found: OpenError) -> Result<(), OpenError> {
    if !container::is_entered() {
        return Err(found);
    }
    let is_volume = || container::is_volume(data_dir);
    match found {
        OpenError::WritableByOthers { mode, .. } if is_empty(data_dir) || is_volume() => {
            let closed = fs::Permissions::from_mode(mode & !OTHERS_WRITE);
            fs::set_permissions(data_dir, closed).map_err(|source| OpenError::Io {
                what: "close to others",
                path: data_dir.to_owned(),
                source,
            })?;
            tracing::info!(path = %data_dir.display(), "the data directory was writable by others: removed their write permission");
            Ok(())
        }
        OpenError::ForeignOwner { owner: 0, .. } if is_volume() => {
            if fs::symlink_metadata(root).is_err() {
                tracing::info!(
                    path = %root.display(),
                    "the data directory is a volume that others may write to: this node makes a directory of its own in it"
                );
            }
            Ok(())
        }
        found => Err(found),
    }
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

/// Makes a directory that only we can enter, or checks that nobody else may write to an existing one.
fn own_directory(path: &Path) -> Result<(), OpenError> {
    let fail = |what| move |source| OpenError::Io { what, path: path.to_owned(), source };
    directories::make(path).map_err(fail("make"))?;
    check_ours(path, &fs::symlink_metadata(path).map_err(fail("look at"))?)
}

/// Checks that there is a directory at this path, that it is ours, and that nobody else may change it.
pub(super) fn check_ours(path: &Path, found: &fs::Metadata) -> Result<(), OpenError> {
    let user = rustix::process::geteuid().as_raw();
    let mode = found.permissions().mode() & 0o7777;
    if found.is_symlink() {
        return Err(OpenError::Symlink(path.to_owned()));
    }
    if !found.is_dir() {
        return Err(OpenError::NotADirectory(path.to_owned()));
    }
    if found.uid() != user {
        return Err(OpenError::ForeignOwner { path: path.to_owned(), owner: found.uid(), user });
    }
    if mode & OTHERS_WRITE != 0 {
        return Err(OpenError::WritableByOthers { path: path.to_owned(), mode });
    }
    Ok(())
}
