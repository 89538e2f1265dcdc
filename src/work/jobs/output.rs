//! The output of a job's unit, which has one writer at a time: what a former one still wants to write is dropped, also
//! what has waited for a full disk. Knows nothing of what is written.

use std::fs::File;
use std::io::{self, Write as _};

use bytes::Bytes;
use tokio::sync::OwnedMutexGuard;

use super::{JobExtra, JobUnit, OutputWriter, REWRITE};
use crate::work::WorkError;
use crate::work::store::Durability;
use crate::work::unit::Event;
use crate::work::units::Entry;

/// Attempts whose beginning in the output is known.
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

    /// Adds all of it to the output. A disk that cannot take it is waited for, and Detail says so.
    pub async fn append(&self, bytes: Bytes) {
        let dir = self.unit.entry.dir.clone();
        self.write(bytes, move || dir.append_stdout()).await;
    }

    /// Adds all of it to a file that is open for that. Returns false if this one may write no more.
    pub(super) async fn write(
        &self,
        bytes: Bytes,
        open: impl Fn() -> io::Result<File> + Clone + Send + 'static,
    ) -> bool {
        let unit = &self.unit;
        while let Some(writer) = self.writer().await {
            let (open, bytes) = (open.clone(), bytes.clone());
            let write = move || {
                // Also if nobody waits for the end of the write any more.
                let _writer = writer;
                append(open()?, &bytes)
            };
            let Err(error) = unit.store.blocking(write).await else { return true };
            // What was written by half was cut off again.
            unit.entry.live().kept_output.note_cut();
            let error = WorkError::io("write", unit.output(), error);
            unit.entry.apply(&unit.store, Event::Blocked(error.to_string())).await;
            tokio::time::sleep(REWRITE).await;
        }
        false
    }

    /// Whether it may still write.
    pub async fn is_latest(&self) -> bool {
        self.writer().await.is_some()
    }

    /// Cuts off what is behind a byte.
    ///
    /// # Errors
    /// The disk's.
    pub async fn cut(&self, size: u64) -> io::Result<()> {
        let Some(writer) = self.writer().await else { return Ok(()) };
        let unit = self.unit.entry.clone();
        let cut = move || {
            let _writer = writer;
            cut(&unit, size)
        };
        self.unit.store.blocking(cut).await
    }

    /// The output of the attempt begins at the end of what is there, and this child on that node writes it, if they are known.
    /// Returns where it begins, at once if it has begun.
    pub async fn begin(&self, child: Option<String>, node: Option<String>) -> u64 {
        let attempt = self.writer.attempt;
        let Some(_latest) = self.writer().await else { return self.unit.extra().output_from };
        if self.unit.extra().output_attempt != attempt {
            if let Err(error) = self.unit.sync_output().await {
                tracing::warn!(unit = %self.unit.id(), %error, "the output of a job may not outlive a power loss");
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
            // A copy of the output says who wrote it, and not where.
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

/// The output of a unit, which stays as it is meanwhile.
pub struct OutputLock {
    pub(super) unit: JobUnit,
    pub(super) latest: OwnedMutexGuard<OutputWriter>,
}

impl OutputLock {
    /// Cuts off the output of an attempt and of all later ones. Former writers write nothing more.
    ///
    /// # Errors
    /// The disk's.
    pub async fn clear(mut self, attempt: u32) -> io::Result<()> {
        let mut left = self.unit.extra();
        let gone = left.output_starts.split_off(&attempt);
        let (children, nodes) =
            (left.output_children.split_off(&attempt), left.output_nodes.split_off(&attempt));
        // What was sent may run yet.
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

/// Cuts off the output of a unit behind a byte.
fn cut(unit: &Entry, size: u64) -> io::Result<()> {
    let cut = unit.dir.append_stdout()?.set_len(size);
    unit.live().kept_output.note_cut();
    cut
}

/// Writes all of it, or nothing.
fn append(mut file: File, bytes: &[u8]) -> io::Result<()> {
    let before = file.metadata()?.len();
    file.write_all(bytes).inspect_err(|_| {
        if let Err(error) = file.set_len(before) {
            tracing::warn!(%error, "half of a line may stay in the output of a job");
        }
    })
}
