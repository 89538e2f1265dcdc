//! Acts on files with the rights of another user, for a program of root's in a directory that is that user's: a link that
//! he has put there then leads to nothing that is not his.
//!
//! Owns the change and its end. Only file systems see it, and only of this thread.

use std::marker::PhantomData;
use std::path::Path;
use std::{fs, io};

use nix::unistd::{Gid, Uid, geteuid, setfsgid, setfsuid};

/// While it lives, this thread has the rights of another user on files.
pub(crate) struct Acting {
    former: Option<(Uid, Gid)>,
    /// It belongs to its thread.
    _stays: PhantomData<*const ()>,
}

impl Acting {
    /// Acts as the owner of a directory, if this process is root's and the directory is not.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn as_owner_of(dir: &Path) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let (found, _stays) = (fs::symlink_metadata(dir)?, PhantomData);
        if !geteuid().is_root() || found.uid() == 0 {
            return Ok(Self { former: None, _stays });
        }
        let group = setfsgid(Gid::from_raw(found.gid()));
        Ok(Self { former: Some((setfsuid(Uid::from_raw(found.uid())), group)), _stays })
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        if let Some((user, group)) = self.former {
            setfsuid(user);
            setfsgid(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, chown, symlink};

    use super::*;

    #[test]
    fn a_link_in_a_directory_of_another_user_leads_nowhere() {
        if !geteuid().is_root() {
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let (theirs, ours) = (temp.path().join("theirs"), temp.path().join("ours"));
        fs::create_dir(&theirs).unwrap();
        fs::create_dir(&ours).unwrap();
        chown(temp.path(), Some(990), Some(990)).unwrap();
        chown(&theirs, Some(990), Some(990)).unwrap();
        symlink(&ours, theirs.join("link")).unwrap();
        {
            let _acting = Acting::as_owner_of(&theirs).unwrap();
            fs::write(theirs.join("file"), "").unwrap();
            let refused = fs::write(theirs.join("link/file"), "").unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        }
        assert_eq!(fs::metadata(theirs.join("file")).unwrap().uid(), 990);
        fs::write(theirs.join("link/file"), "").unwrap();
    }
}
