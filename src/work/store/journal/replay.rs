//! What logs of the journal say, brought into the units' own files after a power loss: those may be missing, torn, or
//! older. Owns which of two statuses is the later one. Every step can be repeated, should the power fail again.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::record::{self, Record, What};
use crate::work::status::Status;
use crate::work::store::disk::{Disk, Make, Sure, make_unit, replace_status, sync_files, write_file};
use crate::work::store::unit_dir::QUEUED;
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

/// What logs were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::work::store) struct Found {
    /// The highest generation of them, 0 without any.
    pub(in crate::work::store) generation: u64,
    /// Those that have yet to settle. What all others said is durable in the units' files, and they are no more.
    pub(in crate::work::store) left: Vec<PathBuf>,
}

/// Takes up the logs at these paths. Should the machine have been started anew since they were written, the units are
/// brought to where they say; else the units are there.
///
/// # Errors
/// What the disk said, and of which unit.
pub(in crate::work::store) fn take_up<D: Disk>(
    disk: &D,
    root: &Path,
    logs: Vec<PathBuf>,
    boot: &str,
) -> io::Result<Found> {
    let read = |path: &PathBuf| match disk.read(path) {
        // It has settled just now: who was here before may still be at it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read,
    };
    let texts = logs.iter().map(read).collect::<io::Result<Vec<_>>>()?;
    let mut found = Vec::new();
    let (mut left, mut silent) = (Vec::new(), Vec::new());
    for (path, text) in logs.into_iter().zip(&texts) {
        match record::read(text) {
            Some(log) => {
                found.push(log);
                left.push(path);
            }
            None => silent.push(path),
        }
    }
    // At once: on the disk they may still say what was true earlier, and be of any generation.
    discard(disk, &silent)?;
    found.sort_by_key(|(generation, _)| *generation);
    let generation = found.last().map_or(0, |(generation, _)| *generation);
    if found.iter().any(|(_, records)| records[0].what != What::Begins(boot)) {
        tracing::info!("the machine was started anew, units are brought to where the journal says");
        replay(disk, root, found.into_iter().flat_map(|(_, records)| records))?;
        discard(disk, &left)?;
        left.clear();
    }
    Ok(Found { generation, left })
}

/// Lets logs settle that an earlier daemon left, and removes them.
pub(in crate::work::store) fn settle_left<D: Disk>(
    disk: &D,
    root: &Path,
    logs: &[PathBuf],
) -> io::Result<()> {
    // Of which units they are nobody remembers.
    disk.sync_all(root)?;
    discard(disk, logs)
}

/// Removes logs whose changes are durable in the units' own files.
fn discard<D: Disk>(disk: &D, logs: &[PathBuf]) -> io::Result<()> {
    for path in logs {
        // First, as a name may come back with the power.
        disk.sync(&disk.make(path, Make::Emptied)?)?;
        match disk.remove(path) {
            // Who was here before may still be at it, too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// Brings all units to where the records, in order, say that they are; durably.
fn replay<'a, D: Disk>(
    disk: &D,
    root: &Path,
    records: impl IntoIterator<Item = Record<'a>>,
) -> io::Result<()> {
    let mut pictures: BTreeMap<&str, Picture<'_>> = BTreeMap::new();
    for Record { unit, what } in records.into_iter().filter(leads_to_a_unit) {
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
        let named = |error: io::Error| io::Error::new(error.kind(), format!("unit {unit}: {error}"));
        restore(disk, root, unit, &picture).map_err(named)?;
    }
    disk.sync_dir(root)
}

/// A record must lead nowhere else.
fn leads_to_a_unit(record: &Record<'_>) -> bool {
    let unit = record.unit.strip_prefix(HIDDEN).unwrap_or(record.unit);
    let is_of_a_unit = !matches!(record.what, What::File(name, _) if !FILES.contains(&name));
    is_of_a_unit && unit.parse::<UnitId>().is_ok()
}

fn restore<D: Disk>(disk: &D, root: &Path, name: &str, picture: &Picture<'_>) -> io::Result<()> {
    let unit = root.join(name);
    if !disk.is_dir(&unit) {
        // One that was made before the logs begin is durable; when it is not there, it was removed.
        let Some(line) = picture.made.filter(|_| !picture.gone) else { return Ok(()) };
        make_unit(disk, &unit, line)?;
    } else if picture.gone {
        let trash = root.join(format!("{TRASH}{name}"));
        disk.rename(&unit, &trash)?;
        return disk.remove_all(&trash);
    }
    for (&file, &bytes) in &picture.files {
        let there = disk.read(&unit.join(file)).unwrap_or_default();
        // What a command has left behind may go on writing to its output.
        let serves = if file == "stdout" { there.starts_with(bytes) } else { there == bytes };
        if !serves {
            write_file(disk, &unit.join(file), bytes)?;
        }
    }
    if picture.made.is_some() && disk.read(&unit.join("stdin")).is_err() {
        write_file(disk, &unit.join("stdin"), b"")?;
    }
    sync_files(disk, &unit, picture.files.keys().copied().chain(["stdin"]))?;
    match picture.status.or(picture.made) {
        Some(line) if !is_later(disk.read(&unit.join("status")).ok().as_deref(), line) => {
            replace_status(disk, &unit, line, None, Sure::Durable)
        }
        _ => sync_files(disk, &unit, ["status"]),
    }
}

/// Whether a status that was found is later than the last one in the records. Only runners write any that are in no
/// record, and state moves forward only.
fn is_later(found: Option<&[u8]>, last: &[u8]) -> bool {
    let Some(found) = found.and_then(|found| Status::parse(found).ok()) else { return false };
    Status::parse(last).is_ok_and(|last| reach(&found) > reach(&last))
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
