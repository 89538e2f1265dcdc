//! Puts files in their places, with owner and mode, and only if something about them differs. A file is made in its
//! final directory, so that it gets the label that SELinux has for that directory.
//!
//! Owns the list of changes. It refuses to know what the files are for.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use super::JoinError;
use crate::os::regular_file::{read, read_text};
use crate::os::replace::replace_owned;

/// Who may read a file. Root owns all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody.
    Public,
    /// The daemon.
    Daemon,
}

/// The user that the daemon runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DaemonAccount {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// A tree in which files are put.
#[derive(Debug)]
pub(crate) struct FileTree {
    root: PathBuf,
    daemon: Option<DaemonAccount>,
    changed: Vec<PathBuf>,
}

impl FileTree {
    /// The tree below `root`. Its daemon runs as `daemon`, or as the caller if `None`.
    pub(crate) fn new(root: &Path, daemon: Option<DaemonAccount>) -> Self {
        Self { root: root.to_owned(), daemon, changed: Vec::new() }
    }

    /// An absolute path, below the root of the tree.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The location of a path that is to be changed. A link in the tree of another system may lead out of the tree;
    /// links on this host are trusted as its administrator's.
    fn place(&self, path: &str) -> Result<PathBuf, JoinError> {
        let whole = self.path(path);
        let mut below = whole.ancestors().take_while(|at| *at != self.root);
        match below.find(|at| at.is_symlink()).filter(|_| self.root != Path::new("/")) {
            Some(link) => Err(JoinError::Host(format!(
                "{} is a link, and may lead out of {}: put what it leads to in its place",
                link.display(),
                self.root.display()
            ))),
            None => Ok(whole),
        }
    }

    /// The same for a file, which replaces a link instead of following it.
    fn place_of_file(&self, path: &str) -> Result<PathBuf, JoinError> {
        self.place(path.rsplit_once('/').map_or("", |(parent, _)| parent))?;
        Ok(self.path(path))
    }

    /// The user that the daemon of this tree runs as, if it is another than the caller.
    pub(super) fn daemon(&self) -> Option<DaemonAccount> {
        self.daemon
    }

    /// The text of a file of the tree; `None` if there is no such file.
    ///
    /// # Errors
    /// It cannot be read, or a link may lead out of the tree.
    pub(super) fn text(&self, path: &str) -> Result<Option<String>, JoinError> {
        let whole = self.place(path)?;
        match read_text(&whole) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => text.map(Some).map_err(JoinError::of(&whole)),
        }
    }

    /// The changed paths, without the root.
    pub(crate) fn changed(&self) -> &[PathBuf] {
        &self.changed
    }

    /// Whether this file was changed.
    pub(crate) fn has_changed(&self, path: &str) -> bool {
        self.changed.iter().any(|changed| changed == Path::new(path))
    }

    /// Makes a directory unless it exists.
    pub(crate) fn directory(&mut self, path: &str) -> Result<(), JoinError> {
        let whole = self.place(path)?;
        if whole.is_dir() {
            return Ok(());
        }
        fs::create_dir_all(&whole).map_err(JoinError::of(&whole))?;
        let mode = fs::set_permissions(&whole, Permissions::from_mode(0o755));
        mode.map_err(JoinError::of(&whole))?;
        self.note(path);
        Ok(())
    }

    /// Gives a file these contents.
    pub(crate) fn file(&mut self, path: &str, contents: &[u8], access: Access) -> Result<(), JoinError> {
        let whole = self.place_of_file(path)?;
        let (mode, owner) = match (access, self.daemon) {
            (Access::Public, None) => (0o644, None),
            (Access::Public, Some(_)) => (0o644, Some((0, 0))),
            (Access::Daemon, None) => (0o600, None),
            (Access::Daemon, Some(DaemonAccount { group, .. })) => (0o640, Some((0, group))),
        };
        if is_so(&whole, contents, mode, owner).map_err(JoinError::of(&whole))? {
            return Ok(());
        }
        replace_owned(&whole, contents, mode, owner).map_err(JoinError::of(&whole))?;
        self.note(path);
        Ok(())
    }

    /// Removes a file if it exists.
    pub(crate) fn remove(&mut self, path: &str) -> Result<(), JoinError> {
        let whole = self.place_of_file(path)?;
        match fs::remove_file(&whole) {
            Ok(()) => self.note(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(JoinError::of(&whole)(error)),
        }
        Ok(())
    }

    /// Gives a directory to the daemon, which writes to it.
    pub(crate) fn give(&mut self, path: &str, mode: u32) -> Result<(), JoinError> {
        let whole = self.place(path)?;
        let Some(DaemonAccount { user, group }) = self.daemon else { return Ok(()) };
        let found = fs::metadata(&whole).map_err(JoinError::of(&whole))?;
        if found.uid() == user {
            return Ok(());
        }
        chown(&whole, Some(user), Some(group)).map_err(JoinError::of(&whole))?;
        let mode = fs::set_permissions(&whole, Permissions::from_mode(mode));
        mode.map_err(JoinError::of(&whole))?;
        self.note(path);
        Ok(())
    }

    pub(super) fn note(&mut self, path: &str) {
        if !self.has_changed(path) {
            self.changed.push(PathBuf::from(path));
        }
    }
}

/// Whether a file exists with these contents, this mode and this owner.
fn is_so(path: &Path, contents: &[u8], mode: u32, owner: Option<(u32, u32)>) -> io::Result<bool> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?,
    };
    let is_owned = owner.is_none_or(|owner| owner == (found.uid(), found.gid()));
    let is_plain = found.is_file() && found.mode() & 0o7777 == mode && found.len() == contents.len() as u64;
    Ok(is_plain && is_owned && read(path, found.len())? == contents)
}
