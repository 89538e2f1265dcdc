//! The output of a command with a bound on it: the runner reads it from a pipe and writes the unit's `stdout`, and its
//! `stderr` if that is apart.
//! Owns what is kept, what is discarded, and waiting for space on a full disk. Without a bound there is no pipe,
//! and the command writes to the file itself.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use crate::rpc::OutputBound;
use crate::work::limits::WhenFull;
use crate::work::store::{OutputFile, UnitDir};

/// Bytes read at a time.
const CHUNK: usize = 64 * 1024;
/// Pieces taken after the command's end; a pipe holds fewer.
const LAST_STEPS: u32 = 64;
/// The pause between attempts to write to a full disk.
const RETRY: Duration = Duration::from_secs(1);

/// Names of the files that hold the end of an output while its beginning is not known.
fn spools(file: OutputFile) -> [&'static str; 2] {
    match file {
        OutputFile::Stdout => [".stdout.a", ".stdout.b"],
        OutputFile::Stderr => [".stderr.a", ".stderr.b"],
    }
}

/// Moves output from a pipe into the unit's file.
pub(super) struct Pump {
    pipe: io::PipeReader,
    bound: OutputBound,
    when_full: WhenFull,
    which: OutputFile,
    file: File,
    /// The two files that take turns, the newer one last, each at most as long as the bound.
    spools: Vec<(File, u64)>,
    /// Bytes that were read but not written, because the disk is full.
    unwritten: Vec<u8>,
    /// Bytes that the command has written.
    total: u64,
    open: bool,
}

impl Pump {
    /// A pump to the file and the end of its pipe that the command writes to.
    pub(super) fn new(
        dir: &UnitDir,
        which: OutputFile,
        file: File,
        (bound, when_full): (OutputBound, WhenFull),
    ) -> io::Result<(Self, io::PipeWriter)> {
        let (pipe, end) = io::pipe()?;
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let spools = match when_full {
            WhenFull::Fail | WhenFull::Stop => Vec::new(),
            WhenFull::TruncateHead => {
                let open = |name| {
                    let mut options = OpenOptions::new();
                    options.read(true).write(true).create(true).truncate(true).mode(0o600);
                    options.open(dir.file(name)).map(|file| (file, 0))
                };
                spools(which).into_iter().map(open).collect::<io::Result<_>>()?
            }
        };
        let (unwritten, total, open) = (Vec::new(), 0, true);
        Ok((Self { pipe, bound, when_full, which, file, spools, unwritten, total, open }, end))
    }

    /// The descriptor to wait for; `None` if nothing more comes, or there is no room for it.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (self.open && self.unwritten.is_empty()).then(|| self.pipe.as_fd())
    }

    /// How long to wait before writing is tried again; `None` if everything is written.
    pub(super) fn retry(&self) -> Option<Duration> {
        (!self.unwritten.is_empty()).then_some(RETRY)
    }

    /// Moves a piece of the output, without waiting. Returns whether there may be more.
    pub(super) fn step(&mut self) -> bool {
        if self.flush().is_err() || !self.open {
            return false;
        }
        let mut buffer = vec![0; CHUNK];
        match self.pipe.read(&mut buffer) {
            Ok(0) => self.open = false,
            Ok(length) => {
                buffer.truncate(length);
                self.take(buffer);
                let _full = self.flush();
                return true;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.open = false,
        }
        false
    }

    /// Whether the command has to end because it wrote too much.
    pub(super) fn must_end(&self) -> bool {
        self.fails() && self.total > self.bound.bytes
    }

    /// Whether too much output is a failure.
    pub(super) fn fails(&self) -> bool {
        self.when_full == WhenFull::Fail
    }

    /// Moves the rest once the command has ended. Returns what the Detail has to say about the output.
    pub(super) fn finish(mut self, dir: &UnitDir) -> Option<String> {
        // Bounded, so that a process that outlives the command and goes on writing cannot keep this from ending.
        let mut steps = 0;
        while steps < LAST_STEPS && dir.path().exists() && (self.step() || !self.unwritten.is_empty()) {
            match self.unwritten.is_empty() {
                true => steps += 1,
                false => std::thread::sleep(RETRY),
            }
        }
        while self.write_tail().is_err() && dir.path().exists() {
            std::thread::sleep(RETRY);
        }
        if !self.spools.is_empty() {
            spools(self.which).into_iter().for_each(|name| drop(std::fs::remove_file(dir.file(name))));
        }
        let OutputBound { bytes, setting } = &self.bound;
        let what = match self.which {
            OutputFile::Stdout => "output",
            OutputFile::Stderr => "stderr",
        };
        let over = self.total.checked_sub(*bytes).filter(|&over| over > 0)?;
        Some(match self.when_full {
            WhenFull::Fail => self.bound.exceeded(),
            WhenFull::Stop => format!("the last {over} bytes of its {what} were discarded ({setting})"),
            WhenFull::TruncateHead => {
                format!("the first {over} bytes of its {what} were discarded ({setting})")
            }
        })
    }

    fn take(&mut self, mut bytes: Vec<u8>) {
        let before = self.total;
        self.total += bytes.len() as u64;
        match self.when_full {
            WhenFull::Fail | WhenFull::Stop => bytes.truncate(self.bound.room_for(bytes.len(), before)),
            WhenFull::TruncateHead => {}
        }
        self.unwritten = bytes;
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.unwritten.is_empty() {
            let written = match self.spools.is_empty() {
                true => self.file.write(&self.unwritten)?,
                false => self.spool()?,
            };
            self.unwritten.drain(..written);
        }
        Ok(())
    }

    /// Adds to the newer spool. When it is full, it becomes the older one, and the other one is emptied.
    fn spool(&mut self) -> io::Result<usize> {
        let bound = self.bound.bytes.max(1);
        if self.spools[1].1 >= bound {
            self.spools.swap(0, 1);
            let (file, length) = &mut self.spools[1];
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            *length = 0;
        }
        let (file, length) = &mut self.spools[1];
        let room = usize::try_from(bound - *length).unwrap_or(usize::MAX).min(self.unwritten.len());
        let written = file.write(&self.unwritten[..room])?;
        *length += written as u64;
        Ok(written)
    }

    /// Writes the last bytes that the spools hold. After an error it can be called again, and begins anew.
    fn write_tail(&mut self) -> io::Result<()> {
        if self.spools.is_empty() {
            return Ok(());
        }
        self.file.set_len(0)?;
        let held: u64 = self.spools.iter().map(|(_, length)| length).sum();
        let mut skip = held.saturating_sub(self.bound.bytes);
        for (spool, length) in &mut self.spools {
            let from = skip.min(*length);
            skip -= from;
            spool.seek(SeekFrom::Start(from))?;
            io::copy(&mut spool.take(*length - from), &mut self.file)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(when_full: WhenFull, bytes: u64, pieces: &[Vec<u8>]) -> (Vec<u8>, bool, Option<String>) {
        let temp = tempfile::tempdir().unwrap();
        let dir = UnitDir::at(temp.path());
        let file = dir.append_stdout().unwrap();
        let (mut pump, mut end) = Pump::new(
            &dir,
            OutputFile::Stdout,
            file,
            (OutputBound { bytes, setting: "maxstdout".into() }, when_full),
        )
        .unwrap();
        for piece in pieces {
            end.write_all(piece).unwrap();
            while pump.step() {}
        }
        drop(end);
        let must_end = pump.must_end();
        let told = pump.finish(&dir);
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
        (std::fs::read(dir.file("stdout")).unwrap(), must_end, told)
    }

    proptest! {
        #[test]
        fn exactly_the_bytes_within_the_bound_are_kept(
            bytes in 0_u64..40,
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..30), 0..8),
        ) {
            let all = pieces.concat();
            let bound = (bytes as usize).min(all.len());
            let over = all.len() > bytes as usize;
            for when_full in [WhenFull::Fail, WhenFull::Stop, WhenFull::TruncateHead] {
                let (found, must_end, told) = kept(when_full, bytes, &pieces);
                let wanted = match when_full {
                    WhenFull::Fail | WhenFull::Stop => &all[..bound],
                    WhenFull::TruncateHead => &all[all.len() - bound..],
                };
                prop_assert_eq!(&found, wanted);
                prop_assert_eq!(must_end, over && when_full == WhenFull::Fail);
                prop_assert_eq!(told.is_some(), over);
            }
        }
    }
}
