//! One log, and the changes that it makes durable. Owns the order of steps: what nobody looks at yet is written first,
//! then the batch is appended and flushed, then readers see it. Also what happens when the log cannot be written, and
//! when the units' own files cannot be flushed. Pure but for the disk, which is an argument: `super` has the thread.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use super::record::{Record, What};
use super::replay::{self, RecordTrust};
use super::{PREFIX, Rules};
use crate::work::store::Durability;
use crate::work::store::disk::{
    Disk, Make, adopt_exit_record, is_about_what_is_there, make_unit, replace_status, sync_files, write_file,
};

/// A change of the files in one unit's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::work::store) enum Change {
    /// The directory is made, with this status and an empty payload.
    Make(Vec<u8>),
    /// A small file has these contents.
    File(&'static str, Vec<u8>),
    /// The status is replaced in one step.
    Status(NewStatus),
    /// The directory has been removed or renamed.
    Gone,
}

/// A status that replaces the last one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::work::store) struct NewStatus {
    pub(in crate::work::store) line: Vec<u8>,
    /// How many bytes of `stdout` become durable with it; few enough for the log.
    pub(in crate::work::store) output: u64,
    /// A runner has left the same line in its exit record, which is renamed.
    pub(in crate::work::store) from_exit_record: bool,
}

/// A change with the name of the unit's directory.
#[derive(Debug, Clone)]
pub(in crate::work::store) struct Update {
    pub(in crate::work::store) unit: String,
    pub(in crate::work::store) change: Change,
}

impl Update {
    /// Its length in the log in bytes, roughly.
    pub(super) fn size(&self) -> usize {
        match &self.change {
            Change::Make(bytes) | Change::File(_, bytes) => bytes.len(),
            Change::Status(status) => status.line.len() + status.output as usize,
            Change::Gone => 0,
        }
    }
}

/// Sizes of a log.
#[derive(Debug, Clone, Copy)]
pub(in crate::work::store) struct Sizes {
    /// The file grows by this many bytes at a time.
    pub(in crate::work::store) grow: u64,
    /// From this many bytes on the log is full.
    pub(in crate::work::store) limit: u64,
    /// Up to this many units are flushed one by one; for more, the whole file system is.
    pub(in crate::work::store) one_by_one: usize,
}

/// The log of a directory of units.
pub(in crate::work::store) struct Log<D: Disk> {
    pub(in crate::work::store) disk: D,
    root: PathBuf,
    sizes: Sizes,
    rules: Rules,
    /// Rises with each use of the file, so that what an earlier use left in it does not count.
    generation: u64,
    file: Option<(PathBuf, D::File)>,
    /// The length of the file. Bytes behind the end do not count.
    length: u64,
    /// Where the next batch goes.
    end: u64,
    /// The file may hold records that a start would replay.
    is_used: bool,
    /// The files of units that are durable by this log alone.
    touched: BTreeMap<String, BTreeSet<&'static str>>,
    /// A checkpoint has failed: the files are written again before the next one counts.
    has_failed: bool,
    /// The last batch was made durable without the log.
    was_direct: bool,
}

impl<D: Disk> Log<D> {
    /// A log that follows those of up to a generation.
    pub(in crate::work::store) fn new(
        disk: D,
        root: PathBuf,
        sizes: Sizes,
        rules: Rules,
        generation: u64,
    ) -> Self {
        Self {
            disk,
            root,
            sizes,
            rules,
            generation,
            file: None,
            length: 0,
            end: 0,
            is_used: false,
            touched: BTreeMap::new(),
            has_failed: false,
            was_direct: false,
        }
    }

    /// Whether it is so full that a checkpoint is due.
    pub(in crate::work::store) fn is_full(&self) -> bool {
        self.end >= self.sizes.limit
    }

    /// Whether there is anything to checkpoint.
    pub(in crate::work::store) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Makes each change durable and visible.
    pub(in crate::work::store) fn commit(&mut self, updates: &[Update]) -> Vec<io::Result<()>> {
        if self.has_failed
            && let Err(error) = self.checkpoint()
        {
            return updates.iter().map(|_| Err(copy(&error))).collect();
        }
        let prepared: Vec<_> = updates.iter().map(|update| self.prepare(update)).collect();
        let appended = self.append(updates, &prepared);
        let mut outcomes: Vec<io::Result<()>> = prepared.into_iter().map(|done| done.map(drop)).collect();
        let was_direct = std::mem::replace(&mut self.was_direct, appended.is_err());
        match appended {
            Ok(()) => self.show(updates, &mut outcomes, Durability::Volatile),
            Err(error) => {
                if !was_direct {
                    tracing::warn!(%error, "cannot write the journal of units, flushing each change by itself");
                }
                let directly = self.checkpoint().and_then(|()| self.commit_directly(updates, &mut outcomes));
                if let Err(error) = directly {
                    fail_all(&mut outcomes, &error);
                }
                self.undo(updates, &outcomes);
            }
        }
        outcomes
    }

    /// Makes durable in the units' own files what is durable by the log alone, then empties the log.
    ///
    /// After a failed flush the system takes what it could not write for written, so that flushing again would prove
    /// nothing: the next attempt writes the files again first. Until one succeeds, no change is accepted.
    pub(in crate::work::store) fn checkpoint(&mut self) -> io::Result<()> {
        if !self.is_used {
            return Ok(());
        }
        let flushed = if self.has_failed { self.rewrite() } else { self.flush() };
        let emptied = flushed.and_then(|()| self.wipe());
        if let Err(error) = &emptied {
            tracing::error!(%error, "cannot flush the files of units that are in the journal");
        }
        self.has_failed = emptied.is_err();
        emptied
    }

    fn flush(&self) -> io::Result<()> {
        if self.touched.len() > self.sizes.one_by_one {
            return self.disk.sync_all(&self.root);
        }
        for (unit, files) in &self.touched {
            sync_files(&self.disk, &self.root.join(unit), files.iter().copied())?;
        }
        self.disk.sync_dir(&self.root)
    }

    fn rewrite(&self) -> io::Result<()> {
        if let Some((path, _)) = &self.file {
            let text = self.disk.read(path, self.end)?;
            let records = super::record::read(&text).into_iter().flat_map(|log| log.records);
            let trust = RecordTrust { names: true, since: None };
            replay::restore_all(&self.disk, &self.root, &self.rules, records, trust)?;
        }
        self.disk.sync_all(&self.root)
    }

    /// Overwrites what is in the file: payloads must not outlive their units for long.
    fn wipe(&mut self) -> io::Result<()> {
        if let Some((_, file)) = &mut self.file {
            // Its beginning first: half of the log would bring back an earlier state.
            self.disk.write_at(file, 0, &[0; 16])?;
            self.disk.sync_data(file)?;
            self.disk.write_at(file, 0, &vec![0; self.end as usize])?;
        }
        (self.end, self.is_used) = (0, false);
        self.touched.clear();
        Ok(())
    }

    /// Writes what comes before the log because nobody looks at it yet. Gives the output that a status counts.
    fn prepare(&self, Update { unit, change }: &Update) -> io::Result<Option<Vec<u8>>> {
        let unit = self.root.join(unit);
        match change {
            Change::Make(line) => make_unit(&self.disk, &unit, line).map(|()| None),
            Change::File(name, bytes) => write_file(&self.disk, &unit.join(name), bytes).map(|()| None),
            // No more than it counts: a child of the command may still be writing.
            Change::Status(NewStatus { output: counted @ 1.., .. }) => {
                if_there(self.disk.read(&unit.join("stdout"), *counted))
            }
            Change::Status(_) | Change::Gone => Ok(None),
        }
    }

    /// Replaces statuses, which readers see from then on.
    fn show(&self, updates: &[Update], outcomes: &mut [io::Result<()>], durability: Durability) {
        for (Update { unit, change }, outcome) in updates.iter().zip(outcomes) {
            if let (Change::Status(status), Ok(())) = (change, &outcome) {
                *outcome = self.replace(&self.root.join(unit), status, durability);
            }
        }
    }

    fn replace(&self, unit: &Path, status: &NewStatus, durability: Durability) -> io::Result<()> {
        if status.from_exit_record && if_there(adopt_exit_record(&self.disk, unit, durability))?.is_some() {
            return Ok(());
        }
        replace_status(&self.disk, &self.disk.lock(unit)?, unit, &status.line, durability)
    }

    /// Makes changes that are prepared durable without a log.
    fn commit_directly(&self, updates: &[Update], outcomes: &mut [io::Result<()>]) -> io::Result<()> {
        // What was prepared, and the output that statuses count.
        self.disk.sync_all(&self.root)?;
        self.show(updates, outcomes, Durability::Deferred);
        self.disk.sync_all(&self.root)
    }

    /// Removes units whose making failed.
    fn undo(&self, updates: &[Update], outcomes: &[io::Result<()>]) {
        for (Update { unit, change }, outcome) in updates.iter().zip(outcomes) {
            if let (Change::Make(_), Err(error)) = (change, outcome)
                && error.kind() != io::ErrorKind::AlreadyExists
            {
                let _ = self.disk.remove_all(&self.root.join(unit));
            }
        }
    }

    /// Appends a batch, durably.
    fn append(&mut self, updates: &[Update], prepared: &[io::Result<Option<Vec<u8>>>]) -> io::Result<()> {
        self.begin()?;
        let mut batch = Vec::new();
        let opening = Record { unit: "", what: What::Begins(&self.disk.now().to_string()) };
        opening.write(self.generation, &mut batch);
        for (Update { unit, change }, prepared) in updates.iter().zip(prepared) {
            let Ok(output) = prepared else { continue };
            let mut write = |file: &'static str, what| {
                Record { unit, what }.write(self.generation, &mut batch);
                self.touched.entry(unit.clone()).or_default().insert(file);
            };
            match change {
                Change::Make(line) => {
                    write("status", What::Made(line));
                    self.touched.entry(unit.clone()).or_default().insert("stdin");
                }
                Change::File(name, bytes) => write(name, What::File(name, bytes)),
                Change::Status(status) => {
                    if let Some(output) = output {
                        write("stdout", What::File("stdout", output));
                    }
                    write("status", What::Status(&status.line));
                }
                Change::Gone => write("status", What::Gone),
            }
        }
        let end = self.end + batch.len() as u64;
        if end > self.length {
            // Room for later batches, too: a file that grows has more to make durable than its contents.
            self.length = end.next_multiple_of(self.sizes.grow);
            batch.resize((self.length - self.end) as usize, 0);
        }
        self.is_used = true;
        let Some((_, file)) = &mut self.file else { return Err(io::ErrorKind::NotFound.into()) };
        self.disk.write_at(file, self.end, &batch)?;
        self.disk.sync_data(file)?;
        self.end = end;
        Ok(())
    }

    /// Begins another use of the file if it is empty. Makes one if there is none: an operator who clears a data
    /// directory takes the log, too.
    fn begin(&mut self) -> io::Result<()> {
        if self.is_used {
            return Ok(());
        }
        self.generation += 1;
        if !self.file.as_ref().is_some_and(|(_, file)| self.disk.has_name(file)) {
            (self.file, self.length) = (None, 0);
            let path = self.root.join(format!("{PREFIX}{}", self.generation));
            let file = self.disk.make(&path, Make::New)?;
            self.file = Some((path, file));
            self.disk.sync_dir(&self.root)?;
        }
        Ok(())
    }
}

fn fail_all(outcomes: &mut [io::Result<()>], cause: &io::Error) {
    outcomes.iter_mut().filter(|outcome| outcome.is_ok()).for_each(|outcome| *outcome = Err(copy(cause)));
}

fn copy(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

/// None of what a command has put out of reach.
fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_about_what_is_there(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
