//! The journal of units: small changes of many units become durable together, by one write and one flush of a log,
//! where each would take several fsyncs by itself. What the log holds is in the units' own files at once, for everybody
//! who looks, and durable there a little later; then the log is wiped and used again. A daemon that stops in order leaves
//! none; after any other end the next one brings the files to where the log says.
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
    pub(in crate::work::store) use super::replay::{settle_again, take_up};
}

pub(crate) use commit::{Change, Tells};

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use self::commit::{Ask, Committed, Committer};
use self::log::{Log, PREFIX};
use super::UnitDir;
use super::disk::System;
use parking_lot::{Mutex, MutexGuard};

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

/// Told what has come of something, on the committing thread.
type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// For the committing thread.
enum Message {
    Change(Ask, Done),
    /// All logs shall settle now.
    Settle(Done),
}

/// Takes changes of the units in one directory. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Journal {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    pace: Pace,
    /// The highest generation of a log that was found.
    generation: u64,
    /// To the committing thread, once there is one.
    messages: Mutex<Option<Sender<Message>>>,
}

impl Journal {
    /// Takes up what an earlier daemon left.
    ///
    /// # Errors
    /// What kept units from being brought to where the journal says.
    pub(super) fn open(root: &Path, boot: &str) -> io::Result<Self> {
        Self::with_pace(root, boot, PACE)
    }

    fn with_pace(root: &Path, boot: &str, pace: Pace) -> io::Result<Self> {
        let generation = replay::take_up(&System, root, &logs(root)?, boot)?;
        let inner = Inner { root: root.to_owned(), pace, generation, messages: Mutex::default() };
        Ok(Self { inner: Arc::new(inner) })
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
            Ok(messages) => {
                let ask = Ask { unit: unit.path().to_owned(), change };
                drop(messages.send(Message::Change(ask, Box::new(done))));
            }
            Err(error) => done(Err(error)),
        }
    }

    /// Has all that is in logs made durable in the units' own files, and the logs emptied.
    pub(super) fn settle(&self, done: impl FnOnce(io::Result<()>) + Send + 'static) {
        match &*self.inner.messages() {
            Some(messages) => drop(messages.send(Message::Settle(Box::new(done)))),
            // Without a thread there is no log.
            None => done(Ok(())),
        }
    }
}

impl Inner {
    fn messages(&self) -> MutexGuard<'_, Option<Sender<Message>>> {
        self.messages.lock()
    }

    fn sender(&self) -> io::Result<Sender<Message>> {
        let mut messages = self.messages();
        if let Some(messages) = &*messages {
            return Ok(messages.clone());
        }
        let (sender, queue) = mpsc::channel();
        let settler = Settler::start(self.root.clone())?;
        let committer = Committer::new(System, self.root.clone(), SIZES, self.generation);
        let writer = Writer { committer, settler, pace: self.pace, begun: None, is_direct: false };
        thread::Builder::new().name("journal".into()).spawn(move || writer.run(&queue))?;
        Ok(messages.insert(sender).clone())
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
    /// No log could be written last time.
    is_direct: bool,
}

impl Writer {
    fn run(mut self, queue: &Receiver<Message>) {
        loop {
            let is_at_rest = self.committer.is_at_rest() && self.settler.is_at_rest();
            let next = match is_at_rest {
                true => queue.recv().map_err(RecvTimeoutError::from),
                false => queue.recv_timeout(self.pace.idle),
            };
            match next {
                Ok(Message::Change(ask, done)) => self.commit(ask, done, queue),
                Ok(Message::Settle(done)) => done(self.settle()),
                Err(RecvTimeoutError::Timeout) => {
                    let log = self.committer.used_log();
                    self.retire(log);
                    let _said_already = self.settler.catch_up(&mut self.committer);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Commits the first change with all that have come meanwhile.
    fn commit(&mut self, first: Ask, done: Done, queue: &Receiver<Message>) {
        let mut bytes = first.change.size();
        let (mut asks, mut waiting, mut last) = (vec![first], vec![done], None);
        while waiting.len() < BATCH && bytes < BATCH_BYTES {
            match queue.try_recv() {
                Ok(Message::Change(ask, done)) => {
                    bytes += ask.change.size();
                    asks.push(ask);
                    waiting.push(done);
                }
                Ok(Message::Settle(done)) => {
                    last = Some(done);
                    break;
                }
                Err(_) => break,
            }
        }
        let outcomes = self.make_durable(&asks);
        waiting.into_iter().zip(outcomes).for_each(|(done, outcome)| done(outcome));
        let is_old = self.begun.get_or_insert_with(Instant::now).elapsed() >= self.pace.old;
        let log = if is_old { self.committer.used_log() } else { self.committer.full_log() };
        self.retire(log);
        if let Some(done) = last {
            done(self.settle());
        }
    }

    fn retire(&mut self, log: Option<Log<System>>) {
        if let Some(log) = log {
            self.begun = None;
            self.settler.take(log);
        }
    }

    fn settle(&mut self) -> io::Result<()> {
        let log = self.committer.used_log();
        self.retire(log);
        self.settler.wait(&mut self.committer)
    }

    fn make_durable(&mut self, asks: &[Ask]) -> Vec<io::Result<()>> {
        if let Err(error) = self.settler.catch_up(&mut self.committer) {
            return asks.iter().map(|_| Err(same(&error))).collect();
        }
        let Committed { mut outcomes, broken } = self.committer.commit(asks, self.settler.spare.pop());
        let was_direct = std::mem::replace(&mut self.is_direct, broken.is_some());
        let Some((error, log)) = broken else { return outcomes };
        if !was_direct {
            tracing::warn!(%error, "the journal of units cannot be written, each is made durable by itself");
        }
        log.into_iter().for_each(|log| self.settler.take(log));
        match self.settler.wait(&mut self.committer) {
            Ok(()) => self.committer.commit_directly(asks, &mut outcomes),
            Err(error) => self.committer.give_up(asks, &mut outcomes, &error),
        }
        outcomes
    }
}

fn same(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
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
/// would bring back what was true earlier. Once one has failed it hands all back as they are, until those are dealt with
/// while nothing is committed.
struct Settler {
    root: PathBuf,
    logs: Sender<Log<System>>,
    /// Logs that are wiped, or why one is not.
    back: Receiver<(Log<System>, io::Result<()>)>,
    /// How many have not come back.
    away: usize,
    spare: Vec<Log<System>>,
    /// Came back as they were, in order.
    unsettled: Vec<Log<System>>,
    has_failed: Arc<AtomicBool>,
}

impl Settler {
    fn start(root: PathBuf) -> io::Result<Self> {
        let ((logs, queue), (answer, back)) = (mpsc::channel::<Log<System>>(), mpsc::channel());
        let has_failed = Arc::<AtomicBool>::default();
        let (directory, failed) = (root.clone(), has_failed.clone());
        let run = move || {
            for mut log in queue {
                let settled = match failed.load(Ordering::Relaxed) {
                    true => Err(io::Error::other("an earlier one did not settle")),
                    false => log.settle(&System, &directory, &SIZES).and_then(|()| log.wipe(&System)),
                };
                failed.fetch_or(settled.is_err(), Ordering::Relaxed);
                if answer.send((log, settled)).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("journal-settler".into()).spawn(run)?;
        Ok(Self { root, logs, back, away: 0, spare: Vec::new(), unsettled: Vec::new(), has_failed })
    }

    fn is_at_rest(&self) -> bool {
        self.away == 0 && self.unsettled.is_empty()
    }

    /// Lets a log settle. Waits when there are too many already.
    fn take(&mut self, log: Log<System>) {
        if self.logs.send(log).is_ok() {
            self.away += 1;
        }
        while self.away >= SETTLING && self.note_next().is_ok() {}
    }

    /// Sees what has become of the logs; where one did not settle, has all of them do it now.
    fn catch_up(&mut self, committer: &mut Committer<System>) -> io::Result<()> {
        while let Ok(back) = self.back.try_recv() {
            self.note(back);
        }
        if self.unsettled.is_empty() { Ok(()) } else { self.wait(committer) }
    }

    /// Returns when all logs have settled.
    fn wait(&mut self, committer: &mut Committer<System>) -> io::Result<()> {
        while self.away > 0 {
            self.note_next()?;
        }
        if self.unsettled.is_empty() {
            return Ok(());
        }
        self.unsettled.extend(committer.used_log());
        replay::settle_again(&System, &self.root, &mut self.unsettled).inspect_err(
            |error| tracing::error!(%error, "what is in the journal of units cannot be made durable elsewhere"),
        )?;
        self.spare.append(&mut self.unsettled);
        self.has_failed.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn note_next(&mut self) -> io::Result<()> {
        let back = self.back.recv().map_err(io::Error::other)?;
        self.note(back);
        Ok(())
    }

    fn note(&mut self, (log, settled): (Log<System>, io::Result<()>)) {
        self.away -= 1;
        match settled {
            Ok(()) => self.spare.push(log),
            Err(error) => {
                if self.unsettled.is_empty() {
                    tracing::error!(%error, "the journal of units does not settle, trying again");
                }
                self.unsettled.push(log);
            }
        }
    }
}
