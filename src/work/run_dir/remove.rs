//! Removes a directory that a job has filled, with any number of files, at any depth, while processes may still write
//! there. Links are never followed, and each name is looked up in its own directory, not by a longer path. Deeper
//! directories are moved to the top, so that memory and descriptors do not grow with the depth. Knows no units.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::logins::remove_logins;
use crate::work::runner::containers::run as run_bounded;

/// The most names that are read at a time.
const BATCH: usize = 1024;
const READ: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes a directory, or what a job has put in its place. Returns false if something is left, because the deadline
/// came first or a process still writes there. Blocks.
///
/// # Errors
/// The system refused to remove something.
pub(crate) fn remove(path: &Path, deadline: Instant) -> io::Result<bool> {
    remove_logins(path);
    match remove_as_this_user(path, deadline) {
        // Files that a rootless container wrote may belong to one of its user's subordinate IDs.
        Err(Errno::ACCESS | Errno::PERM) if is_removed_by_podman(path) => Ok(true),
        removed => Ok(removed?),
    }
}

fn is_removed_by_podman(path: &Path) -> bool {
    let mut command = Command::new("podman");
    command.args(["unshare", "rm", "-rf", "--"]).arg(path);
    !rustix::process::geteuid().is_root() && run_bounded(&mut command, None) && !path.exists()
}

fn remove_as_this_user(path: &Path, deadline: Instant) -> rustix::io::Result<bool> {
    let top = match open(CWD, path) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(true),
        Err(Errno::NOTDIR | Errno::LOOP) => return rustix::fs::unlink(path).map(|()| true),
        Err(error) => return Err(error),
    };
    let mut moved = 0;
    loop {
        let names = names(&top)?;
        let mut refused = None;
        let mut is_less = false;
        for name in &names {
            match clear(&top, name, &mut moved, deadline) {
                Ok(true) => is_less = true,
                Ok(false) => return Ok(false),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            _ if names.is_empty() => break,
            Some(error) if !is_less => return Err(error),
            Some(_) | None => {}
        }
    }
    match rustix::fs::rmdir(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        // Some process still writes there.
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes one entry of the top directory. Subdirectories of it are first moved to the top. Returns false if the
/// deadline came first.
fn clear(top: &OwnedFd, name: &CString, moved: &mut u64, deadline: Instant) -> rustix::io::Result<bool> {
    if Instant::now() >= deadline {
        return Ok(false);
    }
    match unlink(top, name) {
        Err(Errno::ISDIR) => {}
        done => return done.map(|()| true),
    }
    let directory = match open(top.as_fd(), name.as_c_str()) {
        Ok(directory) => directory,
        // The directory has been replaced. The next round removes what is there now.
        Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => return Ok(true),
        Err(error) => return Err(error),
    };
    loop {
        let names = names(&directory)?;
        if names.is_empty() {
            break;
        }
        for name in &names {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            match unlink(&directory, name) {
                Err(Errno::ISDIR) => move_up(&directory, name, top, moved)?,
                done => done?,
            }
        }
    }
    match rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => Ok(true),
        Err(error) => Err(error),
    }
}

fn move_up(from: &OwnedFd, name: &CString, top: &OwnedFd, moved: &mut u64) -> rustix::io::Result<()> {
    loop {
        *moved += 1;
        match rustix::fs::renameat(from, name, top, format!(".moved-{moved}")) {
            // A job may have used this name: try the next.
            Err(Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST | Errno::ISDIR) => {}
            Err(Errno::NOENT) => return Ok(()),
            // Moving a directory takes the right to write to it, as its `..` changes.
            Err(Errno::ACCESS) => {
                make_ours(from.as_fd(), name.as_c_str())?;
                return rustix::fs::renameat(from, name, top, format!(".moved-{moved}"));
            }
            done => return done,
        }
    }
}

fn unlink(directory: &OwnedFd, name: &CString) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        // The directory is not writable, but its owner may make it so.
        Err(Errno::ACCESS) => {
            rustix::fs::fchmod(directory, Mode::RWXU)?;
            rustix::fs::unlinkat(directory, name, AtFlags::empty())
        }
        done => done,
    }
}

/// Opens a directory. Never follows a link.
fn open<P: rustix::path::Arg + Copy>(at: BorrowedFd<'_>, name: P) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::openat(at, name, READ, Mode::empty()) {
        Err(Errno::ACCESS) => {
            make_ours(at, name)?;
            rustix::fs::openat(at, name, READ, Mode::empty())
        }
        opened => opened,
    }
}

/// Gives a directory's owner all rights to it. If a link has taken its place, this does nothing that this user could
/// not do anyway. Does nothing for root, whom only foreign file systems refuse.
fn make_ours<P: rustix::path::Arg>(at: BorrowedFd<'_>, name: P) -> rustix::io::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Err(Errno::ACCESS);
    }
    rustix::fs::chmodat(at, name, Mode::RWXU, AtFlags::empty())
}

fn names(directory: &OwnedFd) -> rustix::io::Result<Vec<CString>> {
    let all = Dir::read_from(directory)?;
    let named = all.filter_map(|entry| match entry {
        Ok(entry) if [c".", c".."].contains(&entry.file_name()) => None,
        entry => Some(entry.map(|entry| entry.file_name().to_owned())),
    });
    named.take(BATCH).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn whatever_a_job_has_put_there_goes_and_nothing_else() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, other) = (temp.path().join("dir"), temp.path().join("other"));
        fs::create_dir_all(dir.join("a/b/c")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("kept"), "x").unwrap();
        symlink(&other, dir.join("a/link")).unwrap();
        symlink(&other, dir.join("link")).unwrap();
        fs::write(dir.join("a/b/file"), "x").unwrap();
        // Names that the removal uses itself.
        fs::write(dir.join(".moved-1"), "x").unwrap();
        fs::create_dir_all(dir.join(".moved-2/x")).unwrap();
        (0..3 * BATCH).for_each(|n| fs::write(dir.join("a").join(n.to_string()), "").unwrap());
        assert!(remove(&dir, soon()).unwrap());
        assert!(!dir.exists() && other.join("kept").exists());
        assert!(remove(&dir, soon()).unwrap(), "what is gone is gone");
        symlink(&other, &dir).unwrap();
        assert!(remove(&dir, soon()).unwrap());
        assert!(fs::symlink_metadata(&dir).is_err() && other.join("kept").exists());
    }

    #[test]
    fn depth_costs_neither_memory_nor_descriptors() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().join("dir");
        fs::create_dir(&top).unwrap();
        let mut at = open(CWD, &top).unwrap();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&at, "deeper", Mode::RWXU).unwrap();
            at = open(at.as_fd(), "deeper").unwrap();
        }
        assert!(remove(&top, soon()).unwrap());
        assert!(!top.exists());
    }

    #[test]
    fn time_is_bounded_and_the_rest_goes_later() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("dir");
        fs::create_dir_all(dir.join("a")).unwrap();
        assert!(!remove(&dir, Instant::now()).unwrap());
        assert!(dir.join("a").exists());
        assert!(remove(&dir, soon()).unwrap());
    }
}
