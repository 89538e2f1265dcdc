//! One unit's directory: its files, their names, and how to read a file that a Go node may be writing. Knows no other
//! units.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::disk::{
    Disk, Durability, EXIT_RECORD, Flush, Lock, Make, NewStatus, System, adopt_exit_record, finish_unit,
    is_about_what_is_there, lock_status, open_file, replace_status,
};
use super::{HIDDEN, check_ours};
use crate::os::boot::boot;
use crate::work::status::Status;
use crate::work::{OpenError, WorkError};

/// The private file that names a process group.
const GROUP: &str = "group";
/// The private file that says why this node has ended the unit.
const STOPPED: &str = "stopped";
/// The private file that says since when a unit has waited in the queue.
pub(super) const QUEUED: &str = "queued";
/// The most bytes read of a file that is neither payload nor output. A request, which a status repeats, has at most 1
/// MiB.
const MOST_OF_FILE: u64 = 4 * 1024 * 1024;

/// One unit's directory. All units share the parent's path in memory, because there may be many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnitDir {
    parent: Arc<Path>,
    name: Arc<str>,
}

/// A file of what a command writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputFile {
    Stdout,
    /// Only of units whose stderr is kept apart.
    Stderr,
}

impl OutputFile {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

impl UnitDir {
    /// The directory of this name in the directory of the units.
    pub(super) fn new(parent: &Arc<Path>, name: Arc<str>) -> Self {
        Self { parent: parent.clone(), name }
    }

    /// The unit directory at this path, which the daemon has made.
    pub(crate) fn at(path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Self { parent: path.parent().unwrap_or(Path::new("")).into(), name: name.into() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.parent.join(&*self.name)
    }

    /// The directory's name in the directory of the units.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Checks that there is a directory, that it is ours, and that nobody else may change it.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong with it.
    pub(crate) fn check_owner(&self) -> Result<(), OpenError> {
        let found = fs::symlink_metadata(self.path());
        let fail = |source| OpenError::Io { what: "look at", path: self.path(), source };
        check_ours(&self.path(), &found.map_err(fail)?)
    }

    /// Whether the unit was hidden.
    pub(crate) fn is_hidden(&self) -> bool {
        self.name.starts_with(HIDDEN)
    }

    /// The time since the directory's last change; zero if that is unknown.
    pub(crate) fn age(&self) -> Duration {
        let changed = fs::metadata(self.path()).and_then(|found| found.modified());
        changed.ok().and_then(|at| at.elapsed().ok()).unwrap_or_default()
    }

    /// When the status was last written, if that is known.
    pub(crate) fn status_time(&self) -> Option<SystemTime> {
        fs::metadata(self.file("status")).and_then(|found| found.modified()).ok()
    }

    /// The path of one of the unit's files.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Opens one of the unit's files. The unit's command may have replaced it: anything but a regular file counts as
    /// missing. Never blocks on a pipe.
    pub(crate) fn open(&self, name: &str, options: &mut OpenOptions) -> io::Result<File> {
        open_file(&self.file(name), options)
    }

    /// Reads one of the unit's small files. Of a file over the limit, reads only the beginning.
    pub(crate) fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(name, OpenOptions::new().read(true))?.take(MOST_OF_FILE).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn read_text(&self, name: &str) -> io::Result<String> {
        String::from_utf8(self.read(name)?).map_err(io::Error::other)
    }

    /// Whether there is anything with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        fs::symlink_metadata(self.file(name)).is_ok()
    }

    /// Reads `status`. A final status needs no lock, because nobody writes it any more. Any other is read under the
    /// lock, because a Go runner may be rewriting it in place.
    pub(crate) fn read_status(&self) -> Result<Status, ReadError> {
        if let Some(status) = self.final_status() {
            return Ok(status);
        }
        let _lock = lock_status(&self.path(), Lock::Shared);
        self.read_own_status()
    }

    /// Reads the `status` of a unit that nobody but the caller writes.
    pub(crate) fn read_own_status(&self) -> Result<Status, ReadError> {
        Ok(Status::parse(&self.read("status")?)?)
    }

    /// The status if it is final.
    pub(crate) fn final_status(&self) -> Option<Status> {
        self.read_own_status().ok().filter(|status| status.life.state.is_final())
    }

    /// Writes a runner's exit record, which the daemon turns into the unit's status. Nothing is durable yet. Blocks.
    pub(crate) fn leave_exit_record(&self, status: &Status) -> io::Result<()> {
        self.write_file(EXIT_RECORD, &status.to_line())
    }

    /// The exit record, if a complete one was left.
    ///
    /// # Errors
    /// If that cannot be found out for now.
    pub(crate) fn exit_record(&self) -> io::Result<Option<Status>> {
        let left = match self.read(EXIT_RECORD) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        Ok(Status::parse(&left).ok().filter(|left| left.life.state.is_final()))
    }

    /// Replaces `status` in one step. Blocks.
    pub(crate) fn write_status(&self, status: &Status, durability: Durability) -> Result<(), WorkError> {
        self.replace_status(status, &|| Ok(()), false, durability)
    }

    /// Replaces `status` in one step, after `first` has made something durable.
    pub(super) fn replace_status(
        &self,
        status: &Status,
        first: &dyn Fn() -> io::Result<()>,
        is_output_kept: bool,
        durability: Durability,
    ) -> Result<(), WorkError> {
        let path = self.path();
        let new =
            NewStatus { line: status.to_line(), counts_output: counts_output(status) && !is_output_kept };
        let lock = lock_status(&path, Lock::Exclusive);
        let written = lock.and_then(|lock| replace_status(&System, &lock, &path, &new, first, durability));
        written.map_err(|e| WorkError::io("write", self.file("status"), e))
    }

    /// Durably turns the [exit record](Self::exit_record) that a runner left into the status. Blocks.
    pub(super) fn adopt_exit_record(&self, status: &Status) -> Result<(), WorkError> {
        match adopt_exit_record(&System, &self.path(), counts_output(status)) {
            Err(error) if is_about_what_is_there(&error) => self.write_status(status, Durability::Durable),
            adopted => adopted.map_err(|e| WorkError::io("write", self.file("status"), e)),
        }
    }

    /// Makes a unit durable, if it is not yet (`made` is its status file), and its whole payload. Blocks.
    pub(crate) fn finish(&self, made: Option<&File>, stdin: Option<&File>) -> io::Result<()> {
        match made {
            Some(made) => finish_unit(&System, &self.path(), made, stdin),
            None => System.sync(&stdin.map(Flush::File).into_iter().collect::<Vec<_>>()),
        }
    }

    /// Makes the names of the unit's files durable. Blocks.
    pub(crate) fn sync_names(&self) -> io::Result<()> {
        System.sync(&[Flush::Dir(&self.path())])
    }

    /// Bytes in `stdout`; 0 if there is none.
    pub(crate) fn stdout_size(&self) -> u64 {
        self.output_size(OutputFile::Stdout)
    }

    /// Bytes in one of the files; 0 if there is none.
    pub(crate) fn output_size(&self, file: OutputFile) -> u64 {
        let found = fs::symlink_metadata(self.file(file.name()));
        found.ok().filter(fs::Metadata::is_file).map_or(0, |found| found.len())
    }

    /// Bytes of payload; 0 if there is none.
    pub(crate) fn payload_size(&self) -> u64 {
        fs::metadata(self.file("stdin")).map_or(0, |m| m.len())
    }

    /// Removes the payload once the command has read it or ended. Not durable: after a power loss it may be back.
    pub(crate) fn remove_payload(&self) {
        if self.payload_size() > 0 {
            // If this fails, the payload is deleted with the unit.
            let _ = fs::remove_file(self.file("stdin"));
        }
    }

    /// Opens `stdout` for appending.
    pub(crate) fn append_stdout(&self) -> io::Result<File> {
        self.append("stdout")
    }

    /// Writes a small file. Nothing is durable yet.
    fn write_file(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        System.make(&self.file(name), Make::Emptied)?.write_all(bytes)
    }

    /// Opens `stdin` for appending.
    pub(crate) fn append_stdin(&self) -> io::Result<File> {
        self.append("stdin")
    }

    fn append(&self, name: &str) -> io::Result<File> {
        self.open(name, OpenOptions::new().append(true).create(true).mode(0o600))
    }

    /// Records that a client has cancelled the unit, so that the end of its processes counts as a cancellation.
    pub(crate) fn mark_cancelled(&self) -> Result<(), WorkError> {
        let path = self.file("cancel");
        match System.make(&path, Make::New) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(WorkError::io("make", path, error))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Records why this node is about to end the unit.
    pub(crate) fn note_stopped(&self, why: &str) -> io::Result<()> {
        self.write_file(STOPPED, why.as_bytes())
    }

    /// The cause that [`Self::note_stopped`] recorded.
    pub(crate) fn stopped(&self) -> Option<String> {
        self.read_text(STOPPED).ok()
    }

    /// Since when the unit has waited in the queue, if that is known. The time stands in the file, because file times
    /// are too coarse: several units arrive within one tick.
    pub(crate) fn queued_at(&self) -> Option<SystemTime> {
        let noted = self.read_text(QUEUED).ok();
        let noted = noted.and_then(|mark| mark.split(' ').next()?.parse().ok());
        noted.map(|nanos| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)).or_else(|| self.status_time())
    }

    /// Whether [`UnitStore::mark_queued`] was called.
    pub(crate) fn is_marked_queued(&self) -> bool {
        self.has(QUEUED)
    }

    /// The new text of the queue's mark for a unit that gets its slot: since when it has waited, and in which boot it
    /// got the slot.
    pub(super) fn slot_mark(&self) -> io::Result<String> {
        let mark = self.read_text(QUEUED)?;
        let since = mark.split(' ').next().unwrap_or_default();
        Ok(format!("{since} {}", boot()?))
    }

    /// Whether the unit got its slot before the machine was last restarted.
    pub(crate) fn had_its_slot_before_a_reboot(&self) -> bool {
        let mark = self.read_text(QUEUED).unwrap_or_default();
        mark.split_once(' ').is_some_and(|(_, then)| boot().is_ok_and(|now| now != then))
    }

    /// Records the process group of a command that has left processes running.
    pub(crate) fn note_group(&self, group: u32) -> io::Result<()> {
        self.write_file(GROUP, group.to_string().as_bytes())
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

/// Whether a status is final and counts output, which then must be durable before it.
fn counts_output(status: &Status) -> bool {
    status.life.state.is_final() && status.life.stdout_size > 0
}

/// Why a status could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The file cannot be read.
    #[error("status file cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file is not a valid status.
    #[error("status file is damaged: {0}")]
    Damaged(#[from] serde_json::Error),
}
