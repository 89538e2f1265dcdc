//! Directories of which a command shall not even know what is in them: an empty one lies over each, in a view of the
//! file system of the command's own. Where the kernel grants this user no such view, the fence has to do.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};
use rustix::fs::{Mode, OFlags};

/// For a few names.
const EMPTY: &str = "size=256k,mode=0755";

/// Hides directories, but not what is kept of them.
pub(super) fn hide<'a>(
    hidden: &[PathBuf],
    kept: impl Iterator<Item = &'a PathBuf> + Clone,
) -> nix::Result<()> {
    if !has_own_view() {
        return Ok(());
    }
    let private = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    // A container's own rules may allow the one and not the other.
    if mount::<Path, _, Path, Path>(None, Path::new("/"), None, private, None).is_err() {
        return Ok(());
    }
    for directory in hidden.iter().filter_map(|directory| directory.canonicalize().ok()) {
        let below = kept.clone().filter_map(|path| path.canonicalize().ok());
        let below: Vec<_> = below.filter(|path| path.starts_with(&directory)).collect();
        // Whoever may have all of it has nothing to be hidden.
        if !below.contains(&directory) {
            cover(&directory, &below)?;
        }
    }
    Ok(())
}

/// Takes a view of its own, with the rights over it that come with one of users if there are no others.
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
        // What it needs must be there, whatever else is.
        Err(_) => umount2(directory, MntFlags::MNT_DETACH),
    }
}

/// Lays what was opened before at its place.
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
