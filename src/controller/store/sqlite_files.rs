//! The files of a SQLite store: its lock, its copies, and the restore of a backup. This module knows no table, and
//! nothing of how the store is used.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::error::Error;
use super::sqlite::{look, open_reader};
use crate::controller::core::InstanceName;
use crate::os::directories::{flush_name, parent_of};

/// Replaces the store `to` with a backup, and keeps the former file beside it with the ending `.old`. The daemon must
/// not run.
///
/// # Errors
/// A daemon has the store open, or the file is no backup that this program understands.
pub fn restore(backup: &Path, to: &Path) -> Result<(), Error> {
    let store = to;
    make_store_directory(store)?;
    let _lock = lock_file(store, &"restore".into())?;
    fs::metadata(backup).map_err(Error::file(backup))?;
    let from = open_reader(backup)?;
    let verdict: String = from.query_row("PRAGMA quick_check", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Err(Error::Corrupt(format!("{}: {verdict}", backup.display())));
    }
    look(backup)?;
    let new = with_suffix(store, ".new");
    if let Err(error) = fs::remove_file(&new)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(Error::File { path: new, source: error });
    }
    copy(&from, &new)?;
    // The operator may be another user than the daemon, which owns the directory.
    give_to_owner(&new)?;
    give_store_to_owner(store)?;
    keep_old(store)?;
    // The log of the former database must not be applied to the new one.
    for suffix in ["-wal", "-shm"] {
        let _absent = fs::remove_file(with_suffix(store, suffix));
    }
    fs::rename(&new, store).map_err(Error::file(store))?;
    flush_name(store).map_err(Error::file(parent_of(store)))
}

/// Makes the directory of a store: on a new host the daemon has not made it yet.
pub(super) fn make_store_directory(store: &Path) -> Result<(), Error> {
    make_directory(parent_of(store))
}

/// Makes a directory that belongs to its parent's owner.
fn make_directory(directory: &Path) -> Result<(), Error> {
    if directory.exists() {
        return Ok(());
    }
    make_directory(parent_of(directory))?;
    let made = fs::DirBuilder::new().mode(0o700).create(directory);
    made.and_then(|()| flush_name(directory)).map_err(Error::file(directory))?;
    give_to_owner(directory)
}

/// Gives a store the owner and group of its directory.
pub(super) fn give_store_to_owner(store: &Path) -> Result<(), Error> {
    let files = ["", "-wal", "-shm", ".lock"].map(|suffix| with_suffix(store, suffix));
    files.iter().filter(|file| file.exists()).try_for_each(|file| give_to_owner(file))
}

/// Gives a file the owner and group of its directory.
fn give_to_owner(file: &Path) -> Result<(), Error> {
    let (directory, own) = (fs::metadata(parent_of(file)), fs::metadata(file));
    let (directory, own) = (directory.map_err(Error::file(file))?, own.map_err(Error::file(file))?);
    if (directory.uid(), directory.gid()) == (own.uid(), own.gid()) {
        return Ok(());
    }
    chown(file, Some(directory.uid()), Some(directory.gid())).map_err(Error::file(file))
}

/// Moves the log's content into the database, and gives the database a second name.
fn keep_old(store: &Path) -> Result<(), Error> {
    if !store.exists() {
        return Ok(());
    }
    // A database that cannot be opened is kept as it is.
    if let Ok(connection) = Connection::open(store) {
        let _unreadable = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
    let old = with_suffix(store, ".old");
    if let Err(error) = fs::remove_file(&old)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(Error::File { path: old, source: error });
    }
    fs::hard_link(store, &old).map_err(Error::file(old))
}

/// Copies what is committed into a new, compact file.
pub(super) fn copy(from: &Connection, to: &Path) -> Result<(), Error> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(to);
    let file = file.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            std::io::Error::other("it exists already: give the name of a file that does not exist")
        }
        _ => error,
    });
    let file = file.map_err(Error::file(to))?;
    let name = to.to_str().ok_or_else(|| Error::Settings(format!("{} is not UTF-8", to.display())))?;
    let copied = from.execute("VACUUM INTO ?1", [name]).map_err(Error::from);
    let copied = copied.and_then(|_| file.sync_all().map_err(Error::file(to)));
    let copied = copied.and_then(|()| flush_name(to).map_err(Error::file(parent_of(to))));
    copied.inspect_err(|_| drop(fs::remove_file(to)))
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Takes the lock beside the database and writes down who has it. The system frees it when the process ends.
pub(super) fn lock_file(path: &Path, node: &InstanceName) -> Result<File, Error> {
    let name = with_suffix(path, ".lock");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(&name).map_err(Error::file(&name))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // The holder may be writing its name right now.
            let _incomplete = file.read_to_string(&mut holder);
            return Err(Error::Held { path: path.to_owned(), holder: holder.trim().to_owned() });
        }
        Err(TryLockError::Error(source)) => return Err(Error::File { path: name, source }),
    }
    let text = format!("node {node}, process {}\n", std::process::id());
    let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
    written.map_err(Error::file(name))?;
    Ok(file)
}
