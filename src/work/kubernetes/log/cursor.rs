//! How far a log has been written to stdout, so exactly that the same lines are known again in a stream that repeats
//! them. Owns the record and its file, of fixed size. Reads no streams.

use highway::{HighwayHash, HighwayHasher};
use jiff::Timestamp;

/// Hashes kept of the lines at the last time stamp.
const KEPT: usize = 57;
/// Bytes of a record: one sector, so that it is written whole or not at all.
pub const RECORD: usize = 512;

/// How far stdout goes. Time stamps of one container's log may step back a little, as its stdout and its stderr are
/// stamped apart: `last` is the latest one, and the lines known again are all from its first line on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cursor {
    /// The latest time stamp; none before the first line.
    last: Option<Timestamp>,
    /// Bytes of stdout up to the end of the last whole line.
    size: u64,
    /// Lines written since the first one at `last`.
    count: u32,
    /// Their hashes, of the latest ones where there are too many.
    hashes: Vec<u64>,
}

/// Hashes a line's time stamp and text.
#[derive(Debug)]
pub(super) struct LineHash {
    hasher: HighwayHasher,
    length: u64,
}

impl LineHash {
    pub(super) fn new(stamp: Timestamp) -> Self {
        let mut hasher = HighwayHasher::default();
        hasher.append(&stamp.as_nanosecond().to_le_bytes());
        Self { hasher, length: 0 }
    }

    pub(super) fn add(&mut self, text: &[u8]) {
        self.hasher.append(text);
        self.length += text.len() as u64;
    }

    pub(super) fn finish(mut self) -> u64 {
        self.hasher.append(&self.length.to_le_bytes());
        self.hasher.finalize64()
    }
}

/// How a line of a repeated stream looks from the cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// It was written.
    Old,
    /// It was written if its hash is the one expected.
    Perhaps,
    /// It comes after all that was written.
    New,
}

/// How much of what the cursor knows a repeated stream has brought again.
#[derive(Debug, Clone, Default)]
pub(super) struct Repeated {
    /// Lines of the cursor's that have come, or were passed over.
    lines: u32,
    /// Some lines were taken for old ones without a look at their hash.
    is_blind: bool,
    /// A new line has come: nothing old follows it.
    is_over: bool,
}

impl Cursor {
    /// Bytes of stdout up to the end of the last whole line.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The latest time stamp; none before the first line.
    pub fn last(&self) -> Option<Timestamp> {
        self.last
    }

    /// The time to ask a log from: whole seconds are all that the API takes, and none may be skipped.
    pub fn since(&self) -> Option<Timestamp> {
        // The whole second of a time that exists exists too, before 1970 as well.
        self.last.and_then(|last| {
            Timestamp::from_second(last.as_nanosecond().div_euclid(1_000_000_000) as i64).ok()
        })
    }

    /// A line was written to stdout, which is `size` bytes long with it.
    pub(super) fn note(&mut self, stamp: Timestamp, hash: u64, size: u64) {
        self.size = size;
        if self.last.is_none_or(|last| stamp > last) {
            self.last = Some(stamp);
            self.count = 0;
            self.hashes.clear();
        } else if self.since().is_some_and(|since| stamp < since) {
            // A stream asked from `since` does not bring it again.
            return;
        }
        if self.hashes.len() == KEPT {
            self.hashes.remove(0);
        }
        self.hashes.push(hash);
        self.count = self.count.saturating_add(1);
    }

    /// How a line that begins looks, by its time stamp alone.
    pub(super) fn judge(&self, repeated: &mut Repeated, stamp: Timestamp) -> Known {
        let Some(last) =
            self.last.filter(|last| stamp <= *last && !repeated.is_over && !self.is_passed(repeated))
        else {
            repeated.is_over = true;
            return Known::New;
        };
        if repeated.lines > 0 || stamp == last {
            return Known::Perhaps;
        }
        repeated.is_blind = true;
        Known::Old
    }

    /// How a line looks that was [`Known::Perhaps`], by its hash; never that again.
    pub(super) fn judge_hash(&self, repeated: &mut Repeated, hash: u64) -> Known {
        let forgotten = self.count - self.hashes.len() as u32;
        if repeated.lines < forgotten {
            repeated.lines += 1;
            repeated.is_blind = true;
            return Known::Old;
        }
        // Some may be missing: the log was rotated between them.
        let from = (repeated.lines - forgotten) as usize;
        match self.hashes[from..].iter().position(|known| *known == hash) {
            Some(ahead) => {
                repeated.lines += ahead as u32 + 1;
                Known::Old
            }
            None => {
                repeated.is_over = true;
                Known::New
            }
        }
    }

    /// Whether a stream has brought the last line that was written.
    pub(super) fn is_passed(&self, repeated: &Repeated) -> bool {
        repeated.lines == self.count
    }

    /// Whether nothing new can have been taken for old: each line was known by its hash, or the last line came too.
    pub(super) fn is_certain(&self, repeated: &Repeated) -> bool {
        !repeated.is_blind || self.is_passed(repeated)
    }

    /// The record of it. `boot` is this boot's ID: what was not synced does not outlive one.
    pub fn encode(&self, boot: u128) -> [u8; RECORD] {
        let mut record = Vec::with_capacity(RECORD);
        record.extend_from_slice(MAGIC);
        record.extend_from_slice(&boot.to_le_bytes());
        record.extend_from_slice(&self.last.map_or(0, |last| last.as_second()).to_le_bytes());
        record.extend_from_slice(&self.last.map_or(0, |last| last.subsec_nanosecond()).to_le_bytes());
        record.extend_from_slice(&self.count.to_le_bytes());
        record.extend_from_slice(&self.size.to_le_bytes());
        for hash in &self.hashes {
            record.extend_from_slice(&hash.to_le_bytes());
        }
        record.resize(RECORD - 8, 0);
        let sum = HighwayHasher::default().hash64(&record);
        record.extend_from_slice(&sum.to_le_bytes());
        record.try_into().expect("magic, boot, time, count, size, 57 hashes and sum are 512 bytes")
    }

    /// Reads a record and the boot it was written in; none if it is damaged.
    pub fn decode(record: &[u8]) -> Option<(Self, u128)> {
        let (body, sum) = record.split_last_chunk::<8>().filter(|(body, _)| body.len() == RECORD - 8)?;
        if HighwayHasher::default().hash64(body).to_le_bytes() != *sum {
            return None;
        }
        let mut body = body.strip_prefix(MAGIC)?;
        let boot = u128::from_le_bytes(take(&mut body)?);
        let second = i64::from_le_bytes(take(&mut body)?);
        let nanosecond = i32::from_le_bytes(take(&mut body)?);
        let count = u32::from_le_bytes(take(&mut body)?);
        let size = u64::from_le_bytes(take(&mut body)?);
        let last = Timestamp::new(second, nanosecond).ok()?;
        let kept = KEPT.min(count as usize);
        let hashes = (0..kept).map(|_| take(&mut body).map(u64::from_le_bytes)).collect::<Option<_>>()?;
        Some((Self { last: (count > 0).then_some(last), size, count, hashes }, boot))
    }
}

const MAGIC: &[u8; 8] = b"mdcursr1";

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*head)
}

/// The file `cursor`: the record of what is written, and the record of what was synced, each in a sector of its own.
pub const FILE_SIZE: usize = 2 * RECORD;
/// Where in the file the record goes that is rewritten after each write to stdout, and never synced by itself.
pub const WRITTEN_AT: u64 = 0;
/// Where the record goes that is written after stdout was synced, and synced then.
pub const SYNCED_AT: u64 = RECORD as u64;

/// What a restart finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Where to go on.
    pub cursor: Cursor,
    /// Stdout has to be cut to the cursor's size: what came after it may not have survived.
    pub truncate: bool,
}

/// Reads the file `cursor` as a restart finds it. `stdout` is the length of stdout. What is longer than the cursor
/// says was written in this very boot, and is compared with what the log brings; after another boot only what was
/// synced counts. With no record that fits, the log is read from its beginning and compared.
pub fn find(file: &[u8], boot: u128, stdout: u64) -> Found {
    let record = |at: u64| file.get(at as usize..at as usize + RECORD).and_then(Cursor::decode);
    let fits = |cursor: &Cursor| cursor.size <= stdout;
    if let Some((cursor, _)) = record(WRITTEN_AT).filter(|(cursor, then)| *then == boot && fits(cursor)) {
        return Found { cursor, truncate: false };
    }
    if let Some((cursor, _)) = record(SYNCED_AT).filter(|(cursor, _)| fits(cursor)) {
        return Found { cursor, truncate: true };
    }
    Found { cursor: Cursor::default(), truncate: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(nanos: i128) -> Timestamp {
        Timestamp::from_nanosecond(nanos).unwrap()
    }

    fn cursor(lines: &[(i128, u64)]) -> Cursor {
        let mut cursor = Cursor::default();
        for (at, (nanos, hash)) in lines.iter().enumerate() {
            cursor.note(stamp(*nanos), *hash, at as u64 + 1);
        }
        cursor
    }

    #[test]
    fn a_log_is_asked_from_the_whole_second_below() {
        assert_eq!(Cursor::default().since(), None);
        for (nanos, second) in [(7_999_999_999, 7), (7_000_000_000, 7), (7_500_000_000, 7), (-1, -1)] {
            assert_eq!(cursor(&[(nanos, 1)]).since().unwrap().as_second(), second, "{nanos}");
        }
    }

    #[test]
    fn records_come_back_and_damage_is_noticed() {
        let many: Vec<_> = (0..200).map(|hash| (5, hash)).collect();
        for cursor in [Cursor::default(), cursor(&[(-7, 3)]), cursor(&[(5, 1), (5, 2)]), cursor(&many)] {
            let record = cursor.encode(42);
            assert_eq!(Cursor::decode(&record), Some((cursor, 42)));
            for at in 0..RECORD {
                let mut damaged = record;
                damaged[at] ^= 1;
                assert_eq!(Cursor::decode(&damaged), None, "byte {at}");
            }
            assert_eq!(Cursor::decode(&record[1..]), None);
        }
        assert_eq!(Cursor::decode(&[]), None);
    }

    #[test]
    fn a_restart_believes_what_may_have_survived() {
        let (written, synced) = (cursor(&[(1, 1), (2, 2), (3, 3)]), cursor(&[(1, 1)]));
        let mut file = vec![0; FILE_SIZE];
        file[..RECORD].copy_from_slice(&written.encode(1));
        file[RECORD..].copy_from_slice(&synced.encode(1));
        assert_eq!(find(&file, 1, 3), Found { cursor: written.clone(), truncate: false });
        assert_eq!(find(&file, 1, 9), Found { cursor: written, truncate: false });
        assert_eq!(find(&file, 2, 9), Found { cursor: synced.clone(), truncate: true });
        assert_eq!(
            find(&file, 1, 2),
            Found { cursor: synced, truncate: true },
            "stdout is shorter than it was"
        );
        let nothing = Found { cursor: Cursor::default(), truncate: false };
        assert_eq!(find(&file, 1, 0), nothing);
        assert_eq!(find(&[], 1, 9), nothing);
        assert_eq!(find(&file[..700], 2, 9), nothing);
    }

    #[test]
    fn lines_stamped_backwards_are_known_again() {
        let known = cursor(&[(10, 1), (9, 2)]);
        let mut repeated = Repeated::default();
        assert_eq!(known.judge(&mut repeated, stamp(8)), Known::Old);
        assert_eq!(known.judge(&mut repeated, stamp(10)), Known::Perhaps);
        assert_eq!(known.judge_hash(&mut repeated, 1), Known::Old);
        assert_eq!(known.judge(&mut repeated, stamp(9)), Known::Perhaps);
        assert_eq!(known.judge_hash(&mut repeated, 2), Known::Old);
        assert!(known.is_passed(&repeated));
        assert_eq!(known.judge(&mut repeated, stamp(9)), Known::New);
    }
}
