//! The steps that make and replace a unit's files so that a crash at any moment leaves whole files, and the few file
//! operations that these steps consist of. Owns the order of writes, fsyncs and renames. The operations are an argument
//! ([`Disk`]), so that tests can fail each of them and check what a power loss would have left. Knows nothing of what
//! is in the files.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

/// How durable a change is when the call that makes it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Readers see the change. Any crash may lose it.
    Volatile,
    /// Readers see the change, and it becomes durable soon. A power loss leaves the old state or the new one, either of
    /// them whole.
    Deferred,
    /// The change survives a power loss.
    Durable,
}

/// Whether a file may be there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Make {
    /// It may not: then the operation fails.
    New,
    /// It may. Then it is emptied.
    Emptied,
}

/// Operations on files, as the system offers them.
pub(super) trait Disk {
    /// An open file.
    type File;
    /// Makes a directory that only we can enter.
    fn make_dir(&self, path: &Path) -> io::Result<()>;
    /// Opens a file that only we can read, for writing.
    fn make(&self, path: &Path, how: Make) -> io::Result<Self::File>;
    fn open(&self, path: &Path) -> io::Result<Self::File>;
    /// Writes some of the bytes; returns how many.
    fn write(&self, file: &mut Self::File, bytes: &[u8]) -> io::Result<usize>;
    /// Makes files and directories durable at the same time. The results are in the order of the request.
    fn sync_each(&self, all: &[Flush<'_, Self::File>]) -> Vec<io::Result<()>>;
    /// Renames a file or directory. A file that had the new name is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file a second name.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Durably replaces a file's contents within the blocks that it has. If they are too few, this fails and changes
    /// nothing.
    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with all in it.
    fn remove_all(&self, path: &Path) -> io::Result<()>;
    /// Makes all of them durable at the same time.
    fn sync(&self, all: &[Flush<'_, Self::File>]) -> io::Result<()> {
        self.sync_each(all).into_iter().collect()
    }
}

/// What is made durable.
pub(super) enum Flush<'a, F> {
    /// The contents of a file.
    File(&'a F),
    /// The names in a directory.
    Dir(&'a Path),
}

/// Makes a unit's directory with its first files, which [`finish_unit`] makes durable. Returns the status file. If this
/// fails, nothing is left of the unit, unless the power fails too.
pub(super) fn make_unit<D: Disk>(disk: &D, unit: &Path, status: &[u8]) -> io::Result<D::File> {
    // This fails and changes nothing if the unit exists already.
    disk.make_dir(unit)?;
    let make = || {
        // The status is complete before it gets its name, so that a daemon that is killed here leaves no half of a
        // status. A power loss may still damage the status. The draft's name stays until the unit is durable: as long
        // as it is there, nobody was told of the unit.
        let draft = unit.join(NEW_STATUS);
        let file = write_draft(disk, &draft, status)?;
        disk.make(&unit.join("status.lock"), Make::New)?;
        disk.make(&unit.join("stdin"), Make::New)?;
        disk.link(&draft, &unit.join("status"))?;
        Ok(file)
    };
    make().inspect_err(|_| unmake_unit(disk, unit))
}

/// Removes a unit that could not be made. The status goes first, because a power loss may damage it.
pub(super) fn unmake_unit<D: Disk>(disk: &D, unit: &Path) {
    let _ = disk.remove(&unit.join("status"));
    let _ = disk.remove_all(unit);
}

/// Makes a new unit durable, together with its payload if one is given.
pub(super) fn finish_unit<D: Disk>(
    disk: &D,
    unit: &Path,
    status: &D::File,
    stdin: Option<&D::File>,
) -> io::Result<()> {
    let units = unit.parent().unwrap_or(unit);
    let own = [Flush::File(status), Flush::Dir(unit), Flush::Dir(units)];
    disk.sync(&own.into_iter().chain(stdin.map(Flush::File)).collect::<Vec<_>>())?;
    // The draft may be gone: a later replacement of the status renames or removes it.
    let _ = disk.remove(&unit.join(NEW_STATUS));
    Ok(())
}

/// Durably renames a unit's directory, so that nobody finds the unit any more.
pub(super) fn move_away<D: Disk>(disk: &D, unit: &Path, to: &Path) -> io::Result<()> {
    disk.rename(unit, to)?;
    unit.parent().map_or(Ok(()), |units| disk.sync(&[Flush::Dir(units)]))
}

/// Durably writes a small file of a unit, new or in place of the old contents.
pub(super) fn put_file<D: Disk>(disk: &D, unit: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut file = disk.make(&unit.join(name), Make::Emptied)?;
    write_all(disk, &mut file, bytes)?;
    disk.sync(&[Flush::File(&file), Flush::Dir(unit)])
}

/// Makes the output of a unit durable.
pub(super) fn sync_output<D: Disk>(disk: &D, unit: &Path) -> io::Result<()> {
    let output = open_output(disk, unit)?;
    disk.sync(&output.iter().map(Flush::File).chain([Flush::Dir(unit)]).collect::<Vec<_>>())
}

/// Opens the output of a unit; `None` if it was removed, or the unit's own command has made it inaccessible. Either
/// concerns this unit alone.
fn open_output<D: Disk>(disk: &D, unit: &Path) -> io::Result<Option<D::File>> {
    match disk.open(&unit.join("stdout")) {
        Err(error) if is_about_what_is_there(&error) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Whether an operation failed because a file was removed or replaced by something else. Such a failure concerns one
/// unit alone; a failing or full disk concerns all units.
pub(super) fn is_about_what_is_there(error: &io::Error) -> bool {
    use io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::AlreadyExists
            | ErrorKind::PermissionDenied
            | ErrorKind::CrossesDevices
    )
}

/// The private file in which a status is written before it gets its name.
pub(super) const NEW_STATUS: &str = ".status.new";
/// The private file with a runner's exit record: the final status, for the daemon to make durable.
pub(super) const EXIT_RECORD: &str = "end";
/// Bytes of an arriving payload that are written back at a time.
const WRITE_BACK: u64 = 4 * 1024 * 1024;

/// Lets the kernel begin to write out what has come of a payload, of which the last `added` bytes are new, so that the
/// final flush has little left to do. This is only a hint: told that dirty pages are not needed soon, Linux begins to
/// write them out, and keeps them in memory until they are written.
pub(super) fn write_back_ahead(mut stdin: &File, added: usize) {
    let Ok(end) = stdin.stream_position() else { return };
    let before = end.saturating_sub(added as u64);
    let (from, to) = (before / WRITE_BACK * WRITE_BACK, end / WRITE_BACK * WRITE_BACK);
    if let Some(length) = NonZeroU64::new(to - from) {
        let _ = rustix::fs::fadvise(stdin, from, Some(length), rustix::fs::Advice::DontNeed);
    }
}

/// A file that is flushed only once, by the first caller that needs it durable. The other callers wait for that flush
/// and get its result. A second flush would prove nothing, because a device that has failed forgets what it was to
/// write.
#[derive(Debug)]
pub(crate) struct FlushOnce {
    file: File,
    /// Set after the flush: the error's number, or `None` if it succeeded.
    failed: OnceLock<Option<i32>>,
}

impl FlushOnce {
    pub(crate) fn new(file: File) -> Self {
        Self { file, failed: OnceLock::new() }
    }

    /// Makes the file durable. Blocks.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let flush = || self.file.sync_all().err().map(|error| errno(&error).raw_os_error());
        self.failed.get_or_init(flush).map_or(Ok(()), |number| Err(io::Error::from_raw_os_error(number)))
    }
}

/// A status that is to be written.
pub(super) struct NewStatus {
    pub(super) line: Vec<u8>,
    /// The status counts output, which must be durable before the status is.
    pub(super) counts_output: bool,
}

/// Replaces `status` in one step, under its lock. The output that it counts, and what `first` flushes, are durable
/// before the new status gets its name.
pub(super) fn replace_status<D: Disk>(
    disk: &D,
    _lock: &Option<File>,
    unit: &Path,
    NewStatus { line: status, counts_output }: &NewStatus,
    first: &dyn Fn() -> io::Result<()>,
    durability: Durability,
) -> io::Result<()> {
    let (old, new) = (unit.join("status"), unit.join(NEW_STATUS));
    let is_counted = *counts_output && durability == Durability::Durable;
    let output = if is_counted { open_output(disk, unit)? } else { None };
    let draft = match write_draft(disk, &new, status) {
        // A crash left this draft. It is removed, not emptied: after a power loss, its old contents might reappear
        // under the new name.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            disk.remove(&new).and_then(|()| write_draft(disk, &new, status))
        }
        written => written,
    };
    // The first result is the draft's.
    let mut flushed =
        disk.sync_each(&draft.iter().chain(&output).map(Flush::File).collect::<Vec<_>>()).into_iter();
    let drafted = draft.and_then(|_| flushed.next().unwrap_or(Ok(())));
    flushed.collect::<io::Result<()>>().and_then(|()| first()).inspect_err(|_| drop(disk.remove(&new)))?;
    if let Err(error) = drafted.and_then(|()| disk.rename(&new, &old)) {
        let _ = disk.remove(&new);
        // On a disk without room for a second file the old one is overwritten, because the unit's own output may have
        // filled the disk, and a unit that has ended must not be listed as running.
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => disk.overwrite(&old, status)?,
            _ => return Err(error),
        }
    }
    // Also after an overwrite, because the name from an earlier replacement may not be durable yet.
    if durability == Durability::Durable { disk.sync(&[Flush::Dir(unit)]) } else { Ok(()) }
}

/// Writes a new status to a file of its own.
fn write_draft<D: Disk>(disk: &D, path: &Path, status: &[u8]) -> io::Result<D::File> {
    let mut file = disk.make(path, Make::New)?;
    write_all(disk, &mut file, status).map(|()| file)
}

/// Durably turns a runner's exit record into the unit's status. Needs no lock: the runner, the only writer, has ended.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] if there is no exit record.
pub(super) fn adopt_exit_record<D: Disk>(disk: &D, unit: &Path, counts_output: bool) -> io::Result<()> {
    let record = unit.join(EXIT_RECORD);
    let output = if counts_output { open_output(disk, unit)? } else { None };
    let file = disk.open(&record)?;
    disk.sync(&output.iter().chain([&file]).map(Flush::File).collect::<Vec<_>>())?;
    disk.rename(&record, &unit.join("status"))?;
    disk.sync(&[Flush::Dir(unit)])
}

pub(super) fn write_all<D: Disk>(disk: &D, file: &mut D::File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match disk.write(file, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The operating system's files.
#[derive(Debug, Clone, Copy)]
pub(super) struct System;

impl Disk for System {
    type File = File;

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(path)
    }

    fn make(&self, path: &Path, how: Make) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).mode(0o600);
        match how {
            Make::New => options.create_new(true),
            Make::Emptied => options.create(true).truncate(true),
        };
        open_file(path, &mut options)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        open_file(path, OpenOptions::new().read(true))
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        file.write(bytes)
    }

    fn sync_each(&self, all: &[Flush<'_, File>]) -> Vec<io::Result<()>> {
        let Some((last, others)) = all.split_last() else { return Vec::new() };
        std::thread::scope(|scope| {
            let begun = others.iter().map(|one| {
                // If no thread can be started, this flush runs here, before the next is begun.
                std::thread::Builder::new().spawn_scoped(scope, || one.wait()).map_err(|_| one.wait())
            });
            let begun: Vec<_> = begun.collect();
            let last = last.wait();
            let ended = begun.into_iter().map(|begun| match begun {
                Ok(thread) => thread.join().unwrap_or_else(|_| Err(io::Error::other("a flush has panicked"))),
                Err(waited) => waited,
            });
            ended.chain([last]).collect()
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        // What fits into the file's blocks can be written even to a full disk. The lock keeps readers from seeing half
        // of it.
        let file = open_file(path, OpenOptions::new().write(true))?;
        let found = file.metadata()?;
        // A single write, so that a daemon killed meanwhile leaves no half of a status. Blanks cover the rest of a
        // longer line.
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().max(found.len() as usize), b' ');
        // st_blocks counts units of 512 bytes, whatever the file system's block size is.
        if bytes.len() as u64 > found.blocks() * 512 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.write_all_at(&bytes, 0)?;
        file.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }
}

impl Flush<'_, File> {
    fn wait(&self) -> io::Result<()> {
        match self {
            Self::File(file) => file.sync_all(),
            Self::Dir(path) => {
                let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits() as i32;
                OpenOptions::new().read(true).custom_flags(flags).open(path)?.sync_all()
            }
        }
    }
}

/// Opens one of a unit's files; all of them are opened here. A command can put anything into its unit's directory, so
/// anything but a regular file counts as missing, and opening never blocks on a pipe or device.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] also if something other than a regular file is there.
pub(super) fn open_file(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let no_file = || io::Error::new(io::ErrorKind::NotFound, "there is something else in place of the file");
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match options.custom_flags(flags.bits() as i32).open(path) {
        Err(error) if [Errno::LOOP, Errno::NXIO, Errno::NOTDIR].contains(&errno(&error)) => {
            return Err(no_file());
        }
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(no_file());
    }
    // Non-blocking mode means nothing for a regular file, but a command that inherits this one might check the flag.
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// How long to wait for the lock of a status, and between attempts. Runners hold it for one write, but a command can
/// hold it forever.
const LOCK_PATIENCE: Duration = Duration::from_millis(250);
const LOCK_LOOK: Duration = Duration::from_millis(1);

/// Takes the lock of a unit's status, as Go nodes do; `None` if it is held too long or its file cannot be opened, and
/// the caller then goes on without. The lock only keeps readers from seeing half of what a runner writes, which is not
/// worth a longer wait.
pub(super) fn lock_status(unit: &Path, how: Lock) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    let file = match open_file(&unit.join("status.lock"), &mut options) {
        // If the unit itself is missing, opening its status will show that.
        Err(error) if is_about_what_is_there(&error) => return Ok(None),
        opened => opened?,
    };
    let how = match how {
        Lock::Shared => FlockOperation::NonBlockingLockShared,
        Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match rustix::fs::flock(&file, how) {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(LOCK_LOOK),
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Who else may hold the lock of a status at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    /// Other readers.
    Shared,
    /// Nobody.
    Exclusive,
}
