//! The journal of units: small changes of many units become durable together, by one write and one flush of a log,
//! where each would take several fsyncs by itself. What the log holds is in the units' own files at once, for everybody
//! who looks, and durable there a little later; then the log is wiped and used again. After a power loss, which the
//! kernel's name for the time since it booted tells, the files are brought to where the log says.
//!
//! Owns the threads: one that commits, and one that lets logs settle, in their order. `record` is the notation, `log` a
//! file of it, `commit` the order of steps, `replay` what follows a power loss.

mod commit;
mod log;
mod record;
mod replay;
#[cfg(test)]
mod tests;

/// What has no threads, for tests on a disk in memory.
#[cfg(test)]
pub(super) mod pure {
    pub(in crate::work::store) use super::Sizes;
    pub(in crate::work::store) use super::commit::{Ask, Committed, Committer};
    pub(in crate::work::store) use super::log::{Log, PREFIX};
    pub(in crate::work::store) use super::replay::{Found, settle_left, take_up};
}

pub(crate) use commit::{Change, Tells};

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use self::commit::{Ask, Committed, Committer};
use self::log::{Log, PREFIX};
use self::replay::Found;
use super::UnitDir;
use super::disk::System;

/// Between attempts to let a log settle on a disk that fails.
const AGAIN: Duration = Duration::from_secs(1);
/// Logs that settle, at most; more make their writers wait.
const SETTLING: usize = 8;
/// Changes, and about how many bytes of them, that are committed at a time.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 1024 * 1024;

/// How much of what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// A log grows by so many bytes at a time.
    pub(super) grow: u64,
    /// A log of so many bytes gives its place to another.
    pub(super) limit: u64,
    /// Up to so many units are made durable one by one; for more, all of the file system is.
    pub(super) one_by_one: usize,
}

const SIZES: Sizes = Sizes { grow: 256 * 1024, limit: 4 * 1024 * 1024, one_by_one: 64 };

/// When a log settles that is not full: payloads shall not outlive their units for long.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// After nobody has written to it for so long.
    idle: Duration,
    /// At the latest with what is written after so long.
    old: Duration,
}

const PACE: Pace = Pace { idle: Duration::from_secs(2), old: Duration::from_secs(10) };

/// Told what has come of a change, on the committing thread.
type Done = Box<dyn FnOnce(io::Result<()>) + Send>;
/// A change for the committing thread; nobody waits for one without the other.
type Message = (Ask, Option<Done>);

/// Takes changes of the units in one directory. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Journal {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    boot: String,
    pace: Pace,
    /// The highest generation of a log that was found.
    generation: u64,
    /// Logs that were found, and whose changes are in the units' files, though not durably so.
    found: Mutex<Vec<PathBuf>>,
    /// To the committing thread, once there is one.
    asks: Mutex<Option<Sender<Message>>>,
}

impl Journal {
    /// Takes up what an earlier daemon left.
    ///
    /// # Errors
    /// What kept units from being brought to where the journal says.
    pub(super) fn open(root: &Path, boot: String) -> io::Result<Self> {
        Self::with_pace(root, boot, PACE)
    }

    fn with_pace(root: &Path, boot: String, pace: Pace) -> io::Result<Self> {
        let Found { generation, left } = replay::take_up(&System, root, logs(root)?, &boot)?;
        let (root, waits) = (root.to_owned(), !left.is_empty());
        let inner = Inner { root, boot, pace, generation, found: Mutex::new(left), asks: Mutex::default() };
        let journal = Self { inner: Arc::new(inner) };
        if waits {
            journal.inner.sender()?;
        }
        Ok(journal)
    }

    /// Has a change made. `done` is called once it is durable and visible, or cannot be.
    pub(super) fn commit(
        &self,
        unit: &UnitDir,
        change: Change,
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) {
        match self.inner.sender() {
            // Should the thread be gone, so is `done`, and who waits for it learns that.
            Ok(asks) => {
                let ask = Ask { unit: unit.path().to_owned(), change };
                drop(asks.send((ask, Some(Box::new(done)))));
            }
            Err(error) => done(Err(error)),
        }
    }

    /// Notes that a unit was removed, with the next change that is made.
    pub(super) fn note_gone(&self, unit: &UnitDir) {
        let asks = self.inner.asks.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a thread there is no log in which it could be.
        if let Some(asks) = &*asks {
            let _ = asks.send((Ask { unit: unit.path().to_owned(), change: Change::Gone }, None));
        }
    }
}

impl Inner {
    fn sender(&self) -> io::Result<Sender<Message>> {
        let mut asks = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(asks) = &*asks {
            return Ok(asks.clone());
        }
        let (sender, queue) = mpsc::channel();
        let found = std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner));
        let settler = Settler::start(self.root.clone(), found)?;
        let committer = Committer::new(System, self.root.clone(), SIZES, self.boot.clone(), self.generation);
        let writer =
            Writer { committer, settler, pace: self.pace, begun: None, gone: Vec::new(), is_direct: false };
        thread::Builder::new().name("journal".into()).spawn(move || writer.run(&queue))?;
        Ok(asks.insert(sender).clone())
    }
}

/// The logs in a directory of units.
fn logs(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let is_log = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_log && entry.file_type()?.is_file() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The committing thread.
struct Writer {
    committer: Committer<System>,
    settler: Settler,
    pace: Pace,
    /// When the log was written to first.
    begun: Option<Instant>,
    /// Removals to note with the next batch.
    gone: Vec<Ask>,
    /// No log could be written last time.
    is_direct: bool,
}

impl Writer {
    fn run(mut self, queue: &Receiver<Message>) {
        loop {
            match queue.recv_timeout(self.pace.idle) {
                Ok(first) => self.commit(first, queue),
                Err(RecvTimeoutError::Timeout) => {
                    // What was removed is durably so when the log has settled.
                    self.gone.clear();
                    let log = self.committer.used_log();
                    self.retire(log);
                    match queue.recv() {
                        Ok(first) => self.commit(first, queue),
                        Err(_) => return,
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Commits the first change with all that have come meanwhile.
    fn commit(&mut self, first: Message, queue: &Receiver<Message>) {
        let mut asks = std::mem::take(&mut self.gone);
        let mut waiting: Vec<Option<Done>> = asks.iter().map(|_| None).collect();
        let mut bytes = 0;
        for (ask, done) in std::iter::once(first).chain(queue.try_iter()) {
            bytes += ask.change.size();
            asks.push(ask);
            waiting.push(done);
            if waiting.len() >= BATCH || bytes >= BATCH_BYTES {
                break;
            }
        }
        if waiting.iter().all(Option::is_none) {
            self.gone = asks;
            return;
        }
        let outcomes = self.make_durable(&asks);
        for (done, outcome) in waiting.into_iter().zip(outcomes) {
            if let Some(done) = done {
                done(outcome);
            }
        }
        let is_old = self.begun.get_or_insert_with(Instant::now).elapsed() >= self.pace.old;
        let log = if is_old { self.committer.used_log() } else { self.committer.full_log() };
        self.retire(log);
    }

    fn retire(&mut self, log: Option<Log<System>>) {
        if let Some(log) = log {
            self.begun = None;
            self.settler.take(log);
        }
    }

    fn make_durable(&mut self, asks: &[Ask]) -> Vec<io::Result<()>> {
        let Committed { mut outcomes, broken } = self.committer.commit(asks, self.settler.spare());
        let was_direct = std::mem::replace(&mut self.is_direct, broken.is_some());
        let Some((error, log)) = broken else { return outcomes };
        if !was_direct {
            tracing::warn!(%error, "the journal of units cannot be written, each is made durable by itself");
        }
        log.into_iter().for_each(|log| self.settler.take(log));
        match self.settler.wait() {
            Ok(()) => self.committer.commit_directly(asks, &mut outcomes),
            Err(error) => self.committer.give_up(asks, &mut outcomes, &error),
        }
        outcomes
    }
}

impl Change {
    /// About how long it is, in bytes.
    fn size(&self) -> usize {
        match self {
            Self::Make(bytes) | Self::File(_, bytes) | Self::Status(bytes, _) | Self::Left(bytes, _) => {
                bytes.len()
            }
            Self::Gone => 0,
        }
    }
}

/// The thread that lets logs settle, one after the other: an earlier one must not outlive a later one, or a power loss
/// would bring back what was true earlier.
struct Settler {
    logs: Sender<Log<System>>,
    /// Logs that are wiped; none for those that an earlier daemon left.
    settled: Receiver<io::Result<Option<Log<System>>>>,
    /// How many have not come back.
    away: usize,
    spare: Vec<Log<System>>,
}

impl Settler {
    fn start(root: PathBuf, found: Vec<PathBuf>) -> io::Result<Self> {
        let ((logs, queue), (answer, settled)) = (mpsc::channel::<Log<System>>(), mpsc::channel());
        let has_left = !found.is_empty();
        let run = move || {
            let is_heard = |error| answer.send(Err(error)).is_ok();
            let left = || replay::settle_left(&System, &root, &found);
            if has_left && !(until_done(left, is_heard) && answer.send(Ok(None)).is_ok()) {
                return;
            }
            for mut log in queue {
                let settle = || log.settle(&System, &root, &SIZES).and_then(|()| log.wipe(&System));
                if !(until_done(settle, is_heard) && answer.send(Ok(Some(log))).is_ok()) {
                    return;
                }
            }
        };
        thread::Builder::new().name("journal-settler".into()).spawn(run)?;
        Ok(Self { logs, settled, away: has_left.into(), spare: Vec::new() })
    }

    /// Lets a log settle. Waits when there are too many already.
    fn take(&mut self, log: Log<System>) {
        if self.logs.send(log).is_ok() {
            self.away += 1;
        }
        while self.away >= SETTLING && self.settled.recv().is_ok_and(|answer| self.note(answer).is_ok()) {}
    }

    /// A log that has settled, if there is one.
    fn spare(&mut self) -> Option<Log<System>> {
        while let Ok(answer) = self.settled.try_recv() {
            let _ = self.note(answer);
        }
        self.spare.pop()
    }

    /// Returns when all logs have settled.
    fn wait(&mut self) -> io::Result<()> {
        while self.away > 0 {
            let answer = self.settled.recv().map_err(io::Error::other)?;
            self.note(answer)?;
        }
        Ok(())
    }

    fn note(&mut self, answer: io::Result<Option<Log<System>>>) -> io::Result<()> {
        self.spare.extend(answer?);
        self.away -= 1;
        Ok(())
    }
}

/// Tries until it is done; says no when nobody wants to hear of its failures.
fn until_done(mut attempt: impl FnMut() -> io::Result<()>, tell: impl Fn(io::Error) -> bool) -> bool {
    loop {
        let Err(error) = attempt() else { return true };
        tracing::error!(%error, "what is in the journal of units cannot be made durable elsewhere, trying again");
        if !tell(error) {
            return false;
        }
        thread::sleep(AGAIN);
    }
}
