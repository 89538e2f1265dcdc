//! A unit's output as a stream: from any offset, followed while the unit lives, ended when the unit is final and
//! every byte is delivered. Holds one chunk of memory per reader, whatever the size of the output.
//! Knows a file, a status and a wake-up; not who writes the file.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::sync::Arc;

use bytes::Bytes;
use rustix::io::{ReadWriteFlags, preadv2};

use super::WorkError;
use super::store::Store;
use super::units::{Entry, Follower};
use crate::os::watch::Subscription;
use crate::rpc::report::unit::UnitStep;

/// Most bytes in one chunk.
const CHUNK: u64 = 256 * 1024;

/// The bytes of a unit's stdout, in order, each once.
#[derive(Debug)]
pub struct ResultStream {
    pub(super) unit: Arc<Entry>,
    pub(super) store: Store,
    pub(super) position: u64,
    pub(super) status: Follower,
    pub(super) changes: Subscription,
    pub(super) file: Option<Arc<File>>,
    /// The chunk before. Its memory is used again once the caller has dropped it.
    pub(super) last: Bytes,
}

impl ResultStream {
    /// The next bytes, at most 256 KiB; `None` when the unit is final and all was delivered. Dropping the future
    /// loses nothing.
    ///
    /// # Errors
    /// [`WorkError::StdoutTruncated`] when the file is shorter than the final status says, as that of a unit which
    /// was released meanwhile may be, and failures of reading.
    pub async fn next(&mut self) -> Result<Option<Bytes>, WorkError> {
        loop {
            // The status first: what a final status counts is in the file by then.
            let end = self.end();
            let limit = end.map_or(u64::MAX, |end| end.saturating_sub(self.position));
            if limit == 0 {
                self.unit.note_step(UnitStep::Told);
                return Ok(None);
            }
            let chunk = self.read(limit).await?;
            if !chunk.is_empty() {
                if self.position == 0 {
                    self.unit.note_step(UnitStep::FirstByte);
                }
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

    /// Waits until a stream whose bytes are all delivered may end. Dropping the future loses nothing.
    pub async fn farewell(&self) {
        self.unit.farewell().await;
    }

    /// The output's length, once it is known.
    fn end(&mut self) -> Option<u64> {
        let life = &self.status.borrow_and_update().life;
        life.state.is_final().then_some(life.stdout_size)
    }

    async fn read(&mut self, limit: u64) -> Result<Bytes, WorkError> {
        let (position, limit) = (self.position, limit.min(CHUNK));
        let memory = std::mem::take(&mut self.last);
        let bytes = match &self.file {
            // Output is mostly read soon after it was written, and then no disk has to be waited for.
            Some(file) => fill(file, position, limit, memory, ReadWriteFlags::NOWAIT).ok(),
            None => None,
        };
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => self.read_from_disk(limit).await?,
        };
        // A reader that waits for output holds no memory for it.
        self.last = bytes.clone();
        Ok(bytes)
    }

    async fn read_from_disk(&mut self, limit: u64) -> Result<Bytes, WorkError> {
        let (dir, file, position) = (self.unit.dir.clone(), self.file.clone(), self.position);
        let read = move || -> io::Result<(Option<Arc<File>>, Bytes)> {
            let file = match file {
                Some(file) => file,
                None => match dir.open("stdout", OpenOptions::new().read(true)) {
                    Ok(file) => Arc::new(file),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((None, Bytes::new())),
                    Err(e) => return Err(e),
                },
            };
            let bytes = fill(&file, position, limit, Bytes::new(), ReadWriteFlags::empty())?;
            Ok((Some(file), bytes))
        };
        let outcome = self.store.blocking(read).await;
        let (file, bytes) = outcome.map_err(|e| WorkError::io("read", self.unit.dir.file("stdout"), e))?;
        self.file = file;
        Ok(bytes)
    }

    fn truncated(&self, expected: u64) -> WorkError {
        let found = self.unit.dir.stdout_size();
        WorkError::StdoutTruncated { unit: self.unit.id.to_string(), found, expected }
    }
}

/// What there is of a file from `position` on, at most `limit` bytes. Uses the memory of an earlier chunk if nobody else
/// does.
fn fill(file: &File, position: u64, limit: u64, memory: Bytes, flags: ReadWriteFlags) -> io::Result<Bytes> {
    let there = file.metadata()?.len().saturating_sub(position).min(limit);
    let mut buffer = Vec::from(memory.try_into_mut().unwrap_or_default());
    buffer.resize(there as usize, 0);
    let read = preadv2(file, &mut [IoSliceMut::new(&mut buffer)], position, flags)?;
    buffer.truncate(read);
    Ok(buffer.into())
}
