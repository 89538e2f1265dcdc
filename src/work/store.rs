//! Units on disk: one directory each, named by the unit's ID, with the files of docs/protocol.md#unit-directory:
//! those that Go nodes keep, and our private ones. Owns safe modes, atomic replacement and durability; what
//! blocks is for callers off the runtime, or goes through [`Store::blocking`]. Knows nothing of what a state
//! means, nor what is in the files of a runner.
//!
//! `node_dir` is the directory that all are in, `unit_dir` is one unit's directory, `disk` has the steps that
//! make a crash harmless, `journal` makes many small changes durable together.

mod disk;
mod journal;
#[cfg(test)]
mod model;
mod node_dir;
#[cfg(test)]
mod on_disk;
#[cfg(test)]
mod tests;
mod unit_dir;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{Semaphore, oneshot};

pub(crate) use self::disk::Sure;
use self::disk::{System, sync_files, write_all};
use self::journal::{Change, Journal, Tells};
pub use self::node_dir::NodeDirectory;
use self::node_dir::{check_ours, node_directory};
use self::unit_dir::QUEUED;
pub(crate) use self::unit_dir::{ReadError, UnitDir};
use super::group_sync::GroupSync;
use super::runner::identity::boot;
use super::status::Status;
use super::unit::UnitId;
use super::{OpenError, WorkError};
use crate::wire::NodeId;

/// File operations in flight at a time, besides those of the journal: more than this only adds threads.
const CONCURRENT: usize = 32;
/// What is so short, in bytes, becomes durable by being in the journal too; what is longer is written once.
const SHORT: usize = 32 * 1024;
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
    journal: Journal,
}

impl Store {
    /// Checks the data directory, or makes it, and makes the node's own one in it. The units are brought to where the
    /// journal of a daemon says that did not stop in order.
    pub(crate) fn open(data_dir: &Path, node: &NodeId) -> Result<Self, OpenError> {
        let root = node_directory(data_dir, node)?;
        let opened = boot().and_then(|boot| Journal::open(&root, &boot));
        let fail =
            |source| OpenError::Io { what: "bring to where its journal says", path: root.clone(), source };
        let journal = opened.map_err(fail)?;
        let slots = Arc::new(Semaphore::new(CONCURRENT));
        Ok(Self { root, slots, names: Arc::default(), journal })
    }

    /// The directory of a unit, which need not exist.
    pub(crate) fn unit(&self, id: &UnitId) -> UnitDir {
        UnitDir::at(self.root.join(id.as_str()))
    }

    /// The directory of a unit that was hidden.
    pub(crate) fn hidden(&self, id: &UnitId) -> UnitDir {
        UnitDir::at(self.root.join(format!("{HIDDEN}{id}")))
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

    /// Makes a unit, with an empty payload, that survives a power loss from here on.
    pub(crate) async fn create(&self, id: &UnitId, status: &Status) -> Result<(), WorkError> {
        let unit = self.unit(id);
        let made = self.commit(&unit, Change::Make(status.to_line())).await;
        made.map_err(|e| WorkError::io("make", unit.path(), e))
    }

    /// Makes removals durable: what a removed unit leaves must not be found, after a power loss, in the directory of
    /// one that was made since under its ID.
    pub(crate) async fn forget_removed(&self) -> Result<(), WorkError> {
        let this = self.clone();
        let synced = self.blocking(move || this.names.sync(&this.root)).await;
        synced.map_err(|e| WorkError::io("write", &self.root, e))
    }

    /// Gives a unit a payload that is [short](is_short), durably.
    pub(crate) async fn give_payload(&self, unit: &UnitDir, payload: Vec<u8>) -> Result<(), WorkError> {
        let given = self.commit(unit, Change::File("stdin", payload)).await;
        given.map_err(|e| WorkError::io("write", unit.file("stdin"), e))
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

    /// Replaces the status of a unit, durably. `done` is called then, on another thread, or when that failed; it is
    /// called whether somebody waits or not.
    pub(crate) fn put_status(
        &self,
        unit: &UnitDir,
        status: &Status,
        done: impl FnOnce(Result<(), WorkError>) + Send + 'static,
    ) {
        self.note_status(unit, status, Change::Status, done);
    }

    /// The same for the one that a runner [has left](UnitDir::leave_end).
    pub(crate) fn adopt_end(
        &self,
        unit: &UnitDir,
        status: &Status,
        done: impl FnOnce(Result<(), WorkError>) + Send + 'static,
    ) {
        self.note_status(unit, status, Change::Left, done);
    }

    fn note_status(
        &self,
        unit: &UnitDir,
        status: &Status,
        change: fn(Vec<u8>, Tells) -> Change,
        done: impl FnOnce(Result<(), WorkError>) + Send + 'static,
    ) {
        let (unit, line, store) = (unit.clone(), status.to_line(), self.clone());
        let path = unit.file("status");
        let done = move |put: io::Result<()>| done(put.map_err(|e| WorkError::io("write", path, e)));
        match status.life.state.is_final().then_some(status.life.stdout_size) {
            None | Some(0) => self.journal.commit(&unit, change(line, Tells::Nothing), done),
            Some(size) if size <= SHORT as u64 => {
                self.journal.commit(&unit, change(line, Tells::OfOutput(size)), done);
            }
            Some(_) => drop(tokio::spawn(async move {
                let (this, dir) = (store.clone(), unit.clone());
                match store.blocking(move || this.sync_file(&dir, "stdout")).await {
                    Ok(()) => store.journal.commit(&unit, change(line, Tells::Nothing), done),
                    Err(error) => done(Err(error)),
                }
            })),
        }
    }

    /// Writes down that a unit has all it needs and waits for its turn, and since when: a restart starts it then.
    pub(crate) async fn mark_queued(&self, unit: &UnitDir) -> Result<(), WorkError> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let marked = self.commit(unit, Change::File(QUEUED, since.as_nanos().to_string().into_bytes())).await;
        marked.map_err(|e| WorkError::io("make", unit.file(QUEUED), e))
    }

    /// Writes down that the turn of such a unit has come, before anything is started: should the power fail, nobody could
    /// tell whether it was.
    pub(crate) async fn mark_turn(&self, unit: &UnitDir) -> Result<(), WorkError> {
        let fail = |e| WorkError::io("write", unit.file(QUEUED), e);
        let dir = unit.clone();
        let mark = self.blocking(move || dir.turn_mark()).await.map_err(fail)?;
        self.commit(unit, Change::File(QUEUED, mark.into_bytes())).await.map_err(fail)
    }

    async fn commit(&self, unit: &UnitDir, change: Change) -> io::Result<()> {
        let (answer, answered) = oneshot::channel();
        // Nobody to answer to is no reason not to do it.
        self.journal.commit(unit, change, move |done| drop(answer.send(done)));
        answered.await.unwrap_or_else(|_| Err(no_journal()))
    }

    /// Makes a file durable, and that it is there.
    fn sync_file(&self, unit: &UnitDir, name: &str) -> io::Result<()> {
        sync_files(&System, unit.path(), [name])?;
        self.names.sync(&self.root)
    }

    /// Removes a unit: at once for everybody who looks, durably, then file by file.
    pub(crate) async fn remove(&self, unit: &UnitDir) -> Result<(), WorkError> {
        let trash = self.trash(unit);
        let (this, dir) = (self.clone(), unit.clone());
        self.blocking(move || this.move_away(&dir)).await?;
        let noted = self.commit(unit, Change::Gone).await;
        noted.map_err(|e| WorkError::io("remove", unit.path(), e))?;
        self.blocking(move || clear(&trash)).await
    }

    fn trash(&self, unit: &UnitDir) -> PathBuf {
        let name = unit.path().file_name().unwrap_or_default().to_string_lossy();
        self.root.join(format!("{TRASH}{name}"))
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
            // What an earlier attempt has left may still be there.
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(WorkError::io("remove", unit.path(), e)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Makes all that was promised durable without the journal, which is left empty, for whoever has the units next.
    pub(crate) async fn settle(&self) -> io::Result<()> {
        let (answer, answered) = oneshot::channel();
        self.journal.settle(move |done| drop(answer.send(done)));
        answered.await.unwrap_or_else(|_| Err(no_journal()))
    }

    /// Removes a directory in which a crash has left no more of a unit than comes before its status.
    pub(crate) fn clear_half_made(&self, unit: &UnitDir) {
        let names = fs::read_dir(unit.path()).map(|names| names.flatten().map(|found| found.file_name()));
        let is_half_made = names.is_ok_and(|mut names| {
            names.all(|name| name == "status.lock" || name == "stdin" && is_empty(&unit.file("stdin")))
        });
        // Whatever else lies there is not ours to delete.
        if is_half_made {
            self.discard(unit);
        }
    }

    /// Removes what nobody was told of; after a power loss it may have to be done again. Blocks.
    pub(crate) fn discard(&self, unit: &UnitDir) {
        if let Err(error) = self.move_away(unit).and_then(|()| clear(&self.trash(unit))) {
            tracing::warn!(%error, "what a crash left of a unit stays");
        }
    }

    /// Takes a unit out of everybody's sight, durably, and keeps of it no more than its status.
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
            // What stood there before serves as well: its remote part is the same.
            let _ = copy.write_status(&status, Sure::Durable);
            this.names.sync(&this.root).map_err(|e| WorkError::io("write", &this.root, e))
        };
        self.blocking(hide).await?;
        let noted = self.commit(&unit, Change::Gone).await;
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

/// Whether a payload is so short that [`Store::give_payload`] takes it.
pub(crate) fn is_short(payload: &[u8]) -> bool {
    payload.len() <= SHORT
}

fn no_journal() -> io::Error {
    io::Error::other("the thread that writes the journal is gone")
}

/// Removes a directory, if it is there, or what a command has put in its place.
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
