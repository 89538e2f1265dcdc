//! The output of a job's unit, which has one writer at a time. Bytes that a former writer still wants to write are
//! dropped, even if they have waited for a full disk. Knows nothing of their content.

use std::fs::File;
use std::io::{self, Write as _};

use bytes::Bytes;
use tokio::sync::OwnedMutexGuard;

use super::{JobExtra, JobUnit, OutputWriter, REWRITE};
use crate::work::WorkError;
use crate::work::store::Durability;
use crate::work::unit::UnitEvent;
use crate::work::units::Entry;

/// The number of attempts whose beginning in the output is known.
const STARTS: usize = 32;

/// A writer of the output of a unit. Clones are the same writer.
#[derive(Debug, Clone)]
pub struct JobOutput {
    pub(super) unit: JobUnit,
    pub(super) writer: OutputWriter,
}

impl JobOutput {
    /// The unit.
    pub fn unit(&self) -> &JobUnit {
        &self.unit
    }

    /// Adds all bytes to the output. Waits for a disk that cannot take them; the Detail says so.
    pub async fn append(&self, bytes: Bytes) {
        let dir = self.unit.entry.dir.clone();
        self.write(bytes, move || dir.append_stdout()).await;
    }

    /// Adds all bytes to the file that `open` opens. Returns false if this writer may write no more.
    pub(super) async fn write(
        &self,
        bytes: Bytes,
        open: impl Fn() -> io::Result<File> + Clone + Send + 'static,
    ) -> bool {
        let unit = &self.unit;
        while let Some(writer) = self.writer().await {
            let (open, bytes) = (open.clone(), bytes.clone());
            let write = move || {
                // Held until the write ends, even if nobody waits for that any more.
                let _writer = writer;
                append(open()?, &bytes)
            };
            let Err(error) = unit.store.blocking(write).await else { return true };
            // The part that was written before the error was cut off again.
            unit.entry.live().kept_output.note_cut();
            let error = WorkError::io("write", unit.output(), error);
            unit.entry.apply(&unit.store, UnitEvent::Blocked(error.to_string())).await;
            tokio::time::sleep(REWRITE).await;
        }
        false
    }

    /// Whether this writer may still write.
    pub async fn is_latest(&self) -> bool {
        self.writer().await.is_some()
    }

    /// Cuts the output to this size.
    pub async fn cut(&self, size: u64) -> io::Result<()> {
        let Some(writer) = self.writer().await else { return Ok(()) };
        let unit = self.unit.entry.clone();
        let cut = move || {
            let _writer = writer;
            cut(&unit, size)
        };
        self.unit.store.blocking(cut).await
    }

    /// Notes that the output of the attempt begins at the present end, and which child on which node writes it, if they
    /// are known. Returns where the output begins, also if it began before.
    pub async fn begin(&self, child: Option<String>, node: Option<String>) -> u64 {
        let attempt = self.writer.attempt;
        let Some(_latest) = self.writer().await else { return self.unit.extra().output_from };
        if self.unit.extra().output_attempt != attempt {
            if let Err(error) = self.unit.sync_output().await {
                tracing::warn!(unit = %self.unit.id(), %error, "cannot make the output of a job durable: a power loss may destroy it");
            }
            let from = self.unit.output_size();
            let begin = |extra: &mut JobExtra| {
                (extra.output_attempt, extra.output_from) = (attempt, from);
                extra.output_starts.insert(attempt, from);
                extra.output_children.extend(child.clone().map(|child| (attempt, child)));
                extra.output_nodes.extend(node.clone().map(|node| (attempt, node)));
                if extra.output_starts.len() > STARTS {
                    extra.output_starts.pop_first();
                }
                for known in [&mut extra.output_children, &mut extra.output_nodes] {
                    if known.len() > STARTS {
                        known.pop_first();
                    }
                }
            };
            self.unit.note(Durability::Durable, begin).await;
        } else if let (Some(child), Some(node)) = (child, node) {
            // A copy of the output names the child that wrote it, but not the node.
            let note = |extra: &mut JobExtra| {
                if extra.output_children.get(&attempt) == Some(&child) {
                    extra.output_nodes.entry(attempt).or_insert_with(|| node.clone());
                }
            };
            self.unit.note(Durability::Durable, note).await;
        }
        self.unit.extra().output_from
    }

    /// `None` if nothing may be written any more.
    async fn writer(&self) -> Option<OwnedMutexGuard<OutputWriter>> {
        if self.unit.is_final() {
            return None;
        }
        let latest = self.unit.entry.output_writer().await;
        (*latest == self.writer).then_some(latest)
    }
}

/// The output of a unit, which stays as it is while this is held.
pub struct OutputLock {
    pub(super) unit: JobUnit,
    pub(super) latest: OwnedMutexGuard<OutputWriter>,
}

impl OutputLock {
    /// Cuts off the output of an attempt and of all later ones. Former writers write nothing more.
    pub async fn clear(mut self, attempt: u32) -> io::Result<()> {
        let mut left = self.unit.extra();
        let gone = left.output_starts.split_off(&attempt);
        let (children, nodes) =
            (left.output_children.split_off(&attempt), left.output_nodes.split_off(&attempt));
        // Children that were sent may still run.
        let may_run = children.into_iter().filter_map(|(n, child)| Some((child, nodes.get(&n)?.clone())));
        left.forgotten.extend(may_run);
        while left.forgotten.len() > STARTS {
            left.forgotten.pop_first();
        }
        let last = left.output_starts.last_key_value().map(|(n, from)| (*n, *from));
        let size = gone.values().next().copied().filter(|_| last.is_some()).unwrap_or(0);
        (left.output_attempt, left.output_from) = last.unwrap_or((0, 0));
        *self.latest = OutputWriter { attempt: left.output_attempt, number: self.latest.number + 1 };
        let unit = self.unit.entry.clone();
        self.unit.store.blocking(move || cut(&unit, size)).await?;
        self.unit.note(Durability::Durable, |extra| extra.take_output_of(&left)).await;
        Ok(())
    }
}

/// Cuts the output of a unit to this size.
fn cut(unit: &Entry, size: u64) -> io::Result<()> {
    let cut = unit.dir.append_stdout()?.set_len(size);
    unit.live().kept_output.note_shortened(size);
    cut
}

/// Writes all bytes, or none.
fn append(mut file: File, bytes: &[u8]) -> io::Result<()> {
    let before = file.metadata()?.len();
    file.write_all(bytes).inspect_err(|_| {
        if let Err(error) = file.set_len(before) {
            tracing::warn!(%error, "cannot cut half a line off the output of a job");
        }
    })
}
