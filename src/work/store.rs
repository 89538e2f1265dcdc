//! Units on disk: one directory each, named by the unit's ID, with the files of docs/protocol.md#unit-directory:
//! those that Go nodes keep, and our private ones. Owns safe modes, atomic replacement and durability. Functions that
//! block are for callers off the runtime, or go through [`Store::blocking`]. Knows nothing of what a state means, nor of
//! the contents of a runner's files.
//!
//! `node_dir` is the directory of all units, `unit_dir` one unit's directory, `disk` has the steps that make a crash
//! harmless, `journal` makes many small changes durable together.

mod disk;
mod journal;
mod node_dir;
mod unit_dir;

use std::cmp::Ordering;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::Semaphore;

pub(crate) use self::disk::Durability;
use self::disk::{Disk, NEW_STATUS, System, sync_files, write_all};
use self::journal::{Change, Journal, NewStatus, Rules};
pub use self::node_dir::NodeDirectory;
use self::node_dir::{check_ours, node_directory};
use self::unit_dir::QUEUED;
pub(crate) use self::unit_dir::{ReadError, UnitDir};
use super::status::Status;
use super::unit::UnitId;
use super::{OpenError, WorkError};
use crate::wire::NodeId;

/// File operations in flight at a time, besides those of the journal: more than this only adds threads.
const CONCURRENT: usize = 32;
/// Up to this many bytes a payload or output becomes durable by being in the journal; longer ones are written once.
const SHORT: u64 = 32 * 1024;
const TRASH: &str = ".trash-";
/// In front of a unit that is released here and not yet on its other node.
const HIDDEN: &str = ".release-";
/// What the journal has to know about units.
const RULES: Rules = Rules { is_unit, compare };

fn is_unit(name: &str) -> bool {
    name.strip_prefix(HIDDEN).unwrap_or(name).parse::<UnitId>().is_ok()
}

/// State moves forward only, so a status of a later state is the later one.
fn compare(one: &[u8], other: &[u8]) -> Option<Ordering> {
    let progress = |line| {
        let state = Status::parse(line).ok()?.life.state;
        Some(if state.is_final() { u8::MAX } else { state as u8 })
    };
    Some(progress(one)?.cmp(&progress(other)?))
}

/// The directory with the units of one node.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    root: Arc<Path>,
    slots: Arc<Semaphore>,
    journal: Journal,
}

impl Store {
    /// Checks the data directory, or makes it, and makes the node's own one in it. The units are brought to where the
    /// journal of a daemon says that did not stop in order.
    pub(crate) fn open(data_dir: &Path, node: &NodeId) -> Result<Self, OpenError> {
        let root: Arc<Path> = node_directory(data_dir, node)?.into();
        let generation = recover(&root)?;
        let journal = Journal::start(&root, RULES, generation).map_err(|source| OpenError::Io {
            what: "start the journal of",
            path: root.to_path_buf(),
            source,
        })?;
        Ok(Self { root, slots: Arc::new(Semaphore::new(CONCURRENT)), journal })
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

    /// The IDs of all units there are, and of all hidden ones. Remains of released units are cleared away.
    pub(crate) fn scan(&self) -> Result<(Vec<UnitId>, Vec<UnitId>), OpenError> {
        let fail = |source| OpenError::Io { what: "read", path: self.root.to_path_buf(), source };
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

    /// Makes a unit, with an empty payload, that survives a power loss from here on.
    pub(crate) async fn create(&self, id: &UnitId, status: &Status) -> Result<(), WorkError> {
        let unit = self.unit(id);
        let made = self.journal.commit(&unit, Change::Make(status.to_line())).await;
        made.map_err(|e| WorkError::io("make", unit.path(), e))
    }

    /// Makes removals durable: after a power loss, files of a removed unit must not appear in the directory of one that
    /// has its ID since.
    pub(crate) async fn sync_removals(&self) -> Result<(), WorkError> {
        let root = self.root.clone();
        let synced = self.blocking(move || System.sync_dir(&root)).await;
        synced.map_err(|e| WorkError::io("write", &*self.root, e))
    }

    /// Gives a unit a payload that is [short](is_short), durably.
    pub(crate) async fn give_payload(&self, unit: &UnitDir, payload: Vec<u8>) -> Result<(), WorkError> {
        let given = self.journal.commit(unit, Change::File("stdin", payload)).await;
        given.map_err(|e| WorkError::io("write", unit.file("stdin"), e))
    }

    /// Gives a unit the payload of another one, which is on disk once from then on. It is durable when this returns.
    pub(crate) async fn link_payload(&self, from: &UnitDir, to: &UnitDir) -> Result<(), WorkError> {
        let (this, from, to) = (self.clone(), from.clone(), to.clone());
        let failed = to.file("stdin");
        let link = move || {
            // The journal may hold the contents for the other unit alone.
            sync_files(&System, &from.path(), ["stdin"])?;
            let aside = to.file("stdin.new");
            fs::hard_link(from.file("stdin"), &aside)?;
            fs::rename(aside, to.file("stdin"))?;
            this.sync_file(&to, "stdin")
        };
        self.blocking(link).await.map_err(|e| WorkError::io("link", failed, e))
    }

    /// Deletes the payload of a unit, durably: an empty one takes its place. Units with the same payload keep it.
    pub(crate) async fn drop_payload(&self, unit: &UnitDir) -> Result<(), WorkError> {
        let dir = unit.clone();
        let unlink = move || match fs::remove_file(dir.file("stdin")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            // Before the journal learns of it, as a replay writes into the file that is there.
            Ok(()) | Err(_) => System.sync_dir(&dir.path()),
        };
        let dropped = async {
            self.blocking(unlink).await?;
            self.journal.commit(unit, Change::File("stdin", Vec::new())).await
        };
        dropped.await.map_err(|e| WorkError::io("remove", unit.file("stdin"), e))
    }

    /// Adds a piece to the payload of a unit. Blocks.
    pub(crate) fn add_payload(stdin: &mut File, piece: &[u8]) -> io::Result<()> {
        write_all(&System, stdin, piece)?;
        disk::write_back_ahead(stdin, piece.len());
        Ok(())
    }

    /// Makes the payload of a unit durable, however long it is. Blocks.
    pub(crate) fn sync_payload(&self, unit: &UnitDir) -> io::Result<()> {
        self.sync_file(unit, "stdin")
    }

    /// Replaces the status of a unit, durably.
    pub(crate) async fn put_status(&self, unit: &UnitDir, status: &Status) -> Result<(), WorkError> {
        self.replace_status(unit, status, false).await
    }

    /// Makes the [exit record](UnitDir::exit_record) that a runner has left the status of its unit, durably.
    pub(crate) async fn adopt_exit_record(&self, unit: &UnitDir, status: &Status) -> Result<(), WorkError> {
        self.replace_status(unit, status, true).await
    }

    async fn replace_status(
        &self,
        unit: &UnitDir,
        status: &Status,
        from_exit_record: bool,
    ) -> Result<(), WorkError> {
        let counted = if status.life.state.is_final() { status.life.stdout_size } else { 0 };
        let replace = async {
            if counted > SHORT {
                let (this, dir) = (self.clone(), unit.clone());
                self.blocking(move || this.sync_file(&dir, "stdout")).await?;
            }
            let output = if counted > SHORT { 0 } else { counted };
            let status = NewStatus { line: status.to_line(), output, from_exit_record };
            self.journal.commit(unit, Change::Status(status)).await
        };
        replace.await.map_err(|e| WorkError::io("write", unit.file("status"), e))
    }

    /// Records that a unit has all it needs and waits in the queue, and since when: a restart starts it later.
    pub(crate) async fn mark_queued(&self, unit: &UnitDir) -> Result<(), WorkError> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let marked =
            self.journal.commit(unit, Change::File(QUEUED, since.as_nanos().to_string().into_bytes())).await;
        marked.map_err(|e| WorkError::io("make", unit.file(QUEUED), e))
    }

    /// Records that such a unit has got its slot, before anything is started: after a power loss it is unknown whether the
    /// command was.
    pub(crate) async fn mark_slot(&self, unit: &UnitDir) -> Result<(), WorkError> {
        let fail = |e| WorkError::io("write", unit.file(QUEUED), e);
        let dir = unit.clone();
        let mark = self.blocking(move || dir.slot_mark()).await.map_err(fail)?;
        self.journal.commit(unit, Change::File(QUEUED, mark.into_bytes())).await.map_err(fail)
    }

    /// Makes a file durable, and the names that lead to it.
    pub(super) fn sync_file(&self, unit: &UnitDir, name: &str) -> io::Result<()> {
        sync_files(&System, &unit.path(), [name])?;
        System.sync_dir(&self.root)
    }

    /// Removes a unit: at once for all readers, durably, then file by file.
    pub(crate) async fn remove(&self, unit: &UnitDir) -> Result<(), WorkError> {
        let trash = self.trash(unit);
        let (this, dir) = (self.clone(), unit.clone());
        self.blocking(move || this.move_away(&dir)).await?;
        let noted = self.journal.commit(unit, Change::Gone).await;
        noted.map_err(|e| WorkError::io("remove", unit.path(), e))?;
        self.blocking(move || clear(&trash)).await
    }

    fn trash(&self, unit: &UnitDir) -> PathBuf {
        self.root.join(format!("{TRASH}{}", unit.name()))
    }

    fn move_away(&self, unit: &UnitDir) -> Result<(), WorkError> {
        let trash = self.trash(unit);
        let moved = match fs::rename(unit.path(), &trash) {
            // Another unit of that ID is still being cleared away.
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {
                clear(&trash)?;
                fs::rename(unit.path(), &trash)
            }
            moved => moved,
        };
        match moved {
            // An earlier attempt may have moved it already.
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(WorkError::io("remove", unit.path(), e)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Makes all changes durable without the journal, and leaves it empty for the next daemon.
    pub(crate) async fn checkpoint(&self) -> io::Result<()> {
        self.journal.checkpoint().await
    }

    /// Removes a directory in which a crash has left no more of a unit than comes before its status.
    pub(crate) fn clear_half_made(&self, unit: &UnitDir) {
        let names = fs::read_dir(unit.path()).map(|names| names.flatten().map(|found| found.file_name()));
        let is_half_made = names.is_ok_and(|mut names| {
            names.all(|name| {
                name == "status.lock"
                    || name == NEW_STATUS
                    || name == "stdin" && is_empty(&unit.file("stdin"))
            })
        });
        // Anything else there is not ours to delete.
        if is_half_made {
            self.discard(unit);
        }
    }

    /// Removes a unit whose ID no client knows. After a power loss it may have to be done again. Blocks.
    pub(crate) fn discard(&self, unit: &UnitDir) {
        if let Err(error) = self.move_away(unit).and_then(|()| clear(&self.trash(unit))) {
            tracing::warn!(%error, "what a crash left of a unit stays");
        }
    }

    /// Hides a unit, durably, and keeps only its status.
    pub(crate) async fn hide(&self, id: &UnitId, status: &Status) -> Result<UnitDir, WorkError> {
        let (this, id, status) = (self.clone(), id.clone(), status.clone());
        let (unit, hidden) = (self.unit(&id), self.hidden(&id));
        let copy = hidden.clone();
        let hide = move || {
            fs::rename(this.unit(&id).path(), copy.path())
                .map_err(|e| WorkError::io("rename", copy.path(), e))?;
            for name in ["stdin", "stdout"] {
                let _ = fs::remove_file(copy.file(name));
            }
            // The one that was there before serves as well: its remote part is the same.
            let _ = copy.write_status(&status, Durability::Durable);
            System.sync_dir(&this.root).map_err(|e| WorkError::io("write", &*this.root, e))
        };
        self.blocking(hide).await?;
        let noted = self.journal.commit(&unit, Change::Gone).await;
        noted.map_err(|e| WorkError::io("rename", unit.path(), e))?;
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

/// Brings the units in a directory to where the journal of an earlier daemon says.
fn recover(root: &Path) -> Result<u64, OpenError> {
    let fail =
        |source| OpenError::Io { what: "bring to where its journal says", path: root.to_owned(), source };
    journal::recover(root, &RULES).map_err(fail)
}

/// Whether a payload is so short that [`Store::give_payload`] takes it.
pub(crate) fn is_short(payload: &[u8]) -> bool {
    payload.len() as u64 <= SHORT
}

/// Removes a directory if it is there, or the file that a command has put in its place.
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
