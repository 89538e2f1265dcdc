//! Lines that wait for the receiver, on disk: numbered, within a bound, and there again after a crash. Owns the files: segments
//! that begin with the number in their name, and how far the receiver is. Knows neither what a line says nor who takes it.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::os::{directories, replace};

/// The bytes at which a segment ends.
const SEGMENT: u64 = 1 << 20;
/// The most lines and bytes that are read at once. One line may be longer.
const MOST_LINES: u64 = 500;
const MOST_BYTES: usize = 256 << 10;
/// The file that says how far the receiver is.
const PLACE: &str = "place.json";
const MODE: u32 = 0o600;

/// Lines of a node that wait for a receiver.
#[derive(Debug)]
pub(super) struct SinkBuffer {
    directory: PathBuf,
    most: u64,
    /// Since when there is this buffer. Another one may give the same numbers to other lines.
    pub(super) epoch: u64,
    segments: VecDeque<SinkSegment>,
    file: File,
    /// Set after a line could not be written: it has a number, and so a segment must begin behind it.
    is_broken: bool,
    place: SinkPlace,
}

#[derive(Debug, Clone, PartialEq)]
struct SinkSegment {
    first: u64,
    lines: u64,
    bytes: u64,
}

impl SinkSegment {
    const fn end(&self) -> u64 {
        self.first + self.lines
    }
}

/// How far the receiver is. After a power loss it may be an older place, never a later one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct SinkPlace {
    /// The first line that it does not have for certain.
    next: u64,
    /// The last row of the audit among the lines.
    audit: i64,
}

/// Lines that follow one another.
#[derive(Debug, Default, PartialEq)]
pub(super) struct SinkBatch {
    /// The number of the first line.
    pub(super) first: u64,
    pub(super) lines: u64,
    /// How many lines before the first were dropped unread.
    pub(super) lost: u64,
    pub(super) text: Vec<u8>,
}

impl SinkBatch {
    pub(super) const fn end(&self) -> u64 {
        self.first + self.lines
    }
}

impl SinkBuffer {
    /// The buffer of a directory, with what an earlier process has left. A torn last line counts as never written. `now` is
    /// the epoch of a new one.
    pub(super) fn open(directory: &Path, most: u64, now: u64) -> io::Result<Self> {
        directories::make(directory)?;
        let mut found = Vec::new();
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name();
            let parts = name.to_str().and_then(|name| name.strip_suffix(".jsonl")?.split_once('-'));
            let number = |text: &str| u64::from_str_radix(text, 16).ok();
            found.extend(parts.and_then(|(epoch, first)| Some((number(epoch)?, number(first)?))));
        }
        found.sort_unstable();
        let epoch = found.last().map_or(now, |(epoch, _)| *epoch);
        found.retain(|(one, _)| *one == epoch);
        let place = fs::read(directory.join(PLACE)).unwrap_or_default();
        // Without it, all that is there is sent again.
        let of_all = SinkPlace { next: found.first().map_or(0, |(_, first)| *first), audit: 0 };
        let place: SinkPlace = serde_json::from_slice(&place).unwrap_or(of_all);
        let mut segments = VecDeque::new();
        for (_, first) in &found {
            let (lines, bytes) = whole_lines(&fs::read(path(directory, epoch, *first))?);
            segments.push_back(SinkSegment { first: *first, lines, bytes });
        }
        let last = segments.back().cloned().unwrap_or(SinkSegment { first: place.next, lines: 0, bytes: 0 });
        if segments.is_empty() {
            segments.push_back(last.clone());
        }
        let file = opened(&path(directory, epoch, last.first))?;
        file.set_len(last.bytes)?;
        // Without the lines that it means, or with those of another buffer, the place means nothing.
        let place = SinkPlace { next: place.next.min(last.end()), ..place };
        let directory = directory.to_owned();
        Ok(Self { directory, most, epoch, segments, file, is_broken: false, place })
    }

    /// The number of the next line.
    pub(super) fn end(&self) -> u64 {
        self.segments.back().map_or(0, SinkSegment::end) + u64::from(self.is_broken)
    }

    /// The first line that the receiver does not have for certain.
    pub(super) const fn confirmed(&self) -> u64 {
        self.place.next
    }

    /// The last row of the audit that is here or was sent.
    pub(super) const fn audit(&self) -> i64 {
        self.place.audit
    }

    /// Bytes that wait.
    pub(super) fn waiting(&self) -> u64 {
        let behind = |segment: &&SinkSegment| segment.end() > self.place.next;
        self.segments.iter().filter(behind).map(|segment| segment.bytes).sum()
    }

    /// Whether there is room for lines that may as well be read later.
    pub(super) fn has_room(&self) -> bool {
        self.waiting() < self.most / 2
    }

    /// Appends a line. Returns how many lines are lost for it: the oldest, if there is no more room, or this one, if the
    /// disk does not take it.
    pub(super) fn append(&mut self, line: &str) -> (u64, io::Result<()>) {
        let bytes = line.len() as u64 + 1;
        let is_full = self.segments.back().is_some_and(|last| last.bytes > 0 && last.bytes + bytes > SEGMENT);
        if (is_full || self.is_broken)
            && let Err(error) = self.begin_segment()
        {
            return (1, Err(error));
        }
        let lost = self.make_room(bytes);
        let Some(last) = self.segments.back_mut() else { return (lost, Ok(())) };
        match self.file.write_all(format!("{line}\n").as_bytes()) {
            Ok(()) => {
                last.lines += 1;
                last.bytes += bytes;
                (lost, Ok(()))
            }
            Err(error) => {
                // What was written of it must not stand before another line.
                self.is_broken = true;
                let _cut = self.file.set_len(last.bytes);
                (lost + 1, Err(error))
            }
        }
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        let first = self.end();
        self.file = opened(&path(&self.directory, self.epoch, first))?;
        self.segments.push_back(SinkSegment { first, lines: 0, bytes: 0 });
        self.is_broken = false;
        Ok(())
    }

    /// Drops the oldest segments until so many bytes fit. Returns how many lines nobody has got.
    fn make_room(&mut self, bytes: u64) -> u64 {
        let mut lost = 0;
        while self.segments.len() > 1
            && self.segments.iter().map(|segment| segment.bytes).sum::<u64>() + bytes > self.most
            && let Some(oldest) = self.segments.pop_front()
        {
            lost += oldest.end().saturating_sub(oldest.first.max(self.place.next));
            let _gone = fs::remove_file(path(&self.directory, self.epoch, oldest.first));
        }
        lost
    }

    /// Notes that rows of the audit up to this one are among the lines. It is durable when this returns.
    pub(super) fn note_audit(&mut self, id: i64) -> io::Result<()> {
        self.file.sync_data()?;
        self.place.audit = id;
        self.save()
    }

    /// The next lines from this number on; none if there are no more.
    pub(super) fn read(&self, from: u64) -> io::Result<SinkBatch> {
        let Some(segment) = self.segments.iter().find(|segment| segment.end() > from) else {
            return Ok(SinkBatch { first: from, ..SinkBatch::default() });
        };
        let first = from.max(segment.first);
        let mut text = Vec::new();
        let file = File::open(path(&self.directory, self.epoch, segment.first))?;
        file.take(segment.bytes).read_to_end(&mut text)?;
        let lines = text.split_inclusive(|byte| *byte == b'\n').skip((first - segment.first) as usize);
        let mut batch = SinkBatch { first, lost: first - from, ..SinkBatch::default() };
        for line in lines {
            let is_full = batch.lines == MOST_LINES || batch.text.len() + line.len() > MOST_BYTES;
            if is_full && batch.lines > 0 {
                break;
            }
            batch.text.extend_from_slice(line);
            batch.lines += 1;
        }
        Ok(batch)
    }

    /// Notes that the receiver has all lines before this one.
    pub(super) fn confirm(&mut self, next: u64) -> io::Result<()> {
        self.place.next = next;
        while self.segments.len() > 1 && self.segments.front().is_some_and(|oldest| oldest.end() <= next) {
            let oldest = self.segments.pop_front();
            let oldest = oldest.map(|oldest| path(&self.directory, self.epoch, oldest.first));
            oldest.map_or(Ok(()), fs::remove_file)?;
        }
        self.save()
    }

    fn save(&self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.place)?;
        replace::replace(&self.directory.join(PLACE), &text, MODE)
    }
}

fn path(directory: &Path, epoch: u64, first: u64) -> PathBuf {
    directory.join(format!("{epoch:x}-{first:x}.jsonl"))
}

fn opened(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(MODE).open(path)
}

/// The number of the complete lines of a text, and their bytes.
fn whole_lines(text: &[u8]) -> (u64, u64) {
    let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    (text[..end].iter().filter(|byte| **byte == b'\n').count() as u64, end as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(at: u64, bytes: usize) -> String {
        let digits = at.to_string();
        "0".repeat(bytes.saturating_sub(digits.len())) + &digits
    }

    /// All lines from a number on, as numbers, and how many were lost before each batch.
    fn rest(buffer: &SinkBuffer, mut from: u64) -> (Vec<u64>, u64) {
        let (mut lines, mut lost) = (Vec::new(), 0);
        loop {
            let batch = buffer.read(from).unwrap();
            if batch.lines == 0 {
                return (lines, lost);
            }
            assert!(batch.lines <= MOST_LINES && batch.text.len() <= MOST_BYTES);
            let text = String::from_utf8(batch.text.clone()).unwrap();
            let read: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
            assert_eq!(
                read,
                (batch.first..batch.end()).collect::<Vec<_>>(),
                "a line stands under its number"
            );
            lines.extend(read);
            (from, lost) = (batch.end(), lost + batch.lost);
        }
    }

    fn fill(buffer: &mut SinkBuffer, count: u64, bytes: usize) -> u64 {
        let append = |_| {
            let line = numbered(buffer.end(), bytes);
            let (lost, written) = buffer.append(&line);
            written.unwrap();
            lost
        };
        (0..count).map(append).sum()
    }

    #[test]
    fn lines_have_numbers_and_are_there_again_after_a_crash() {
        let temp = tempfile::tempdir().unwrap();
        let mut buffer = SinkBuffer::open(temp.path(), 8 << 20, 7).unwrap();
        assert_eq!((buffer.read(0).unwrap().lines, buffer.waiting()), (0, 0));
        assert_eq!(fill(&mut buffer, 3000, 1000), 0);
        assert_eq!(rest(&buffer, 0), ((0..3000).collect(), 0));
        assert_eq!(rest(&buffer, 2999), (vec![2999], 0));
        buffer.confirm(2000).unwrap();
        buffer.note_audit(41).unwrap();
        let segments = buffer.segments.clone();
        assert_eq!(segments.len(), 2, "what was sent is gone");
        drop(buffer);
        let last = path(temp.path(), 7, segments[1].first);
        OpenOptions::new().append(true).open(&last).unwrap().write_all(b"{\"torn\": ").unwrap();
        let mut buffer = SinkBuffer::open(temp.path(), 8 << 20, 8).unwrap();
        assert_eq!((buffer.confirmed(), buffer.audit(), buffer.end(), buffer.epoch), (2000, 41, 3000, 7));
        fill(&mut buffer, 1, 9);
        assert_eq!(rest(&buffer, 2000), ((2000..3001).collect(), 0));
        buffer.confirm(3001).unwrap();
        assert_eq!(buffer.waiting(), 0);
        drop(buffer);
        let buffer = SinkBuffer::open(temp.path(), 8 << 20, 9).unwrap();
        assert_eq!((buffer.end(), rest(&buffer, 3001)), (3001, (vec![], 0)), "numbers go on");
        fs::write(temp.path().join(PLACE), "").unwrap();
        let buffer = SinkBuffer::open(temp.path(), 8 << 20, 9).unwrap();
        assert_eq!(buffer.confirmed(), segments[1].first, "a lost place is that of the first line");
        assert_eq!(rest(&buffer, buffer.confirmed()).0.last(), Some(&3000));
    }

    #[test]
    fn the_oldest_lines_make_room_and_are_counted() {
        let temp = tempfile::tempdir().unwrap();
        let mut buffer = SinkBuffer::open(temp.path(), 3 << 20, 7).unwrap();
        fill(&mut buffer, 1000, 1000);
        assert!(buffer.has_room());
        buffer.confirm(500).unwrap();
        let lost = fill(&mut buffer, 9000, 1000);
        assert!(!buffer.has_room());
        let (lines, gap) = rest(&buffer, 500);
        assert_eq!((gap, lines.len() as u64), (lost, 9500 - lost), "all are there or counted, once");
        assert_eq!(lines.last(), Some(&9999));
        let files: u64 =
            fs::read_dir(temp.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert!((2 << 20..=(3 << 20) + 100).contains(&files), "{files}");
        assert_eq!(fill(&mut buffer, 1, 2 << 20), 2 * 1047, "a longer line pushes out two segments");
    }

    #[test]
    fn a_line_that_the_disk_does_not_take_is_counted_and_those_after_it_are_right() {
        let temp = tempfile::tempdir().unwrap();
        let mut buffer = SinkBuffer::open(temp.path(), 8 << 20, 7).unwrap();
        fill(&mut buffer, 2, 9);
        buffer.file = File::open(path(temp.path(), 7, 0)).unwrap();
        let (lost, written) = buffer.append("never");
        assert!(lost == 1 && written.is_err());
        fill(&mut buffer, 2, 9);
        assert_eq!(rest(&buffer, 0), (vec![0, 1, 3, 4], 1));
    }
}
