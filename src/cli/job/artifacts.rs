//! A job's artifacts in a directory, as `ansible-runner process` leaves them: the runner's files, and one file for each
//! event. A job's node may be hostile: nothing that it sends is written outside the directory.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zip::ZipArchive;

use crate::cli::exit::{Exit, Failure};
use crate::controller::pack::nameless_file;
use crate::controller::stream::StoredZip;
use crate::rpc::report::controller::JobReport;

const EVENTS: &str = "job_events";
/// Least bytes that a file takes on a disk.
const BLOCK: u64 = 4 << 10;

/// A directory that is filled while a job's output comes.
pub(super) struct Artifacts {
    directory: PathBuf,
    /// Bytes that unpacked zips may still take.
    left: u64,
    /// The zip that is coming, in base64 without blanks.
    zip: Option<(StoredZip, File)>,
}

impl Artifacts {
    /// Makes the directory, for its owner alone, unless it exists. The runner's files may take `most` bytes in it.
    pub(super) fn create(directory: &Path, most: u64) -> Result<Self, Failure> {
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        let artifacts = Self { directory, left: most, zip: None };
        let made = DirBuilder::new().mode(0o700).recursive(true).create(&artifacts.directory);
        artifacts.written(made)?;
        Ok(artifacts)
    }

    /// Begins an attempt: deletes events of an earlier run, which would be taken for its own.
    pub(super) fn begin(&mut self) -> Result<(), Failure> {
        let events = self.directory.join(EVENTS);
        let gone = match fs::remove_dir_all(&events) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        self.written(gone.and_then(|()| DirBuilder::new().mode(0o700).create(&events)))
    }

    /// Keeps an event as the runner wrote it.
    pub(super) fn event(&self, counter: u64, uuid: &str, line: &[u8]) -> Result<(), Failure> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if counter == 0 || uuid.is_empty() || uuid.len() > 64 || !uuid.bytes().all(is_plain) {
            return Ok(());
        }
        let events = self.directory.join(EVENTS);
        if !events.is_dir() {
            self.written(DirBuilder::new().mode(0o700).recursive(true).create(&events))?;
        }
        self.write(&events.join(format!("{counter}-{uuid}.json")), line)
    }

    /// Begins a zip of `length` bytes with the runner's files.
    pub(super) fn begin_zip(&mut self, length: u64) -> Result<(), Failure> {
        let file = self.written(nameless_file())?;
        self.zip = Some((StoredZip { start: 0, length }, file));
        Ok(())
    }

    /// Takes a part of the zip, in base64.
    pub(super) fn zip(&mut self, part: &[u8]) -> Result<(), Failure> {
        let Some((_, file)) = &mut self.zip else { return Ok(()) };
        let letters: Vec<u8> = part.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let written = file.write_all(&letters);
        self.written(written)
    }

    /// Unpacks the zip, which is complete.
    pub(super) fn end_zip(&mut self) -> Result<(), Failure> {
        let Some((zip, file)) = self.zip.take() else { return Ok(()) };
        let unpack = || -> io::Result<()> {
            let mut zip = ZipArchive::new(io::BufReader::new(zip.open(file)))?;
            self.left = inflate(&mut zip, self.left)?;
            // `extract` refuses links and names that lead out of the directory.
            Ok(zip.extract(&self.directory)?)
        };
        let unpacked = unpack();
        self.written(unpacked)
    }

    /// Writes how the job ended, if its runner did not.
    pub(super) fn finish(&self, job: &JobReport) -> Result<(), Failure> {
        let code = job.rc.map(|code| code.to_string());
        for (name, text) in [("status", Some(job.state.to_string())), ("rc", code)] {
            let path = self.directory.join(name);
            if let (Some(text), false) = (text, path.exists()) {
                self.write(&path, text.as_bytes())?;
            }
        }
        Ok(())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
        let mut options = OpenOptions::new();
        let nofollow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(nofollow);
        self.written(options.open(path).and_then(|mut file| file.write_all(bytes)))
    }

    fn written<T>(&self, result: io::Result<T>) -> Result<T, Failure> {
        result.map_err(|error| {
            let directory = self.directory.display();
            Failure::new(Exit::Failed, format!("cannot keep the job's artifacts in {directory}: {error}"))
        })
    }
}

/// Inflates all files without keeping them, because the sizes that a zip declares may be false. Returns what is left of
/// `left` bytes.
fn inflate<R: Read + Seek>(zip: &mut ZipArchive<R>, mut left: u64) -> io::Result<u64> {
    for at in 0..zip.len() {
        let content = zip.by_index(at)?;
        let size = io::copy(&mut content.take(left.saturating_add(1)), &mut io::sink())?;
        let too_large = || io::Error::other("they are larger than --artifacts-limit allows: raise it");
        left = left.checked_sub(size.max(BLOCK)).ok_or_else(too_large)?;
    }
    Ok(left)
}
