//! Atomic replacement of small files: a reader, or a restart after a power loss, finds the old contents or the new.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use super::directories::flush_name;

/// Gives a file these contents and this mode, durably. The contents are written to a new file beside it, with a
/// unique name that ends with `.new`, and the new file then takes its place.
///
/// # Errors
/// The system's error. The file then has its old contents, unless only the directory could not be made durable.
pub(crate) fn replace(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    replace_by(path, contents, mode, |_| Ok(()))
}

/// The same for a file of this user and group, or of the caller, with exactly this mode, whatever the umask is.
///
/// # Errors
/// As [`replace`]; only root can give files away.
pub(crate) fn replace_owned(
    path: &Path,
    contents: &[u8],
    mode: u32,
    owner: Option<(u32, u32)>,
) -> io::Result<()> {
    // Nobody else can read the file before it has its owner.
    replace_by(path, contents, 0o600, |file| {
        if let Some((user, group)) = owner {
            fchown(file, Some(user), Some(group))?;
        }
        file.set_permissions(Permissions::from_mode(mode))
    })
}

fn replace_by(
    path: &Path,
    contents: &[u8],
    mode: u32,
    give: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:08x}.new", rand::random::<u32>()));
    let new = PathBuf::from(name);
    let put = || {
        // A reader cannot have it open already, because it did not exist.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        give(&file)?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    put().inspect_err(|_| drop(fs::remove_file(&new)))?;
    flush_name(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contents_and_the_mode_are_new_and_nothing_else_is_left() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        for (contents, mode) in [("one", 0o644), ("two", 0o600)] {
            replace(&path, contents.as_bytes(), mode).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), contents);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        }
        fs::create_dir(temp.path().join("directory")).unwrap();
        replace(&temp.path().join("directory"), b"", 0o600).unwrap_err();
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 2);
    }
}
