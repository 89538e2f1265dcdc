//! Files that a configuration names, or that are in a tree: read whole, within a bound. What is no regular file is not
//! read, and nothing is waited for: a pipe that nobody writes to would hold us for ever, and a device has no end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// The longest file of a host or a configuration.
pub(crate) const LONGEST: u64 = 16 << 20;

/// Opens a regular file for reading; links are followed.
///
/// # Errors
/// As the system's, or it is no regular file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    if kind.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

/// What is in a file that has up to `longest` bytes. Blocks no longer than the disk.
///
/// # Errors
/// As the system's, it is no regular file, or [`io::ErrorKind::FileTooLarge`].
pub(crate) fn read(path: &Path, longest: u64) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    open(path)?.take(longest + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > longest {
        let text = format!("it is longer than {longest} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(contents)
}

/// The text in a file of up to [`LONGEST`] bytes.
///
/// # Errors
/// Those of [`read`], or it is no UTF-8.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let no_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is no text in UTF-8");
    String::from_utf8(read(path, LONGEST)?).map_err(no_text)
}

/// A pipe that nobody writes to.
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
        assert_eq!(refused(&fifo), "it is no regular file");
        assert_eq!(refused(Path::new("/dev/zero")), "it is no regular file");
        assert_eq!(refused(temp.path()), "Is a directory (os error 21)");
        assert_eq!(read(&temp.path().join("d"), 3).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
