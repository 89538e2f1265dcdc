//! Files that a configuration names, or that are in a tree: read whole, within a bound. Only regular files are
//! read, and nothing is waited for, because a pipe without a writer would block for ever and a device has no end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// The longest file of a host or a configuration.
pub(crate) const LONGEST: u64 = 16 << 20;

/// Opens a regular file for reading; links are followed.
///
/// # Errors
/// The system's error, or it is not a regular file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    if kind.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

/// An open file, and who may do what with it.
pub(crate) struct OpenedFile {
    file: File,
    /// Its permission bits.
    pub mode: u32,
    /// The user to whom it belongs.
    pub owner: u32,
}

/// Opens a regular file for reading that is no link itself. The facts are of the open file, not of its name.
///
/// # Errors
/// The system's error, or it is not a regular file.
pub(crate) fn open_itself(path: &Path) -> io::Result<OpenedFile> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(OpenedFile { file, mode: facts.mode() & 0o7777, owner: facts.uid() })
}

/// Opens a regular file by a path in which nothing is a link, whoever changes directories meanwhile.
///
/// # Errors
/// The system's error, or it is not a regular file.
pub(crate) fn open_without_links(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // Before Linux 5.6, and where a sandbox knows no such call.
        Err(Errno::NOSYS | Errno::PERM) => openat(CWD, path, flags | OFlags::NOFOLLOW, Mode::empty()),
        opened => opened,
    }?;
    let file = File::from(file);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

impl OpenedFile {
    /// The text of a file of at most `longest` bytes.
    ///
    /// # Errors
    /// The system's error, it is no text, or [`io::ErrorKind::FileTooLarge`].
    pub(crate) fn text(self, longest: u64) -> io::Result<String> {
        let mut text = String::new();
        self.file.take(longest + 1).read_to_string(&mut text)?;
        if text.len() as u64 > longest {
            return Err(too_large(longest));
        }
        Ok(text)
    }
}

fn too_large(longest: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than {longest} bytes"))
}

/// The contents of a file of at most `longest` bytes. Blocks only for the disk.
///
/// # Errors
/// The system's error, it is not a regular file, or [`io::ErrorKind::FileTooLarge`].
pub(crate) fn read(path: &Path, longest: u64) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    open(path)?.take(longest + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > longest {
        return Err(too_large(longest));
    }
    Ok(contents)
}

/// The text of a file of at most [`LONGEST`] bytes.
///
/// # Errors
/// Those of [`read`], or the text is not UTF-8.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let no_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not text in UTF-8");
    String::from_utf8(read(path, LONGEST)?).map_err(no_text)
}

/// Makes a pipe without a writer.
#[cfg(test)]
pub(crate) fn pipe(path: &Path) {
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read_up_to_a_bound() {
        let temp = tempfile::tempdir().unwrap();
        let (file, link, fifo) = (temp.path().join("a"), temp.path().join("b"), temp.path().join("c"));
        std::fs::write(&file, "123").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        pipe(&fifo);
        let refused = |path: &Path| read(path, 3).unwrap_err().to_string();
        assert_eq!(read(&link, 3).unwrap(), b"123");
        assert_eq!(read(&file, 2).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(refused(&fifo), "it is not a regular file");
        assert_eq!(refused(Path::new("/dev/zero")), "it is not a regular file");
        assert_eq!(refused(temp.path()), "Is a directory (os error 21)");
        assert_eq!(read(&temp.path().join("d"), 3).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
