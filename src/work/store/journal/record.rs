//! The journal's notation: what changed of which unit, as bytes that show by themselves whether they are whole and of
//! this use of their file. Owns the shape; what a record is good for is `replay`'s business.
//!
//! A record is the length of its body in 4 bytes, little-endian, a checksum of the log's generation and the body in 8,
//! and the body: a kind, the name of the unit's directory (its length in 2 bytes, then itself), and what that kind has.

use std::hash::Hasher;

use highway::{HighwayHasher, Key};

/// Length and checksum.
const HEADER: usize = 12;
/// For telling torn writes from whole ones: nobody else can write to the file.
const KEY: Key = Key([0x6d65_7368_6a6f_7572, 1, 2, 3]);

/// What has changed of one unit, or that a batch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record<'a> {
    /// The name of its directory; empty where a batch begins.
    pub(super) unit: &'a str,
    pub(super) what: What<'a>,
}

/// What has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What<'a> {
    /// A batch begins, as every log does: the time in nanoseconds. Earlier releases have one at the beginning alone, with
    /// the kernel's name for the time since it booted.
    Begins(&'a str),
    /// The unit was made, with this status and no payload.
    Made(&'a [u8]),
    Status(&'a [u8]),
    /// The file of that name begins with these bytes.
    File(&'a str, &'a [u8]),
    /// It was removed.
    Gone,
}

/// A log as it was left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Contents<'a> {
    pub(super) generation: u64,
    /// The whole records, in order, one that begins a batch first.
    pub(super) records: Vec<Record<'a>>,
    /// How long they are, in bytes.
    pub(super) length: u64,
}

impl Record<'_> {
    /// When the batch was written that this begins.
    pub(super) fn written(&self) -> Option<u64> {
        match self.what {
            What::Begins(time) => time.parse().ok(),
            What::Made(_) | What::Status(_) | What::File(..) | What::Gone => None,
        }
    }

    /// Adds the record to a log of this generation.
    pub(super) fn write(&self, generation: u64, log: &mut Vec<u8>) {
        let start = log.len();
        log.extend_from_slice(&[0; HEADER]);
        let (kind, name, rest) = match self.what {
            What::Begins(boot) => (1, "", boot.as_bytes()),
            What::Made(line) => (2, "", line),
            What::Status(line) => (3, "", line),
            What::File(name, bytes) => (4, name, bytes),
            What::Gone => (5, "", &[][..]),
        };
        log.push(kind);
        match self.what {
            What::Begins(_) => log.extend_from_slice(&generation.to_le_bytes()),
            What::Made(_) | What::Status(_) | What::File(..) | What::Gone => put_name(self.unit, log),
        }
        if let What::File(..) = self.what {
            put_name(name, log);
        }
        log.extend_from_slice(rest);
        let body = start + HEADER;
        let length = (log.len() - body) as u32;
        let sum = checksum(generation, &log[body..]);
        log[start..start + 4].copy_from_slice(&length.to_le_bytes());
        log[start + 4..body].copy_from_slice(&sum.to_le_bytes());
    }
}

fn put_name(name: &str, log: &mut Vec<u8>) {
    // Names of directories are 255 bytes at most.
    log.extend_from_slice(&(name.len() as u16).to_le_bytes());
    log.extend_from_slice(name.as_bytes());
}

fn checksum(generation: u64, body: &[u8]) -> u64 {
    let mut hasher = HighwayHasher::new(KEY);
    hasher.write(&generation.to_le_bytes());
    hasher.write(body);
    hasher.finish()
}

/// Reads a log; nothing when it does not begin as one.
pub(super) fn read(log: &[u8]) -> Option<Contents<'_>> {
    let generation = begins(log)?;
    let (mut records, mut rest) = (Vec::new(), log);
    while let Some(record) = next(&mut rest, generation) {
        records.push(record);
    }
    match records.first() {
        Some(Record { what: What::Begins(_), .. }) => {
            Some(Contents { generation, records, length: (log.len() - rest.len()) as u64 })
        }
        _ => None,
    }
}

/// The generation that a log claims to be of.
fn begins(log: &[u8]) -> Option<u64> {
    let generation = log.get(HEADER + 1..HEADER + 9)?;
    Some(u64::from_le_bytes(generation.try_into().ok()?))
}

/// Takes the next record off; nothing at the end, and at what was not written whole.
fn next<'a>(log: &mut &'a [u8], generation: u64) -> Option<Record<'a>> {
    let (length, rest) = log.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<8>()?;
    let (body, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    if checksum(generation, body) != u64::from_le_bytes(*sum) {
        return None;
    }
    let record = parse(body)?;
    *log = rest;
    Some(record)
}

fn parse(body: &[u8]) -> Option<Record<'_>> {
    let (kind, mut rest) = body.split_first()?;
    if *kind == 1 {
        let (_generation, boot) = rest.split_first_chunk::<8>()?;
        return Some(Record { unit: "", what: What::Begins(std::str::from_utf8(boot).ok()?) });
    }
    let unit = take_name(&mut rest)?;
    let what = match kind {
        2 => What::Made(rest),
        3 => What::Status(rest),
        4 => What::File(take_name(&mut rest)?, rest),
        5 => What::Gone,
        _ => return None,
    };
    Some(Record { unit, what })
}

fn take_name<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let (length, after) = rest.split_first_chunk::<2>()?;
    let (name, after) = after.split_at_checked(u16::from_le_bytes(*length) as usize)?;
    *rest = after;
    std::str::from_utf8(name).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn records() -> [Record<'static>; 6] {
        let record = |unit, what| Record { unit, what };
        [
            record("", What::Begins("1700000000000000000")),
            record("abcd1234", What::Made(b"{}\n")),
            record("abcd1234", What::File("stdin", b"payload")),
            record("abcd1234", What::File("stdout", b"")),
            record(".release-x", What::Status(b"{\"State\":2}\n")),
            record("abcd1234", What::Gone),
        ]
    }

    fn log(generation: u64) -> Vec<u8> {
        let mut log = Vec::new();
        records().iter().for_each(|record| record.write(generation, &mut log));
        log
    }

    #[test]
    fn records_come_back_and_end_at_what_is_not_whole() {
        let mut whole = log(7);
        let end = whole.len();
        let contents = Contents { generation: 7, records: records().to_vec(), length: end as u64 };
        assert_eq!(read(&whole), Some(contents.clone()));
        // What an earlier use of the file has left is not taken for the rest of this one.
        whole.extend_from_slice(&log(6));
        assert_eq!(read(&whole), Some(contents));
        for length in 0..end {
            let found = read(&whole[..length]);
            let kept = found.map_or(0, |found| found.records.len());
            assert!(kept < records().len(), "{length} of {end} bytes");
        }
        for torn in 0..end {
            let mut bytes = whole.clone();
            bytes[torn] ^= 0x40;
            let kept = read(&bytes).map_or(0, |found| found.records.len());
            assert!(kept < records().len(), "byte {torn}");
        }
        assert_eq!(read(&[0; 4096]), None);
    }

    proptest! {
        #[test]
        fn no_bytes_confuse_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }
    }
}
