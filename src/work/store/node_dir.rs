//! The directory of one node within a data directory: made or checked so that it is under nobody else's control, and held
//! by one daemon at a time. Knows nothing of the units in it.

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

/// The file that is locked; no unit has a name like it.
const LOCK: &str = ".lock";
/// How long a daemon waits for one that is still ending, and between looks.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);
/// Permission bits that only the owner of a directory of ours may have.
const OTHERS_WRITE: u32 = 0o022;

/// A node's directory, which this daemon has to itself for as long as this exists.
#[derive(Debug)]
pub struct NodeDirectory {
    path: PathBuf,
    /// Closed when a program is started, so that neither runners nor jobs hold it.
    _lock: File,
}

impl NodeDirectory {
    /// Takes the directory, once another daemon that has it is gone.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong with it, or who has it.
    pub async fn take(data_dir: &Path, node: &NodeId) -> Result<Self, OpenError> {
        let path = node_directory(data_dir, node)?;
        for made in path.ancestors().take(2) {
            // Whoever made them may have ended before their names were flushed. A volume may not let us.
            let _ = directories::flush_name(made);
        }
        let lock = lock(&path).await?;
        Ok(Self { path, _lock: lock })
    }

    /// Where it is.
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
    let deadline = Instant::now() + PATIENCE;
    let mut is_told = false;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                if !std::mem::replace(&mut is_told, true) {
                    let holder = holder(&mut file);
                    tracing::warn!(directory = %directory.display(), %holder, "waiting for another daemon to end");
                }
                tokio::time::sleep(LOOK).await;
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

/// Who has the directory, as far as that is known.
fn holder(file: &mut File) -> String {
    let mut holder = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut holder));
    match (read, holder.trim()) {
        (Err(_), _) | (_, "") => "a process that has not said which".to_owned(),
        (Ok(_), holder) => holder.to_owned(),
    }
}

/// The directory of a node within `data_dir`, made if it is missing, and under nobody else's control.
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

/// In a container, what is mounted or made for this node may be writable by others: the container is the border there.
/// A directory of ours is closed to them; a volume of root's, which we cannot change, keeps a closed directory of ours.
///
/// # Errors
/// The one that was found, where none of that applies.
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
            tracing::info!(path = %data_dir.display(), "the data directory was writable by others, and is so no more");
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

/// Makes a directory that only we can enter, or checks that one which exists is ours alone to write.
fn own_directory(path: &Path) -> Result<(), OpenError> {
    let fail = |what| move |source| OpenError::Io { what, path: path.to_owned(), source };
    directories::make(path).map_err(fail("make"))?;
    check_ours(path, &fs::symlink_metadata(path).map_err(fail("look at"))?)
}

/// Checks that what is at a path is a directory that nobody else may change.
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
