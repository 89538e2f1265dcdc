//! A unit's output, or its stderr, as a stream: it begins at any offset, follows the unit while that lives, and ends when the unit is
//! final and every byte was delivered. Holds one chunk of memory per reader, whatever the size of the output. Knows a
//! file, a status and a wake-up, but not who writes the file.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::sync::Arc;

use bytes::Bytes;
use rustix::io::{ReadWriteFlags, preadv2};

use super::WorkError;
use super::store::{OutputFile, UnitStore};
use super::units::{Entry, Follower, Shortened};
use crate::os::watch::Subscription;

/// Most bytes in one chunk.
const CHUNK: u64 = 256 * 1024;

/// The bytes of one of a unit's files, in order, each once.
#[derive(Debug)]
pub struct ResultStream {
    pub(super) unit: Arc<Entry>,
    pub(super) what: OutputFile,
    pub(super) store: UnitStore,
    pub(super) position: u64,
    pub(super) status: Follower,
    /// What was known to be cut off when the bytes before `position` were delivered.
    pub(super) shortened: Shortened,
    pub(super) changes: Subscription,
    pub(super) file: Option<Arc<File>>,
    /// The previous chunk. Its memory is reused once the caller has dropped it.
    pub(super) last: Bytes,
}

impl ResultStream {
    /// The next bytes, at most 256 KiB; `None` once the unit is final and all bytes were delivered. Dropping the future
    /// loses nothing.
    ///
    /// # Errors
    /// [`WorkError::StdoutTruncated`] if the file is shorter than the final status says (perhaps because the unit was
    /// released meanwhile), [`WorkError::OutputReplaced`] if bytes that were delivered are not in it any more, or a
    /// failure to read.
    pub async fn next(&mut self) -> Result<Option<Bytes>, WorkError> {
        loop {
            // The status is read before the file, because the file then holds all that a final status counts.
            let end = self.end();
            let limit = end.map_or(u64::MAX, |end| end.saturating_sub(self.position));
            if limit == 0 {
                return Ok(None);
            }
            let chunk = self.read(limit).await?;
            // Looked up after the read: what takes the place of other bytes is written once they are noted as cut off.
            let shortened = self.status.shortened();
            if shortened.reaches(self.position, self.shortened) {
                return Err(WorkError::OutputReplaced {
                    unit: self.unit.id.to_string(),
                    read: self.position,
                });
            }
            self.shortened = shortened;
            if !chunk.is_empty() {
                self.position += chunk.len() as u64;
                return Ok(Some(chunk));
            }
            if let Some(expected) = end {
                return Err(self.truncated(expected));
            }
            tokio::select! {
                () = self.changes.changed() => {}
                // The follower keeps the sender, so this cannot fail.
                _ = self.status.changed() => {}
            }
        }
    }

    /// Waits until a stream whose bytes were all delivered may end. Dropping the future loses nothing.
    pub async fn farewell(&self) {
        self.unit.farewell().await;
    }

    /// The output's length, once it is known.
    fn end(&mut self) -> Option<u64> {
        let life = &self.status.borrow_and_update().life;
        life.state.is_final().then(|| match self.what {
            OutputFile::Stdout => life.stdout_size,
            OutputFile::Stderr => self.unit.dir.output_size(OutputFile::Stderr),
        })
    }

    async fn read(&mut self, limit: u64) -> Result<Bytes, WorkError> {
        let (position, limit) = (self.position, limit.min(CHUNK));
        let memory = std::mem::take(&mut self.last);
        let bytes = match &self.file {
            // Most output is read soon after it was written, so that it is still in memory and this need not wait for
            // the disk.
            Some(file) => fill(file, position, limit, memory, ReadWriteFlags::NOWAIT).ok(),
            None => None,
        };
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => self.read_from_disk(limit).await?,
        };
        // Assigned even if empty, so that a reader that waits for output holds no memory.
        self.last = bytes.clone();
        Ok(bytes)
    }

    async fn read_from_disk(&mut self, limit: u64) -> Result<Bytes, WorkError> {
        let (dir, file, position) = (self.unit.dir.clone(), self.file.clone(), self.position);
        let name = self.what.name();
        let read = move || -> io::Result<(Option<Arc<File>>, Bytes)> {
            let file = match file {
                Some(file) => file,
                None => match dir.open(name, OpenOptions::new().read(true)) {
                    Ok(file) => Arc::new(file),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((None, Bytes::new())),
                    Err(e) => return Err(e),
                },
            };
            let bytes = fill(&file, position, limit, Bytes::new(), ReadWriteFlags::empty())?;
            Ok((Some(file), bytes))
        };
        let outcome = self.store.blocking(read).await;
        let (file, bytes) = outcome.map_err(|e| WorkError::io("read", self.unit.dir.file(name), e))?;
        self.file = file;
        Ok(bytes)
    }

    fn truncated(&self, expected: u64) -> WorkError {
        let found = self.unit.dir.stdout_size();
        WorkError::StdoutTruncated { unit: self.unit.id.to_string(), found, expected }
    }
}

/// Reads a file from `position` on, at most `limit` bytes. Reuses the memory of an earlier chunk if nobody else holds
/// it.
fn fill(file: &File, position: u64, limit: u64, memory: Bytes, flags: ReadWriteFlags) -> io::Result<Bytes> {
    let there = file.metadata()?.len().saturating_sub(position).min(limit);
    let mut buffer = Vec::from(memory.try_into_mut().unwrap_or_default());
    buffer.resize(there as usize, 0);
    let read = preadv2(file, &mut [IoSliceMut::new(&mut buffer)], position, flags)?;
    buffer.truncate(read);
    Ok(buffer.into())
}
