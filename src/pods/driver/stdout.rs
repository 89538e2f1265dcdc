//! A unit's stdout on disk, and the file `cursor` beside it. Owns the order of writes: first the bytes, which are
//! compared with what is already there, then their record. Syncs both together, about once a second. Reads no log.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::os;
use crate::pods::log::cursor::{self, Cursor, RECORD, ResumePoint, SYNCED_AT, WRITTEN_AT};
use crate::pods::log::new_part;

/// Time between two syncs.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Time between two attempts to write, for example to a full disk.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A write under way.
pub(super) type Storing = Pin<Box<dyn Future<Output = Stored> + Send>>;

/// The result of storing bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    Written,
    /// Stdout holds other bytes in their place.
    Differs,
}

/// The two files.
#[derive(Debug)]
pub(super) struct StdoutFile {
    files: Arc<StdoutFiles>,
    /// Bytes of stdout.
    size: u64,
    /// The record of the last write, until it is synced.
    unsynced: Option<[u8; RECORD]>,
    synced_at: Instant,
}

#[derive(Debug)]
struct StdoutFiles {
    stdout: File,
    cursor: File,
    boot: u128,
}

impl StdoutFile {
    /// Opens the files as an earlier daemon left them, and returns them with the cursor to go on from. Blocks.
    ///
    /// # Errors
    /// When they cannot be opened, read or cut.
    pub(super) fn open(dir: &Path, boot: u128) -> io::Result<(Self, Cursor)> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let stdout = options.open(dir.join("stdout"))?;
        let mut cursor = options.open(dir.join("cursor"))?;
        let mut record = Vec::new();
        (&mut cursor).take(cursor::FILE_SIZE as u64).read_to_end(&mut record)?;
        let mut size = stdout.metadata()?.len();
        let ResumePoint { cursor: found, truncate } = cursor::find(&record, boot, size);
        if truncate {
            stdout.set_len(found.size())?;
            size = found.size();
        }
        let files = Arc::new(StdoutFiles { stdout, cursor, boot });
        Ok((Self { files, size, unsynced: None, synced_at: Instant::now() }, found))
    }

    /// Bytes of stdout.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Writes bytes at an offset, then the cursor. Retries until the disk takes them.
    pub(super) fn store(&mut self, at: u64, bytes: Vec<u8>, cursor: &Cursor) -> Storing {
        let record = cursor.encode(self.files.boot);
        let present = self.size.saturating_sub(at);
        self.size = self.size.max(at + bytes.len() as u64);
        self.unsynced = Some(record);
        let files = self.files.clone();
        let bytes = Arc::new(bytes);
        Box::pin(async move {
            let mut has_failed = false;
            loop {
                let (files, bytes) = (files.clone(), bytes.clone());
                let written = blocking(move || files.write(at, present, &bytes, &record)).await;
                match written {
                    Ok(stored) => return stored,
                    Err(error) if !has_failed => {
                        tracing::warn!(%error, "cannot write a pod's output, trying again");
                        has_failed = true;
                    }
                    Err(_) => {}
                }
                sleep(RETRY_AFTER).await;
            }
        })
    }

    /// When stdout is to be synced.
    pub(super) fn sync_at(&self) -> Option<Instant> {
        self.unsynced.map(|_| self.synced_at + SYNC_EVERY)
    }

    /// Syncs what was written, and then its record.
    pub(super) fn sync(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.synced_at = Instant::now();
        let record = self.unsynced.take();
        let files = self.files.clone();
        Box::pin(async move {
            let Some(record) = record else { return };
            if let Err(error) = blocking(move || files.sync(&record)).await {
                tracing::warn!(%error, "cannot make a pod's output durable");
            }
        })
    }
}

impl StdoutFiles {
    fn write(&self, at: u64, present: u64, bytes: &[u8], record: &[u8; RECORD]) -> io::Result<Stored> {
        let mut existing = vec![0; usize::try_from(present).map_or(bytes.len(), |p| p.min(bytes.len()))];
        self.stdout.read_exact_at(&mut existing, at)?;
        let Some(new) = new_part(&existing, bytes) else { return Ok(Stored::Differs) };
        self.stdout.write_all_at(new, at + existing.len() as u64)?;
        self.cursor.write_all_at(record, WRITTEN_AT)?;
        Ok(Stored::Written)
    }

    fn sync(&self, record: &[u8; RECORD]) -> io::Result<()> {
        self.stdout.sync_data()?;
        self.cursor.write_all_at(record, SYNCED_AT)?;
        self.cursor.sync_data()
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// The ID of this boot. If it cannot be read, a random ID, which matches no record, so that only synced data counts.
pub(super) fn boot() -> u128 {
    let text = os::boot::boot().unwrap_or_default().replace('-', "");
    u128::from_str_radix(&text, 16).unwrap_or_else(|_| rand::random())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_there_already_is_compared_and_not_written_twice() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, _) = StdoutFile::open(dir.path(), 1).unwrap();
        assert_eq!(file.store(0, b"one\ntwo".to_vec(), &Cursor::default()).await, Stored::Written);
        assert_eq!(file.store(4, b"two\nthree\n".to_vec(), &Cursor::default()).await, Stored::Written);
        assert_eq!(std::fs::read(dir.path().join("stdout")).unwrap(), b"one\ntwo\nthree\n");
        assert_eq!(file.size(), 14);
        assert_eq!(file.store(8, b"THREE".to_vec(), &Cursor::default()).await, Stored::Differs);
        assert_eq!(std::fs::read(dir.path().join("stdout")).unwrap(), b"one\ntwo\nthree\n");
        drop(file);
        let (file, cursor) = StdoutFile::open(dir.path(), 1).unwrap();
        assert_eq!((file.size(), cursor), (14, Cursor::default()));
    }
}
