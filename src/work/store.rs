//! Units on disk: one directory each, named by the unit's ID, with `status`, `status.lock`, `stdin` and `stdout`
//! as Go nodes keep them, and the private files `runner`, `cancel`, `queued` and `group`. Owns safe modes, atomic
//! replacement and durability; every call blocks, so callers on the runtime go through [`Store::blocking`].
//! Knows nothing of what a state means.
//!
//! `disk` has the steps that make a crash harmless.

mod disk;
#[cfg(test)]
mod model;
#[cfg(test)]
mod on_disk;
#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use tokio::sync::Semaphore;

use super::group_sync::GroupSync;
use super::status::{BadStatus, Status};
use super::unit::UnitId;
use super::{OpenError, WorkError};
use crate::wire::NodeId;

/// File operations in flight at a time. Concurrent fsyncs of different files are what the kernel's journal commits as
/// one group, so many callers share each commit; more than this only adds threads. Those of the one directory that
/// all units are in share a call.
const CONCURRENT: usize = 32;
/// The private file that names a process group.
const GROUP: &str = "group";
const TRASH: &str = ".trash-";
/// In front of a unit that is released here and not yet on its other node.
const HIDDEN: &str = ".release-";

/// The directory with the units of one node.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    root: PathBuf,
    slots: Arc<Semaphore>,
    /// For the names of units in the root.
    names: Arc<GroupSync>,
}

impl Store {
    /// Checks the data directory, or makes it, and makes the node's own one in it.
    pub(crate) fn open(data_dir: &Path, node: &NodeId) -> Result<Self, OpenError> {
        let root = node_directory(data_dir, node)?;
        Ok(Self { root, slots: Arc::new(Semaphore::new(CONCURRENT)), names: Arc::default() })
    }

    /// The directory of a unit, which need not exist.
    pub(crate) fn unit(&self, id: &UnitId) -> UnitDir {
        UnitDir { path: self.root.join(id.as_str()) }
    }

    /// The directory of a unit that was hidden.
    pub(crate) fn hidden(&self, id: &UnitId) -> UnitDir {
        UnitDir { path: self.root.join(format!("{HIDDEN}{id}")) }
    }

    /// The IDs of all units there are, and of all hidden ones. Remains of released units are cleared away.
    pub(crate) fn scan(&self) -> Result<(Vec<UnitId>, Vec<UnitId>), OpenError> {
        let fail = |source| OpenError::Io { what: "read", path: self.root.clone(), source };
        let (mut units, mut hidden) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.root).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            // A link may lead anywhere; what is no directory is no unit.
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            match name.parse() {
                Ok(id) => units.push(id),
                Err(_) if name.starts_with(HIDDEN) => {
                    hidden.extend(name.strip_prefix(HIDDEN).and_then(|id| id.parse().ok()));
                }
                Err(_) if name.starts_with(TRASH) => drop(fs::remove_dir_all(self.root.join(name))),
                Err(_) => {}
            }
        }
        Ok((units, hidden))
    }

    /// Makes a unit that survives a power loss from here on; gives the open, empty `stdin`.
    pub(crate) fn create(&self, id: &UnitId, status: &Status) -> Result<File, WorkError> {
        let unit = self.unit(id).path;
        let sync_root = || self.names.sync(&self.root);
        disk::make_unit(&disk::System, &unit, &status.to_line(), sync_root)
            .map_err(|e| WorkError::io("make", unit, e))
    }

    /// Adds a piece to the open `stdin` of a unit; after the `last` one all of it survives a power loss.
    pub(crate) fn add_payload(stdin: &mut File, piece: &[u8], last: bool) -> io::Result<()> {
        disk::add_payload(&disk::System, stdin, piece, last)?;
        if !last {
            disk::write_back_ahead(stdin, piece.len());
        }
        Ok(())
    }

    /// Removes a unit: at once for everybody who looks, then file by file.
    pub(crate) fn remove(&self, unit: &UnitDir) -> Result<(), WorkError> {
        let name = unit.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let trash = self.root.join(format!("{TRASH}{name}"));
        match fs::rename(&unit.path, &trash) {
            Ok(()) => {}
            // What an earlier attempt has left may still be there.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(WorkError::io("remove", &unit.path, e)),
        }
        match fs::remove_dir_all(&trash) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(WorkError::io("remove", trash, e)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Removes a directory in which a crash has left no more of a unit than comes before its status.
    pub(crate) fn clear_half_made(&self, unit: &UnitDir) {
        let names = fs::read_dir(&unit.path).map(|names| names.flatten().map(|found| found.file_name()));
        let is_half_made = names.is_ok_and(|mut names| {
            names.all(|name| name == "status.lock" || name == "stdin" && is_empty(&unit.file("stdin")))
        });
        // Whatever else lies there is not ours to delete.
        if is_half_made && let Err(error) = self.remove(unit) {
            tracing::warn!(%error, "what a crash left of a unit stays");
        }
    }

    /// Takes a unit out of everybody's sight, durably, and keeps of it no more than its status.
    pub(crate) fn hide(&self, id: &UnitId, status: &Status) -> Result<UnitDir, WorkError> {
        let (unit, hidden) = (self.unit(id), self.hidden(id));
        fs::rename(&unit.path, &hidden.path).map_err(|e| WorkError::io("rename", &unit.path, e))?;
        for name in ["stdin", "stdout"] {
            let _ = fs::remove_file(hidden.file(name));
        }
        // What stood there before serves as well: its remote part is the same.
        let _ = hidden.write_status(status, true);
        self.names.sync(&self.root).map_err(|e| WorkError::io("write", &self.root, e))?;
        Ok(hidden)
    }

    /// Runs a blocking file operation off the runtime, a bounded number of them at a time.
    pub(crate) async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let slot = self.slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        let run = move || {
            let _slot = slot;
            work()
        };
        match tokio::task::spawn_blocking(run).await {
            Ok(value) => value,
            Err(gone) => std::panic::resume_unwind(gone.into_panic()),
        }
    }
}

/// One unit's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnitDir {
    path: PathBuf,
}

impl UnitDir {
    /// The directory at a path that the daemon has made.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the directory is one, and nobody else's to change.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong with it.
    pub(crate) fn check_owner(&self) -> Result<(), OpenError> {
        let found = fs::symlink_metadata(&self.path);
        let fail = |source| OpenError::Io { what: "look at", path: self.path.clone(), source };
        check_ours(&self.path, &found.map_err(fail)?)
    }

    /// Whether the unit was hidden.
    pub(crate) fn is_hidden(&self) -> bool {
        self.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(HIDDEN))
    }

    /// How long ago its last change was; nothing when that cannot be told.
    pub(crate) fn age(&self) -> Duration {
        let changed = fs::metadata(&self.path).and_then(|found| found.modified());
        changed.ok().and_then(|at| at.elapsed().ok()).unwrap_or_default()
    }

    /// When its status was written last, as far as can be told.
    pub(crate) fn status_time(&self) -> Option<SystemTime> {
        fs::metadata(self.file("status")).and_then(|found| found.modified()).ok()
    }

    /// The path of one of its files.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Reads `status`. What is replaced in one step needs no lock, and neither does what nobody writes any more;
    /// anything else is read again under the lock, as a Go runner may be rewriting it in place.
    pub(crate) fn read_status(&self) -> Result<Status, ReadError> {
        if let Some(status) = self.final_status() {
            return Ok(status);
        }
        let _lock = self.lock(FlockOperation::LockShared);
        self.read_own_status()
    }

    /// Reads the `status` of a unit that is the caller's own from here on: nobody else writes it meanwhile.
    pub(crate) fn read_own_status(&self) -> Result<Status, ReadError> {
        Ok(Status::parse(&fs::read(self.file("status"))?)?)
    }

    /// The status if it is final: a file that nobody writes any more, and mostly one just written, so that no disk is
    /// waited for.
    pub(crate) fn final_status(&self) -> Option<Status> {
        self.read_own_status().ok().filter(|status| status.life.state.is_final())
    }

    /// Replaces `status` in one step: a power loss leaves the earlier one or this one, whole. With `durable` it
    /// leaves this one once this returns.
    pub(crate) fn write_status(&self, status: &Status, durable: bool) -> Result<(), WorkError> {
        let path = self.file("status");
        self.replace(status, durable).map_err(|e| WorkError::io("write", path, e))
    }

    fn replace(&self, status: &Status, durable: bool) -> io::Result<()> {
        let _lock = self.lock(FlockOperation::LockExclusive)?;
        let output = self.output_told_of(status)?;
        disk::replace_status(&disk::System, &self.path, &status.to_line(), output.as_ref(), durable)
    }

    /// The stdout that a final status gives the length of: what it promises has to be there.
    fn output_told_of(&self, status: &Status) -> io::Result<Option<File>> {
        if !status.life.state.is_final() || status.life.stdout_size == 0 {
            return Ok(None);
        }
        match File::open(self.file("stdout")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    fn lock(&self, how: FlockOperation) -> io::Result<File> {
        let file = private().create(true).open(self.file("status.lock"))?;
        rustix::fs::flock(&file, how)?;
        Ok(file)
    }

    /// Bytes in `stdout`, 0 when there is none.
    pub(crate) fn stdout_size(&self) -> u64 {
        fs::metadata(self.file("stdout")).map_or(0, |m| m.len())
    }

    /// Opens `stdout` for adding at its end.
    pub(crate) fn append_stdout(&self) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).mode(0o600).open(self.file("stdout"))
    }

    /// Writes down that a client wants the unit's processes gone: their end is then a cancellation.
    pub(crate) fn mark_cancelled(&self) -> Result<(), WorkError> {
        let path = self.file("cancel");
        private().create(true).open(&path).map(drop).map_err(|e| WorkError::io("make", path, e))
    }

    /// Writes down that the unit has all it needs and waits for its turn, and since when: a restart starts it then.
    /// The caller makes it durable with the status that follows.
    pub(crate) fn mark_queued(&self) -> Result<(), WorkError> {
        let path = self.file("queued");
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mark = || private().create(true).open(&path)?.write_all(since.as_nanos().to_string().as_bytes());
        mark().map_err(|e| WorkError::io("make", &path, e))
    }

    /// Since when it has waited for its turn, as far as can be told. The file's own time would be too coarse: several
    /// units come within one tick of it.
    pub(crate) fn queued_at(&self) -> Option<SystemTime> {
        let noted = fs::read_to_string(self.file("queued")).ok().and_then(|nanos| nanos.parse().ok());
        noted.map(|nanos| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)).or_else(|| self.status_time())
    }

    /// Whether [`Self::mark_queued`] was called.
    pub(crate) fn is_marked_queued(&self) -> bool {
        self.file("queued").exists()
    }

    /// Writes down the process group of a command of which something lives on.
    pub(crate) fn note_group(&self, group: u32) -> io::Result<()> {
        private().create(true).truncate(true).open(self.file(GROUP))?.write_all(group.to_string().as_bytes())
    }

    /// The process group that [`Self::note_group`] noted.
    pub(crate) fn noted_group(&self) -> Option<u32> {
        fs::read_to_string(self.file(GROUP)).ok()?.parse().ok()
    }

    /// Whether [`Self::mark_cancelled`] was called.
    pub(crate) fn is_marked_cancelled(&self) -> bool {
        self.file("cancel").exists()
    }
}

/// Why a status could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The file cannot be read.
    #[error("status file cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is no status.
    #[error(transparent)]
    Damaged(#[from] BadStatus),
}

fn is_empty(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.len() == 0)
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

/// The directory of a node within `data_dir`, made if it is missing, and under nobody else's control.
///
/// # Errors
/// [`OpenError`] says what is wrong with it.
pub(crate) fn node_directory(data_dir: &Path, node: &NodeId) -> Result<PathBuf, OpenError> {
    let name = node.as_str();
    if name.contains('/') || name == "." || name == ".." {
        return Err(OpenError::NodeId(name.to_owned()));
    }
    let data_dir = &std::path::absolute(data_dir).map_err(|source| OpenError::Io {
        what: "find",
        path: data_dir.to_owned(),
        source,
    })?;
    own_directory(data_dir)?;
    let root = data_dir.join(name);
    own_directory(&root)?;
    Ok(root)
}

/// Makes a directory that only we can enter, or checks that one which exists is ours alone to write.
fn own_directory(path: &Path) -> Result<(), OpenError> {
    let fail = |what| move |source| OpenError::Io { what, path: path.to_owned(), source };
    let found = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(fail("make"))?;
            fs::symlink_metadata(path).map_err(fail("look at"))?
        }
        found => found.map_err(fail("look at"))?,
    };
    check_ours(path, &found)
}

/// Checks that what is at a path is a directory that nobody else may change.
fn check_ours(path: &Path, found: &fs::Metadata) -> Result<(), OpenError> {
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
    if mode & 0o022 != 0 {
        return Err(OpenError::WritableByOthers { path: path.to_owned(), mode });
    }
    Ok(())
}
