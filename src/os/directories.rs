//! Directories of our own that outlast a power loss. A file that is flushed is lost with a directory whose name is not.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Makes a directory that only this user may enter, and those above it that are missing. One that exists stays as it is. Its
/// name is flushed in any case: whoever made it may not have come to that.
///
/// # Errors
/// The directory cannot be made or flushed.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    let is_new = match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(parent)?;
            return make(path);
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        made => made.map(|()| true)?,
    };
    match File::open(parent).and_then(|parent| parent.sync_all()) {
        // Where others have made it, it may be on what cannot be read or flushed.
        Err(_) if !is_new => Ok(()),
        flushed => flushed,
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
