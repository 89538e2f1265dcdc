//! The steps by which a unit's files are made and replaced so that a crash at any moment leaves something whole, and
//! the few operations on files that they consist of. Owns the order of writes, fsyncs and renames; the operations are
//! an argument, so that tests can fail them one by one and ask what a power loss would have left.
//! Knows nothing of what is in the files, and of the journal no more than that somebody may see to durability.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;

/// How sure what is written must be once it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sure {
    /// Somebody else sees to that.
    Later,
    /// A power loss leaves what was there before, or this, whole.
    Whole,
    /// A power loss leaves this.
    Durable,
}

/// Whether a file may be there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Make {
    /// It may not.
    New,
    /// It may, and loses what is in it.
    Emptied,
}

/// Operations on files, as the system offers them.
pub(super) trait Disk {
    /// An open file.
    type File;
    /// Keeps others from a unit's status until it is dropped.
    type Lock;
    /// Makes a directory that only we can enter.
    fn make_dir(&self, path: &Path) -> io::Result<()>;
    /// Opens a file that only we can read, for writing at its end.
    fn make(&self, path: &Path, how: Make) -> io::Result<Self::File>;
    /// Opens a file that is there.
    fn open(&self, path: &Path) -> io::Result<Self::File>;
    /// What is in a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Writes some of the bytes; says how many.
    fn write(&self, file: &mut Self::File, bytes: &[u8]) -> io::Result<usize>;
    /// Writes all of the bytes from an offset on.
    fn write_at(&self, file: &mut Self::File, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes the contents of a file durable.
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    /// The same, without what is not needed for reading them.
    fn sync_data(&self, file: &Self::File) -> io::Result<()> {
        self.sync(file)
    }
    /// Makes the contents of two files durable.
    fn sync_both(&self, one: &Self::File, other: &Self::File) -> io::Result<()> {
        self.sync(one)?;
        self.sync(other)
    }
    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes everything durable on the file system that a directory is on.
    fn sync_all(&self, path: &Path) -> io::Result<()>;
    /// Gives a file or directory another name, in place of the file that had it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Replaces the contents of a file in the room that it has, durably; fails, changing nothing, without enough.
    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with all in it.
    fn remove_all(&self, path: &Path) -> io::Result<()>;
    /// Whether there is such a directory.
    fn is_dir(&self, path: &Path) -> bool;
    /// Whether a file still has a name, as far as can be told.
    fn has_name(&self, file: &Self::File) -> bool;
    /// Takes the lock that whoever writes a unit's status holds.
    fn lock(&self, unit: &Path) -> io::Result<Self::Lock>;
}

/// Makes a unit's directory with its first files; nothing is durable yet. Nothing is left of one that fails.
pub(super) fn make_unit<D: Disk>(disk: &D, unit: &Path, status: &[u8]) -> io::Result<()> {
    // Fails, harming nothing, when there is such a unit already.
    disk.make_dir(unit)?;
    let make = || {
        disk.make(&unit.join("status.lock"), Make::New)?;
        disk.make(&unit.join("stdin"), Make::New)?;
        // Nobody knows the ID yet, so nobody can see this one half-written.
        let mut file = disk.make(&unit.join("status"), Make::New)?;
        write_all(disk, &mut file, status)
    };
    make().inspect_err(|_| drop(disk.remove_all(unit)))
}

/// Makes a file with these contents, or gives them to one that is there; nothing is durable yet.
pub(super) fn write_file<D: Disk>(disk: &D, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = disk.make(path, Make::Emptied)?;
    write_all(disk, &mut file, bytes)
}

/// Makes these files of a unit durable, with their names and the unit's own. What is gone was removed.
pub(super) fn sync_files<'a, D: Disk>(
    disk: &D,
    unit: &Path,
    names: impl IntoIterator<Item = &'a str>,
) -> io::Result<()> {
    let there = |done: io::Result<()>| match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    };
    for name in names {
        there(disk.open(&unit.join(name)).and_then(|file| disk.sync(&file)))?;
    }
    there(disk.sync_dir(unit))
}

/// The private file with a runner's last word.
pub(super) const END: &str = "end";
/// What is brought to the disk at a time while a payload comes in, in bytes.
const WRITE_BACK: u64 = 4 * 1024 * 1024;

/// Of a file that is to be durable, what is written out before anything else, in bytes.
const LITTLE: u64 = 64 * 1024;

/// Has the disk begin with what a payload that goes on has so far, after `added` more bytes, so that little is left to
/// wait for at its end. A mere hint: Linux begins to write out dirty pages that are said not to be needed soon, and
/// keeps those that it is writing.
pub(super) fn write_back_ahead(mut stdin: &File, added: usize) {
    let Ok(end) = stdin.stream_position() else { return };
    let before = end.saturating_sub(added as u64);
    let (from, to) = (before / WRITE_BACK * WRITE_BACK, end / WRITE_BACK * WRITE_BACK);
    if let Some(length) = NonZeroU64::new(to - from) {
        let _mere_hint = rustix::fs::fadvise(stdin, from, Some(length), rustix::fs::Advice::DontNeed);
    }
}

/// Replaces `status` in one step, as sure as asked. The contents of `output`, of which the status tells, are as sure
/// before it.
pub(super) fn replace_status<D: Disk>(
    disk: &D,
    unit: &Path,
    status: &[u8],
    output: Option<&D::File>,
    sure: Sure,
) -> io::Result<()> {
    let _lock = disk.lock(unit)?;
    let (old, new) = (unit.join("status"), unit.join(".status.new"));
    let replace = || {
        let mut file = match disk.make(&new, Make::New) {
            // What an end in the middle has left: emptied, it might come back after a power loss, under the new name.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                disk.remove(&new)?;
                disk.make(&new, Make::New)?
            }
            made => made?,
        };
        write_all(disk, &mut file, status)?;
        match output {
            _ if sure == Sure::Later => {}
            Some(output) => disk.sync_both(&file, output)?,
            None => disk.sync(&file)?,
        }
        disk.rename(&new, &old)
    };
    if let Err(error) = replace() {
        let _ = disk.remove(&new);
        let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        // For a disk without room for a second copy: what filled it may be the unit's own output, and a unit that
        // has ended must not go on running in the books.
        if !full {
            return Err(error);
        }
        if let Some(output) = output {
            disk.sync(output)?;
            disk.sync_dir(unit)?;
        }
        disk.overwrite(&old, status)?;
    }
    // After an overwriting too: the name may be one that an earlier replacement left in memory alone.
    if sure == Sure::Durable { disk.sync_dir(unit) } else { Ok(()) }
}

/// Makes what a runner has left in [`END`] the unit's status, as [`replace_status`] would. It has no need of the lock: a
/// runner that has left it is the only one who could have written.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] if nothing was left.
pub(super) fn adopt_end<D: Disk>(
    disk: &D,
    unit: &Path,
    output: Option<&D::File>,
    sure: Sure,
) -> io::Result<()> {
    let end = unit.join(END);
    if sure != Sure::Later {
        let file = disk.open(&end)?;
        match output {
            Some(output) => disk.sync_both(&file, output)?,
            None => disk.sync(&file)?,
        }
    }
    disk.rename(&end, &unit.join("status"))?;
    if sure == Sure::Durable { disk.sync_dir(unit) } else { Ok(()) }
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
    type Lock = File;

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
        options.open(path)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        File::open(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        file.write(bytes)
    }

    fn write_at(&self, file: &mut File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn sync_both(&self, one: &File, other: &File) -> io::Result<()> {
        // What is little is written out for both before either is waited for: the first wait is then all but the
        // only one, as a journal commits both and a disk takes them beside each other.
        for file in [one, other] {
            let length = NonZeroU64::new(LITTLE);
            let _mere_hint = rustix::fs::fadvise(file, 0, length, rustix::fs::Advice::DontNeed);
        }
        other.sync_all()?;
        one.sync_all()
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn sync_all(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(path)?)?)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        // The file keeps its blocks, so what fits into them can be written; a lock keeps readers from seeing half
        // of it.
        let file = OpenOptions::new().write(true).open(path)?;
        let found = file.metadata()?;
        // In one write, so that nobody's end leaves half of it: what is left of a longer line becomes blanks.
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().max(found.len() as usize), b' ');
        // st_blocks counts units of 512 bytes, whatever the file system's own are.
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

    fn is_dir(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
    }

    fn has_name(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|found| found.nlink() > 0)
    }

    fn lock(&self, unit: &Path) -> io::Result<File> {
        lock_status(unit, FlockOperation::LockExclusive)
    }
}

/// Takes the lock of a unit's status, as Go nodes do.
pub(super) fn lock_status(unit: &Path, how: FlockOperation) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    let file = options.open(unit.join("status.lock"))?;
    rustix::fs::flock(&file, how)?;
    Ok(file)
}
