//! The length and the hash of an output that is being written or is on disk. Does not know whose output it is.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use highway::{HighwayHash as _, HighwayHasher};

use crate::controller::core::OutputEnd;
use crate::controller::store::Error;
use crate::work::jobs::JobUnit;

const CHUNK: usize = 256 << 10;

/// Measures an output from its first byte on.
#[derive(Debug, Default)]
pub(super) struct Measure {
    hasher: HighwayHasher,
    bytes: u64,
}

impl Measure {
    /// Takes the next bytes.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.hasher.append(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// The bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The length and the hash of the output, if it ends here.
    pub(super) fn end(&self) -> OutputEnd {
        OutputEnd { bytes: self.bytes, hash: Some(self.hasher.clone().finalize64()) }
    }
}

/// Makes the output of a unit durable first, because others may rely on the result, and then measures it.
pub(super) async fn measure(unit: &JobUnit) -> Result<OutputEnd, Error> {
    keep(unit).await?;
    read(unit, Measure::default(), Measure::add).await.map(|measured| measured.end())
}

/// Makes the output of a unit durable.
pub(super) async fn keep(unit: &JobUnit) -> Result<(), Error> {
    unit.sync_output().await.map_err(|source| Error::File { path: unit.output(), source })
}

/// Reads the output of a unit piece by piece on another thread, because it may be long.
pub(super) async fn read<T: Send + 'static>(
    unit: &JobUnit,
    into: T,
    take: impl Fn(&mut T, &[u8]) + Send + 'static,
) -> Result<T, Error> {
    let path = unit.output();
    let read = tokio::task::spawn_blocking(move || {
        read_all(&path, into, take).map_err(|source| Error::File { path, source })
    });
    read.await.map_err(|error| Error::Away(error.to_string()))?
}

fn read_all<T>(path: &Path, mut into: T, take: impl Fn(&mut T, &[u8])) -> std::io::Result<T> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(into),
        Err(error) => return Err(error),
    };
    let mut buffer = vec![0; CHUNK];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(into),
            Ok(count) => take(&mut into, &buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
