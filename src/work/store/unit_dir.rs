//! One unit's directory: its files, what each is called, and how one that Go nodes may write is read. Knows neither
//! other units nor the journal.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::disk::{Disk, END, Lock, Make, Sure, System, lock_status, open_file, replace_status, write_file};
use super::{HIDDEN, check_ours};
use crate::work::runner::identity::boot;
use crate::work::status::{BadStatus, Status};
use crate::work::{OpenError, WorkError};

/// The private file that names a process group.
const GROUP: &str = "group";
/// The private file that says since when a unit has waited for its turn.
pub(super) const QUEUED: &str = "queued";
/// More is read of no file but the payload and the output, in bytes: a request has 1 MiB at most.
pub(super) const MOST: u64 = 4 * 1024 * 1024;

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

    /// Opens one of its files, which the unit's command may have replaced: what is no regular file counts as not there.
    /// Does not wait.
    pub(crate) fn open(&self, name: &str, options: &mut OpenOptions) -> io::Result<File> {
        open_file(&self.file(name), options)
    }

    /// Reads one of its small files; of one that is too long only the beginning.
    pub(crate) fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        System.read(&self.file(name), MOST)
    }

    fn read_text(&self, name: &str) -> io::Result<String> {
        String::from_utf8(self.read(name)?).map_err(io::Error::other)
    }

    /// Whether there is anything of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        fs::symlink_metadata(self.file(name)).is_ok()
    }

    /// Reads `status`. What is replaced in one step needs no lock, and neither does what nobody writes any more;
    /// anything else is read again under the lock, as a Go runner may be rewriting it in place.
    pub(crate) fn read_status(&self) -> Result<Status, ReadError> {
        if let Some(status) = self.final_status() {
            return Ok(status);
        }
        let _lock = lock_status(&self.path, Lock::Shared);
        self.read_own_status()
    }

    /// Reads the `status` of a unit that is the caller's own from here on: nobody else writes it meanwhile.
    pub(crate) fn read_own_status(&self) -> Result<Status, ReadError> {
        Ok(Status::parse(&self.read("status")?)?)
    }

    /// The status if it is final: a file that nobody writes any more, and mostly one just written, so that no disk is
    /// waited for.
    pub(crate) fn final_status(&self) -> Option<Status> {
        self.read_own_status().ok().filter(|status| status.life.state.is_final())
    }

    /// Leaves a runner's last word for the daemon, which makes it the unit's status; nothing is durable yet. Blocks.
    pub(crate) fn leave_end(&self, status: &Status) -> io::Result<()> {
        write_file(&System, &self.file(END), &status.to_line())
    }

    /// What [`Self::leave_end`] left, if that was done to its end.
    ///
    /// # Errors
    /// When the system does not tell.
    pub(crate) fn left_end(&self) -> io::Result<Option<Status>> {
        let left = match self.read(END) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        Ok(Status::parse(&left).ok().filter(|left| left.life.state.is_final()))
    }

    /// Replaces `status` in one step, as sure as asked, for whoever has no journal. Blocks.
    pub(crate) fn write_status(&self, status: &Status, sure: Sure) -> Result<(), WorkError> {
        let write = || {
            let output = if sure == Sure::Durable { self.output_told_of(status)? } else { None };
            replace_status(&System, &self.path, &status.to_line(), output.as_ref(), sure)
        };
        write().map_err(|e| WorkError::io("write", self.file("status"), e))
    }

    /// The stdout that a final status gives the length of: what it promises has to be there.
    fn output_told_of(&self, status: &Status) -> io::Result<Option<File>> {
        if !status.life.state.is_final() || status.life.stdout_size == 0 {
            return Ok(None);
        }
        match self.open("stdout", OpenOptions::new().read(true)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Bytes in `stdout`, 0 when there is none.
    pub(crate) fn stdout_size(&self) -> u64 {
        let found = fs::symlink_metadata(self.file("stdout"));
        found.ok().filter(fs::Metadata::is_file).map_or(0, |found| found.len())
    }

    /// Bytes of payload, 0 when there is none.
    pub(crate) fn payload_size(&self) -> u64 {
        fs::metadata(self.file("stdin")).map_or(0, |m| m.len())
    }

    /// Opens `stdout` for adding at its end.
    pub(crate) fn append_stdout(&self) -> io::Result<File> {
        self.append("stdout")
    }

    /// Opens `stdin` for adding at its end.
    pub(crate) fn append_stdin(&self) -> io::Result<File> {
        self.append("stdin")
    }

    fn append(&self, name: &str) -> io::Result<File> {
        self.open(name, OpenOptions::new().append(true).create(true).mode(0o600))
    }

    /// Writes down that a client wants the unit's processes gone: their end is then a cancellation.
    pub(crate) fn mark_cancelled(&self) -> Result<(), WorkError> {
        let path = self.file("cancel");
        match System.make(&path, Make::New) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(WorkError::io("make", path, error))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Since when it has waited for its turn, as far as can be told. The file's own time would be too coarse: several
    /// units come within one tick of it.
    pub(crate) fn queued_at(&self) -> Option<SystemTime> {
        let noted = self.read_text(QUEUED).ok();
        let noted = noted.and_then(|mark| mark.split(' ').next()?.parse().ok());
        noted.map(|nanos| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)).or_else(|| self.status_time())
    }

    /// Whether [`Store::mark_queued`] was called.
    pub(crate) fn is_marked_queued(&self) -> bool {
        self.has(QUEUED)
    }

    /// The same mark for a unit whose turn has come: since when it has waited, and the boot in which it did.
    pub(super) fn turn_mark(&self) -> io::Result<String> {
        let mark = self.read_text(QUEUED)?;
        let since = mark.split(' ').next().unwrap_or_default();
        Ok(format!("{since} {}", boot()?))
    }

    /// Whether its turn came and its machine was started anew since.
    pub(crate) fn had_its_turn_before_a_reboot(&self) -> bool {
        let mark = self.read_text(QUEUED).unwrap_or_default();
        mark.split_once(' ').is_some_and(|(_, then)| boot().is_ok_and(|now| now != then))
    }

    /// Writes down the process group of a command of which something lives on.
    pub(crate) fn note_group(&self, group: u32) -> io::Result<()> {
        write_file(&System, &self.file(GROUP), group.to_string().as_bytes())
    }

    /// The process group that [`Self::note_group`] noted.
    pub(crate) fn noted_group(&self) -> Option<u32> {
        self.read_text(GROUP).ok()?.parse().ok()
    }

    /// Whether [`Self::mark_cancelled`] was called.
    pub(crate) fn is_marked_cancelled(&self) -> bool {
        self.has("cancel")
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
