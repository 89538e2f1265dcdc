//! Units on disk: one directory each, named by the unit's ID, with the files of docs/protocol.md#unit-directory: the
//! files that Go nodes keep too, and private ones of ours. Owns safe modes, atomic replacement and durability. Blocking
//! functions are called off the runtime, or through [`UnitStore::blocking`]. Knows neither what a state means nor what
//! a runner's files contain.
//!
//! `node_dir` is the directory of all units, `unit_dir` is one unit's directory, and `disk` has the steps that make a
//! crash harmless.

mod disk;
mod node_dir;
mod unit_dir;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::Semaphore;

use self::disk::{
    Disk, Flush, Make, NEW_STATUS, System, finish_unit, make_unit, move_away, put_file, sync_output,
    unmake_unit, write_all,
};
pub(crate) use self::disk::{Durability, FlushOnce};
pub use self::node_dir::NodeDirectory;
use self::node_dir::{check_ours, node_directory};
use self::unit_dir::QUEUED;
pub(crate) use self::unit_dir::{OutputFile, ReadError, UnitDir};
use super::status::Status;
use super::unit::UnitId;
use super::{OpenError, WorkError};
use crate::wire::NodeId;

/// The most file operations in flight at a time: more would only add threads.
const CONCURRENT: usize = 32;
const TRASH: &str = ".trash-";
/// Prefix of a unit's name while the unit is released here, but not yet on its other node or in its cluster.
const HIDDEN: &str = ".release-";

/// The directory with the units of one node.
#[derive(Debug, Clone)]
pub(crate) struct UnitStore {
    root: Arc<Path>,
    slots: Arc<Semaphore>,
}

impl UnitStore {
    /// Checks or makes the data directory, and the node's own directory in it.
    pub(crate) fn open(data_dir: &Path, node: &NodeId) -> Result<Self, OpenError> {
        let root = node_directory(data_dir, node)?.into();
        Ok(Self { root, slots: Arc::new(Semaphore::new(CONCURRENT)) })
    }

    /// The node's directory.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of a unit, which need not exist.
    pub(crate) fn unit(&self, id: &UnitId) -> UnitDir {
        UnitDir::new(&self.root, id.to_shared())
    }

    /// The directory of a unit that was hidden.
    pub(crate) fn hidden(&self, id: &UnitId) -> UnitDir {
        UnitDir::new(&self.root, format!("{HIDDEN}{id}").into())
    }

    /// Returns the IDs of all units, and of all hidden units. Clears away what is left of released units.
    pub(crate) fn scan(&self) -> Result<(Vec<UnitId>, Vec<UnitId>), OpenError> {
        let fail = |source| OpenError::Io { what: "read", path: self.root.to_path_buf(), source };
        let (mut units, mut hidden) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.root).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            // Only a directory is a unit. A link is skipped, because it may lead anywhere.
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

    /// Makes a unit with an empty payload. A durable unit survives a power loss once this returns. For any other, this
    /// returns the file that [`UnitDir::finish`] needs.
    pub(crate) async fn create(
        &self,
        id: &UnitId,
        status: &Status,
        durability: Durability,
    ) -> Result<Option<File>, WorkError> {
        let (path, line) = (self.unit(id).path(), status.to_line());
        let unit = path.clone();
        let make = move || {
            let made = make_unit(&System, &unit, &line)?;
            if durability != Durability::Durable {
                return Ok(Some(made));
            }
            let finished = finish_unit(&System, &unit, &made, None);
            finished.inspect_err(|_| unmake_unit(&System, &unit)).map(|()| None)
        };
        self.blocking(make).await.map_err(|e| WorkError::io("make", path, e))
    }

    /// Gives a unit the payload of another unit as a hard link, so that it is on disk only once. The link is durable
    /// when this returns.
    pub(crate) async fn link_payload(&self, from: PathBuf, to: &UnitDir) -> Result<(), WorkError> {
        let (to, failed) = (to.clone(), to.file("stdin"));
        let link = move || {
            let aside = to.file("stdin.new");
            fs::hard_link(from, &aside)?;
            fs::rename(aside, to.file("stdin"))?;
            System.sync(&[Flush::Dir(&to.path())])
        };
        self.blocking(link).await.map_err(|e| WorkError::io("link", failed, e))
    }

    /// Durably replaces a unit's payload by an empty one. Other units that share the payload keep it.
    pub(crate) async fn drop_payload(&self, unit: &UnitDir) -> Result<(), WorkError> {
        let dir = unit.clone();
        let replace = move || {
            match fs::remove_file(dir.file("stdin")) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => System.make(&dir.file("stdin"), Make::New)?,
            };
            System.sync(&[Flush::Dir(&dir.path())])
        };
        self.blocking(replace).await.map_err(|e| WorkError::io("remove", unit.file("stdin"), e))
    }

    /// Adds a piece to the payload of a unit. Blocks.
    pub(crate) fn add_payload(stdin: &mut File, piece: &[u8], is_last: bool) -> io::Result<()> {
        write_all(&System, stdin, piece)?;
        if !is_last {
            disk::write_back_ahead(stdin, piece.len());
        }
        Ok(())
    }

    /// Replaces the status of a unit, durably. First makes durable what `first` flushes, and the output that the status
    /// counts (unless `is_output_kept`: then that output is durable already).
    pub(crate) async fn put_status(
        &self,
        unit: &UnitDir,
        status: &Status,
        first: impl Fn() -> io::Result<()> + Send + 'static,
        is_output_kept: bool,
    ) -> Result<(), WorkError> {
        let (dir, status) = (unit.clone(), status.clone());
        self.blocking(move || dir.replace_status(&status, &first, is_output_kept, Durability::Durable)).await
    }

    /// Durably turns the [exit record](UnitDir::exit_record) that a runner left into the status of its unit.
    pub(crate) async fn adopt_exit_record(&self, unit: &UnitDir, status: &Status) -> Result<(), WorkError> {
        let (dir, status) = (unit.clone(), status.clone());
        self.blocking(move || dir.adopt_exit_record(&status)).await
    }

    /// Makes the output of a unit durable.
    pub(crate) async fn sync_output(&self, unit: &UnitDir) -> io::Result<()> {
        let dir = unit.path();
        self.blocking(move || sync_output(&System, &dir)).await
    }

    /// Records that a unit is ready to start and since when it waits in the queue, so that a later daemon can start it.
    pub(crate) async fn mark_queued(&self, unit: &UnitDir) -> Result<(), WorkError> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.mark(unit, move |_| Ok(since.as_nanos().to_string())).await
    }

    /// Records, before anything is started, that a queued unit has got its slot: after a power loss nobody can tell
    /// whether its command was started.
    pub(crate) async fn mark_slot(&self, unit: &UnitDir) -> Result<(), WorkError> {
        self.mark(unit, UnitDir::slot_mark).await
    }

    async fn mark(
        &self,
        unit: &UnitDir,
        text: impl FnOnce(&UnitDir) -> io::Result<String> + Send + 'static,
    ) -> Result<(), WorkError> {
        let dir = unit.clone();
        let mark = move || put_file(&System, &dir.path(), QUEUED, text(&dir)?.as_bytes());
        self.blocking(mark).await.map_err(|e| WorkError::io("write", unit.file(QUEUED), e))
    }

    /// Removes a unit: first moves it out of all readers' sight, durably, then deletes its files.
    pub(crate) async fn remove(&self, unit: &UnitDir) -> Result<(), WorkError> {
        let (this, dir) = (self.clone(), unit.clone());
        let remove = move || {
            this.move_away(&dir)?;
            clear(&this.trash(&dir))
        };
        self.blocking(remove).await
    }

    fn trash(&self, unit: &UnitDir) -> PathBuf {
        self.root.join(format!("{TRASH}{}", unit.name()))
    }

    fn move_away(&self, unit: &UnitDir) -> Result<(), WorkError> {
        let (path, trash) = (unit.path(), self.trash(unit));
        let moved = match move_away(&System, &path, &trash) {
            // An earlier unit with this ID is still being cleared away.
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {
                clear(&trash)?;
                move_away(&System, &path, &trash)
            }
            // An earlier attempt may have moved it already.
            Err(e) if e.kind() == io::ErrorKind::NotFound => System.sync(&[Flush::Dir(&self.root)]),
            moved => moved,
        };
        moved.map_err(|e| WorkError::io("remove", path, e))
    }

    /// Removes a unit's directory if a crash left nothing in it but what a unit has before any client knows of it. Says
    /// whether that was so.
    pub(crate) fn clear_half_made(&self, unit: &UnitDir) -> bool {
        let names = fs::read_dir(unit.path()).map(|names| names.flatten().map(|found| found.file_name()));
        let is_new = unit.has(NEW_STATUS);
        let is_half_made = names.is_ok_and(|mut names| {
            names.all(|name| match name.to_str() {
                Some("status.lock" | NEW_STATUS) => true,
                // The file of a new unit loses the name `.status.new` before a client knows the unit.
                Some("status") => is_new,
                Some("stdin") => is_new || is_empty(&unit.file("stdin")),
                Some(_) | None => false,
            })
        });
        // A directory with anything else in it is not ours to delete.
        if is_half_made {
            self.discard(unit);
        }
        is_half_made
    }

    /// Removes a unit whose ID no client knows. Blocks.
    pub(crate) fn discard(&self, unit: &UnitDir) {
        if let Err(error) = self.move_away(unit).and_then(|()| clear(&self.trash(unit))) {
            tracing::warn!(%error, "cannot remove what a crash left of a unit");
        }
    }

    /// Hides a unit, durably, and keeps only its status.
    pub(crate) async fn hide(&self, id: &UnitId, status: &Status) -> Result<UnitDir, WorkError> {
        let (this, id, status) = (self.clone(), id.clone(), status.clone());
        let hidden = self.hidden(&id);
        let copy = hidden.clone();
        let hide = move || {
            move_away(&System, &this.unit(&id).path(), &copy.path())
                .map_err(|e| WorkError::io("rename", copy.path(), e))?;
            for name in ["stdin", "stdout"] {
                let _ = fs::remove_file(copy.file(name));
            }
            // If this fails, the old status serves as well: it names the same remote unit or pod.
            let _ = copy.write_status(&status, Durability::Durable);
            Ok(())
        };
        self.blocking(hide).await.map(|()| hidden)
    }

    /// Runs a blocking file operation off the runtime; at most [`CONCURRENT`] of them run at a time.
    pub(crate) async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let slot = self.slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        let run = move || {
            let _slot = slot;
            work()
        };
        match tokio::task::spawn_blocking(run).await {
            Ok(value) => value,
            Err(gone) => match gone.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down, and drops the task that waits here.
                Err(_) => std::future::pending().await,
            },
        }
    }
}

/// Removes a directory, or a file that a command has put in its place, if there is one.
fn clear(path: &Path) -> Result<(), WorkError> {
    let removed = match fs::remove_dir_all(path) {
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => fs::remove_file(path),
        removed => removed,
    };
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(WorkError::io("remove", path, e)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn is_empty(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.len() == 0)
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod on_disk;
#[cfg(test)]
mod tests;
