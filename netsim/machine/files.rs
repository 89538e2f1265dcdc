//! The functions for files: each notes what it changes on the disk of a host, so that a power loss can undo it. A full
//! disk takes nothing more, and a host that is off changes nothing.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use libc::{iovec, mode_t, off64_t, size_t, ssize_t};

use crate::disk::{Disks, Flushed, Undo};
use crate::processes;
use crate::state::{Host, Machine, WORLD, me, with};
use crate::{sys, time};

/// Whether this thread's host is off, so that its calls have no effect.
pub(crate) fn is_off() -> bool {
    me().is_some_and(|me| {
        with(|machine| {
            let host = machine.threads.host_of(me);
            host.is_some_and(|host| machine.hosts.get(&host).is_some_and(|host| host.off))
        })
    })
}

/// The path by which the kernel knows an open file.
fn proc_path(fd: c_int) -> String {
    format!("/proc/self/fd/{fd}")
}

/// An absolute path, of a name in a directory.
fn path_of(dir: c_int, name: *const c_char) -> Option<PathBuf> {
    let name = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()));
    if name.is_absolute() {
        return Some(name.to_owned());
    }
    if dir == libc::AT_FDCWD {
        return None;
    }
    Some(opened_path(dir)?.join(name))
}

/// Where an open file is, if it has a name.
fn opened_path(fd: c_int) -> Option<PathBuf> {
    let found = fs::read_link(proc_path(fd)).ok()?;
    // The kernel marks the path of a removed file.
    (!found.as_os_str().as_bytes().ends_with(b" (deleted)")).then_some(found)
}

/// Why a change is refused.
enum Refused {
    /// The host is off.
    Off,
    /// The disk is full.
    Full,
}

impl Refused {
    fn errno(&self) -> c_int {
        match self {
            Self::Off => libc::EIO,
            Self::Full => libc::ENOSPC,
        }
    }
}

/// Whether something on the disk at this path may change.
fn admit(path: &Path, grows: bool) -> Result<Option<Host>, Refused> {
    if is_off() {
        return Err(Refused::Off);
    }
    with(|machine| {
        let Some(host) = machine.disks.host_of(path) else { return Ok(None) };
        let is_full = machine.hosts.get(&host).is_some_and(|host| host.disk.full);
        if is_full && grows { Err(Refused::Full) } else { Ok(Some(host)) }
    })
}

/// Changes a name, and notes what undoes the change.
fn change(
    path: Option<PathBuf>,
    grows: bool,
    before: impl FnOnce(&mut Disks, Host, &Path) -> Option<Undo>,
    act: impl FnOnce() -> isize,
) -> isize {
    if me().is_none() {
        return act();
    }
    let Some(path) = path else { return act() };
    let host = match admit(&path, grows) {
        Ok(host) => host,
        Err(refused) => return sys::fail(refused.errno()),
    };
    let Some(host) = host else { return act() };
    let undo = with(|machine| before(&mut machine.disks, host, &path));
    let done = act();
    if let (0.., Some(undo)) = (done, undo)
        && let Some(dir) = path.parent()
    {
        with(|machine| machine.disks.note_name(host, dir, undo));
    }
    done
}

fn removal(disks: &mut Disks, host: Host, path: &Path) -> Option<Undo> {
    if fs::symlink_metadata(path).ok()?.is_dir() {
        return Some(Undo::MakeDir(path.to_owned()));
    }
    Some(Undo::Restore { name: path.to_owned(), from: disks.keep(host, path)? })
}

fn renaming(disks: &mut Disks, host: Host, from: Option<PathBuf>, to: &Path) -> Option<Undo> {
    let replaced = disks.keep(host, to);
    Some(Undo::Rename { from: from?, to: to.to_owned(), replaced })
}

unsafe fn open_at(dir: c_int, name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let act = || unsafe {
        sys::call(libc::SYS_openat, [dir as usize, name as usize, flags as usize, mode as usize, 0, 0])
    };
    if me().is_none() {
        return act() as c_int;
    }
    if let Some(fd) = unsafe { processes::opened(name) } {
        return fd;
    }
    let path = path_of(dir, name);
    let is_there = path.as_ref().is_some_and(|path| fs::symlink_metadata(path).is_ok());
    if flags & libc::O_TRUNC != 0
        && is_there
        && let Some(path) = &path
        && let Ok(file) = File::options().read(true).write(true).open(path)
        && admit(path, false).is_ok()
    {
        overwrite(file.as_raw_fd(), 0, usize::MAX);
    }
    if flags & libc::O_CREAT == 0 || is_there {
        return act() as c_int;
    }
    change(path, true, |_, _, path| Some(Undo::Remove(path.to_owned())), act) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    unsafe { open_at(dir, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    unsafe { open_at(dir, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    unsafe { mkdirat(libc::AT_FDCWD, path, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdirat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int {
    let act =
        || unsafe { sys::call(libc::SYS_mkdirat, [dir as usize, path as usize, mode as usize, 0, 0, 0]) };
    change(path_of(dir, path), true, |_, _, path| Some(Undo::Remove(path.to_owned())), act) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    unsafe { unlinkat(libc::AT_FDCWD, path, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rmdir(path: *const c_char) -> c_int {
    unsafe { unlinkat(libc::AT_FDCWD, path, libc::AT_REMOVEDIR) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    let act =
        || unsafe { sys::call(libc::SYS_unlinkat, [dir as usize, path as usize, flags as usize, 0, 0, 0]) };
    change(path_of(dir, path), false, removal, act) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    unsafe { renameat(libc::AT_FDCWD, from, libc::AT_FDCWD, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat(old: c_int, from: *const c_char, new: c_int, to: *const c_char) -> c_int {
    let act = || unsafe {
        sys::call(libc::SYS_renameat, [old as usize, from as usize, new as usize, to as usize, 0, 0])
    };
    let source = path_of(old, from);
    change(path_of(new, to), false, |disks, host, to| renaming(disks, host, source, to), act) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn link(from: *const c_char, to: *const c_char) -> c_int {
    unsafe { linkat(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn linkat(
    old: c_int,
    from: *const c_char,
    new: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    let act = || unsafe {
        let args = [old as usize, from as usize, new as usize, to as usize, flags as usize, 0];
        sys::call(libc::SYS_linkat, args)
    };
    change(path_of(new, to), true, |_, _, path| Some(Undo::Remove(path.to_owned())), act) as c_int
}

/// What `fstat` says.
fn stat(fd: c_int) -> Option<libc::stat> {
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    let asked = unsafe { sys::raw(libc::SYS_fstat, [fd as usize, &raw mut found as usize, 0, 0, 0, 0]) };
    (asked == 0).then_some(found)
}

/// A regular file on a host's disk: its host, inode and length.
fn tracked(fd: c_int, found: &libc::stat) -> Option<(Host, u64, u64)> {
    if found.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    let known = with(|machine| machine.disks.host_of_file(found.st_ino));
    let host = known.or_else(|| {
        let path = fs::read_link(proc_path(fd)).ok()?;
        with(|machine| machine.disks.host_of(&path))
    })?;
    Some((host, found.st_ino, found.st_size as u64))
}

/// Notes the bytes of a file that are about to be overwritten.
fn note_write(fd: c_int, file: (Host, u64, u64), at: u64, count: usize) {
    let open = || File::options().read(true).write(true).open(proc_path(fd)).ok();
    with(|machine| machine.disks.note_write(file, (at, count), open));
}

/// As `note_write`, if the file is on a host's disk.
fn overwrite(fd: c_int, at: u64, count: usize) {
    if let Some(file) = stat(fd).and_then(|found| tracked(fd, &found)) {
        note_write(fd, file, at, count);
    }
}

/// Where the next write to a file goes.
fn position(fd: c_int) -> u64 {
    let flags = unsafe { sys::raw(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    let whence = if flags & libc::O_APPEND as isize != 0 { libc::SEEK_END } else { libc::SEEK_CUR };
    let found = unsafe { sys::raw(libc::SYS_lseek, [fd as usize, 0, whence as usize, 0, 0, 0]) };
    u64::try_from(found).unwrap_or_default()
}

/// Whether this thread may write this number of bytes now.
///
/// # Errors
/// The number of the error with which the write fails.
fn admit_write(fd: c_int, at: impl FnOnce() -> u64, count: usize) -> Result<(), c_int> {
    if me().is_none() {
        return Ok(());
    }
    let Some(found) = stat(fd) else { return Ok(()) };
    let Some(file) = tracked(fd, &found) else {
        // Writes that wake a host's threads still work, because these threads must end.
        let is_socket = found.st_mode & libc::S_IFMT == libc::S_IFSOCK;
        return if is_socket && is_off() { Err(libc::EPIPE) } else { Ok(()) };
    };
    if is_off() {
        return Err(libc::EIO);
    }
    if with(|machine| machine.hosts.get(&file.0).is_some_and(|host| host.disk.full)) {
        return Err(libc::ENOSPC);
    }
    note_write(fd, file, at(), count);
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, count: size_t) -> ssize_t {
    match admit_write(fd, || position(fd), count) {
        Ok(()) => unsafe { sys::call(libc::SYS_write, [fd as usize, bytes as usize, count, 0, 0, 0]) },
        Err(errno) => sys::fail(errno),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, pieces: *const iovec, many: c_int) -> ssize_t {
    let count = || {
        unsafe { std::slice::from_raw_parts(pieces, many as usize) }.iter().map(|piece| piece.iov_len).sum()
    };
    match admit_write(fd, || position(fd), count()) {
        Ok(()) => unsafe {
            sys::call(libc::SYS_writev, [fd as usize, pieces as usize, many as usize, 0, 0, 0])
        },
        Err(errno) => sys::fail(errno),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(fd: c_int, bytes: *const c_void, count: size_t, at: off64_t) -> ssize_t {
    match admit_write(fd, || at as u64, count) {
        Ok(()) => unsafe {
            sys::call(libc::SYS_pwrite64, [fd as usize, bytes as usize, count, at as usize, 0, 0])
        },
        Err(errno) => sys::fail(errno),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(fd: c_int, bytes: *const c_void, count: size_t, at: off64_t) -> ssize_t {
    unsafe { pwrite64(fd, bytes, count, at) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate64(fd: c_int, length: off64_t) -> c_int {
    if me().is_some() {
        if is_off() {
            return sys::fail(libc::EIO) as c_int;
        }
        overwrite(fd, length as u64, usize::MAX);
    }
    unsafe { sys::call(libc::SYS_ftruncate, [fd as usize, length as usize, 0, 0, 0, 0]) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate(fd: c_int, length: off64_t) -> c_int {
    unsafe { ftruncate64(fd, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn send(fd: c_int, bytes: *const c_void, count: size_t, flags: c_int) -> ssize_t {
    if is_off() {
        return sys::fail(libc::EPIPE);
    }
    unsafe { sys::call(libc::SYS_sendto, [fd as usize, bytes as usize, count, flags as usize, 0, 0]) }
}

/// Flushes a file or a directory's names: takes its time, and makes permanent what was done before it began.
fn flush(number: libc::c_long, fd: c_int) -> c_int {
    if let Some(me) = me() {
        let flush = flushed(fd).map(|what| with(|machine| machine.disks.begin_flush(what)));
        let span = with(|machine| {
            let host = machine.threads.host_of(me).filter(|host| *host != WORLD)?;
            let longest = machine.hosts.get(&host)?.disk.flush_micros as usize;
            Some(machine.chance.below(longest + 1) as u64 * 1000)
        });
        if let Some(span) = span {
            time::sleep_for(me, span);
        }
        if is_off() {
            return sys::fail(libc::EIO) as c_int;
        }
        if let Some(flush) = flush {
            with(|Machine { disks, hosts, .. }| {
                let host = disks.host_of_flush(&flush).and_then(|host| hosts.get(&host));
                if host.is_none_or(|host| !host.disk.lies) {
                    disks.end_flush(flush);
                }
            });
        }
    }
    unsafe { sys::call(number, [fd as usize, 0, 0, 0, 0, 0]) as c_int }
}

/// What a flush of this descriptor covers.
fn flushed(fd: c_int) -> Option<Flushed> {
    let found = stat(fd)?;
    match found.st_mode & libc::S_IFMT {
        libc::S_IFDIR => opened_path(fd).map(Flushed::Names),
        _ => Some(Flushed::File(found.st_ino)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    flush(libc::SYS_fsync, fd)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    flush(libc::SYS_fdatasync, fd)
}

/// Flushes a whole file system.
#[unsafe(no_mangle)]
unsafe extern "C" fn syncfs(fd: c_int) -> c_int {
    flush(libc::SYS_syncfs, fd)
}
