//! Where the output of a unit on another node goes: to a file here, or to the reader of an attempt. How much of it there is,
//! and so where to go on, how much of it is taken, and how long is waited for the rest. How it comes is `submit`'s business.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Remotes;
use super::attempt::OutputReader;
use crate::rpc::UnitReport;
use crate::rpc::report::unit::UnitStep;
use crate::work::WorkError;
use crate::work::far::StepError;
use crate::work::status::Status;
use crate::work::unit::Life;
use crate::work::units::Entry;

/// Looks at a unit that has ended and sends none of its missing output, until another connection is tried; and
/// connections until it counts as lost. The node answers all these ten minutes, so that neither it nor its link is just
/// slow; its disk may be, which is why they are ten.
const LOOKS: u32 = 150;
const CONNECTIONS: u32 = 4;

/// The output on this node. Its length says where to go on.
pub(super) struct Output {
    to: Sink,
    pub(super) length: u64,
}

/// Where it goes.
enum Sink {
    /// To a copy. Writers take turns.
    File { file: Arc<File>, path: PathBuf, lock: Arc<Mutex<()>> },
    /// To whoever drives a job's attempt.
    Reader(Arc<OutputReader>),
}

impl Output {
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
                reader.give(bytes).await?;
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

/// Looks at a unit that has ended and whose output is not complete: a power loss may have taken the rest from a node that
/// does not notice.
#[derive(Debug, Default)]
pub(super) struct OutputLooks {
    /// Bytes that have come.
    have: u64,
    /// Looks in a row without any more.
    looks: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum MissingOutput {
    /// It may still arrive.
    Expected,
    /// Another connection is to ask for it.
    Reconnect,
    /// It does not arrive.
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
    /// Adds to the copy of the output. Says no, and has the unit ended there, if that is more than it may print.
    pub(super) async fn take_output(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        output: &mut Output,
        mut bytes: Vec<u8>,
    ) -> Result<bool, StepError> {
        let status = entry.status();
        if output.length == 0 {
            entry.note_step(UnitStep::FirstByte);
        }
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

/// Whether a unit has ended and not all of its output that counts has come.
pub(super) fn is_early(entry: &Entry, report: &UnitReport, have: u64) -> bool {
    let most = entry.status().max_stdout.as_ref().map_or(u64::MAX, |bound| bound.bytes);
    report.state.is_final() && report.stdout_size.min(most) > have
}

/// Why this node ended a unit, or would have, had that not ended before.
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
