//! A disk in memory that knows which bytes and names a power loss would leave, and fails operations on request. As
//! adversarial as POSIX allows: a power loss keeps any part of a file's contents that was not synced, in any order, and
//! any first few of a directory's name changes that were not synced. Only a rename and [`Disk::overwrite`] are atomic.
//! A device that fails a sync has lost the data: later syncs succeed without it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use rand::RngExt as _;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;

use super::disk::{Disk, Flush, Make};

/// What goes wrong at an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The disk is full for this many operations, from this one on.
    Full(u32),
    /// The device fails once, and no later sync writes the data of the failed one.
    Broken,
    /// One write writes only a part.
    Short,
    /// The machine stops before the operation: it and all later ones fail.
    Crash,
}

type Names = BTreeMap<PathBuf, usize>;

/// A change of the names in one directory. The paths are whole.
#[derive(Debug, Clone)]
enum Change {
    AddDir(PathBuf),
    AddFile(PathBuf, usize),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
    RenameDir(PathBuf, PathBuf),
}

#[derive(Debug, Default, Clone)]
struct Inode {
    now: Vec<u8>,
    /// For each byte, whether a sync would write it.
    dirty: Vec<bool>,
    /// The contents that a power loss leaves.
    durable: Vec<u8>,
    /// It was emptied since the last sync, so that a power loss may take all that was durable.
    emptied: bool,
}

impl Inode {
    fn append(&mut self, bytes: &[u8]) {
        self.now.extend_from_slice(bytes);
        self.dirty.resize(self.now.len(), true);
    }

    /// What a sync leaves on the disk.
    fn written(&self) -> Vec<u8> {
        let mut bytes = if self.emptied { Vec::new() } else { self.durable.clone() };
        bytes.resize(self.now.len(), 0);
        let dirty = self.dirty.iter().enumerate().filter(|(_, dirty)| **dirty);
        dirty.for_each(|(at, _)| bytes[at] = self.now[at]);
        bytes
    }

    fn sync(&mut self) {
        (self.durable, self.emptied) = (self.written(), false);
        self.dirty.fill(false);
    }

    /// A sync that writes nothing.
    fn fail(&mut self) {
        self.dirty.fill(false);
    }
}

#[derive(Debug, Default)]
struct State {
    inodes: Vec<Inode>,
    files: Names,
    durable_files: Names,
    dirs: BTreeSet<PathBuf>,
    durable_dirs: BTreeSet<PathBuf>,
    /// Each directory's name changes since its last sync, in order.
    pending: BTreeMap<PathBuf, Vec<Change>>,
}

/// The disk.
pub(super) struct Model {
    state: RefCell<State>,
    /// The fault at each operation, numbered from the start.
    faults: BTreeMap<u32, Fault>,
    done: Cell<u32>,
    full_until: Cell<u32>,
    crashed: Cell<bool>,
    rng: RefCell<SmallRng>,
}

impl Model {
    /// A disk with one directory, which is durable.
    pub(super) fn new(root: &Path, faults: BTreeMap<u32, Fault>, rng: SmallRng) -> Self {
        let root = BTreeSet::from([root.to_owned()]);
        Self {
            state: RefCell::new(State { dirs: root.clone(), durable_dirs: root, ..State::default() }),
            faults,
            done: Cell::new(0),
            full_until: Cell::new(0),
            crashed: Cell::new(false),
            rng: RefCell::new(rng),
        }
    }

    pub(super) fn has_crashed(&self) -> bool {
        self.crashed.get()
    }

    /// The number of operations so far.
    pub(super) fn operations(&self) -> u32 {
        self.done.get()
    }

    /// What is in a file.
    pub(super) fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state.borrow();
        state.files.get(path).map(|&inode| state.inodes[inode].now.clone())
    }

    /// The machine loses power and starts again. There are no further faults.
    pub(super) fn power_loss(&mut self) {
        let (state, rng) = (self.state.get_mut(), self.rng.get_mut());
        let pending = std::mem::take(&mut state.pending);
        for changes in pending.into_values() {
            let kept = rng.random_range(0..=changes.len());
            for change in changes.into_iter().take(kept) {
                change.apply(&mut state.durable_files, &mut state.durable_dirs);
            }
        }
        for inode in &mut state.inodes {
            if inode.now != inode.durable {
                inode.durable = torn(inode, rng);
                inode.emptied = false;
            }
            inode.now.clone_from(&inode.durable);
            inode.dirty = vec![false; inode.now.len()];
        }
        let dirs = state.durable_dirs.clone();
        // If the name of a directory is lost, the files in it are lost too.
        state.durable_files.retain(|path, _| path.parent().is_none_or(|dir| dirs.contains(dir)));
        state.files.clone_from(&state.durable_files);
        state.dirs.clone_from(&state.durable_dirs);
        self.go_on();
    }

    /// The daemon ends but the machine goes on: all that was done stays. There are no further faults.
    pub(super) fn go_on(&mut self) {
        self.faults.clear();
        self.full_until.set(0);
        self.crashed.set(false);
    }

    /// Counts an operation and fails it if a fault is set for it. Says whether a write is to be cut short.
    fn begin(&self, grows: bool) -> io::Result<bool> {
        let number = self.done.get();
        self.done.set(number + 1);
        let fault = self.faults.get(&number).copied();
        if self.crashed.get() || fault == Some(Fault::Crash) {
            self.crashed.set(true);
            return Err(io::Error::other("the machine has stopped"));
        }
        if let Some(Fault::Full(operations)) = fault {
            self.full_until.set(number + operations);
        }
        if grows && number < self.full_until.get() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        match fault {
            Some(Fault::Broken) => Err(io::Error::from_raw_os_error(BROKEN)),
            Some(Fault::Short) => Ok(true),
            Some(Fault::Full(_) | Fault::Crash) | None => Ok(false),
        }
    }

    fn sync_file(&self, file: &usize) -> io::Result<()> {
        let begun = self.begin(false).map(drop);
        let inode = &mut self.state.borrow_mut().inodes[*file];
        match &begun {
            Ok(()) => inode.sync(),
            Err(error) if error.raw_os_error() == Some(BROKEN) => inode.fail(),
            Err(_) => {}
        }
        begun
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.begin(false)?;
        let mut state = self.state.borrow_mut();
        let State { durable_files, durable_dirs, pending, .. } = &mut *state;
        for change in pending.remove(path).unwrap_or_default() {
            change.apply(durable_files, durable_dirs);
        }
        Ok(())
    }

    fn change(&self, dir: &Path, change: Change) {
        let mut state = self.state.borrow_mut();
        let State { files, dirs, pending, .. } = &mut *state;
        change.apply(files, dirs);
        pending.entry(dir.to_owned()).or_default().push(change);
    }
}

/// The system's error number (EIO) for a device that fails.
const BROKEN: i32 = 5;

/// What a power loss leaves of contents that were not synced: parts of the old and of the new.
fn torn(inode: &Inode, rng: &mut SmallRng) -> Vec<u8> {
    let (old, new) = (&inode.durable, &inode.written());
    let at = rng.random_range(0..=new.len());
    match (rng.random_range(0..4), inode.emptied) {
        (0, _) => old.clone(),
        (1, _) => new.clone(),
        (2, true) => new[..at].to_vec(),
        (_, true) => vec![0; new.len()],
        (2, false) => spliced(new, old, at),
        (_, false) => spliced(old, new, at),
    }
}

/// The first text's bytes up to an offset, then the second's. Zeros fill a gap between them.
fn spliced(first: &[u8], then: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = first[..at.min(first.len())].to_vec();
    if then.len() > at {
        bytes.resize(at, 0);
        bytes.extend_from_slice(&then[at..]);
    }
    bytes
}

impl Change {
    fn apply(&self, files: &mut Names, dirs: &mut BTreeSet<PathBuf>) {
        match self {
            Self::AddDir(path) => drop(dirs.insert(path.clone())),
            Self::AddFile(path, inode) => drop(files.insert(path.clone(), *inode)),
            Self::Remove(path) => {
                files.remove(path);
                dirs.remove(path);
            }
            Self::Rename(from, to) => {
                if let Some(inode) = files.remove(from) {
                    files.insert(to.clone(), inode);
                }
            }
            Self::RenameDir(from, to) => {
                dirs.remove(from);
                dirs.insert(to.clone());
                let inside: Vec<_> = files.extract_if(.., |path, _| path.parent() == Some(from)).collect();
                let names =
                    inside.into_iter().filter_map(|(path, inode)| Some((to.join(path.file_name()?), inode)));
                files.extend(names);
            }
        }
    }
}

fn parent(path: &Path) -> PathBuf {
    path.parent().map(Path::to_owned).unwrap_or_default()
}

impl Disk for Model {
    type File = usize;

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.begin(true)?;
        if self.state.borrow().dirs.contains(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.change(&parent(path), Change::AddDir(path.to_owned()));
        Ok(())
    }

    fn make(&self, path: &Path, how: Make) -> io::Result<usize> {
        self.begin(true)?;
        let found = self.state.borrow().files.get(path).copied();
        match (found, how) {
            (Some(_), Make::New) => Err(io::ErrorKind::AlreadyExists.into()),
            (Some(inode), Make::Emptied) => {
                let inode_now = &mut self.state.borrow_mut().inodes[inode];
                (inode_now.now, inode_now.dirty) = (Vec::new(), Vec::new());
                inode_now.emptied = true;
                Ok(inode)
            }
            (None, _) => {
                let mut state = self.state.borrow_mut();
                state.inodes.push(Inode::default());
                let inode = state.inodes.len() - 1;
                drop(state);
                self.change(&parent(path), Change::AddFile(path.to_owned(), inode));
                Ok(inode)
            }
        }
    }

    fn write(&self, file: &mut usize, bytes: &[u8]) -> io::Result<usize> {
        let short = self.begin(true)?;
        let length = if short { bytes.len() / 2 } else { bytes.len() }.max(1);
        self.state.borrow_mut().inodes[*file].append(&bytes[..length]);
        Ok(length)
    }

    fn open(&self, path: &Path) -> io::Result<usize> {
        self.state.borrow().files.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_each(&self, all: &[Flush<'_, usize>]) -> Vec<io::Result<()>> {
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.shuffle(&mut *self.rng.borrow_mut());
        let sync = |at| match all[at] {
            Flush::File(file) => (at, self.sync_file(file)),
            Flush::Dir(path) => (at, self.sync_dir(path)),
        };
        order.into_iter().map(sync).collect::<BTreeMap<_, _>>().into_values().collect()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.begin(false)?;
        if self.state.borrow().dirs.contains(from) {
            self.change(&parent(from), Change::RenameDir(from.to_owned(), to.to_owned()));
            return Ok(());
        }
        if !self.state.borrow().files.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.change(&parent(from), Change::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.begin(true)?;
        let found = self.state.borrow().files.get(from).copied().ok_or(io::ErrorKind::NotFound)?;
        self.change(&parent(to), Change::AddFile(to.to_owned(), found));
        Ok(())
    }

    fn overwrite(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.begin(false)?;
        let mut state = self.state.borrow_mut();
        let inode = *state.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        state.inodes[inode] = Inode::default();
        state.inodes[inode].append(bytes);
        state.inodes[inode].sync();
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.begin(false)?;
        if !self.state.borrow().files.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.change(&parent(path), Change::Remove(path.to_owned()));
        Ok(())
    }

    fn remove_all(&self, path: &Path) -> io::Result<()> {
        let inside: Vec<PathBuf> =
            self.state.borrow().files.keys().filter(|file| file.parent() == Some(path)).cloned().collect();
        for file in inside {
            self.remove(&file)?;
        }
        self.begin(false)?;
        self.change(&parent(path), Change::Remove(path.to_owned()));
        Ok(())
    }
}
