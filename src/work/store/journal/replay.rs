//! What logs of the journal say, brought into the units' own files: those may be missing, torn, or older where the power
//! was lost or a disk has failed. Owns which of two statuses is the later one, and what is not the log's to say any more:
//! another daemon may have had the units since. Every step can be repeated, should the power fail again.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::log::Log;
use super::record::{self, Contents, Record, What};
use crate::work::status::Status;
use crate::work::store::disk::{
    Disk, Make, Sure, is_about_what_is_there, make_unit, replace_locked_status, write_file,
};
use crate::work::store::unit_dir::{MOST, QUEUED};
use crate::work::store::{HIDDEN, TRASH};
use crate::work::unit::UnitId;

/// The files of a unit that records may be about, besides its status.
const FILES: [&str; 3] = ["stdin", "stdout", QUEUED];

/// What the records say of one unit, all in all.
#[derive(Default)]
struct Picture<'a> {
    /// The status that it was made with.
    made: Option<&'a [u8]>,
    status: Option<&'a [u8]>,
    files: BTreeMap<&'a str, &'a [u8]>,
    gone: bool,
}

/// How far what the units' files say counts.
#[derive(Debug, Clone, Copy)]
struct Trust {
    /// Which units there are: somebody has made or removed one since the logs were written.
    names: bool,
    /// A whole status that was written after this.
    since: Option<u64>,
}

/// Brings the units to where the logs at these paths say, which somebody has left who did not stop in order, and removes
/// the logs. Gives the highest generation of them, 0 without any.
///
/// # Errors
/// What the disk said, and of which unit.
pub(in crate::work::store) fn take_up<D: Disk>(
    disk: &D,
    root: &Path,
    logs: &[PathBuf],
    boot: &str,
) -> io::Result<u64> {
    let texts = logs.iter().map(|path| read(disk, path)).collect::<io::Result<Vec<_>>>()?;
    let mut found = Vec::new();
    let mut silent = Vec::new();
    for (path, text) in logs.iter().zip(&texts) {
        match record::read(text) {
            Some(log) => found.push((path, log)),
            None => silent.push(path),
        }
    }
    found.sort_by_key(|(_, log)| log.generation);
    let generation = found.last().map_or(0, |(_, log)| log.generation);
    if let Some((path, last)) = found.last() {
        let records = found.iter().flat_map(|(_, log)| log.records.iter().copied());
        let written = records.clone().filter_map(|record| record.written()).max();
        // An earlier release, which has no times in its logs, was right to leave them to the files in its own boot.
        let is_settled = written.is_none() && records.clone().any(|record| record.what == What::Begins(boot));
        if !is_settled {
            tracing::info!("the node did not stop in order, units are brought to where the journal says");
            let names = written.is_some_and(|written| disk.changed(root).is_ok_and(|at| at > written));
            if !names {
                // Units that are made from here on must not look like somebody else's.
                note_repair(disk, path, last)?;
            }
            bring(disk, root, records, Trust { names, since: written })?;
        }
        disk.sync_all(root)?;
    }
    // What is silent may still say on the disk what was true earlier, and be of any generation.
    discard(disk, silent.into_iter().chain(found.iter().map(|(path, _)| *path)))?;
    Ok(generation)
}

/// The time in a log that units are being brought to: nothing is later.
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
        // A predecessor in this process has removed it just now.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read,
    }
}

/// Has logs settle, in order, of which one could not: after a failed flush the system takes what it could not write for
/// written, so that flushing again would prove nothing.
///
/// # Errors
/// What the disk said; it may be tried again.
pub(in crate::work::store) fn settle_again<D: Disk>(
    disk: &D,
    root: &Path,
    logs: &mut [Log<D>],
) -> io::Result<()> {
    let texts = logs.iter().map(|log| log.read(disk)).collect::<io::Result<Vec<_>>>()?;
    let records = texts.iter().filter_map(|text| record::read(text)).flat_map(|log| log.records);
    bring(disk, root, records, Trust { names: true, since: None })?;
    disk.sync_all(root)?;
    logs.iter_mut().try_for_each(|log| log.wipe(disk))
}

/// Removes logs whose changes are durable in the units' own files.
fn discard<'a, D: Disk>(disk: &D, logs: impl Iterator<Item = &'a PathBuf>) -> io::Result<()> {
    for path in logs {
        // First, as a name may come back with the power.
        disk.sync(&disk.make(path, Make::Emptied)?)?;
        match disk.remove(path) {
            // A predecessor in this process may be at it, too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// Brings all units to where the records, in order, say that they are; nothing is durable yet.
fn bring<'a, D: Disk>(
    disk: &D,
    root: &Path,
    records: impl Iterator<Item = Record<'a>>,
    trust: Trust,
) -> io::Result<()> {
    let mut pictures: BTreeMap<&str, Picture<'_>> = BTreeMap::new();
    for Record { unit, what } in records.filter(leads_to_a_unit) {
        let picture = pictures.entry(unit).or_default();
        match what {
            What::Begins(_) => {}
            What::Made(line) => *picture = Picture { made: Some(line), ..Picture::default() },
            What::Status(line) => picture.status = Some(line),
            What::File(name, bytes) => drop(picture.files.insert(name, bytes)),
            What::Gone => *picture = Picture { gone: true, ..Picture::default() },
        }
    }
    for (unit, picture) in pictures {
        match restore(disk, root, unit, &picture, trust) {
            Err(error) if is_about_what_is_there(&error) => {
                tracing::error!(unit, %error, "the unit's files are not as they were left, and stay so");
            }
            Err(error) => return Err(io::Error::new(error.kind(), format!("unit {unit}: {error}"))),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// A record must lead nowhere else.
fn leads_to_a_unit(record: &Record<'_>) -> bool {
    let unit = record.unit.strip_prefix(HIDDEN).unwrap_or(record.unit);
    let is_of_a_unit = !matches!(record.what, What::File(name, _) if !FILES.contains(&name));
    is_of_a_unit && unit.parse::<UnitId>().is_ok()
}

fn restore<D: Disk>(
    disk: &D,
    root: &Path,
    name: &str,
    picture: &Picture<'_>,
    trust: Trust,
) -> io::Result<()> {
    let unit = root.join(name);
    let mut since = trust.since;
    match (disk.is_dir(&unit), picture.gone, picture.made) {
        (true, false, _) => {}
        // One that was made before the logs begin is durable; when it is not there, it was removed.
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
    for (&file, &bytes) in &picture.files {
        write_over(disk, &unit.join(file), bytes)?;
    }
    if picture.made.is_some() && disk.read(&unit.join("stdin"), 0).is_err() {
        write_file(disk, &unit.join("stdin"), b"")?;
    }
    let Some(line) = picture.status.or(picture.made) else { return Ok(()) };
    let path = unit.join("status");
    // A runner that ends just now writes its last word with it.
    let _lock = disk.lock(&unit)?;
    let found = disk.read(&path, MOST).ok().filter(|found| found != line);
    let is_newer = || since.is_some_and(|since| disk.changed(&path).is_ok_and(|at| at > since));
    match found.is_some_and(|found| is_later(&found, line, is_newer)) {
        true => Ok(()),
        false => replace_locked_status(disk, &unit, line, None, Sure::Later),
    }
}

/// Gives a file these contents, in place: a command may be reading it, or go on writing to its output. Also one that seems
/// to have them: after a failed flush they may be in memory alone.
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

/// Whether a status that was found is later than the last one in the records. Runners write some that are in no record,
/// and state moves forward only; of as late a state it is one that was written later.
fn is_later(found: &[u8], last: &[u8], is_newer: impl FnOnce() -> bool) -> bool {
    let (Ok(found), Ok(last)) = (Status::parse(found), Status::parse(last)) else { return false };
    reach(&found) > reach(&last) || reach(&found) == reach(&last) && is_newer()
}

/// How far a unit has come.
fn reach(status: &Status) -> u8 {
    let state = status.life.state;
    if state.is_final() { 2 } else { state as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_records_lead_to_units_alone() {
        let leads = |unit, what| leads_to_a_unit(&Record { unit, what });
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
