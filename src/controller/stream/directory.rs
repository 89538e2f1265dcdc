//! What the zip of a stored stream unpacks into, by its central directory, because the runner unpacks by that alone. A
//! zip that programs might read differently is refused. Of the files' contents only the runner's exit code is read.
//! Anybody may have made the directory, so it is not read by `zip`, which has no bound for its size and shows only one
//! of several entries with the same name.

use std::collections::BTreeSet;
use std::io::{self, Read, Seek, SeekFrom};

use ::zip::read::read_zipfile_from_stream;

use super::zip::{StoredZip, StoredZipReader};
use crate::controller::refusal::StreamFault;

/// The directory of a project.
const PROJECT: &[u8] = b"project";
/// The record at the end of a zip without a comment.
const END: u64 = 22;
const END_SIGNATURE: &[u8] = b"PK\x05\x06";
/// The ZIP64 locator, which stands before that record if there is one.
const LOCATOR: u64 = 20;
const LOCATOR_SIGNATURE: &[u8] = b"PK\x06\x07";
const ENTRY: usize = 46;
const ENTRY_SIGNATURE: &[u8] = b"PK\x01\x02";
/// The largest directory that is read. A stream whose project comes from elsewhere has few files.
const LARGEST: u64 = 16 << 20;
/// The extra field with another name for the entry.
const UNICODE_NAME: u16 = 0x7075;
/// The bits of a mode that say what a file is, and those of a symbolic link.
const KIND: u32 = 0o170_000;
const LINK: u32 = 0o120_000;
/// The file with the exit code of the program that the runner ran, the most letters of it that are read, and the most
/// bytes of its entry that are read.
const EXIT_CODE: &[u8] = b"rc";
const LONGEST_CODE: u64 = 64;
const LONGEST_ENTRY: u64 = 4 << 10;

/// What the directory says of one file.
#[derive(Debug, PartialEq, Eq)]
struct ZipEntry<'a> {
    name: &'a [u8],
    is_link: bool,
    /// Where in the zip it begins.
    start: u64,
}

impl StoredZip {
    /// Refuses a zip that brings a project, or for which that cannot be told.
    ///
    /// # Errors
    /// [`StreamFault::Project`] and [`StreamFault::Unreadable`].
    pub fn judge<R: Read + Seek>(self, stream: &mut R) -> Result<(), StreamFault> {
        let directory = directory(&mut self.open(stream)).ok().flatten().ok_or(StreamFault::Unreadable)?;
        let (bytes, count) = directory;
        let entries = entries(&bytes).filter(|entries| entries.len() == count);
        let entries = entries.ok_or(StreamFault::Unreadable)?;
        if leads_to_project(&entries) { Err(StreamFault::Project) } else { Ok(()) }
    }

    /// The exit code in a worker's zip, if it has one that can be read.
    pub fn exit_code<R: Read + Seek>(self, stream: &mut R) -> Option<i32> {
        let mut zip = self.open(stream);
        let (directory, _) = directory(&mut zip).ok()??;
        let entry = entries(&directory)?.into_iter().find(|entry| entry.name == EXIT_CODE)?;
        zip.seek(SeekFrom::Start(entry.start)).ok()?;
        let mut text = String::new();
        let mut entry = zip.take(LONGEST_ENTRY);
        read_zipfile_from_stream(&mut entry).ok()??.take(LONGEST_CODE).read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }
}

/// The bytes of the directory, and the number of its entries, if it lies directly before the end record. `None` for a
/// zip with a comment or of ZIP64, or if the directory is too large.
fn directory<R: Read + Seek>(zip: &mut StoredZipReader<R>) -> io::Result<Option<(Vec<u8>, usize)>> {
    let Some(end_at) = zip.seek(SeekFrom::End(0))?.checked_sub(END) else { return Ok(None) };
    let end = read(zip, end_at, END)?;
    let is_plain = end.starts_with(END_SIGNATURE) && end.ends_with(&[0, 0]);
    let (size, start) = (u64::from(long(&end, 12)), u64::from(long(&end, 16)));
    if !is_plain || start + size != end_at || size > LARGEST {
        return Ok(None);
    }
    if let Some(at) = end_at.checked_sub(LOCATOR)
        && read(zip, at, LOCATOR)?.starts_with(LOCATOR_SIGNATURE)
    {
        return Ok(None);
    }
    Ok(Some((read(zip, start, size)?, short(&end, 10).into())))
}

fn read<R: Read + Seek>(zip: &mut StoredZipReader<R>, at: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    zip.seek(SeekFrom::Start(at))?;
    zip.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from(short(bytes, at)) | u32::from(short(bytes, at + 2)) << 16
}

fn find_field(mut extra: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let (head, rest) = extra.split_at_checked(4)?;
        let field = rest.get(..short(head, 2).into())?;
        if short(head, 0) == kind {
            return Some(field);
        }
        extra = &rest[field.len()..];
    }
}

/// All entries of a directory; `None` if it is damaged, or an entry has two names.
fn entries(mut directory: &[u8]) -> Option<Vec<ZipEntry<'_>>> {
    let mut entries = Vec::new();
    while !directory.is_empty() {
        let (head, rest) = directory.split_at_checked(ENTRY)?;
        let (name, rest) = rest.split_at_checked(short(head, 28).into())?;
        let (extra, rest) = rest.split_at_checked(short(head, 30).into())?;
        directory = rest.get(short(head, 32).into()..)?;
        if !head.starts_with(ENTRY_SIGNATURE) || find_field(extra, UNICODE_NAME).is_some() {
            return None;
        }
        // Python ends the name at the first NUL.
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let is_link = long(head, 38) >> 16 & KIND == LINK;
        entries.push(ZipEntry { name, is_link, start: long(head, 42).into() });
    }
    Some(entries)
}

/// Whether the runner unpacks something below `project/` or in its place, or may do so through a link.
fn leads_to_project(entries: &[ZipEntry<'_>]) -> bool {
    let mut links = BTreeSet::new();
    for entry in entries {
        let parts = parts(entry.name);
        let is_in_place = parts.len() > 1 || !entry.name.ends_with(b"/");
        if parts.first() == Some(&PROJECT) && is_in_place
            || (1..=parts.len()).any(|n| links.contains(&parts[..n]))
        {
            return true;
        }
        if entry.is_link {
            // Unlike files, links are made where their names lead to.
            if entry.name.starts_with(b"/")
                || entry.name.split(|byte| *byte == b'/').any(|part| part == b"..")
            {
                return true;
            }
            links.insert(parts);
        }
    }
    false
}

/// The parts of a name, without those that Python leaves out.
fn parts(name: &[u8]) -> Vec<&[u8]> {
    name.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"." | b"..")).collect()
}
