//! What a start does with logs of the journal: brings the units' own files to where the logs say, as those may be missing,
//! torn or older after a power loss or a disk's failure. Owns what the log no longer decides, because another daemon may
//! have had the units since. Every step can be repeated, should the power fail again.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::Rules;
use super::record::{self, Contents, Record, What};
use crate::work::store::disk::{Disk, Make, is_about_what_is_there, make_unit, replace_status, write_file};
use crate::work::store::unit_dir::{MOST, QUEUED};
use crate::work::store::{Durability, TRASH};

/// The files of a unit that records may be about, besides its status.
const FILES: [&str; 3] = [PAYLOAD, "stdout", QUEUED];
const PAYLOAD: &str = "stdin";
/// What a runner makes of its own in a unit's directory.
const CLAIM: &str = "runner";

/// What the records say about one unit, all in all.
#[derive(Default)]
struct Recorded<'a> {
    /// The status that it was made with.
    made: Option<&'a [u8]>,
    status: Option<&'a [u8]>,
    files: BTreeMap<&'a str, &'a [u8]>,
    is_gone: bool,
}

/// How far the files that are there are trusted.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordTrust {
    /// Which units there are: another program has made or removed one since the logs were written.
    pub(super) names: bool,
    /// A whole status that was written after this time.
    pub(super) since: Option<u64>,
}

/// Brings the units to where the logs at these paths say, which a daemon has left that did not stop in order, and removes
/// the logs. Gives the highest generation of them, 0 without any.
///
/// # Errors
/// The disk's error, and which unit it was about.
pub(in crate::work::store) fn replay<D: Disk>(
    disk: &D,
    root: &Path,
    logs: &[PathBuf],
    rules: &Rules,
) -> io::Result<u64> {
    let texts = logs.iter().map(|path| read(disk, path)).collect::<io::Result<Vec<_>>>()?;
    let mut found = Vec::new();
    let mut empty = Vec::new();
    for (path, text) in logs.iter().zip(&texts) {
        match record::read(text) {
            Some(log) => found.push((path, log)),
            None => empty.push(path),
        }
    }
    found.sort_by_key(|(_, log)| log.generation);
    if let Some((path, last)) = found.last() {
        tracing::info!("the node did not stop in order, bringing units to where the journal says");
        let records = found.iter().flat_map(|(_, log)| log.records.iter().copied());
        let written = records.clone().filter_map(|record| record.written()).max();
        let names = written.is_some_and(|written| disk.changed(root).is_ok_and(|at| at > written));
        if !names {
            // Units that are made from here on must not look like another program's.
            note_repair(disk, path, last)?;
        }
        restore_all(disk, root, rules, records, RecordTrust { names, since: written })?;
        disk.sync_all(root)?;
    }
    let generation = found.last().map_or(0, |(_, log)| log.generation);
    // One that looks empty may still hold an earlier state on the disk, of any generation.
    discard(disk, empty.into_iter().chain(found.iter().map(|(path, _)| *path)))?;
    Ok(generation)
}

/// The time in a log whose replay has begun: nothing is later.
const REPAIR: u64 = u64::MAX;

fn note_repair<D: Disk>(disk: &D, path: &Path, log: &Contents<'_>) -> io::Result<()> {
    let mut note = Vec::new();
    Record { unit: "", what: What::Begins(&REPAIR.to_string()) }.write(log.generation, &mut note);
    let mut file = disk.make(path, Make::Kept)?;
    disk.write_at(&mut file, log.length, &note)?;
    disk.sync_data(&file)
}

fn read<D: Disk>(disk: &D, path: &Path) -> io::Result<Vec<u8>> {
    match disk.read(path, u64::MAX) {
        // A predecessor in this process has just removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read,
    }
}

/// Removes logs whose changes are durable in the units' own files.
fn discard<'a, D: Disk>(disk: &D, logs: impl Iterator<Item = &'a PathBuf>) -> io::Result<()> {
    for path in logs {
        // Emptied first, as the name may come back with the power.
        disk.sync(&disk.make(path, Make::Emptied)?)?;
        match disk.remove(path) {
            // A predecessor in this process may be doing the same.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// Brings all units to where the records, in order, say that they are. Nothing is durable yet.
pub(super) fn restore_all<'a, D: Disk>(
    disk: &D,
    root: &Path,
    rules: &Rules,
    records: impl Iterator<Item = Record<'a>>,
    trust: RecordTrust,
) -> io::Result<()> {
    let mut units: BTreeMap<&str, Recorded<'_>> = BTreeMap::new();
    for Record { unit, what } in records.filter(|record| is_about_a_unit(rules, record)) {
        let recorded = units.entry(unit).or_default();
        match what {
            What::Begins(_) => {}
            What::Made(line) => *recorded = Recorded { made: Some(line), ..Recorded::default() },
            What::Status(line) => recorded.status = Some(line),
            What::File(name, bytes) => drop(recorded.files.insert(name, bytes)),
            What::Gone => *recorded = Recorded { is_gone: true, ..Recorded::default() },
        }
    }
    for (unit, recorded) in units {
        match restore(disk, root, rules, unit, &recorded, trust) {
            Err(error) if is_about_what_is_there(&error) => {
                tracing::error!(unit, %error, "the unit's files are not as they were left, and stay so");
            }
            Err(error) => return Err(io::Error::new(error.kind(), format!("unit {unit}: {error}"))),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// A damaged record must not lead to any other file.
fn is_about_a_unit(rules: &Rules, record: &Record<'_>) -> bool {
    let is_known = !matches!(record.what, What::File(name, _) if !FILES.contains(&name));
    is_known && (rules.is_unit)(record.unit)
}

fn restore<D: Disk>(
    disk: &D,
    root: &Path,
    rules: &Rules,
    name: &str,
    recorded: &Recorded<'_>,
    trust: RecordTrust,
) -> io::Result<()> {
    let unit = root.join(name);
    let mut since = trust.since;
    match (disk.is_dir(&unit), recorded.is_gone, recorded.made) {
        (true, false, _) => {}
        // A unit that was made before the logs begin is durable; when it is not there, it was removed.
        (false, false, Some(line)) if !trust.names => {
            make_unit(disk, &unit, line)?;
            since = None;
        }
        (true, true, _) if !trust.names => {
            let trash = root.join(format!("{TRASH}{name}"));
            let _ = disk.remove_all(&trash);
            disk.rename(&unit, &trash)?;
            return disk.remove_all(&trash);
        }
        (..) => return Ok(()),
    }
    // A runner has removed the payload once it was read, and nobody reads it again.
    let is_read = disk.read(&unit.join(CLAIM), 0).is_ok() && disk.read(&unit.join(PAYLOAD), 0).is_err();
    for (&file, &bytes) in recorded.files.iter().filter(|(file, _)| !(is_read && **file == PAYLOAD)) {
        write_over(disk, &unit.join(file), bytes)?;
    }
    if recorded.made.is_some() && disk.read(&unit.join(PAYLOAD), 0).is_err() {
        write_file(disk, &unit.join(PAYLOAD), b"")?;
    }
    let Some(line) = recorded.status.or(recorded.made) else { return Ok(()) };
    let path = unit.join("status");
    // A runner that ends just now writes its exit record under the same lock.
    let lock = disk.lock(&unit)?;
    let found = disk.read(&path, MOST).ok().filter(|found| found != line);
    let is_newer = || since.is_some_and(|since| disk.changed(&path).is_ok_and(|at| at > since));
    // Runners write some that are in no record. Of two that have come as far, the one that was written later counts.
    let stays = found.is_some_and(|found| match (rules.compare)(&found, line) {
        Some(Ordering::Greater) => true,
        Some(Ordering::Equal) => is_newer(),
        Some(Ordering::Less) | None => false,
    });
    if stays { Ok(()) } else { replace_status(disk, &lock, &unit, line, Durability::Volatile) }
}

/// Gives a file these contents, in place: a command may be reading it, or go on writing to its output. A file that seems to
/// have them is written too: after a failed flush they may be in memory alone.
fn write_over<D: Disk>(disk: &D, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let there = disk.read(path, bytes.len() as u64 + 1).unwrap_or_default();
    if there.len() > bytes.len() && !path.ends_with("stdout") {
        return write_file(disk, path, bytes);
    }
    match disk.write_at(&mut disk.make(path, Make::Kept)?, 0, bytes) {
        // On file systems that never write in place.
        Err(error) if error.kind() == io::ErrorKind::StorageFull && there.starts_with(bytes) => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::store::RULES;

    #[test]
    fn names_in_records_lead_to_units_alone() {
        let leads = |unit, what| is_about_a_unit(&RULES, &Record { unit, what });
        for good in ["abcd1234", "node:abcd1234", ".release-abcd1234"] {
            assert!(leads(good, What::Gone) && leads(good, What::File("stdin", b"")), "{good}");
        }
        for bad in ["", "..", ".", "a/b", "/etc", ".release-", ".release-..", ".trash-abcd1234"] {
            assert!(!leads(bad, What::Gone), "{bad}");
        }
        for bad in ["", "../stdin", "/etc/passwd", "status.lock"] {
            assert!(!leads("abcd1234", What::File(bad, b"")), "{bad}");
        }
    }
}
