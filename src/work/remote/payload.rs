//! Sends a unit's payload to another node: hashes it if the unit is signed, and reads it from its file, which may still
//! grow while the payload is being submitted. Knows nothing of what comes before and after the payload on the
//! connection.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_lc_rs::digest;
use tokio::sync::watch;

use super::Remotes;
use super::submit::CHUNK;
use crate::work::WorkError;
use crate::work::far::StepError;
use crate::work::signing::PayloadHash;
use crate::work::store::UnitStore;
use crate::work::units::{DriverHandle, Entry, Follower};

/// How often to note, while the client's payload makes no progress, that the other node is not to blame.
const BREATH: Duration = Duration::from_millis(400);
/// Bytes hashed in one go, some milliseconds' worth.
const HASHED_AT_A_TIME: usize = 8 * 1024 * 1024;

impl Remotes {
    /// The hash of the payload, all of which is on disk. It is computed once, because there may be many attempts.
    pub(super) async fn payload_hash(&self, entry: &Arc<Entry>) -> Result<PayloadHash, StepError> {
        let link = entry.link();
        if let Some(hash) = link.payload_hash.get() {
            return Ok(*hash);
        }
        let path = entry.dir.file("stdin");
        let failed = |e| StepError::Local(WorkError::io("read", &path, e));
        let mut hashed =
            Hashing { file: open(entry)?, so_far: digest::Context::new(&digest::SHA256), whole: false };
        while !hashed.whole {
            // In pieces: operations on files take turns.
            hashed = self.units.store().blocking(move || hashed.go_on()).await.map_err(failed)?;
        }
        Ok(*link.payload_hash.get_or_init(|| hashed.finish()))
    }
}

/// Opens what a unit reads, as far as it has arrived.
pub(super) fn open(entry: &Entry) -> Result<Box<dyn Read + Send>, WorkError> {
    if let Some(attempt) = entry.attempt() {
        return attempt.payload();
    }
    let file = entry.dir.open("stdin", OpenOptions::new().read(true));
    Ok(Box::new(file.map_err(|e| WorkError::io("read", entry.dir.file("stdin"), e))?))
}

/// The length of what a unit reads, if all of it has arrived.
pub(super) fn total(entry: &Entry) -> Option<u64> {
    match entry.attempt() {
        Some(attempt) => attempt.payload_size(),
        None => (!entry.status().life.awaits_payload).then(|| entry.dir.payload_size()),
    }
}

/// Reads a payload from its file. If it is still being submitted, reads what has arrived and then waits for the rest.
pub(super) struct PayloadReader {
    store: UnitStore,
    path: PathBuf,
    /// Absent while it is read.
    file: Option<Box<dyn Read + Send>>,
    link: DriverHandle,
    growth: watch::Receiver<u64>,
    status: Follower,
    is_read: bool,
}

impl PayloadReader {
    pub(super) fn open(remotes: &Remotes, entry: &Arc<Entry>) -> Result<Self, StepError> {
        let (path, file) = (entry.dir.file("stdin"), Some(open(entry)?));
        let (store, link, status) = (remotes.units.store().clone(), entry.link(), entry.subscribe());
        let growth = link.growth.subscribe();
        Ok(Self { store, path, file, link, growth, status, is_read: false })
    }

    /// The next piece; `None` at the end. Never returns if the unit ends before that, so that an incomplete payload is
    /// never ended like a complete one. Once the node `is_heard`, all waiting is for the client. If this future is
    /// dropped, nothing more can be read.
    pub(super) async fn next(&mut self, is_heard: &AtomicBool) -> Result<Option<Vec<u8>>, StepError> {
        while !self.is_read {
            self.growth.mark_unchanged();
            // Checked before the file is read: a payload that is complete by then does not grow any more.
            let (ended, whole) = {
                let life = &self.status.borrow_and_update().life;
                (life.state.is_final(), !life.awaits_payload)
            };
            let Some(mut file) = self.file.take().filter(|_| !ended) else {
                // The driver sees it too, and drops this future.
                return std::future::pending().await;
            };
            let read = move || {
                let mut chunk = vec![0; CHUNK];
                let length = file.read(&mut chunk)?;
                chunk.truncate(length);
                io::Result::Ok((file, chunk))
            };
            let read = self.store.blocking(read).await;
            let (file, chunk) = read.map_err(|e| WorkError::io("read", &self.path, e))?;
            self.file = Some(file);
            // If a regular file returns less than was asked for, that is all there is.
            self.is_read = whole && chunk.len() < CHUNK;
            if !chunk.is_empty() {
                return Ok(Some(chunk));
            }
            if !self.is_read {
                tokio::select! {
                    _ = self.growth.changed() => {}
                    _ = self.status.changed() => {}
                    () = tokio::time::sleep(BREATH) => {
                        if is_heard.load(Ordering::Relaxed) {
                            self.link.note_progress();
                        }
                    }
                }
            }
        }
        Ok(None)
    }
}

/// A payload that is being hashed.
struct Hashing {
    file: Box<dyn Read + Send>,
    so_far: digest::Context,
    whole: bool,
}

impl Hashing {
    /// Hashes the next piece. Blocks.
    fn go_on(mut self) -> io::Result<Self> {
        let mut chunk = vec![0; CHUNK];
        for _ in 0..HASHED_AT_A_TIME / CHUNK {
            match self.file.read(&mut chunk)? {
                0 => {
                    self.whole = true;
                    break;
                }
                length => self.so_far.update(&chunk[..length]),
            }
        }
        Ok(self)
    }

    fn finish(self) -> PayloadHash {
        let mut hash = PayloadHash::default();
        hash.copy_from_slice(self.so_far.finish().as_ref());
        hash
    }
}
