//! Hides directories from a command, down to the names in them: an empty directory is mounted over each, in a mount
//! namespace of the command's own. If the kernel grants this user no such namespace, only the fence protects them.
//! Refuses to know which directories are hidden, and why.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};
use rustix::fs::{Mode, OFlags};

/// Options of the empty file system: it only holds the names of paths that are kept.
const EMPTY: &str = "size=256k,mode=0755";

/// Hides directories, except for the paths in them that are kept.
pub(super) fn hide<'a>(
    hidden: &[PathBuf],
    kept: impl Iterator<Item = &'a PathBuf> + Clone,
) -> nix::Result<()> {
    if !has_own_view() {
        return Ok(());
    }
    let private = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    // A container may allow a namespace but no mounts in it.
    if mount::<Path, _, Path, Path>(None, Path::new("/"), None, private, None).is_err() {
        return Ok(());
    }
    for directory in hidden.iter().filter_map(|directory| directory.canonicalize().ok()) {
        let below = kept.clone().filter_map(|path| path.canonicalize().ok());
        let below: Vec<_> = below.filter(|path| path.starts_with(&directory)).collect();
        // A directory that is kept as a whole is not hidden.
        if !below.contains(&directory) {
            cover(&directory, &below)?;
        }
    }
    Ok(())
}

/// Moves this process to a mount namespace of its own. Without the right to do so, it also takes a user namespace,
/// which grants that right. False if neither works.
fn has_own_view() -> bool {
    if unshare(CloneFlags::CLONE_NEWNS).is_ok() {
        return true;
    }
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).is_ok()
        && fs::write("/proc/self/setgroups", "deny").is_ok()
        && fs::write("/proc/self/uid_map", format!("{user} {user} 1")).is_ok()
        && fs::write("/proc/self/gid_map", format!("{group} {group} 1")).is_ok()
}

fn cover(directory: &Path, kept: &[PathBuf]) -> nix::Result<()> {
    let open = |path: &PathBuf| {
        let opened = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        Some((opened.ok()?, path.clone(), path.is_dir()))
    };
    let kept: Vec<_> = kept.iter().filter_map(open).collect();
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    if mount(Some("tmpfs"), directory, Some("tmpfs"), safe, Some(EMPTY)).is_err() {
        return Ok(());
    }
    match kept.iter().try_for_each(|(file, path, is_directory)| keep(file, path, *is_directory)) {
        Ok(()) => {
            let flags = safe | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
            let _unless_refused = mount::<Path, _, Path, str>(None, directory, None, flags, Some(EMPTY));
            Ok(())
        }
        // Uncovers the directory again, because the command needs what is kept more than the rest needs to be hidden.
        Err(_) => umount2(directory, MntFlags::MNT_DETACH),
    }
}

/// Mounts a file or directory that was opened before at its old path, over the cover.
fn keep(file: &OwnedFd, path: &Path, is_directory: bool) -> std::io::Result<()> {
    if is_directory {
        fs::create_dir_all(path)?;
    } else if !path.exists() {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, "")?;
    }
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    Ok(mount::<str, _, Path, Path>(Some(&source), path, None, flags, None)?)
}
