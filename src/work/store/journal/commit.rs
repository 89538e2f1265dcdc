//! Batches of changes, each durable by one write to the log, or, where no log can be written, in the units' own files
//! as it was before there was a journal. Owns the order: what a reader may see of a changed status comes after the log
//! has it. Pure but for the disk, which is an argument.

use std::io;
use std::path::{Path, PathBuf};

use super::Sizes;
use super::log::Log;
use super::record::{Record, What};
use crate::work::store::disk::{
    Disk, Sure, adopt_end, is_about_what_is_there, make_unit, replace_status, sync_files, write_file,
};

/// What is to be changed of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is made, with this status and no payload.
    Make(Vec<u8>),
    /// A small file has these contents.
    File(&'static str, Vec<u8>),
    /// It has this status.
    Status(Vec<u8>, Tells),
    /// It has this status, which its runner has left.
    Left(Vec<u8>, Tells),
    /// It is removed, or has another name.
    Gone,
}

/// Whether a status tells of output, which has to be as durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tells {
    /// It does not, or the output is durable.
    Nothing,
    /// It tells of so many bytes, which are few.
    OfOutput(u64),
}

/// A change with the directory of its unit.
#[derive(Debug, Clone)]
pub(in crate::work::store) struct Ask {
    pub(in crate::work::store) unit: PathBuf,
    pub(in crate::work::store) change: Change,
}

/// Writes batches.
pub(in crate::work::store) struct Committer<D: Disk> {
    pub(in crate::work::store) disk: D,
    pub(in crate::work::store) root: PathBuf,
    sizes: Sizes,
    generation: u64,
    log: Option<Log<D>>,
}

impl<D: Disk> Committer<D> {
    /// One that begins after all logs of up to a generation.
    pub(in crate::work::store) fn new(disk: D, root: PathBuf, sizes: Sizes, generation: u64) -> Self {
        Self { disk, root, sizes, generation, log: None }
    }

    /// Makes each change durable, and visible. One log takes all of them, a spare one if there is none yet; where none
    /// can be written the changes are prepared alone, and [`Self::commit_directly`] goes on once no log is left.
    pub(in crate::work::store) fn commit(&mut self, asks: &[Ask], spare: Option<Log<D>>) -> Committed<D> {
        let prepared: Vec<_> = asks.iter().map(|ask| self.prepare(ask)).collect();
        let recorded = self.record(asks, &prepared, spare);
        let mut outcomes: Vec<io::Result<()>> = prepared.into_iter().map(|done| done.map(drop)).collect();
        if let Err(error) = recorded {
            return Committed { outcomes, broken: Some((error, self.log.take())) };
        }
        for (ask, outcome) in asks.iter().zip(&mut outcomes) {
            if outcome.is_ok() {
                *outcome = self.show(ask, Sure::Later);
            }
        }
        Committed { outcomes, broken: None }
    }

    /// Makes changes that are prepared durable without a log.
    pub(in crate::work::store) fn commit_directly(&self, asks: &[Ask], outcomes: &mut [io::Result<()>]) {
        for (ask, outcome) in asks.iter().zip(&mut *outcomes) {
            if outcome.is_ok() {
                *outcome = self.show(ask, Sure::Durable).and_then(|()| self.sync(ask));
            }
        }
        let names = self.disk.sync_dir(&self.root);
        for (ask, outcome) in asks.iter().zip(outcomes) {
            if let (Ok(()), Err(error)) = (&outcome, &names) {
                *outcome = Err(io::Error::new(error.kind(), error.to_string()));
            }
            self.undo(ask, outcome);
        }
    }

    /// Gives up changes that are prepared, for this cause.
    pub(in crate::work::store) fn give_up(
        &self,
        asks: &[Ask],
        outcomes: &mut [io::Result<()>],
        cause: &io::Error,
    ) {
        for (ask, outcome) in asks.iter().zip(outcomes) {
            if outcome.is_ok() {
                *outcome = Err(io::Error::new(cause.kind(), cause.to_string()));
            }
            self.undo(ask, outcome);
        }
    }

    /// The log, if it is so full that it is to settle now.
    pub(in crate::work::store) fn full_log(&mut self) -> Option<Log<D>> {
        self.log.take_if(|log| log.used() >= self.sizes.limit)
    }

    /// Whether anything is in the log.
    pub(in crate::work::store) fn is_at_rest(&self) -> bool {
        self.log.as_ref().is_none_or(|log| log.used() == 0)
    }

    /// The log, if anything is in it.
    pub(in crate::work::store) fn used_log(&mut self) -> Option<Log<D>> {
        self.log.take_if(|log| log.used() > 0)
    }

    /// What comes before the log: what nobody looks at yet. Gives the output that a status tells of.
    fn prepare(&self, ask: &Ask) -> io::Result<Option<Vec<u8>>> {
        match &ask.change {
            Change::Make(line) => make_unit(&self.disk, &ask.unit, line).map(|()| None),
            Change::File(name, bytes) => write_file(&self.disk, &ask.unit.join(name), bytes).map(|()| None),
            // What is told of, and no more: a child of the command may still be writing.
            Change::Status(_, Tells::OfOutput(told)) | Change::Left(_, Tells::OfOutput(told)) => {
                there(self.disk.read(&ask.unit.join("stdout"), *told))
            }
            Change::Status(..) | Change::Left(..) | Change::Gone => Ok(None),
        }
    }

    /// What comes after it.
    fn show(&self, ask: &Ask, sure: Sure) -> io::Result<()> {
        let (Change::Status(line, tells) | Change::Left(line, tells)) = &ask.change else { return Ok(()) };
        let output = match (sure, tells) {
            (Sure::Durable, Tells::OfOutput(_)) => there(self.disk.open(&ask.unit.join("stdout")))?,
            _ => None,
        };
        if let Change::Left(..) = &ask.change
            && there(adopt_end(&self.disk, &ask.unit, output.as_ref(), sure))?.is_some()
        {
            return Ok(());
        }
        replace_status(&self.disk, &ask.unit, line, output.as_ref(), sure)
    }

    /// Makes durable what was prepared.
    fn sync(&self, ask: &Ask) -> io::Result<()> {
        match &ask.change {
            Change::Make(_) => sync_files(&self.disk, &ask.unit, ["stdin", "status"]),
            Change::File(name, _) => sync_files(&self.disk, &ask.unit, [*name]),
            Change::Status(..) | Change::Left(..) | Change::Gone => Ok(()),
        }
    }

    /// Nothing is kept of a unit whose making failed.
    fn undo(&self, ask: &Ask, outcome: &io::Result<()>) {
        if let (Change::Make(_), Err(error)) = (&ask.change, outcome)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            let _ = self.disk.remove_all(&ask.unit);
        }
    }

    fn record(
        &mut self,
        asks: &[Ask],
        prepared: &[io::Result<Option<Vec<u8>>>],
        spare: Option<Log<D>>,
    ) -> io::Result<()> {
        let log = match &mut self.log {
            Some(log) => log,
            none => {
                self.generation += 1;
                let log = match spare.filter(|spare| spare.is_there(&self.disk)) {
                    Some(spare) => spare.of_generation(self.generation),
                    None => Log::make(&self.disk, &self.root, self.generation)?,
                };
                none.insert(log)
            }
        };
        let mut batch = log.opening(&self.disk);
        for (ask, prepared) in asks.iter().zip(prepared) {
            let Ok(output) = prepared else { continue };
            let unit = &*name_of(&ask.unit);
            let mut write = |file: &'static str, what| {
                Record { unit, what }.write(log.generation(), &mut batch);
                log.touch(unit, file);
            };
            match &ask.change {
                Change::Make(line) => {
                    write("status", What::Made(line));
                    log.touch(unit, "stdin");
                }
                Change::File(name, bytes) => write(name, What::File(name, bytes)),
                Change::Status(line, _) | Change::Left(line, _) => {
                    if let Some(output) = output {
                        write("stdout", What::File("stdout", output));
                    }
                    write("status", What::Status(line));
                }
                Change::Gone => write("status", What::Gone),
            }
        }
        log.append(&self.disk, &self.sizes, batch)
    }
}

/// What has come of a batch.
pub(in crate::work::store) struct Committed<D: Disk> {
    /// For each change, whether it is durable and visible; when no log could be written, whether it is prepared.
    pub(in crate::work::store) outcomes: Vec<io::Result<()>>,
    /// Why no log could be written, and the one that broke, if there was one: all of them have to settle, and be
    /// wiped, before anything is made durable otherwise.
    pub(in crate::work::store) broken: Option<(io::Error, Option<Log<D>>)>,
}

fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_about_what_is_there(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The name of a unit's directory.
fn name_of(unit: &Path) -> std::borrow::Cow<'_, str> {
    unit.file_name().unwrap_or_default().to_string_lossy()
}
