//! The journal of units: small changes of many units become durable together, by one write and one flush of a log, where
//! each would take several flushes by itself. Readers find every change in the units' own files at once. A few seconds
//! later those files are durable too (a checkpoint); then the log is emptied and used again. A daemon that stops in order
//! leaves the log empty. After any other end the next start brings the files to where the log says.
//!
//! Owns the thread that commits, and when it makes a checkpoint. Knows directories, files and bytes: which names belong
//! to units, and which of two statuses is the later one, its owner says by [`Rules`]. `record` is the notation, `log` the
//! order of steps, `replay` what a start does. The design is in docs/journal.md.

mod log;
mod record;
mod replay;

pub(super) use self::log::{Change, Log, NewStatus, Sizes, Update};
#[cfg(test)]
pub(super) use self::replay::replay;

use std::cmp::Ordering;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::UnitDir;
use super::disk::System;

/// In front of a number: the name of a log in the directory of the units.
pub(super) const PREFIX: &str = ".journal-";
/// Most changes, and about how many bytes of them, in one batch.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 1024 * 1024;
const SIZES: Sizes = Sizes { grow: 256 * 1024, limit: 4 * 1024 * 1024, one_by_one: 64 };
/// A checkpoint is due when nothing has been written for this long, and at the latest when the oldest batch is this old:
/// payloads must not outlive their units for long.
const IDLE: Duration = Duration::from_secs(2);
const OLD: Duration = Duration::from_secs(10);

/// What the owner of the directories knows about them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Whether a directory of this name is a unit's.
    pub(super) is_unit: fn(&str) -> bool,
    /// Compares how far two statuses have come; nothing when one of them is damaged.
    pub(super) compare: fn(&[u8], &[u8]) -> Option<Ordering>,
}

/// Commits changes of the units in one directory. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Journal {
    messages: Sender<Message>,
}

type Answer = oneshot::Sender<io::Result<()>>;

enum Message {
    Commit(Update, Answer),
    /// All that is in the log is made durable elsewhere.
    Checkpoint(Answer),
}

impl Journal {
    /// A journal whose logs follow those of up to a generation, which [`recover`] gives.
    pub(super) fn start(root: &Path, rules: Rules, generation: u64) -> io::Result<Self> {
        Self::with_ages(root, rules, generation, IDLE, OLD)
    }

    fn with_ages(
        root: &Path,
        rules: Rules,
        generation: u64,
        idle: Duration,
        old: Duration,
    ) -> io::Result<Self> {
        let log = Log::new(System, root.to_owned(), SIZES, rules, generation);
        let (messages, queue) = mpsc::channel();
        let committer = Committer { log, queue, idle, old, begun: None };
        thread::Builder::new().name("journal".into()).spawn(move || committer.run())?;
        Ok(Self { messages })
    }

    /// Makes a change. It is durable and visible when this returns, and made even if nobody waits for that.
    pub(super) async fn commit(&self, unit: &UnitDir, change: Change) -> io::Result<()> {
        let update = Update { unit: unit.name().to_owned(), change };
        self.send(|answer| Message::Commit(update, answer)).await
    }

    /// Makes all changes durable in the units' own files, and empties the log.
    pub(super) async fn checkpoint(&self) -> io::Result<()> {
        self.send(Message::Checkpoint).await
    }

    async fn send(&self, message: impl FnOnce(Answer) -> Message) -> io::Result<()> {
        let (answer, answered) = oneshot::channel();
        // A thread that is gone drops the answer, which is noticed below.
        let _ = self.messages.send(message(answer));
        answered.await.unwrap_or_else(|_| Err(io::Error::other("the journal's thread is gone")))
    }
}

/// Brings units to where the logs say that an earlier daemon has left. Gives the highest generation of those.
///
/// # Errors
/// The disk's error, and which unit it was about.
pub(super) fn recover(root: &Path, rules: &Rules) -> io::Result<u64> {
    replay::replay(&System, root, &logs(root)?, rules)
}

/// The logs in a directory of units.
fn logs(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        let is_log = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_log && entry.file_type()?.is_file() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The committing thread.
struct Committer {
    log: Log<System>,
    queue: Receiver<Message>,
    idle: Duration,
    old: Duration,
    /// When the first batch since the last checkpoint was written.
    begun: Option<Instant>,
}

impl Committer {
    fn run(mut self) {
        loop {
            let next = match self.log.is_used() {
                true => self.queue.recv_timeout(self.idle),
                false => self.queue.recv().map_err(RecvTimeoutError::from),
            };
            match next {
                Ok(Message::Commit(update, answer)) => self.commit(update, answer),
                Ok(Message::Checkpoint(answer)) => drop(answer.send(self.checkpoint())),
                // It is logged, and tried again.
                Err(RecvTimeoutError::Timeout) => drop(self.checkpoint()),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Commits a change together with all that have arrived meanwhile.
    fn commit(&mut self, first: Update, answer: Answer) {
        let mut bytes = first.size();
        let (mut updates, mut answers, mut last) = (vec![first], vec![answer], None);
        while updates.len() < BATCH && bytes < BATCH_BYTES && last.is_none() {
            match self.queue.try_recv() {
                Ok(Message::Commit(update, answer)) => {
                    bytes += update.size();
                    updates.push(update);
                    answers.push(answer);
                }
                Ok(Message::Checkpoint(answer)) => last = Some(answer),
                Err(_) => break,
            }
        }
        let outcomes = self.log.commit(&updates);
        answers.into_iter().zip(outcomes).for_each(|(answer, outcome)| drop(answer.send(outcome)));
        let is_old = self.begun.get_or_insert_with(Instant::now).elapsed() >= self.old;
        if is_old || self.log.is_full() || last.is_some() {
            let outcome = self.checkpoint();
            last.map(|answer| answer.send(outcome));
        }
    }

    fn checkpoint(&mut self) -> io::Result<()> {
        self.begun = None;
        self.log.checkpoint()
    }
}

#[cfg(test)]
mod tests;
