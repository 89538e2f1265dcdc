//! One file of the journal: written from its beginning on, made durable with each batch, and used again once what it
//! holds is in the units' own files. It keeps the room that it has, so that a batch is one write in place and one
//! flush. Knows which files its records are about, and nothing of what is in them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use super::Sizes;
use super::record::{Record, What};
use crate::work::store::disk::{Disk, Make, sync_files};

/// In front of a number: the name of a log in the directory of the units.
pub(in crate::work::store) const PREFIX: &str = ".journal-";

/// A log that can be written to.
pub(in crate::work::store) struct Log<D: Disk> {
    path: PathBuf,
    file: D::File,
    generation: u64,
    /// Where the next batch goes.
    end: u64,
    /// The length of the file. What is behind the end is of no account.
    length: u64,
    /// The files of units that are durable by this log alone.
    touched: BTreeMap<String, BTreeSet<&'static str>>,
}

impl<D: Disk> Log<D> {
    /// Makes a log, of which the generation is the name: no two in a directory have had the same.
    pub(in crate::work::store) fn make(disk: &D, root: &Path, generation: u64) -> io::Result<Self> {
        let path = root.join(format!("{PREFIX}{generation}"));
        let file = disk.make(&path, Make::New)?;
        disk.sync_dir(root)?;
        Ok(Self { path, file, generation, end: 0, length: 0, touched: BTreeMap::new() })
    }

    /// What stands in front of a batch.
    pub(in crate::work::store) fn opening(&self, disk: &D) -> Vec<u8> {
        let mut bytes = Vec::new();
        Record { unit: "", what: What::Begins(&disk.now().to_string()) }.write(self.generation, &mut bytes);
        bytes
    }

    pub(in crate::work::store) fn generation(&self) -> u64 {
        self.generation
    }

    /// Bytes in use.
    pub(in crate::work::store) fn used(&self) -> u64 {
        self.end
    }

    /// All that is durable by it.
    pub(in crate::work::store) fn read(&self, disk: &D) -> io::Result<Vec<u8>> {
        disk.read(&self.path, self.end)
    }

    /// Notes that a file of a unit is durable by this log.
    pub(in crate::work::store) fn touch(&mut self, unit: &str, file: &'static str) {
        match self.touched.get_mut(unit) {
            Some(files) => drop(files.insert(file)),
            None => drop(self.touched.insert(unit.to_owned(), BTreeSet::from([file]))),
        }
    }

    /// Adds a batch, durably.
    pub(in crate::work::store) fn append(
        &mut self,
        disk: &D,
        sizes: &Sizes,
        mut batch: Vec<u8>,
    ) -> io::Result<()> {
        let end = self.end + batch.len() as u64;
        if end > self.length {
            // Room for later batches, too: a file that grows has more to make durable than its contents.
            self.length = end.next_multiple_of(sizes.grow);
            batch.resize((self.length - self.end) as usize, 0);
        }
        disk.write_at(&mut self.file, self.end, &batch)?;
        disk.sync_data(&self.file)?;
        self.end = end;
        Ok(())
    }

    /// Makes durable in the units' own files what was so by this log.
    pub(in crate::work::store) fn settle(&self, disk: &D, root: &Path, sizes: &Sizes) -> io::Result<()> {
        if self.touched.len() > sizes.one_by_one {
            return disk.sync_all(root);
        }
        for (unit, files) in &self.touched {
            sync_files(disk, &root.join(unit), files.iter().copied())?;
        }
        disk.sync_dir(root)
    }

    /// Empties it once it has settled: payloads shall not outlive their units for long.
    pub(in crate::work::store) fn wipe(&mut self, disk: &D) -> io::Result<()> {
        // Its beginning first: half of it would bring back what was true earlier.
        disk.write_at(&mut self.file, 0, &[0; 16])?;
        disk.sync_data(&self.file)?;
        disk.write_at(&mut self.file, 0, &vec![0; self.end as usize])?;
        (self.end, self.touched) = (0, BTreeMap::new());
        Ok(())
    }

    /// Whether a start would find it: who clears a data directory out takes the logs, too.
    pub(in crate::work::store) fn is_there(&self, disk: &D) -> bool {
        disk.has_name(&self.file)
    }

    /// An empty log, for use from now on.
    pub(in crate::work::store) fn of_generation(mut self, generation: u64) -> Self {
        self.generation = generation;
        self
    }
}
