//! What the zip of a stored stream unpacks into, by its central directory: the runner unpacks by that, and by nothing
//! else. A zip that not every program would read as the same one is not judged. It knows nothing of the files' contents.

use std::collections::BTreeSet;
use std::io::{self, Read, Seek, SeekFrom};

use base64::Engine as _;

use super::zip::{BASE64, find_field};
use crate::controller::refusal::StreamFault;

/// The directory of a project.
const PROJECT: &[u8] = b"project";
/// The record at the end of a zip without a comment.
const END: u64 = 22;
const END_SIGNATURE: &[u8] = b"PK\x05\x06";
/// In front of it stands where the same record for more entries or bytes is, if there is one.
const LOCATOR: u64 = 20;
const LOCATOR_SIGNATURE: &[u8] = b"PK\x06\x07";
const ENTRY: usize = 46;
const ENTRY_SIGNATURE: &[u8] = b"PK\x01\x02";
/// The largest directory that is read. A stream whose project comes from elsewhere has few files.
const LARGEST: u64 = 16 << 20;
/// The extra field with another name for the entry.
const UNICODE_NAME: u16 = 0x7075;
/// Bits of a mode, and those of a symbolic link.
const KIND: u32 = 0o170_000;
const LINK: u32 = 0o120_000;

/// A zip in a stored stream, in base64 without blanks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredZip {
    /// The byte of the stream at which it begins.
    pub start: u64,
    /// Bytes of the zip.
    pub length: u64,
}

/// What the directory says of one file.
#[derive(Debug, PartialEq, Eq)]
struct ZipEntry<'a> {
    name: &'a [u8],
    is_link: bool,
}

impl StoredZip {
    /// Refuses one that brings a project, or of which nobody can tell.
    ///
    /// # Errors
    /// [`StreamFault::Project`] and [`StreamFault::Unreadable`].
    pub fn judge<R: Read + Seek>(self, stream: &mut R) -> Result<(), StreamFault> {
        let directory = self.directory(stream).ok().flatten().ok_or(StreamFault::Unreadable)?;
        let (bytes, count) = directory;
        let entries = entries(&bytes).filter(|entries| entries.len() == count);
        let entries = entries.ok_or(StreamFault::Unreadable)?;
        if leads_to_project(&entries) { Err(StreamFault::Project) } else { Ok(()) }
    }

    /// The bytes of the directory, and the number of its entries, if it lies between the files and the end.
    fn directory<R: Read + Seek>(self, stream: &mut R) -> io::Result<Option<(Vec<u8>, usize)>> {
        let Some(end_at) = self.length.checked_sub(END) else { return Ok(None) };
        let end = self.read(stream, end_at, END)?;
        let is_plain = end.starts_with(END_SIGNATURE) && end.ends_with(&[0, 0]);
        let (size, start) = (u64::from(long(&end, 12)), u64::from(long(&end, 16)));
        if !is_plain || start + size != end_at || size > LARGEST {
            return Ok(None);
        }
        if let Some(at) = end_at.checked_sub(LOCATOR)
            && self.read(stream, at, LOCATOR)?.starts_with(LOCATOR_SIGNATURE)
        {
            return Ok(None);
        }
        Ok(Some((self.read(stream, start, size)?, short(&end, 10).into())))
    }

    /// Bytes of the zip.
    fn read<R: Read + Seek>(self, stream: &mut R, at: u64, length: u64) -> io::Result<Vec<u8>> {
        let (from, to) = (at / 3 * 4, (at + length).div_ceil(3) * 4);
        stream.seek(SeekFrom::Start(self.start + from))?;
        let mut letters = Vec::new();
        stream.take(to - from).read_to_end(&mut letters)?;
        let mut bytes = BASE64.decode(letters).map_err(io::Error::other)?;
        bytes.drain(..bytes.len().min((at % 3) as usize));
        bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        if bytes.len() as u64 == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from(short(bytes, at)) | u32::from(short(bytes, at + 2)) << 16
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
        // Python's name ends there.
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        entries.push(ZipEntry { name, is_link: long(head, 38) >> 16 & KIND == LINK });
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
            // Links alone are made where their name leads to.
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

/// The parts of a name but those that Python leaves out.
fn parts(name: &[u8]) -> Vec<&[u8]> {
    name.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"." | b"..")).collect()
}
