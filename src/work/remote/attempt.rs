//! What the attempt of a job on another node has in place of a directory. Its state is in memory, and in the controller's
//! store what a restart has to know; it reads the files of its job, and its output goes to whoever drives it. Owns who
//! reads, and from which byte on. Knows neither the store nor the job's output.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::AsyncReadExt as _;
use tokio::sync::{mpsc, watch};

use super::Remotes;
use super::driver::{FIRST_PAUSE, LONGEST_PAUSE};
use super::follow::POLL;
use super::output::{MissingOutput, OutputLooks};
use super::submit::{CHUNK, extra};
use crate::os::back_off::BackOff;
use crate::rpc::ErrorCode;
use crate::work::WorkError;
use crate::work::far::StepError;
use crate::work::jobs::JobsSlot;
use crate::work::status::Status;
use crate::work::units::{Entry, Follower};

/// Pieces of output that wait for their reader, each of which a node may make 1 MiB long.
const AHEAD: usize = 2;

/// How long a node that has bytes ready may need for some of them.
const READ_WITHIN: Duration = Duration::from_secs(30);

/// What an attempt reads. It may hold secrets.
pub struct AttemptPayload {
    head: Vec<u8>,
    /// Each from that byte on. Open, since whoever deletes one does not ask who reads it.
    files: Vec<(File, u64)>,
}

impl AttemptPayload {
    /// All of it. A read that gives less than was asked for is the last one. Reading blocks.
    pub fn reader(self: Arc<Self>) -> impl Read + Send + use<> {
        PayloadBytes { payload: self, part: 0, at: 0 }
    }

    /// These bytes, then these files, each from that byte on. Blocks.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn open(head: Vec<u8>, files: Vec<(PathBuf, u64)>) -> io::Result<Self> {
        let open = |(path, from)| File::open(path).map(|file| (file, from));
        Ok(Self { head, files: files.into_iter().map(open).collect::<io::Result<_>>()? })
    }
}

/// Reads all of a payload.
struct PayloadBytes {
    payload: Arc<AttemptPayload>,
    /// The part that comes next, the head being the first, and how much of it was read.
    part: usize,
    at: u64,
}

impl Read for PayloadBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let free = &mut buffer[filled..];
            let count = match self.part.checked_sub(1) {
                None => {
                    let head = self.payload.head.get(self.at as usize..).unwrap_or_default();
                    let count = head.len().min(free.len());
                    free[..count].copy_from_slice(&head[..count]);
                    count
                }
                Some(number) => match self.payload.files.get(number) {
                    None => break,
                    Some((file, from)) => file.read_at(free, from + self.at)?,
                },
            };
            filled += count;
            (self.part, self.at) =
                if count == 0 { (self.part + 1, 0) } else { (self.part, self.at + count as u64) };
        }
        Ok(filled)
    }
}

/// Whoever takes the output of an attempt.
pub(super) struct OutputReader {
    bytes: mpsc::Sender<Bytes>,
    /// The byte that it gets next.
    position: AtomicU64,
}

impl OutputReader {
    pub(super) fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// Hands bytes over, once the reader has room for them.
    ///
    /// # Errors
    /// Nobody reads any more.
    pub(super) async fn give(&self, bytes: Vec<u8>) -> Result<(), StepError> {
        let length = bytes.len() as u64;
        let room = self.bytes.reserve().await;
        let room = room.map_err(|_| StepError::Connection("nobody reads the output any more".into()))?;
        room.send(bytes.into());
        self.position.fetch_add(length, Ordering::Relaxed);
        Ok(())
    }
}

/// What a node may have of an attempt from an earlier process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FarUnit {
    /// Its ID there.
    pub id: String,
    /// Another control node may have had it released, and have its end: if its node does not know it, and forgets what it
    /// released, it is not sent again.
    pub may_be_released: bool,
}

/// What attempts alone have.
pub(crate) struct Attempt {
    /// Until its node has it. A plain lock, as that of `known_as`.
    payload: Mutex<Option<Arc<AttemptPayload>>>,
    reader: watch::Sender<Option<Arc<OutputReader>>>,
    /// The ID that the store knows it to have on its node.
    known_as: Mutex<Box<str>>,
    may_be_released: bool,
    jobs: JobsSlot,
}

impl std::fmt::Debug for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Attempt")
    }
}

impl Attempt {
    /// `payload` if it is to be sent, `far` if its node may have it.
    pub(crate) fn new(payload: Option<AttemptPayload>, far: Option<FarUnit>, jobs: JobsSlot) -> Self {
        let may_be_released = far.as_ref().is_some_and(|far| far.may_be_released);
        let known_as = far.map(|far| far.id.into()).unwrap_or_default();
        Self {
            payload: Mutex::new(payload.map(Arc::new)),
            reader: watch::Sender::new(None),
            known_as: Mutex::new(known_as),
            may_be_released,
            jobs,
        }
    }

    /// All that it reads.
    pub(super) fn payload(&self) -> Result<Box<dyn Read + Send>, WorkError> {
        let payload = self.payload.lock().clone();
        let payload = payload.ok_or_else(|| WorkError::Job("its node has its payload already".to_owned()))?;
        Ok(Box::new(payload.reader()))
    }

    /// Has the store keep the ID that the node chose, which a restart has to know. Closes the payload once the node has it.
    ///
    /// # Errors
    /// The store does not take it.
    pub(crate) async fn keep(&self, unit: &Entry, status: &Status) -> Result<(), WorkError> {
        let Some(remote) = status.remote() else { return Ok(()) };
        if remote.remote_started {
            *self.payload.lock() = None;
        }
        let id = &remote.remote_unit_id;
        if id.is_empty() || **id == *unit.id.as_str() || *self.known_as.lock() == *id {
            return Ok(());
        }
        self.jobs.keep_far_id(&unit.id, id).await?;
        *self.known_as.lock() = id.clone();
        Ok(())
    }

    /// Whether another control node may have had it released.
    pub(super) fn may_be_released(&self) -> bool {
        self.may_be_released
    }

    /// How much of the output has come, from its first byte on.
    pub(crate) fn received(&self) -> u64 {
        self.reader.borrow().as_ref().map_or(0, |reader| reader.position())
    }

    /// Whoever reads, once somebody does.
    pub(super) async fn reader(&self) -> Arc<OutputReader> {
        let mut now = self.reader.subscribe();
        let reads =
            |now: &Option<Arc<OutputReader>>| now.as_ref().is_some_and(|reader| !reader.bytes.is_closed());
        // The sender is kept, so this cannot fail.
        let found = now.wait_for(reads).await.ok().and_then(|found| found.clone());
        match found {
            Some(reader) => reader,
            None => std::future::pending().await,
        }
    }

    /// Returns when somebody else reads than does now, or reads first.
    pub(super) async fn passed_on(&self) {
        let first = self.reader().await;
        let mut now = self.reader.subscribe();
        let is_another =
            |now: &Option<Arc<OutputReader>>| now.as_ref().is_some_and(|now| !Arc::ptr_eq(now, &first));
        let _never = now.wait_for(is_another).await;
    }
}

/// The output of an attempt, for the one who reads it.
#[derive(Debug)]
pub struct AttemptOutput {
    remotes: Arc<Remotes>,
    unit: Arc<Entry>,
    status: Follower,
    bytes: mpsc::Receiver<Bytes>,
    position: u64,
    /// The unit has ended, and what was missing is asked for.
    is_last: bool,
}

impl std::fmt::Debug for Remotes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Remotes")
    }
}

impl Remotes {
    /// The output of an attempt from a byte on. A former reader gets nothing before the end, and then the rest.
    pub(crate) fn read_attempt(self: &Arc<Self>, unit: &Arc<Entry>, from: u64) -> Option<AttemptOutput> {
        let attempt = unit.attempt()?;
        let (sender, bytes) = mpsc::channel(AHEAD);
        let reader = OutputReader { bytes: sender, position: AtomicU64::new(from) };
        attempt.reader.send_replace(Some(Arc::new(reader)));
        let (remotes, unit, status) = (self.clone(), unit.clone(), unit.subscribe());
        Some(AttemptOutput { remotes, unit, status, bytes, position: from, is_last: false })
    }

    /// Reads bytes again that a node has had ready before, which keeps them until the release. Fewer come if it has not.
    async fn read_again(&self, unit: &Entry, mut from: u64, to: u64, sender: &mpsc::Sender<Bytes>) {
        let mut pauses = BackOff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut looks = OutputLooks::default();
        while from < to {
            let before = from;
            match self.copy_again(unit, &mut from, to, sender).await {
                Ok(()) if from >= to => return,
                // It answers, and has less than it said: a power loss, say.
                Ok(()) if looks.look(from) == MissingOutput::Lost => {
                    tracing::warn!(unit = %unit.id, from, to, "its node has lost the rest of an output");
                    return;
                }
                Ok(()) => {
                    tokio::time::sleep(POLL).await;
                    continue;
                }
                Err(error) if error.code().is_some_and(ErrorCode::is_no_unit) => {
                    tracing::warn!(unit = %unit.id, from, "the rest of an output is gone with its unit");
                    return;
                }
                Err(error) => tracing::info!(unit = %unit.id, %error, "an output is read again"),
            }
            if from > before {
                pauses.reset();
            }
            tokio::time::sleep(pauses.next()).await;
        }
    }

    /// Copies what the node has of them.
    async fn copy_again(
        &self,
        unit: &Entry,
        from: &mut u64,
        to: u64,
        sender: &mpsc::Sender<Bytes>,
    ) -> Result<(), StepError> {
        let mut session = self.far.results(&extra(unit), *from).await?;
        while *from < to {
            let mut piece = vec![0; CHUNK.min(usize::try_from(to - *from).unwrap_or(CHUNK))];
            let read = tokio::time::timeout(READ_WITHIN, session.connection.reader().read(&mut piece)).await;
            // A node of receptor's leaves the results of a cancelled unit open.
            let count = read.unwrap_or(Ok(0))?;
            if count == 0 {
                return Ok(());
            }
            piece.truncate(count);
            *from += count as u64;
            // Whoever has read it is gone, and with him this task.
            let _gone = sender.send(piece.into()).await;
        }
        Ok(())
    }
}

impl AttemptOutput {
    /// The next bytes; `None` once the unit has ended and all that can be had was delivered. Dropping the future loses
    /// nothing.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            let has_ended = tokio::select! {
                biased;
                next = self.bytes.recv() => Err(next),
                // As below.
                _ = self.status.wait_for(|status| status.life.state.is_final()), if !self.is_last => Ok(()),
            };
            let next = match has_ended {
                // Somebody else reads now, and this one has no news until the end.
                Err(None) if !self.is_last => {
                    self.wait_for_the_end().await;
                    self.ask_for_the_rest();
                    continue;
                }
                Err(next) => next,
                Ok(()) => match self.bytes.try_recv() {
                    Ok(next) => Some(next),
                    Err(_) => {
                        self.ask_for_the_rest();
                        continue;
                    }
                },
            };
            self.position += next.as_ref().map_or(0, |bytes| bytes.len() as u64);
            return next;
        }
    }

    async fn wait_for_the_end(&mut self) {
        // The follower keeps the sender, so this cannot fail.
        let _never = self.status.wait_for(|status| status.life.state.is_final()).await;
    }

    /// Whether there was more of it than came, after its end.
    pub fn is_cut(&self) -> bool {
        self.is_last && self.position < self.unit.status().life.stdout_size
    }

    /// Has what has not come be sent again, if the node may have it. No more comes otherwise.
    fn ask_for_the_rest(&mut self) {
        self.is_last = true;
        let (sender, bytes) = mpsc::channel(AHEAD);
        self.bytes = bytes;
        let status = self.unit.status();
        let (from, to) = (self.position, status.life.stdout_size);
        if from >= to || status.remote().is_some_and(|remote| remote.gone) {
            return;
        }
        let (remotes, unit) = (self.remotes.clone(), self.unit.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = remotes.read_again(&unit, from, to, &sender) => {}
                () = sender.closed() => {}
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_its_head_and_then_each_file_from_its_byte_on() {
        let temp = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = temp.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let files = vec![(file("a", "0123456789"), 7), (file("b", ""), 0), (file("c", "xyz"), 0)];
        let payload = Arc::new(AttemptPayload::open(b"head".to_vec(), files).unwrap());
        drop(temp);
        for size in [1, 2, 3, 100] {
            let mut bytes = payload.clone().reader();
            let (mut all, mut buffer) = (Vec::new(), vec![0; size]);
            loop {
                let count = bytes.read(&mut buffer).unwrap();
                all.extend_from_slice(&buffer[..count]);
                if count < size {
                    break;
                }
            }
            assert_eq!(all, b"head789xyz", "in pieces of {size}");
        }
    }

    #[tokio::test]
    async fn output_waits_for_its_reader_and_goes_to_the_latest() {
        let attempt = Attempt::new(None, None, JobsSlot::default());
        let read = |from| {
            let (sender, bytes) = mpsc::channel(AHEAD);
            let reader = OutputReader { bytes: sender, position: AtomicU64::new(from) };
            attempt.reader.send_replace(Some(Arc::new(reader)));
            bytes
        };
        let mut waits = Box::pin(attempt.reader());
        assert!(futures_util::poll!(&mut waits).is_pending());
        let mut first = read(5);
        let reader = waits.await;
        reader.give(b"abc".to_vec()).await.unwrap();
        assert_eq!((reader.position(), first.recv().await.unwrap().as_ref()), (8, &b"abc"[..]));
        let mut passed_on = Box::pin(attempt.passed_on());
        assert!(futures_util::poll!(&mut passed_on).is_pending());
        let _second = read(2);
        passed_on.await;
        drop(first);
        assert!(reader.give(b"d".to_vec()).await.is_err(), "what nobody takes does not count");
        assert_eq!((reader.position(), attempt.reader().await.position()), (8, 2));
    }
}
