//! Disks, and what a power loss leaves on them. It may take any of the unflushed writes to a file, and all but the
//! first few unflushed changes of names in a directory. docs/adr/0031 expects no more of disks.
//!
//! Each change is kept with what undoes it, until a flush makes it permanent. `files` makes the changes themselves.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::chance::Chance;
use crate::state::{Host, Machine, with};

/// The disk of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// The longest time that a flush takes, in microseconds.
    pub flush_micros: u32,
    /// The disk has no room for more.
    pub full: bool,
    /// Flushes succeed without making anything permanent.
    pub lies: bool,
}

impl Default for Disk {
    fn default() -> Self {
        Self { flush_micros: 2000, full: false, lies: false }
    }
}

/// What is on the disks of the run.
#[derive(Default)]
pub(crate) struct Disks {
    roots: Vec<(Host, PathBuf)>,
    /// Files with unflushed contents, by inode.
    files: BTreeMap<u64, Contents>,
    /// Unflushed changes of names, the oldest first.
    names: Vec<Named>,
    graves: u64,
    /// The number of the latest change.
    latest: u64,
}

/// The unflushed writes to a file.
struct Contents {
    host: Host,
    file: File,
    writes: Vec<Overwritten>,
}

/// The bytes that a write replaced, and the file's length before.
struct Overwritten {
    number: u64,
    at: u64,
    bytes: Vec<u8>,
    length: u64,
}

struct Named {
    number: u64,
    host: Host,
    /// The directory whose flush makes the change permanent.
    dir: PathBuf,
    undo: Undo,
}

/// What undoes a change of a name.
pub(crate) enum Undo {
    /// The name did not exist.
    Remove(PathBuf),
    /// The name was a file's, which is kept at `from`.
    Restore { name: PathBuf, from: PathBuf },
    /// The name was a directory's.
    MakeDir(PathBuf),
    /// The file was called `from`, and `replaced` keeps the file that was called `to`, if there was one.
    Rename { from: PathBuf, to: PathBuf, replaced: Option<PathBuf> },
}

/// Replaces the properties of a host's disk.
pub fn set_disk(host: Host, disk: Disk) {
    with(|machine| machine.hosts.entry(host).or_default().disk = disk);
}

/// Everything below this directory is on the disk of a host.
pub fn mount(host: Host, root: &Path) {
    with(|machine| machine.disks.roots.push((host, root.to_owned())));
}

/// Makes everything that these hosts do have no effect, as if nothing ran there.
pub fn switch_off(hosts: &[Host]) {
    with(|machine| hosts.iter().for_each(|host| machine.hosts.entry(*host).or_default().off = true));
}

/// Lets what these hosts do have effects again.
pub fn switch_on(hosts: &[Host]) {
    with(|machine| hosts.iter().for_each(|host| machine.hosts.entry(*host).or_default().off = false));
}

/// Takes from a host's disk what a power loss takes. Nothing may run on the host.
pub fn lose_unflushed(host: Host) {
    with(|machine| {
        let Machine { disks, chance, .. } = machine;
        disks.lose(host, chance);
    });
}

/// The descriptors by which the disks undo what is not flushed.
pub fn descriptors() -> Vec<RawFd> {
    with(|machine| machine.disks.files.values().map(|contents| contents.file.as_raw_fd()).collect())
}

/// Removes a directory for good, as if the host had got another disk. Nothing may run there, and all changes there must
/// be flushed.
pub fn wipe(dir: &Path) {
    with(|_| drop(fs::remove_dir_all(dir)));
}

/// What is flushed.
pub(crate) enum Flushed {
    /// The contents of the file with this inode.
    File(u64),
    /// The names in this directory.
    Names(PathBuf),
}

/// A flush that has begun.
pub(crate) struct Flush {
    what: Flushed,
    /// The number of the last change that it covers.
    until: u64,
}

impl Disks {
    /// The host on whose disk this is.
    pub(crate) fn host_of(&self, path: &Path) -> Option<Host> {
        self.roots.iter().find(|(_, root)| path.starts_with(root)).map(|(host, _)| *host)
    }

    /// A new name under which a file can be kept.
    fn grave(&mut self, host: Host) -> Option<PathBuf> {
        let root = self.roots.iter().find(|(of, _)| *of == host).map(|(_, root)| root)?;
        self.graves += 1;
        let name = format!(".grave-{}-{}", root.file_name()?.display(), self.graves);
        Some(root.with_file_name(name))
    }

    /// Keeps a file that is about to lose this name.
    pub(crate) fn keep(&mut self, host: Host, path: &Path) -> Option<PathBuf> {
        let grave = self.grave(host)?;
        fs::hard_link(path, &grave).ok().map(|()| grave)
    }

    /// The host of a file whose contents are not flushed.
    pub(crate) fn host_of_file(&self, inode: u64) -> Option<Host> {
        self.files.get(&inode).map(|contents| contents.host)
    }

    /// Notes that a name in this directory was changed.
    pub(crate) fn note_name(&mut self, host: Host, dir: &Path, undo: Undo) {
        self.latest += 1;
        self.names.push(Named { number: self.latest, host, dir: dir.to_owned(), undo });
    }

    /// Notes that `count` bytes at `at` of a file of this length are about to be overwritten. `open` opens the file if
    /// it is not known yet.
    pub(crate) fn note_write(
        &mut self,
        (host, inode, length): (Host, u64, u64),
        (at, count): (u64, usize),
        open: impl FnOnce() -> Option<File>,
    ) {
        let contents = match self.files.entry(inode) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => {
                let Some(file) = open() else { return };
                free.insert(Contents { host, file, writes: Vec::new() })
            }
        };
        let mut bytes = vec![0; (length.saturating_sub(at) as usize).min(count)];
        if contents.file.read_exact_at(&mut bytes, at).is_ok() {
            self.latest += 1;
            contents.writes.push(Overwritten { number: self.latest, at, bytes, length });
        }
    }

    /// Begins a flush.
    pub(crate) fn begin_flush(&self, what: Flushed) -> Flush {
        Flush { what, until: self.latest }
    }

    /// The host on whose disk the flush is, if there is something to flush.
    pub(crate) fn host_of_flush(&self, flush: &Flush) -> Option<Host> {
        match &flush.what {
            Flushed::File(inode) => self.host_of_file(*inode),
            Flushed::Names(dir) => self.host_of(dir),
        }
    }

    /// Makes permanent what was changed before the flush began.
    pub(crate) fn end_flush(&mut self, Flush { what, until }: Flush) {
        match what {
            Flushed::File(inode) => {
                let Some(contents) = self.files.get_mut(&inode) else { return };
                contents.writes.retain(|write| write.number > until);
                if contents.writes.is_empty() {
                    self.files.remove(&inode);
                }
            }
            Flushed::Names(dir) => self.names.retain(|named| {
                let lasts = named.number <= until && named.dir == dir;
                if lasts {
                    named.undo.forget();
                }
                !lasts
            }),
        }
    }

    fn lose(&mut self, host: Host, chance: &mut Chance) {
        for contents in self.files.extract_if(.., |_, contents| contents.host == host) {
            contents.1.lose(chance);
        }
        // In each directory, the first few changes survive.
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
        for named in undone.into_iter().rev() {
            // The name may be gone together with its directory.
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

    /// Removes what was kept for undoing, because the change is permanent.
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
