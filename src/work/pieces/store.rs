//! Pieces as files: `.pieces/CALLER/HASH` in the node's directory, where only this user can read them. Owns how they are
//! written, read and removed; `index` owns which of them there are. Nothing is flushed: a piece that a crash or anybody
//! else has damaged is noticed by its hash when it is read. Functions block if nothing else is said.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, mkdirat, openat, renameat, statat, statvfs, unlinkat,
};
use rustix::io::Errno;

use super::index::{CallerPieces, Gone, Index, MOST_PIECES};
use super::{MOST_OF_PIECE, PieceId};
use crate::os::hex;
use crate::work::Submitter;

const DIRECTORY: &str = ".pieces";
/// The length of a piece's name, its hash as digits.
const HASH: usize = 64;
/// Ends the name of a piece that is being written.
const NEW: &str = ".new";
/// The default size: one part in [`PART`] of what is free, but at most [`MOST`] bytes.
const PART: u64 = 10;
const MOST: u64 = 4 << 30;
/// The time of a file says when its piece was last used. It is not set more often than this.
const NOTE_EVERY: Duration = Duration::from_secs(3600);

/// The pieces that this node keeps of payloads. Only nodes have pieces, and none can learn what another one has.
#[derive(Debug)]
pub(crate) struct PieceStore {
    /// The node's directory.
    root: PathBuf,
    /// Never locked during a file operation.
    index: Mutex<Index>,
    /// Set once the files of earlier processes are in the index. Until then there are no pieces.
    loaded: OnceLock<()>,
    /// The disk has less free than it is to have.
    is_scarce: AtomicBool,
}

impl PieceStore {
    /// Opens the store in a node's directory for at most so many bytes; `None` for the default, and 0 removes what is
    /// there. The names are read by a thread.
    pub(crate) fn open(root: PathBuf, most: Option<u64>) -> Arc<Self> {
        let index = Mutex::new(Index::new(most.unwrap_or_else(|| default_size(&root))));
        let this = Arc::new(Self { root, index, loaded: OnceLock::new(), is_scarce: AtomicBool::default() });
        let own = this.clone();
        // If there can be no thread, the first use reads them.
        let _thread = std::thread::Builder::new().name("pieces".to_owned()).spawn(move || own.load());
        this
    }

    /// Whether pieces are kept. Does not block.
    pub(crate) fn is_on(&self) -> bool {
        self.index.lock().most() > 0
    }

    /// The most bytes of all pieces. Does not block.
    pub(crate) fn most(&self) -> u64 {
        self.index.lock().most()
    }

    /// How many pieces there are, and how many bytes of the disk they take. Does not block.
    pub(crate) fn total(&self) -> (usize, u64) {
        self.index.lock().total()
    }

    /// What each caller has. Does not block.
    pub(crate) fn figures(&self) -> Vec<CallerPieces> {
        self.index.lock().figures()
    }

    /// Whether a caller has any piece. Does not block.
    pub(crate) fn knows(&self, caller: Submitter) -> bool {
        self.index.lock().knows(caller)
    }

    /// The bytes of the disk that the pieces of a caller may take. Does not block.
    pub(crate) fn room(&self, caller: Submitter) -> u64 {
        self.index.lock().room(caller)
    }

    /// Which of these pieces a caller has, each of which counts as a use. Does not block, and looks at no file:
    /// [`Self::read`] may still find that a piece is gone.
    pub(crate) fn has(&self, caller: Submitter, ids: &[PieceId]) -> Vec<bool> {
        let (mut index, now) = (self.index.lock(), now());
        ids.iter().map(|id| index.use_piece(caller, *id, now)).collect()
    }

    /// A piece of a caller, if it is there and is what it was.
    pub(crate) fn read(&self, caller: Submitter, id: PieceId) -> Option<Vec<u8>> {
        self.load();
        if !self.index.lock().use_piece(caller, id, now()) {
            return None;
        }
        match self.directory(caller).and_then(|directory| read_piece(&directory, id)) {
            Ok(bytes) if PieceId::of(&bytes) == id => return Some(bytes),
            Err(error) if is_about_this_process(&error) => return None,
            Ok(_) | Err(_) => {}
        }
        self.index.lock().forget(caller, id.hash);
        self.delete(&[(caller, id.hash)]);
        None
    }

    /// Keeps a piece for a caller. Its ID is [that of these bytes](PieceId::of), as the caller of this function has
    /// found out.
    ///
    /// # Errors
    /// The piece is not kept: it is too long, there is no room for it, or a file operation failed.
    pub(crate) fn put(&self, caller: Submitter, id: PieceId, bytes: &[u8]) -> io::Result<()> {
        self.load();
        let now = now();
        let (is_known, has_room) = {
            let mut index = self.index.lock();
            (index.use_piece(caller, id, now), index.has_room(caller, id))
        };
        if is_known && self.directory(caller).and_then(|directory| open_piece(&directory, id)).is_ok() {
            return Ok(());
        }
        let is_caller = matches!(caller, Submitter::Node { .. });
        if !is_caller || bytes.len() as u64 != u64::from(id.length) || id.length > MOST_OF_PIECE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if !has_room || self.is_scarce.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        write_piece(&self.made_directory(caller)?, id, bytes)?;
        let gone = {
            let mut index = self.index.lock();
            let mut gone = index.expire(now);
            gone.extend(index.add(caller, id, now));
            gone
        };
        self.delete(&gone);
        Ok(())
    }

    /// Removes all pieces. Returns how many there were, and their bytes.
    pub(crate) fn clear(&self) -> (usize, u64) {
        self.load();
        let removed = {
            let mut index = self.index.lock();
            let most = index.most();
            std::mem::replace(&mut *index, Index::new(most)).total()
        };
        self.remove_all();
        removed
    }

    /// Changes how many bytes there may be, as for [`Self::open`].
    pub(crate) fn set_most(&self, most: Option<u64>) {
        self.load();
        let most = most.unwrap_or_else(|| default_size(&self.root));
        let gone = self.index.lock().set_most(most);
        if most == 0 { self.remove_all() } else { self.delete(&gone) }
    }

    /// Notes whether the disk has less free than it is to have: then nothing is added. Does not block.
    pub(crate) fn set_scarce(&self, is_scarce: bool) {
        self.is_scarce.store(is_scarce, Ordering::Relaxed);
    }

    /// Removes a quarter of all bytes, so that the disk has more free.
    pub(crate) fn give_way(&self) {
        self.load();
        let gone = {
            let mut index = self.index.lock();
            let (_, bytes) = index.total();
            index.shrink(bytes / 4 * 3)
        };
        self.delete(&gone);
    }

    /// Takes in the files of earlier processes, once.
    fn load(&self) {
        self.loaded.get_or_init(|| {
            let most = self.most();
            let mut found = Index::new(most);
            if most == 0 {
                return self.remove_all();
            }
            // If the directory cannot be read, it has nothing for us.
            let _ = self.read_names(&mut found);
            let mut gone = found.expire(now());
            gone.extend(found.shrink(most));
            *self.index.lock() = found;
            self.delete(&gone);
        });
    }

    /// Finds the pieces on disk, and clears away those that were being written. Anything else is left alone.
    fn read_names(&self, found: &mut Index) -> io::Result<()> {
        let all = open_directory(CWD, self.root.join(DIRECTORY))?;
        for entry in Dir::read_from(&all)? {
            let name = entry?;
            let caller = name.file_name().to_str().ok().and_then(caller_named);
            let Some(caller) = caller else { continue };
            let Ok(own) = open_directory(&all, name.file_name()) else { continue };
            for entry in Dir::read_from(&own)?.flatten() {
                let Ok(name) = entry.file_name().to_str() else { continue };
                let (hash, rest) = name.split_at_checked(HASH).unwrap_or_default();
                let (Some(hash), Ok(stat)) =
                    (hash_named(hash), statat(&own, name, AtFlags::SYMLINK_NOFOLLOW))
                else {
                    continue;
                };
                let length = u32::try_from(stat.st_size).ok().filter(|length| *length <= MOST_OF_PIECE);
                let has_room = found.total().0 < MOST_PIECES;
                match (FileType::from_raw_mode(stat.st_mode), rest, length) {
                    (FileType::RegularFile, "", Some(length)) if has_room => {
                        let used = milliseconds(stat.st_mtime, stat.st_mtime_nsec);
                        found.restore(caller, PieceId { hash, length }, used);
                    }
                    (FileType::RegularFile, rest, _) if rest.is_empty() || rest.ends_with(NEW) => {
                        let _ = unlinkat(&own, name, AtFlags::empty());
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn directory(&self, caller: Submitter) -> io::Result<OwnedFd> {
        open_directory(open_directory(CWD, self.root.join(DIRECTORY))?, caller.to_string())
    }

    fn made_directory(&self, caller: Submitter) -> io::Result<OwnedFd> {
        match self.directory(caller) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        let make = |above: &OwnedFd, name: &str| match mkdirat(above, name, Mode::RWXU) {
            Err(Errno::EXIST) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        };
        make(&open_directory(CWD, self.root.as_path())?, DIRECTORY)?;
        make(&open_directory(CWD, self.root.join(DIRECTORY))?, &caller.to_string())?;
        self.directory(caller)
    }

    /// Removes the files of pieces that are not in the index any more. If one stays, the next start finds it.
    fn delete(&self, gone: &[Gone]) {
        for of_one in gone.chunk_by(|one, next| one.0 == next.0) {
            let caller = of_one[0].0;
            let Ok(directory) = self.directory(caller) else { continue };
            for (_, hash) in of_one {
                let _ = unlinkat(&directory, hex::print(hash), AtFlags::empty());
            }
            if !self.knows(caller) {
                // It fails if another piece has come.
                let _ = fs::remove_dir(self.root.join(DIRECTORY).join(caller.to_string()));
            }
        }
    }

    fn remove_all(&self) {
        match fs::remove_dir_all(self.root.join(DIRECTORY)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "cannot remove pieces of payloads");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

fn default_size(root: &std::path::Path) -> u64 {
    let free = statvfs(root).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
    MOST.min(free / PART)
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// When a file was last used. A time that is yet to come counts as now, so that it passes like any other.
fn milliseconds(seconds: i64, nanoseconds: i64) -> u64 {
    let time = seconds.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000);
    u64::try_from(time).unwrap_or_default().min(now())
}

/// The caller to whom a directory of this name belongs.
fn caller_named(name: &str) -> Option<Submitter> {
    let caller: Submitter = name.parse().ok()?;
    (matches!(caller, Submitter::Node { .. }) && caller.to_string() == name).then_some(caller)
}

fn hash_named(name: &str) -> Option<[u8; 32]> {
    let hash: [u8; 32] = hex::parse(name.as_bytes())?.try_into().ok()?;
    (hex::print(&hash) == name).then_some(hash)
}

fn open_directory(above: impl AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(above, name, flags, Mode::empty())?)
}

/// Opens the file of a piece, and notes that it is used.
fn open_piece(directory: &OwnedFd, id: PieceId) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat(directory, hex::print(&id.hash), flags, Mode::empty())?);
    let found = file.metadata()?;
    if !found.is_file() || found.len() != u64::from(id.length) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if found.modified()?.elapsed().is_ok_and(|unused| unused > NOTE_EVERY) {
        // If this fails, the piece may go before its time.
        let _ = file.set_modified(SystemTime::now());
    }
    Ok(file)
}

fn read_piece(directory: &OwnedFd, id: PieceId) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; id.length as usize];
    open_piece(directory, id)?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Whether an error says nothing about the file.
fn is_about_this_process(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    errno.is_some_and(|errno| matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

/// Writes the file of a piece, which gets its name once it is whole.
fn write_piece(directory: &OwnedFd, id: PieceId, bytes: &[u8]) -> io::Result<()> {
    let name = hex::print(&id.hash);
    let new = format!("{name}.{:08x}{NEW}", rand::random::<u32>());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file = File::from(openat(directory, &new, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file.write_all(bytes).and_then(|()| Ok(renameat(directory, &new, directory, &name)?));
    if written.is_err() {
        let _ = unlinkat(directory, &new, AtFlags::empty());
    }
    written
}

#[cfg(test)]
mod tests;
