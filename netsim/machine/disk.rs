//! Disks. Files are the real ones, below a directory for each host. A flush takes time; a host that loses its power loses of
//! what was not flushed what chance says: of a file's contents any part, of the changes of names in a directory all but the
//! first few. That is what docs/adr/31 expects of disks.
//!
//! Each change is written down with what undoes it, until a flush makes it last.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use libc::{iovec, mode_t, off64_t, size_t, ssize_t};

use crate::chance::Chance;
use crate::processes;
use crate::state::{Host, Machine, WORLD, me, with};
use crate::{sys, time};

/// The disk of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// A flush takes up to so many microseconds.
    pub flush_micros: u32,
    /// There is no room for more.
    pub full: bool,
}

impl Default for Disk {
    fn default() -> Self {
        Self { flush_micros: 2000, full: false }
    }
}

/// What is on the disks of the run.
#[derive(Default)]
pub(crate) struct Disks {
    roots: Vec<(Host, PathBuf)>,
    /// Files with contents that are not flushed.
    files: BTreeMap<u64, Contents>,
    /// Changes of names that are not flushed, the oldest first.
    names: Vec<Named>,
    graves: u64,
}

/// What of a file is not flushed.
struct Contents {
    host: Host,
    file: File,
    writes: Vec<Overwritten>,
}

/// What stood where something was written, and how long the file was.
struct Overwritten {
    at: u64,
    bytes: Vec<u8>,
    length: u64,
}

struct Named {
    host: Host,
    /// The directory whose flush makes it last.
    dir: PathBuf,
    undo: Undo,
}

#[derive(Debug)]
enum Undo {
    /// There was no such name.
    Remove(PathBuf),
    /// There was a file, which is kept here.
    Restore { name: PathBuf, from: PathBuf },
    /// There was a directory.
    MakeDir(PathBuf),
    /// It had this name, and the new name was that file's, if anybody's.
    Rename { from: PathBuf, to: PathBuf, replaced: Option<PathBuf> },
}

/// From now on the disk of a host is such a one.
pub fn set_disk(host: Host, disk: Disk) {
    with(|machine| machine.hosts.entry(host).or_default().disk = disk);
}

/// Everything below this directory is on the disk of a host.
pub fn mount(host: Host, root: &Path) {
    with(|machine| machine.disks.roots.push((host, root.to_owned())));
}

/// From now on nothing that these hosts do has an effect, as nothing runs there.
pub fn switch_off(hosts: &[Host]) {
    with(|machine| hosts.iter().for_each(|host| machine.hosts.entry(*host).or_default().off = true));
}

/// The hosts can run again.
pub fn switch_on(hosts: &[Host]) {
    with(|machine| hosts.iter().for_each(|host| machine.hosts.entry(*host).or_default().off = false));
}

/// What a power loss leaves on the disk of a host. Nothing may run there.
pub fn lose_unflushed(host: Host) {
    with(|machine| {
        let Machine { disks, chance, .. } = machine;
        disks.lose(host, chance);
    });
}

/// Whether this thread's host does nothing any more.
pub(crate) fn is_off() -> bool {
    me().is_some_and(|me| {
        with(|machine| {
            let host = machine.threads.host_of(me);
            host.is_some_and(|host| machine.hosts.get(&host).is_some_and(|host| host.off))
        })
    })
}

impl Disks {
    fn host_of(&self, path: &Path) -> Option<Host> {
        self.roots.iter().find(|(_, root)| path.starts_with(root)).map(|(host, _)| *host)
    }

    /// A place that keeps a file under another name.
    fn grave(&mut self, host: Host) -> Option<PathBuf> {
        let root = self.roots.iter().find(|(of, _)| *of == host).map(|(_, root)| root)?;
        self.graves += 1;
        let name = format!(".grave-{}-{}", root.file_name()?.display(), self.graves);
        Some(root.with_file_name(name))
    }

    fn note(&mut self, host: Host, dir: &Path, undo: Undo) {
        self.names.push(Named { host, dir: dir.to_owned(), undo });
    }

    fn lose(&mut self, host: Host, chance: &mut Chance) {
        let files: Vec<u64> = self
            .files
            .iter()
            .filter(|(_, contents)| contents.host == host)
            .map(|(inode, _)| *inode)
            .collect();
        for inode in files {
            if let Some(contents) = self.files.remove(&inode) {
                if std::env::var_os("MACHINE_TELLS").is_some() {
                    println!(
                        "not flushed: {:?}, {} writes",
                        opened_path(contents.file.as_raw_fd()),
                        contents.writes.len()
                    );
                }
                contents.lose(chance);
            }
        }
        // Of each directory's changes the first few last.
        let mut last: BTreeMap<PathBuf, usize> = BTreeMap::new();
        for named in self.names.iter().filter(|named| named.host == host) {
            *last.entry(named.dir.clone()).or_default() += 1;
        }
        for count in last.values_mut() {
            *count = chance.below(*count + 1);
        }
        let (of_host, others): (Vec<Named>, Vec<Named>) =
            std::mem::take(&mut self.names).into_iter().partition(|named| named.host == host);
        self.names = others;
        let mut undone = Vec::new();
        for named in of_host {
            match last.get_mut(&named.dir) {
                Some(left) if *left > 0 => *left -= 1,
                _ => undone.push(named),
            }
        }
        let tells = std::env::var_os("MACHINE_TELLS").is_some();
        for named in undone.into_iter().rev() {
            if tells {
                println!("lost: {:?}", named.undo);
            }
            // What it was about may be gone with a directory.
            let _gone = named.undo.act(self.grave(host));
        }
    }
}

impl Contents {
    fn lose(self, chance: &mut Chance) {
        let kept = match chance.below(4) {
            0 => self.writes.len(),
            1 => 0,
            _ => chance.below(self.writes.len() + 1),
        };
        let in_order = chance.below(2) == 0;
        for (number, write) in self.writes.iter().enumerate().rev() {
            let is_lost = if in_order { number >= kept } else { chance.below(2) == 0 };
            if is_lost {
                let _ = self.file.write_all_at(&write.bytes, write.at);
                let _ = self.file.set_len(write.length.max(write.at + write.bytes.len() as u64));
            }
        }
    }
}

impl Undo {
    fn act(self, grave: Option<PathBuf>) -> io::Result<()> {
        match self {
            Self::Remove(name) if name.is_dir() => grave.map_or(Ok(()), |grave| fs::rename(name, grave)),
            Self::Remove(name) => fs::remove_file(name),
            Self::Restore { name, from } => fs::rename(from, name),
            Self::MakeDir(name) => fs::create_dir(name),
            Self::Rename { from, to, replaced } => {
                fs::rename(&to, &from)?;
                replaced.map_or(Ok(()), |replaced| fs::rename(replaced, to))
            }
        }
    }
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
    let found = fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    // Of one that was removed the kernel says so.
    (!found.as_os_str().as_bytes().ends_with(b" (deleted)")).then_some(found)
}

/// How a change is refused.
enum Refused {
    /// Nothing runs there.
    Off,
    /// There is no room.
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

/// Does something to a name, and notes what undoes it.
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
        with(|machine| machine.disks.note(host, dir, undo));
    }
    done
}

/// Keeps a file that is about to lose this name.
fn keep(disks: &mut Disks, host: Host, path: &Path) -> Option<PathBuf> {
    let grave = disks.grave(host)?;
    fs::hard_link(path, &grave).ok().map(|()| grave)
}

fn removal(disks: &mut Disks, host: Host, path: &Path) -> Option<Undo> {
    if fs::symlink_metadata(path).ok()?.is_dir() {
        return Some(Undo::MakeDir(path.to_owned()));
    }
    Some(Undo::Restore { name: path.to_owned(), from: keep(disks, host, path)? })
}

fn renaming(disks: &mut Disks, host: Host, from: Option<PathBuf>, to: &Path) -> Option<Undo> {
    let replaced = keep(disks, host, to);
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
        overwritten(file.as_raw_fd(), 0, usize::MAX);
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
fn tracked(fd: c_int) -> Option<(Host, u64, u64)> {
    let found = stat(fd).filter(|found| found.st_mode & libc::S_IFMT == libc::S_IFREG)?;
    let known = with(|machine| machine.disks.files.get(&found.st_ino).map(|contents| contents.host));
    let host = match known {
        Some(host) => host,
        None => {
            let path = fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
            with(|machine| machine.disks.host_of(&path))?
        }
    };
    Some((host, found.st_ino, found.st_size as u64))
}

/// Notes what stands where something is about to be written.
fn overwritten(fd: c_int, at: u64, count: usize) {
    let Some((host, inode, length)) = tracked(fd) else { return };
    with(|machine| {
        let known = machine.disks.files.entry(inode);
        let contents = match known {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(free) => {
                let again = File::options().read(true).write(true).open(format!("/proc/self/fd/{fd}"));
                let Ok(file) = again else { return };
                free.insert(Contents { host, file, writes: Vec::new() })
            }
        };
        let count = (length.saturating_sub(at) as usize).min(count);
        let mut bytes = vec![0; count];
        if contents.file.read_exact_at(&mut bytes, at).is_ok() {
            contents.writes.push(Overwritten { at, bytes, length });
        }
    });
}

/// Where the next write to a file goes.
fn position(fd: c_int) -> u64 {
    let flags = unsafe { sys::raw(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    let whence = if flags & libc::O_APPEND as isize != 0 { libc::SEEK_END } else { libc::SEEK_CUR };
    let found = unsafe { sys::raw(libc::SYS_lseek, [fd as usize, 0, whence as usize, 0, 0, 0]) };
    u64::try_from(found).unwrap_or_default()
}

/// Whether a file or socket takes so many bytes from this thread; the error number if not.
fn admit_write(fd: c_int, at: impl FnOnce() -> u64, count: usize) -> Result<(), c_int> {
    if me().is_none() {
        return Ok(());
    }
    let is_socket = || stat(fd).is_some_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFSOCK);
    let Some((host, ..)) = tracked(fd) else {
        // What wakes the threads of a host goes on: they have to come to their end.
        return if is_off() && is_socket() { Err(libc::EPIPE) } else { Ok(()) };
    };
    if is_off() {
        return Err(libc::EIO);
    }
    if with(|machine| machine.hosts.get(&host).is_some_and(|host| host.disk.full)) {
        return Err(libc::ENOSPC);
    }
    overwritten(fd, at(), count);
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
        overwritten(fd, length as u64, usize::MAX);
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

/// A flush of a file or of a directory's names: takes its time, and makes last what was done before it began.
fn flush(number: libc::c_long, fd: c_int) -> c_int {
    if let Some(me) = me() {
        if is_off() {
            return sys::fail(libc::EIO) as c_int;
        }
        let disk = with(|machine| {
            let host = machine.threads.host_of(me).filter(|host| *host != WORLD)?;
            machine.hosts.get(&host).map(|host| host.disk)
        });
        if let Some(disk) = disk {
            let span = with(|machine| machine.chance.below(disk.flush_micros as usize + 1)) as u64 * 1000;
            let counts = pending(fd);
            time::sleep_for(me, span);
            if is_off() {
                return sys::fail(libc::EIO) as c_int;
            }
            lasts(counts);
        } else {
            lasts(pending(fd));
        }
    }
    unsafe { sys::call(number, [fd as usize, 0, 0, 0, 0, 0]) as c_int }
}

/// What a flush that begins now is about.
enum Pending {
    Nothing,
    Writes(u64, usize),
    Names(PathBuf, usize),
}

fn pending(fd: c_int) -> Pending {
    let Some(path) = fs::read_link(format!("/proc/self/fd/{fd}")).ok() else { return Pending::Nothing };
    let Ok(found) = fs::metadata(format!("/proc/self/fd/{fd}")) else { return Pending::Nothing };
    with(|machine| {
        if found.is_dir() {
            let count = machine.disks.names.iter().filter(|named| named.dir == path).count();
            return Pending::Names(path, count);
        }
        match machine.disks.files.get(&found.ino()) {
            Some(contents) => Pending::Writes(found.ino(), contents.writes.len()),
            None => Pending::Nothing,
        }
    })
}

fn lasts(pending: Pending) {
    with(|machine| match pending {
        Pending::Nothing => {}
        Pending::Writes(inode, count) => {
            if let Some(contents) = machine.disks.files.get_mut(&inode) {
                contents.writes.drain(..count.min(contents.writes.len()));
                if contents.writes.is_empty() {
                    machine.disks.files.remove(&inode);
                }
            }
        }
        Pending::Names(dir, mut count) => {
            machine.disks.names.retain(|named| {
                let is_it = named.dir == dir && count > 0;
                count -= usize::from(is_it);
                if is_it {
                    named.undo.forget();
                }
                !is_it
            });
        }
    });
}

impl Undo {
    /// It is not needed any more.
    fn forget(&self) {
        let kept = match self {
            Self::Restore { from, .. } => Some(from),
            Self::Rename { replaced, .. } => replaced.as_ref(),
            Self::Remove(_) | Self::MakeDir(_) => None,
        };
        if let Some(kept) = kept {
            let _gone = fs::remove_file(kept);
        }
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

/// A whole file system's.
#[unsafe(no_mangle)]
unsafe extern "C" fn syncfs(fd: c_int) -> c_int {
    flush(libc::SYS_syncfs, fd)
}
