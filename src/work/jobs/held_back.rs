//! The part of an attempt's output that may not be read yet, because half a line or half a zip is no output of a job. A
//! little stays in memory. More goes to a file without a name in the directory of the job's unit; the file is gone once
//! it is closed. Knows nothing of lines.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use rustix::fs::{FallocateFlags, fallocate};

use super::JobOutput;

/// If there are more bytes than these in memory, they go to the file.
const IN_MEMORY: usize = 4 << 20;
/// The most bytes that are taken from the file at a time.
const PIECE: u64 = 256 << 10;

/// Bytes in their order: first those of the file that were not taken, then those in memory.
#[derive(Debug, Default)]
pub struct HeldBack {
    file: Arc<OnceLock<File>>,
    taken: u64,
    stored: u64,
    memory: BytesMut,
}

impl HeldBack {
    /// How many bytes there are.
    pub fn length(&self) -> u64 {
        self.stored - self.taken + self.memory.len() as u64
    }

    /// Adds bytes at the end. If they are too many for memory and the disk cannot take them, waits for it as the writer
    /// of `output` does. They are dropped if that writer may not write any more. If this future is dropped, this value
    /// must not be used any more.
    pub async fn add(&mut self, bytes: &[u8], output: &JobOutput) {
        self.memory.extend_from_slice(bytes);
        if self.memory.len() <= IN_MEMORY {
            return;
        }
        let (file, dir) = (self.file.clone(), output.unit().directory());
        let bytes = self.memory.split().freeze();
        let length = bytes.len() as u64;
        if output.write(bytes, move || nameless(&file, &dir)).await {
            self.stored += length;
        }
    }

    /// Takes bytes from the front: at least one of them, and at most `most`. Empty if nothing is held back.
    pub async fn take(&mut self, most: u64) -> io::Result<Bytes> {
        let left = (self.stored - self.taken).min(most).min(PIECE);
        if left == 0 {
            let count = usize::try_from(most).unwrap_or(usize::MAX).min(self.memory.len());
            return Ok(self.memory.split_to(count).freeze());
        }
        let (file, from) = (self.file.clone(), self.taken);
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; left as usize];
            let file = file.get().ok_or(io::ErrorKind::NotFound)?;
            file.read_exact_at(&mut bytes, from)?;
            // Frees the space, because the place that the bytes go to may need it. Not every file system can do that.
            let _freed = fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, left);
            Ok(Bytes::from(bytes))
        });
        let bytes = read.await.map_err(io::Error::other).flatten()?;
        self.taken += left;
        if self.taken == self.stored {
            (self.file, self.taken, self.stored) = Default::default();
        }
        Ok(bytes)
    }
}

/// Opens the file; makes it if there is none yet.
fn nameless(file: &OnceLock<File>, dir: &Path) -> io::Result<File> {
    if let Some(file) = file.get() {
        return file.try_clone();
    }
    let path = dir.join("held");
    let made = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    file.get_or_init(|| made).try_clone()
}
