//! A job's attempt on another node, which has no unit directory here. Its state is in memory, and the
//! controller's store keeps what a restart has to know. It reads the files of its job, and its output goes to whoever
//! drives the attempt. This module knows who reads and from which byte on; it knows neither the store nor the job's
//! output.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::{mpsc, watch};

use crate::work::WorkError;
use crate::work::status::Status;
use crate::work::unit::UnitId;

/// Number of pieces of output that may wait for their reader. A node may make each of them 1 MiB long.
pub(crate) const AHEAD: usize = 2;

/// What an attempt reads. It may hold secrets.
pub struct AttemptPayload {
    head: Vec<u8>,
    /// Each with the byte from which it is read. They are kept open, because a file may be deleted while it is still read.
    files: Vec<(File, u64)>,
}

impl AttemptPayload {
    /// A reader of the whole payload. A read that returns less than was asked for is the last one. Reading blocks.
    pub fn reader(self: Arc<Self>) -> impl Read + Send + use<> {
        PayloadBytes { payload: self, part: 0, at: 0 }
    }

    /// A payload of `head`, then of each file from its byte on. Blocks.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn open(head: Vec<u8>, files: Vec<(PathBuf, u64)>) -> io::Result<Self> {
        let open = |(path, from)| File::open(path).map(|file| (file, from));
        Ok(Self { head, files: files.into_iter().map(open).collect::<io::Result<_>>()? })
    }

    /// Bytes of the whole payload.
    fn size(&self) -> u64 {
        let left =
            |(file, from): &(File, u64)| file.metadata().map_or(0, |facts| facts.len().saturating_sub(*from));
        self.head.len() as u64 + self.files.iter().map(left).sum::<u64>()
    }
}

/// Reads all of a payload.
struct PayloadBytes {
    payload: Arc<AttemptPayload>,
    /// The part to read next (the head is the first), and how much of it was read.
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

/// Takes the output of an attempt.
pub(crate) struct AttemptReader {
    bytes: mpsc::Sender<Bytes>,
    /// The offset of the next byte that it gets.
    position: AtomicU64,
}

impl AttemptReader {
    pub(crate) fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// Hands bytes over, once the reader has room for them.
    ///
    /// # Errors
    /// Nobody reads any more.
    pub(crate) async fn give(&self, bytes: Vec<u8>) -> Result<(), SendError<()>> {
        let length = bytes.len() as u64;
        self.bytes.reserve().await?.send(bytes.into());
        self.position.fetch_add(length, Ordering::Relaxed);
        Ok(())
    }
}

/// A unit that its node may have, because an earlier process sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FarUnit {
    /// Its ID there.
    pub id: String,
    /// Another control node may have released it and stored its end. So if its node does not know it, and is
    /// of receptor's kind, which forgets released units, it is not sent again.
    pub may_be_released: bool,
}

/// Stores the ID that a unit got on its node.
pub(crate) type IdKeeper =
    Box<dyn Fn(UnitId, String) -> BoxFuture<'static, Result<(), WorkError>> + Send + Sync>;

/// What only attempts have.
pub(crate) struct FarAttempt {
    /// Kept until its node has it. A plain lock, like that of `known_as`.
    payload: Mutex<Option<Arc<AttemptPayload>>>,
    reader: watch::Sender<Option<Arc<AttemptReader>>>,
    /// The ID on its node, as the store knows it.
    known_as: Mutex<Box<str>>,
    /// Another control node may have had it released.
    pub(crate) may_be_released: bool,
    keep_id: IdKeeper,
}

impl std::fmt::Debug for FarAttempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Attempt")
    }
}

impl FarAttempt {
    /// `payload` if it is to be sent, `far` if its node may have it.
    pub(crate) fn new(payload: Option<AttemptPayload>, far: Option<FarUnit>, keep_id: IdKeeper) -> Self {
        let may_be_released = far.as_ref().is_some_and(|far| far.may_be_released);
        let known_as = far.map(|far| far.id.into()).unwrap_or_default();
        Self {
            payload: Mutex::new(payload.map(Arc::new)),
            reader: watch::Sender::new(None),
            known_as: Mutex::new(known_as),
            may_be_released,
            keep_id,
        }
    }

    /// The attempt's whole payload.
    pub(crate) fn payload(&self) -> Result<Box<dyn Read + Send>, WorkError> {
        let payload = self.payload.lock().clone();
        let payload = payload.ok_or_else(|| WorkError::Job("its node has its payload already".to_owned()))?;
        Ok(Box::new(payload.reader()))
    }

    /// Bytes of the whole payload; `None` once its node has it.
    pub(crate) fn payload_size(&self) -> Option<u64> {
        self.payload.lock().as_ref().map(|payload| payload.size())
    }

    /// Stores the ID that the node chose, because a restart has to know it. Closes the payload once the node has it.
    ///
    /// # Errors
    /// The store does not take it.
    pub(crate) async fn keep(&self, unit: &UnitId, status: &Status) -> Result<(), WorkError> {
        let Some(remote) = status.remote() else { return Ok(()) };
        if remote.remote_started {
            *self.payload.lock() = None;
        }
        let id = &remote.remote_unit_id;
        if id.is_empty() || **id == *unit.as_str() || *self.known_as.lock() == *id {
            return Ok(());
        }
        (self.keep_id)(unit.clone(), id.to_string()).await?;
        *self.known_as.lock() = id.clone();
        Ok(())
    }

    /// How much of the output has come, from its first byte on.
    pub(crate) fn received(&self) -> u64 {
        self.reader.borrow().as_ref().map_or(0, |reader| reader.position())
    }

    /// The output from a byte on, for a new reader.
    pub(crate) fn read(&self, from: u64) -> mpsc::Receiver<Bytes> {
        let (sender, bytes) = mpsc::channel(AHEAD);
        let reader = AttemptReader { bytes: sender, position: AtomicU64::new(from) };
        self.reader.send_replace(Some(Arc::new(reader)));
        bytes
    }

    /// The reader, once there is one.
    pub(crate) async fn reader(&self) -> Arc<AttemptReader> {
        let mut now = self.reader.subscribe();
        let reads =
            |now: &Option<Arc<AttemptReader>>| now.as_ref().is_some_and(|reader| !reader.bytes.is_closed());
        // The sender is kept, so this cannot fail.
        let found = now.wait_for(reads).await.ok().and_then(|found| found.clone());
        match found {
            Some(reader) => reader,
            None => std::future::pending().await,
        }
    }

    /// Waits for a reader, and returns once another one replaces it.
    pub(crate) async fn passed_on(&self) {
        let first = self.reader().await;
        let mut now = self.reader.subscribe();
        let is_another =
            |now: &Option<Arc<AttemptReader>>| now.as_ref().is_some_and(|now| !Arc::ptr_eq(now, &first));
        let _never = now.wait_for(is_another).await;
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
        let attempt = FarAttempt::new(None, None, Box::new(|_, _| unreachable!()));
        let mut waits = Box::pin(attempt.reader());
        assert!(futures_util::poll!(&mut waits).is_pending());
        let mut first = attempt.read(5);
        let reader = waits.await;
        reader.give(b"abc".to_vec()).await.unwrap();
        assert_eq!((reader.position(), first.recv().await.unwrap().as_ref()), (8, &b"abc"[..]));
        let mut passed_on = Box::pin(attempt.passed_on());
        assert!(futures_util::poll!(&mut passed_on).is_pending());
        let _second = attempt.read(2);
        passed_on.await;
        drop(first);
        assert!(reader.give(b"d".to_vec()).await.is_err(), "what nobody takes does not count");
        assert_eq!((reader.position(), attempt.reader().await.position()), (8, 2));
    }
}
