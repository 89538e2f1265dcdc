//! What one attempt adds to the output of its job: byte for byte what its worker writes. Where a retry may follow, whole
//! lines and whole zips only, so that another attempt's can follow.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use bytes::{Bytes, BytesMut};

use crate::controller::core::{AttemptNo, Job};
use crate::controller::store::Figures;
use crate::controller::stream::{WorkerOutput, lost_line};
use crate::work::jobs::JobUnit;

/// Most bytes that wait for the end of a line or zip. Those of a longer one are read again at its end.
const MOST_HELD: usize = 4 << 20;
const CHUNK: usize = 256 << 10;

/// The output of one attempt.
pub(super) struct AttemptOutput {
    /// `None` once the unit of the job is gone.
    unit: Option<JobUnit>,
    pub(super) parser: WorkerOutput,
    /// A retry may follow.
    holds_back: bool,
    held: BytesMut,
    /// Bytes of this attempt in the output of the job.
    written: u64,
    /// More waits than is held; the rest is read at the end.
    is_behind: bool,
}

impl AttemptOutput {
    /// Begins the output of an attempt, or goes on where an earlier process stopped.
    pub(super) async fn begin(unit: Option<JobUnit>, job: &Job, n: AttemptNo, last_words: &str) -> Self {
        let mut parser = WorkerOutput::default();
        let mut written = 0;
        if let Some(unit) = &unit {
            if unit.extra().output_attempt != n.0 && unit.output_size() > 0 {
                unit.append(lost_line(last_words).into()).await;
            }
            let (path, from) = (unit.output(), unit.begin_output(n.0).await);
            let read = tokio::task::spawn_blocking(move || replay(&path, from)).await;
            if let Ok(Some((known, bytes))) = read {
                (parser, written) = (known, bytes);
            }
        }
        let holds_back = job.retry.max > 0;
        Self { unit, parser, holds_back, held: BytesMut::new(), written, is_behind: false }
    }

    /// The byte of the worker's output from which on it is to be read.
    pub(super) fn position(&self) -> u64 {
        self.parser.position()
    }

    /// The byte up to which it is in the output of the job.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Takes the next bytes.
    pub(super) async fn push(&mut self, bytes: Bytes) {
        let status = self.parser.last_status().map(str::to_owned);
        self.parser.push(&bytes);
        let Some(unit) = &self.unit else { return };
        if let Some(last) = self.parser.last_status().filter(|last| Some(*last) != status.as_deref()) {
            unit.note_status(last).await;
        }
        if !self.holds_back {
            self.written += bytes.len() as u64;
            return unit.append(bytes).await;
        }
        if self.is_behind {
            return;
        }
        self.held.extend_from_slice(&bytes);
        let whole = self.parser.whole().saturating_sub(self.written);
        let whole = usize::try_from(whole).unwrap_or(usize::MAX).min(self.held.len());
        if whole > 0 {
            let ready = self.held.split_to(whole).freeze();
            self.written += ready.len() as u64;
            unit.append(ready).await;
        }
        if self.held.len() > MOST_HELD {
            self.held = BytesMut::new();
            self.is_behind = true;
        }
    }

    /// What was counted.
    pub(super) fn figures(&self) -> Figures {
        Figures {
            events: self.parser.events(),
            output_bytes: self.unit.as_ref().map_or(0, JobUnit::output_size),
            rc: self.parser.exit_code(),
            revision: None,
            hosts: self.parser.hosts().clone(),
        }
    }
}

/// Reads again what an earlier process wrote.
fn replay(path: &std::path::Path, from: u64) -> Option<(WorkerOutput, u64)> {
    let mut file = File::open(path).ok()?;
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut parser = WorkerOutput::default();
    let mut buffer = vec![0; CHUNK];
    let mut total = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Some((parser, total)),
            Ok(count) => {
                parser.push(&buffer[..count]);
                total += count as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}
