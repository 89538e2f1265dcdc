//! The saved jobs of a directory, as the disk had them at the last reload. A file that is broken keeps its last good
//! version, and says so until it is mended or removed.
//!
//! Whoever can write such a file runs commands on all hosts that the node's jobs reach. So a file counts only if it is no
//! link, belongs to the daemon's user or to root, and nobody else can write to it.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::digest;
use jiff::civil::Date;

use super::SavedFault;
use super::file::SavedJob;
use super::schedule::{LoadedSchedule, holidays};
use super::vars::Patterns;
use crate::controller::credentials::is_file_name;
use crate::os::{hex, regular_file};
use crate::yaml::YamlFault;

/// The largest file.
const LARGEST: u64 = 256 << 10;
/// The most files, and the most bytes of all of them.
const MOST: usize = 20_000;
const MOST_BYTES: u64 = 64 << 20;
/// Files that are read in one go.
const AT_ONCE: usize = 500;
/// The most threads that parse files, and the fewest files for each.
const MOST_THREADS: usize = 4;
const LEAST_PART: usize = 64;
const SUFFIX: &str = ".yml";
/// Bytes of a hash that are kept.
const HASH: usize = 8;
/// The bits of a mode that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// A saved job as its text, which has been right, and what lists show of it. It is parsed again where it is needed: in
/// memory ten thousand parsed jobs take several times as much as their texts.
#[derive(Debug, PartialEq)]
pub(crate) struct LoadedJob {
    text: Box<str>,
    hash: [u8; HASH],
    /// For people.
    pub description: Option<Box<str>>,
    /// Its playbook or module.
    pub runs: Option<Box<str>>,
    /// The address of its project, or its directory.
    pub source: Option<Box<str>>,
    /// When it starts by itself.
    pub schedule: Option<Box<LoadedSchedule>>,
}

impl LoadedJob {
    /// The job of a text.
    ///
    /// # Errors
    /// The first fault, with its line.
    fn of(text: String, hash: [u8; HASH], patterns: &mut Patterns) -> Result<Self, YamlFault> {
        let job = SavedJob::parse_one(&text, patterns)?;
        let schedule = match job.schedule.zip(job.timetable) {
            Some((said, times)) => {
                let days = said.holidays.as_deref().map(holidays_of).transpose();
                let days = days.map_err(|text| YamlFault { line: 0, text })?.unwrap_or_default();
                Some(said.loaded(times, days))
            }
            None => None,
        };
        let url = job.project.as_ref().map(|project| project.url.as_str().into());
        Ok(Self {
            text: text.into(),
            hash,
            description: job.description.map(Into::into),
            runs: job.playbook.or(job.module).map(Into::into),
            source: url.or_else(|| job.directory.map(|path| path.display().to_string().into())),
            schedule: schedule.map(Box::new),
        })
    }

    /// 16 hex digits of the file's hash.
    pub(crate) fn hash(&self) -> String {
        hex::print(&self.hash)
    }

    /// The whole of it.
    ///
    /// # Errors
    /// None in practice: the text has been parsed before.
    pub(crate) fn job(&self) -> Result<SavedJob, YamlFault> {
        SavedJob::parse(&self.text)
    }
}

/// What there is under a name.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SavedEntry {
    /// The last good version.
    pub job: Option<Arc<LoadedJob>>,
    /// What is wrong with the file now.
    pub fault: Option<Box<SavedFault>>,
}

impl SavedEntry {
    /// The schedule of the last good version, if it has one.
    pub(crate) fn schedule(&self) -> Option<&LoadedSchedule> {
        self.job.as_ref()?.schedule.as_deref()
    }
}

/// The saved jobs of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SavedJobs {
    entries: BTreeMap<String, SavedEntry>,
    /// What is wrong with the directory, or with files that can have no name.
    faults: Vec<SavedFault>,
}

impl SavedJobs {
    /// Reads a directory; `former` are the jobs before. Blocks on the disk.
    ///
    /// `keep` gets the jobs as they are whenever some more files have changed. Whoever keeps them in the place of those
    /// before never has all jobs in two versions. If nothing has changed, `former` itself is returned.
    pub(crate) fn load(directory: &Path, former: Arc<Self>, mut keep: impl FnMut(Arc<Self>)) -> Arc<Self> {
        let mut now = former;
        let (names, faults) = match names(directory) {
            Ok(found) => found,
            Err(error) => {
                let faults = vec![fault(directory, 0, format!("it cannot be read: {error}"))];
                if now.faults != faults {
                    Arc::make_mut(&mut now).faults = faults;
                }
                return now;
            }
        };
        let bytes = AtomicU64::new(0);
        for some in names.chunks(AT_ONCE) {
            let mut read = read_all(some, &SavedReading { directory, former: &now, bytes: &bytes });
            read.retain(|(name, entry)| now.entries.get(name) != Some(entry));
            if !read.is_empty() {
                Arc::make_mut(&mut now).entries.extend(read);
                keep(now.clone());
            }
        }
        if now.faults != faults || now.entries.len() != names.len() {
            let this = Arc::make_mut(&mut now);
            this.entries.retain(|name, _| names.binary_search(name).is_ok());
            this.faults = faults;
        }
        now
    }

    /// All names in order, with what there is under each.
    pub(crate) fn entries(&self) -> &BTreeMap<String, SavedEntry> {
        &self.entries
    }

    /// What is wrong with the directory itself, or with files that can have no name.
    pub(crate) fn faults(&self) -> &[SavedFault] {
        &self.faults
    }

    /// All schedules, by name.
    pub(crate) fn schedules(&self) -> impl Iterator<Item = (&str, &LoadedSchedule)> {
        self.entries.iter().filter_map(|(name, entry)| Some((name.as_str(), entry.schedule()?)))
    }

    /// How many there are, and how much is wrong.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.entries.len() as u64, self.all_faults().count() as u64)
    }

    /// All that is wrong.
    pub(crate) fn all_faults(&self) -> impl Iterator<Item = &SavedFault> {
        self.faults.iter().chain(self.entries.values().filter_map(|entry| entry.fault.as_deref()))
    }
}

/// The names of the files of a directory, in order, and what is wrong with those that look like one and can have no name.
fn names(directory: &Path) -> std::io::Result<(Vec<String>, Vec<SavedFault>)> {
    let (mut names, mut faults) = (Vec::new(), Vec::new());
    for found in std::fs::read_dir(directory)? {
        let found = found?.file_name();
        let Some(file) = found.to_str().filter(|file| !file.starts_with('.')) else { continue };
        let path = directory.join(file);
        match file.strip_suffix(SUFFIX) {
            Some(name) if is_file_name(name) => names.push(name.to_owned()),
            Some(_) => faults.push(fault(
                &path,
                0,
                "its name is none for a saved job: lower-case letters, digits, dashes and dots",
            )),
            None if file.ends_with(".yaml") => {
                faults.push(fault(&path, 0, format!("it is not read: its name must end with {SUFFIX}")));
            }
            None => {}
        }
    }
    names.sort_unstable();
    faults.sort_by(|one, other| one.file.cmp(&other.file));
    if names.len() > MOST {
        let text = format!("it has {} files, of which the first {MOST} are read", names.len());
        faults.push(fault(directory, 0, text));
        names.truncate(MOST);
    }
    Ok((names, faults))
}

/// Reads files of a directory.
struct SavedReading<'a> {
    directory: &'a Path,
    former: &'a SavedJobs,
    /// Of all files so far.
    bytes: &'a AtomicU64,
}

impl SavedReading<'_> {
    /// A name, and what there is under it now.
    fn entry(&self, name: &str, patterns: &mut Patterns) -> (String, SavedEntry) {
        let path = self.directory.join(format!("{name}{SUFFIX}"));
        let before = self.former.entries.get(name).and_then(|entry| entry.job.clone());
        let text = read(&path).and_then(|text| {
            let length = text.len() as u64;
            let so_far = self.bytes.fetch_add(length, Ordering::Relaxed) + length;
            let wrong = || format!("all files together are longer than {MOST_BYTES} bytes");
            if so_far <= MOST_BYTES { Ok(text) } else { Err(wrong()) }
        });
        let text = text.map_err(|what| fault(&path, 0, what));
        let entry = match text.and_then(|text| loaded(&path, text, before.as_ref(), patterns)) {
            Ok(job) => SavedEntry { job: Some(job), fault: None },
            Err(fault) => SavedEntry { job: before, fault: Some(Box::new(fault)) },
        };
        (name.to_owned(), entry)
    }
}

/// Reads files on several threads, because an operator waits for a reload, and 10,000 files keep a processor busy for seconds.
fn read_all(names: &[String], reading: &SavedReading<'_>) -> Vec<(String, SavedEntry)> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
    let part = names.len().div_ceil(threads).max(LEAST_PART);
    std::thread::scope(|scope| {
        let read = |part: &[String]| {
            let mut patterns = Patterns::default();
            part.iter().map(|name| reading.entry(name, &mut patterns)).collect::<Vec<_>>()
        };
        let parts: Vec<_> = names.chunks(part).map(|part| scope.spawn(move || read(part))).collect();
        parts.into_iter().flat_map(|part| part.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

impl SavedFault {
    /// Reads one file, which need not be in a directory of saved jobs.
    pub(crate) fn of_file(path: &Path) -> Option<Self> {
        let text = read(path).map_err(|what| fault(path, 0, what));
        text.and_then(|text| loaded(path, text, None, &mut Patterns::default())).err()
    }
}

fn fault(path: &Path, line: u64, what: impl Into<String>) -> SavedFault {
    SavedFault { file: path.display().to_string(), line, what: what.into() }
}

/// The job in a text; the one before if that has not changed.
fn loaded(
    path: &Path,
    text: String,
    before: Option<&Arc<LoadedJob>>,
    patterns: &mut Patterns,
) -> Result<Arc<LoadedJob>, SavedFault> {
    let sum = digest::digest(&digest::SHA256, text.as_bytes());
    let mut hash = [0; HASH];
    hash.copy_from_slice(&sum.as_ref()[..HASH]);
    let reads_more = |job: &LoadedJob| job.schedule.as_ref().is_some_and(|schedule| schedule.has_holidays);
    if let Some(same) = before.filter(|before| before.hash == hash && !reads_more(before)) {
        return Ok(same.clone());
    }
    let loaded = LoadedJob::of(text, hash, patterns).map_err(|wrong| fault(path, wrong.line, wrong.text));
    loaded.map(Arc::new)
}

/// The dates of a file of holidays.
fn holidays_of(path: &Path) -> Result<BTreeSet<Date>, String> {
    let wrong = |why: String| format!("schedule.holidays: {}{why}", path.display());
    let text = read(path).map_err(|why| wrong(format!(": {why}")))?;
    holidays(&text).map_err(|line| wrong(format!(":{line}: it does not begin with a date, as 2026-12-25")))
}

/// The text of a file, which is judged once it is open.
fn read(path: &Path) -> Result<String, String> {
    let opened = regular_file::open_itself(path).map_err(|error| format!("it cannot be read: {error}"))?;
    let own = rustix::process::geteuid().as_raw();
    if opened.owner != own && opened.owner != 0 {
        return Err(format!(
            "it belongs to user {}, not to the user of this daemon, {own}, or to root",
            opened.owner
        ));
    }
    if opened.mode & OTHERS_WRITE != 0 {
        return Err(format!("its mode is {:04o}, so others can write to it: chmod go-w", opened.mode));
    }
    opened.text(LARGEST).map_err(|error| format!("it cannot be read: {error}"))
}
