//! How far a log is written to stdout, precise enough to recognise the same lines in a stream that repeats
//! them. This module owns the record and its file of fixed size; it reads no streams.

use highway::{HighwayHash, HighwayHasher};
use jiff::Timestamp;

/// How many hashes of lines at the last timestamp are kept.
const KEPT: usize = 57;
/// Bytes of a record: one sector, so that it is written completely or not at all.
pub const RECORD: usize = 512;

/// How far stdout is written. Timestamps of a container's log may step back a little, as its stdout and
/// stderr are stamped separately. `last` is the latest timestamp; all lines from the first one at `last` on
/// can be recognised.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cursor {
    /// The latest timestamp; `None` before the first line.
    last: Option<Timestamp>,
    /// Bytes of stdout up to the end of the last whole line.
    size: u64,
    /// Lines written since the first one at `last`.
    count: u32,
    /// The hashes of these lines; only the latest ones if there are too many.
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

    pub(super) fn finish(&self) -> u64 {
        let mut hasher = self.hasher.clone();
        hasher.append(&self.length.to_le_bytes());
        hasher.finalize64()
    }
}

/// How a line of a repeating stream relates to the cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineMatch {
    /// It was written before.
    Old,
    /// It was written before if its hash is the expected one.
    Perhaps,
    /// It follows everything that was written.
    New,
}

/// How many of the cursor's lines a repeating stream has repeated.
#[derive(Debug, Clone, Default)]
pub(super) struct Repeated {
    /// Lines of the cursor that were repeated or skipped.
    lines: u32,
    /// Some lines were taken for old ones without checking their hash.
    is_blind: bool,
    /// A new line was found, and no old line follows it.
    is_over: bool,
}

impl Repeated {
    /// Whether the stream has brought no line yet.
    pub(super) fn is_nothing(&self) -> bool {
        self.lines == 0 && !self.is_blind && !self.is_over
    }
}

impl Cursor {
    /// Bytes of stdout up to the end of the last whole line.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The latest timestamp; `None` before the first line.
    pub fn last(&self) -> Option<Timestamp> {
        self.last
    }

    /// The time to request a log from. The API only takes whole seconds, and no line may be skipped.
    pub fn since(&self) -> Option<Timestamp> {
        // The start of the second exists for every time, also before 1970.
        self.last.and_then(|last| {
            Timestamp::from_second(last.as_nanosecond().div_euclid(1_000_000_000) as i64).ok()
        })
    }

    /// Records a line that was written; stdout is now `size` bytes long.
    pub(super) fn note(&mut self, stamp: Timestamp, hash: u64, size: u64) {
        self.size = size;
        if self.last.is_none_or(|last| stamp > last) {
            self.last = Some(stamp);
            self.count = 0;
            self.hashes.clear();
        } else if self.since().is_some_and(|since| stamp < since) {
            // A stream requested from `since` does not repeat this line.
            return;
        }
        if self.hashes.len() == KEPT {
            self.hashes.remove(0);
        }
        self.hashes.push(hash);
        self.count = self.count.saturating_add(1);
    }

    /// Judges a line at its beginning, by its timestamp alone.
    pub(super) fn judge(&self, repeated: &mut Repeated, stamp: Timestamp) -> LineMatch {
        let Some(last) =
            self.last.filter(|last| stamp <= *last && !repeated.is_over && !self.is_passed(repeated))
        else {
            repeated.is_over = true;
            return LineMatch::New;
        };
        if repeated.lines > 0 || stamp == last {
            return LineMatch::Perhaps;
        }
        repeated.is_blind = true;
        LineMatch::Old
    }

    /// Judges a [`LineMatch::Perhaps`] line by its hash; never returns `Perhaps` again.
    pub(super) fn judge_hash(&self, repeated: &mut Repeated, hash: u64) -> LineMatch {
        let forgotten = self.count - self.hashes.len() as u32;
        if repeated.lines < forgotten {
            repeated.lines += 1;
            repeated.is_blind = true;
            return LineMatch::Old;
        }
        // Some lines may be missing, if the log was rotated between them.
        let from = (repeated.lines - forgotten) as usize;
        match self.hashes[from..].iter().position(|known| *known == hash) {
            Some(ahead) => {
                repeated.lines += ahead as u32 + 1;
                LineMatch::Old
            }
            None => {
                repeated.is_over = true;
                LineMatch::New
            }
        }
    }

    /// Whether a stream has repeated the last written line.
    pub(super) fn is_passed(&self, repeated: &Repeated) -> bool {
        repeated.lines == self.count
    }

    /// Whether no new line can have been taken for an old one: each was checked by its hash, or the last line
    /// was repeated too.
    pub(super) fn is_certain(&self, repeated: &Repeated) -> bool {
        !repeated.is_blind || self.is_passed(repeated)
    }

    /// Encodes the record. `boot` is this boot's ID: data that was not synced does not survive the boot.
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

    /// Decodes a record and the boot that wrote it; `None` if it is damaged.
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

/// Size of the file `cursor`: one record for what is written and one for what is synced, in separate sectors.
pub const FILE_SIZE: usize = 2 * RECORD;
/// Offset of the record that is rewritten after each write to stdout, and never synced by itself.
pub const WRITTEN_AT: u64 = 0;
/// Offset of the record that is written and synced after stdout was synced.
pub const SYNCED_AT: u64 = RECORD as u64;

/// Where to resume after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumePoint {
    /// Where to continue.
    pub cursor: Cursor,
    /// Truncate stdout to the cursor's size, since later bytes may not have survived.
    pub truncate: bool,
}

/// Reads the file `cursor` after a restart; `stdout` is the length of stdout. Within the same boot, stdout
/// beyond the cursor is valid and will be compared with the log. After another boot only synced data counts.
/// Without a matching record the log is read from its beginning and compared.
pub fn find(file: &[u8], boot: u128, stdout: u64) -> ResumePoint {
    let record = |at: u64| file.get(at as usize..at as usize + RECORD).and_then(Cursor::decode);
    let fits = |cursor: &Cursor| cursor.size <= stdout;
    if let Some((cursor, _)) = record(WRITTEN_AT).filter(|(cursor, then)| *then == boot && fits(cursor)) {
        return ResumePoint { cursor, truncate: false };
    }
    if let Some((cursor, _)) = record(SYNCED_AT).filter(|(cursor, _)| fits(cursor)) {
        return ResumePoint { cursor, truncate: true };
    }
    ResumePoint { cursor: Cursor::default(), truncate: false }
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
        assert_eq!(find(&file, 1, 3), ResumePoint { cursor: written.clone(), truncate: false });
        assert_eq!(find(&file, 1, 9), ResumePoint { cursor: written, truncate: false });
        assert_eq!(find(&file, 2, 9), ResumePoint { cursor: synced.clone(), truncate: true });
        assert_eq!(
            find(&file, 1, 2),
            ResumePoint { cursor: synced, truncate: true },
            "stdout is shorter than it was"
        );
        let nothing = ResumePoint { cursor: Cursor::default(), truncate: false };
        assert_eq!(find(&file, 1, 0), nothing);
        assert_eq!(find(&[], 1, 9), nothing);
        assert_eq!(find(&file[..700], 2, 9), nothing);
    }

    #[test]
    fn lines_stamped_backwards_are_known_again() {
        let known = cursor(&[(10, 1), (9, 2)]);
        let mut repeated = Repeated::default();
        assert_eq!(known.judge(&mut repeated, stamp(8)), LineMatch::Old);
        assert_eq!(known.judge(&mut repeated, stamp(10)), LineMatch::Perhaps);
        assert_eq!(known.judge_hash(&mut repeated, 1), LineMatch::Old);
        assert_eq!(known.judge(&mut repeated, stamp(9)), LineMatch::Perhaps);
        assert_eq!(known.judge_hash(&mut repeated, 2), LineMatch::Old);
        assert!(known.is_passed(&repeated));
        assert_eq!(known.judge(&mut repeated, stamp(9)), LineMatch::New);
    }
}
