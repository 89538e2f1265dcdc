//! Where the output of a unit on another node goes: to a file here, or to the reader of an attempt. Knows how much of
//! it there is, and so where to continue, how much to accept, and how long to wait for the rest. `follow` knows how it
//! arrives.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Remotes;
use crate::rpc::UnitReport;
use crate::work::WorkError;
use crate::work::far::StepError;
use crate::work::status::Status;
use crate::work::unit::Life;
use crate::work::units::{AttemptReader, Entry};

/// The number of times a unit is looked at that has ended but sends none of its missing output, before another
/// connection is tried; and the number of connections before the output counts as lost. That makes ten minutes. The
/// node answers all the time, so neither it nor its link is merely slow; but its disk may be, so the time is not
/// shorter.
const LOOKS: u32 = 150;
const CONNECTIONS: u32 = 4;

/// The output on this node. Its length says where to continue.
pub(super) struct CopiedOutput {
    to: Sink,
    pub(super) length: u64,
}

/// Where the output goes.
enum Sink {
    /// Into a copy. Writers take turns.
    File { file: Arc<File>, path: PathBuf, lock: Arc<Mutex<()>> },
    /// To whoever drives a job's attempt.
    Reader(Arc<AttemptReader>),
}

impl CopiedOutput {
    pub(super) async fn open(remotes: &Remotes, entry: &Arc<Entry>) -> Result<Self, StepError> {
        if let Some(attempt) = entry.attempt() {
            let reader = attempt.reader().await;
            return Ok(Self { length: reader.position(), to: Sink::Reader(reader) });
        }
        let (dir, path, lock) = (entry.dir.clone(), entry.dir.file("stdout"), entry.link().output.clone());
        let held = lock.clone();
        let open = move || {
            let _held = held.lock();
            dir.append_stdout().and_then(|file| Ok((file.metadata()?.len(), file)))
        };
        let opened = remotes.units.store().blocking(open).await;
        let (length, file) = opened.map_err(|e| WorkError::io("open", &path, e))?;
        Ok(Self { to: Sink::File { file: Arc::new(file), path, lock }, length })
    }

    pub(super) async fn append(&mut self, remotes: &Remotes, bytes: Vec<u8>) -> Result<(), StepError> {
        let (expected, added) = (self.length, bytes.len() as u64);
        let (file, path, lock) = match &self.to {
            Sink::File { file, path, lock } => (file.clone(), path, lock.clone()),
            Sink::Reader(reader) => {
                let given = reader.give(bytes).await;
                given.map_err(|_| StepError::Connection("nobody reads the output any more".into()))?;
                self.length += added;
                return Ok(());
            }
        };
        let write = move || {
            let _held = lock.lock();
            if file.metadata()?.len() != expected {
                return Err(io::Error::other("somebody else has written to it"));
            }
            (&*file).write_all(&bytes)
        };
        let written = remotes.units.store().blocking(write).await;
        written.map_err(|e| WorkError::io("write", path, e))?;
        self.length += added;
        Ok(())
    }
}

/// Counts the looks at a unit that has ended although its output is incomplete: its node may have lost the rest in a
/// power loss without noticing.
#[derive(Debug, Default)]
pub(super) struct OutputLooks {
    /// Bytes that have arrived.
    have: u64,
    /// Looks in a row without more bytes.
    looks: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum MissingOutput {
    /// The rest may still arrive.
    Expected,
    /// Another connection is to ask for it.
    Reconnect,
    /// The rest will not arrive.
    Lost,
}

impl OutputLooks {
    pub(super) fn look(&mut self, have: u64) -> MissingOutput {
        if std::mem::replace(&mut self.have, have) != have {
            self.looks = 0;
        }
        self.looks += 1;
        match self.looks {
            looks if looks >= LOOKS * CONNECTIONS => MissingOutput::Lost,
            looks if looks.is_multiple_of(LOOKS) => MissingOutput::Reconnect,
            _ => MissingOutput::Expected,
        }
    }
}

impl Remotes {
    /// Adds to the copy of the output. Returns false, and lets the other node end the unit, if that is more than the
    /// unit may print.
    pub(super) async fn take_output(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        output: &mut CopiedOutput,
        mut bytes: Vec<u8>,
    ) -> Result<bool, StepError> {
        let status = entry.status();
        let Some(bound) = &status.max_stdout else {
            return output.append(self, bytes).await.map(|()| true);
        };
        let room = bound.room_for(bytes.len(), output.length);
        let fits = room == bytes.len();
        bytes.truncate(room);
        output.append(self, bytes).await?;
        if !fits {
            self.stop(entry, bound.exceeded()).await?;
        }
        Ok(fits)
    }
}

/// Whether a unit has ended but not all of the output that counts has arrived.
pub(super) fn is_early(entry: &Entry, report: &UnitReport, have: u64) -> bool {
    let most = entry.status().max_stdout.as_ref().map_or(u64::MAX, |bound| bound.bytes);
    report.state.is_final() && report.stdout_size.min(most) > have
}

/// Why this node ended a unit, or would have ended it if it had not ended before.
pub(super) fn why_stopped(status: &Status, report: &UnitReport) -> Option<String> {
    let stopped = status.remote().map(|remote| remote.stopped.to_string()).filter(|why| !why.is_empty());
    let exceeded = status.max_stdout.as_ref().filter(|bound| report.stdout_size > bound.bytes);
    stopped.or_else(|| exceeded.map(|bound| bound.exceeded()))
}

pub(super) fn without_the_rest(report: UnitReport, have: u64) -> UnitReport {
    let mut life = Life::read(report.state, report.detail.clone(), report.stdout_size);
    life.lose_output(have);
    UnitReport { state: life.state, detail: life.detail, stdout_size: life.stdout_size, ..report }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_output_is_asked_for_again_and_given_up_unless_more_of_it_arrives() {
        let mut looks = OutputLooks::default();
        let mut reconnects = 0;
        for have in [0, 5, 9] {
            for _ in 1..LOOKS * CONNECTIONS {
                match looks.look(have) {
                    MissingOutput::Expected => {}
                    MissingOutput::Reconnect => reconnects += 1,
                    MissingOutput::Lost => panic!("the last byte came {} looks ago", looks.looks),
                }
            }
        }
        assert_eq!(reconnects, 3 * (CONNECTIONS - 1), "each connection has its time");
        assert_eq!(looks.look(9), MissingOutput::Lost);
    }
}
