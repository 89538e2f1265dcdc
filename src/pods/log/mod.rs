//! Stdout of a unit, taken from its container's log: every byte exactly once, although streams break off and
//! repeat themselves and the log is rotated. This module decides where each byte of a stream goes in stdout,
//! and whether any are missing. It opens no streams and writes no files.
//!
//! Text is passed on as it arrives, but the cursor counts whole lines only. After a break in the middle of a
//! line stdout is therefore longer than the cursor says, as it is after a kill between two writes. The next
//! stream repeats those bytes, and they are compared instead of written twice (see [`new_part`]).
//!
//! A log may be rotated within a line. The new file then begins with the rest of the line, under its own timestamp. A
//! stream that followed the log across the rotation may already have delivered the whole line (see [`LineEnd`]).

pub mod cursor;
mod line;
mod line_end;

use std::mem;

use jiff::Timestamp;

use self::cursor::{Cursor, LineHash, LineMatch, Repeated};
use self::line::{LineParser, LogPiece};
use self::line_end::LineEnd;

/// How many bytes of a line are buffered while it may be a repeated one.
const HELD: usize = 1 << 20;
/// How many bytes are buffered of a line that may be the rest of another, which only the first line of a stream can be.
const REST_HELD: usize = 16 << 20;

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// In order, as HTTP defines it: everything has arrived.
    InOrder,
    /// In any other way.
    Broken,
}

/// Lines may be missing from stdout, and the log may no longer have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the log was rotated while it could not be followed: lines after {after} may be missing")]
pub struct LostLines {
    /// The timestamp of the last written line.
    pub after: Timestamp,
}

/// The result of reading a piece of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Took {
    /// The offset in stdout of the output that was added.
    pub at: u64,
    /// The piece contained data that no earlier stream had delivered.
    pub is_new: bool,
}

/// Turns log streams into stdout.
#[derive(Debug)]
pub struct LogReader {
    cursor: Cursor,
    /// Bytes of stdout, including those after the last whole line.
    size: u64,
    /// A stream broke off since the last line, so the next stream must repeat that line.
    must_repeat: bool,
    /// The line in which the last stream stopped.
    cut: Option<CutLine>,
    /// The end of the last line, if the first line of the next stream may be the rest of it.
    last_end: Option<LineEnd>,
    stream: Option<LogStream>,
    /// Parked while another stream may deliver the rest sooner.
    parked: Option<LogStream>,
}

/// A line that a stream delivered without its end. The next stream repeats it, with the same timestamp. But if the log
/// was rotated within the line, the new file begins with the rest of it, which has a later timestamp.
#[derive(Debug)]
struct CutLine {
    line: LineSoFar,
    /// It was the end of the file, so that a new file continues it.
    ends_file: bool,
}

/// A stream that is being read.
#[derive(Debug)]
struct LogStream {
    parser: LineParser,
    repeated: Repeated,
    line: CurrentLine,
    /// The offset in stdout of the next byte.
    at: u64,
    has_new: bool,
}

/// What to do with the current line of a stream.
#[derive(Debug)]
enum CurrentLine {
    /// Skip it, because it was written before. Also if there is no current line.
    Skipped,
    /// Write it to stdout.
    Written(LineSoFar),
    /// Decide at its end whether it was written before. Holds its text, if that is short enough.
    Doubtful(LineSoFar, Option<Vec<u8>>),
    /// Decide whether it is the rest of the last line: at its end, or when it is too long. Holds its text.
    PerhapsRest(LineSoFar, Vec<u8>),
}

/// What identifies a line, as far as it was read.
#[derive(Debug)]
struct LineSoFar {
    stamp: Timestamp,
    hash: LineHash,
    end: LineEnd,
}

impl LogReader {
    /// For a unit without output.
    pub fn new() -> Self {
        Self::resume(Cursor::default(), 0)
    }

    /// For a unit whose stdout is `size` bytes long, and written up to the cursor.
    pub fn resume(cursor: Cursor, size: u64) -> Self {
        let must_repeat = cursor.last().is_some();
        Self {
            size: size.max(cursor.size()),
            cursor,
            must_repeat,
            cut: None,
            last_end: None,
            stream: None,
            parked: None,
        }
    }

    /// The time to request the next stream from; `None` for the beginning.
    pub fn since(&self) -> Option<Timestamp> {
        self.cursor.since()
    }

    /// How far stdout is written.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// Bytes of stdout.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Begins a stream requested from [`Self::since`]. A stream that is still open counts as broken off.
    pub fn open(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.cut_line(stream.line, StreamEnd::Broken);
            self.doubt();
        }
        self.stream = Some(LogStream {
            parser: LineParser::default(),
            repeated: Repeated::default(),
            line: CurrentLine::Skipped,
            at: self.cursor.size(),
            has_new: false,
        });
    }

    /// Notes that no stream is available for a while, so that lines may rotate away unread.
    pub fn note_gap(&mut self) {
        self.doubt();
    }

    /// Assumes that lines may be missing, until the last line is repeated.
    fn doubt(&mut self) {
        self.must_repeat = true;
        if let Some(cut) = &mut self.cut {
            cut.ends_file = false;
        }
    }

    /// Keeps the line in which a stream ended, if it ended in one.
    fn cut_line(&mut self, line: CurrentLine, end: StreamEnd) {
        if let CurrentLine::Written(line) = line {
            self.cut = Some(CutLine { line, ends_file: end == StreamEnd::InOrder });
        }
    }

    /// Reads bytes of the stream, and appends to `out` what belongs into stdout from [`Took::at`] on.
    ///
    /// # Errors
    /// [`LostLines`] if the bytes do not continue what was written; then nothing was appended.
    pub fn read(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<Took, LostLines> {
        let Some(mut stream) = self.stream.take() else { return Ok(Took::default()) };
        let begun = out.len();
        let mut outcome = Ok(());
        while let Some(piece) = stream.parser.next(&mut bytes) {
            match piece {
                LogPiece::Begin(stamp) => outcome = self.begin(&mut stream, stamp),
                LogPiece::Text { bytes, ends } => {
                    outcome = self.text(&mut stream, bytes, out);
                    if ends && outcome.is_ok() {
                        outcome = self.end(&mut stream, out);
                    }
                }
            }
            if outcome.is_err() {
                break;
            }
        }
        let took = self.put_back(stream, out.len() - begun);
        outcome.map(|()| took)
    }

    /// For a stream that has ended in order: appends the held-back text of its last line to `out`, as [`Self::read`]
    /// does. This line has no end, so it is not the rest of another line.
    ///
    /// # Errors
    /// [`LostLines`] as for [`Self::read`].
    pub fn read_held(&mut self, out: &mut Vec<u8>) -> Result<Took, LostLines> {
        let Some(mut stream) = self.stream.take() else { return Ok(Took::default()) };
        let begun = out.len();
        let outcome = self.write_held(&mut stream, out);
        let took = self.put_back(stream, out.len() - begun);
        outcome.map(|()| took)
    }

    fn put_back(&mut self, stream: LogStream, added: usize) -> Took {
        let took = Took { at: stream.at - added as u64, is_new: added > 0 };
        self.size = self.size.max(stream.at);
        self.stream = Some(stream);
        took
    }

    fn begin(&mut self, stream: &mut LogStream, stamp: Timestamp) -> Result<(), LostLines> {
        let line = LineSoFar::new(stamp);
        let is_first = stream.repeated.is_nothing();
        stream.line = match self.cursor.judge(&mut stream.repeated, stamp) {
            LineMatch::Old => CurrentLine::Skipped,
            LineMatch::Perhaps => CurrentLine::Doubtful(line, Some(Vec::new())),
            LineMatch::New if is_first && self.may_be_rest(stamp) => {
                CurrentLine::PerhapsRest(line, Vec::new())
            }
            LineMatch::New => {
                self.check_first(stream)?;
                self.join_cut_line(stream, stamp)?;
                CurrentLine::Written(line)
            }
        };
        Ok(())
    }

    /// Whether the first line of a stream may be the rest of the last whole line. It is not if it repeats the line that
    /// was cut after that, or may be the rest of the cut line.
    fn may_be_rest(&self, stamp: Timestamp) -> bool {
        let is_cut = |cut: &CutLine| cut.line.stamp == stamp || cut.ends_file && cut.line.end.is_long();
        self.last_end.is_some() && !self.cut.as_ref().is_some_and(is_cut)
    }

    /// The first new line of a stream repeats the line that was cut, or is the rest of it in another file. The two
    /// parts then count as separate lines, because later streams can only repeat the second.
    fn join_cut_line(&mut self, stream: &mut LogStream, stamp: Timestamp) -> Result<(), LostLines> {
        match self.cut.take() {
            Some(cut) if cut.line.stamp != stamp => {
                if !cut.ends_file {
                    return Err(self.lost());
                }
                stream.at = self.size;
                self.cursor.note(cut.line.stamp, cut.line.hash.finish(), self.size);
                Ok(())
            }
            Some(_) | None => Ok(()),
        }
    }

    fn text(&mut self, stream: &mut LogStream, text: &[u8], out: &mut Vec<u8>) -> Result<(), LostLines> {
        match &mut stream.line {
            CurrentLine::Skipped => {}
            CurrentLine::Written(line) => {
                line.add(text);
                stream.put(text, out);
            }
            CurrentLine::Doubtful(line, held) => {
                line.add(text);
                match held {
                    Some(so_far) if so_far.len() + text.len() <= HELD => so_far.extend_from_slice(text),
                    Some(_) | None => *held = None,
                }
            }
            CurrentLine::PerhapsRest(line, held) => {
                line.add(text);
                held.extend_from_slice(text);
                let is_shorter = self.last_end.as_ref().is_some_and(|last| line.end.is_shorter_than(last));
                if !is_shorter || held.len() > REST_HELD {
                    self.write_held(stream, out)?;
                }
            }
        }
        Ok(())
    }

    /// Writes a line that is not the rest of the last one, as far as it was read.
    fn write_held(&mut self, stream: &mut LogStream, out: &mut Vec<u8>) -> Result<(), LostLines> {
        match mem::replace(&mut stream.line, CurrentLine::Skipped) {
            CurrentLine::PerhapsRest(line, held) => {
                self.put_held(stream, line.stamp, &held, out)?;
                stream.line = CurrentLine::Written(line);
            }
            line => stream.line = line,
        }
        Ok(())
    }

    fn end(&mut self, stream: &mut LogStream, out: &mut Vec<u8>) -> Result<(), LostLines> {
        match mem::replace(&mut stream.line, CurrentLine::Skipped) {
            CurrentLine::Skipped => {}
            CurrentLine::Written(line) => self.note(stream, line),
            CurrentLine::Doubtful(line, held) => {
                match self.cursor.judge_hash(&mut stream.repeated, line.hash.finish()) {
                    LineMatch::Old => {
                        if self.cursor.is_passed(&stream.repeated) {
                            self.must_repeat = false;
                        }
                    }
                    LineMatch::New | LineMatch::Perhaps => {
                        // It is not the expected line, and if it is too long for the buffer, its text is gone.
                        let text = held.ok_or(self.lost())?;
                        self.put_held(stream, line.stamp, &text, out)?;
                        self.note(stream, line);
                    }
                }
            }
            CurrentLine::PerhapsRest(line, held) => {
                let is_rest = self.last_end.as_ref().is_some_and(|last| line.end.is_rest_of(last));
                // If lines may be missing, a short line could be the rest of a missing line that ends like the last
                // one.
                if is_rest && (line.end.is_long() || self.follows(stream)) {
                    stream.has_new = true;
                } else {
                    self.put_held(stream, line.stamp, &held, out)?;
                }
                // Later streams can only repeat the rest.
                self.note(stream, line);
            }
        }
        Ok(())
    }

    /// Writes a line that turned out to be new.
    fn put_held(
        &mut self,
        stream: &mut LogStream,
        stamp: Timestamp,
        text: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), LostLines> {
        self.check_first(stream)?;
        self.join_cut_line(stream, stamp)?;
        stream.put(text, out);
        Ok(())
    }

    fn note(&mut self, stream: &LogStream, line: LineSoFar) {
        self.cursor.note(line.stamp, line.hash.finish(), stream.at);
        self.must_repeat = false;
        self.last_end = Some(line.end).filter(LineEnd::is_long);
    }

    /// Checks that the first new line of a stream follows the last written one.
    fn check_first(&self, stream: &mut LogStream) -> Result<(), LostLines> {
        stream.has_new = stream.has_new || self.follows(stream);
        if stream.has_new { Ok(()) } else { Err(self.lost()) }
    }

    /// Whether the rest of the stream continues what was written: the stream has repeated the last line, or need not
    /// repeat it.
    fn follows(&self, stream: &LogStream) -> bool {
        let must_repeat = self.must_repeat || self.parked.is_some();
        self.cursor.is_passed(&stream.repeated) || !must_repeat && self.cursor.is_certain(&stream.repeated)
    }

    /// The error for missing lines, also if stdout differs from what a stream repeats.
    pub fn lost(&self) -> LostLines {
        LostLines { after: self.cursor.last().unwrap_or(Timestamp::UNIX_EPOCH) }
    }

    /// Ends the stream. Returns what the kubelet or API server said at its end.
    pub fn close(&mut self, end: StreamEnd) -> Option<String> {
        let mut stream = self.stream.take()?;
        if stream.has_new {
            // The parked stream now lacks what this one delivered.
            self.parked = None;
        }
        let message = (end == StreamEnd::InOrder).then(|| stream.parser.message()).flatten();
        let is_uncertain = !stream.has_new && !self.cursor.is_certain(&stream.repeated);
        self.cut_line(stream.line, end);
        if end == StreamEnd::Broken || message.is_some() || is_uncertain {
            self.doubt();
        }
        message
    }

    /// Checks a stream that ended in order and was the whole rest of a log that no longer grows.
    ///
    /// # Errors
    /// [`LostLines`] if it had to repeat the last written line, but did not.
    pub fn complete(&mut self) -> Result<(), LostLines> {
        let Some(stream) = &self.stream else { return Err(self.lost()) };
        if stream.has_new || self.follows(stream) { Ok(()) } else { Err(self.lost()) }
    }

    /// Parks the stream, unread from here on, while another one may deliver the rest sooner.
    pub fn park(&mut self) {
        self.parked = self.stream.take();
    }

    /// Goes back to the parked stream if the other one delivered nothing new. Returns whether it went back.
    pub fn unpark(&mut self) -> bool {
        let parked = self.parked.take();
        let other_is_clean = self.stream.take().is_none_or(|stream| !stream.has_new);
        match parked.filter(|_| other_is_clean) {
            Some(parked) => {
                self.stream = Some(parked);
                true
            }
            None => {
                self.must_repeat = true;
                false
            }
        }
    }

    /// Whether a parked stream could show what another one missed. It could if there is a line to find again.
    pub fn has_anchor(&self) -> bool {
        self.cursor.last().is_some()
    }
}

impl Default for LogReader {
    fn default() -> Self {
        Self::new()
    }
}

impl LineSoFar {
    fn new(stamp: Timestamp) -> Self {
        Self { stamp, hash: LineHash::new(stamp), end: LineEnd::default() }
    }

    fn add(&mut self, text: &[u8]) {
        self.hash.add(text);
        self.end.add(text);
    }
}

impl LogStream {
    fn put(&mut self, text: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(text);
        self.at += text.len() as u64;
    }
}

/// The part of `brought` to write, where stdout already holds `existing`; `None` if the two differ, and thus
/// lines are missing.
pub fn new_part<'a>(existing: &[u8], brought: &'a [u8]) -> Option<&'a [u8]> {
    let common = existing.len().min(brought.len());
    (existing[..common] == brought[..common]).then(|| &brought[common..])
}

#[cfg(test)]
mod tests;
