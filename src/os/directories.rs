//! Makes names survive a power loss. A flushed file is lost if the name of its directory was not flushed.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// The directory that a file or directory is in.
pub(crate) fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Flushes the name of a file or directory.
///
/// # Errors
/// The directory above cannot be opened or flushed.
pub(crate) fn flush_name(path: &Path) -> io::Result<()> {
    File::open(parent_of(path))?.sync_all()
}

/// Makes a directory that only this user may enter, with missing directories above it, and flushes their names. An
/// existing directory stays as it is.
///
/// # Errors
/// The directory cannot be made or flushed.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.parent().is_some() => {
            make(parent_of(path))?;
            make(path)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| flush_name(path)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_is_missing_is_made_and_private() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a/b");
        make(&path).unwrap();
        make(&path).unwrap();
        for one in ["a", "a/b"] {
            assert_eq!(temp.path().join(one).metadata().unwrap().permissions().mode() & 0o777, 0o700);
        }
        std::fs::write(temp.path().join("file"), "").unwrap();
        assert!(make(&temp.path().join("file/x")).is_err());
    }
}
