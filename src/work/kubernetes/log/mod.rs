//! Stdout of a unit out of its container's log: every byte once, out of streams that break off, repeat themselves, and
//! of a log that is rotated meanwhile. Owns what of a stream is written where in stdout, and the knowledge whether
//! something was missed. Opens no streams and writes no files.
//!
//! Text is passed on as it comes. The cursor counts whole lines alone, so after a break in the middle of a line stdout
//! is longer than the cursor says, just as after a kill between two writes: the next stream brings these bytes again,
//! and they are compared, not written twice (see [`new_part`]).

pub mod cursor;
mod line;

use std::mem;

use jiff::Timestamp;

use self::cursor::{Cursor, Known, LineHash, Repeated};
use self::line::{LineParser, Piece};

/// Bytes held back of a line that may be a repeated one.
const HELD: usize = 1 << 20;

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// As HTTP has it: all that was to be sent has come.
    InOrder,
    /// In any other way.
    Broken,
}

/// Lines of the log may be gone that were not written to stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the log was rotated while it could not be followed: lines after {after} may be missing")]
pub struct Lost {
    /// The time stamp of the last line that was written.
    pub after: Timestamp,
}

/// What became of a piece of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Took {
    /// Where in stdout the output begins that was added.
    pub at: u64,
    /// There was something that no stream had brought before.
    pub is_new: bool,
    /// What kubelet or API server say in place of the log: the stream is of no more use.
    pub foreign: Option<String>,
}

/// Turns log streams into stdout.
#[derive(Debug)]
pub struct LogReader {
    cursor: Cursor,
    /// Bytes of stdout, those after the last whole line included.
    size: u64,
    /// A stream broke off since the last line: the next one has to bring that line again.
    must_repeat: bool,
    stream: Option<Stream>,
    /// Set aside while another stream may bring the rest sooner.
    parked: Option<Stream>,
}

/// One stream, as far as it has come.
#[derive(Debug)]
struct Stream {
    parser: LineParser,
    repeated: Repeated,
    line: Line,
    /// Where in stdout the next byte goes.
    at: u64,
    has_new: bool,
}

/// The line that a stream is in.
#[derive(Debug)]
enum Line {
    /// None, or one that was written before.
    Skipped,
    /// One that goes to stdout.
    Written(Timestamp, LineHash),
    /// One that is known at its end: its text, if it is short enough to be held.
    Doubtful(Timestamp, LineHash, Option<Vec<u8>>),
}

impl LogReader {
    /// Of a unit without output.
    pub fn new() -> Self {
        Self::resume(Cursor::default(), 0)
    }

    /// Of a unit whose stdout is `size` bytes long and was written as far as the cursor says.
    pub fn resume(cursor: Cursor, size: u64) -> Self {
        let must_repeat = cursor.last().is_some();
        Self { size: size.max(cursor.size()), cursor, must_repeat, stream: None, parked: None }
    }

    /// The time to ask the next stream from; none for the beginning.
    pub fn since(&self) -> Option<Timestamp> {
        self.cursor.since()
    }

    /// How far stdout was written.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// Bytes of stdout.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// A stream, asked from [`Self::since`], begins. One that was read until now broke off.
    pub fn open(&mut self) {
        if self.stream.is_some() {
            self.must_repeat = true;
        }
        self.stream = Some(Stream {
            parser: LineParser::default(),
            repeated: Repeated::default(),
            line: Line::Skipped,
            at: self.cursor.size(),
            has_new: false,
        });
    }

    /// No stream can be had for a while: what is rotated away meanwhile is missed.
    pub fn note_gap(&mut self) {
        self.must_repeat = true;
    }

    /// Takes bytes of the stream; adds to `out` what goes to stdout, from [`Took::at`] on.
    ///
    /// # Errors
    /// [`Lost`] when what comes does not follow what was written; nothing was added to `out` of it then.
    pub fn read(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<Took, Lost> {
        let Some(mut stream) = self.stream.take() else { return Ok(Took::default()) };
        let mut took = Took { at: stream.at, ..Took::default() };
        let begun = out.len();
        let mut outcome = Ok(());
        while let Some(piece) = stream.parser.next(&mut bytes) {
            match piece {
                Piece::Foreign(text) => {
                    took.foreign = Some(text);
                    break;
                }
                Piece::Begin(stamp) => outcome = self.begin(&mut stream, stamp),
                Piece::Text { bytes, ends } => {
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
        took.is_new = out.len() > begun;
        self.size = self.size.max(stream.at);
        self.stream = Some(stream);
        outcome.map(|()| took)
    }

    fn begin(&mut self, stream: &mut Stream, stamp: Timestamp) -> Result<(), Lost> {
        stream.line = match self.cursor.judge(&mut stream.repeated, stamp) {
            Known::Old => Line::Skipped,
            Known::Perhaps => Line::Doubtful(stamp, LineHash::new(stamp), Some(Vec::new())),
            Known::New => {
                self.check_first(stream)?;
                Line::Written(stamp, LineHash::new(stamp))
            }
        };
        Ok(())
    }

    fn text(&mut self, stream: &mut Stream, text: &[u8], out: &mut Vec<u8>) -> Result<(), Lost> {
        match &mut stream.line {
            Line::Skipped => {}
            Line::Written(_, hash) => {
                hash.add(text);
                stream.put(text, out);
            }
            Line::Doubtful(_, hash, held) => {
                hash.add(text);
                match held {
                    Some(so_far) if so_far.len() + text.len() <= HELD => so_far.extend_from_slice(text),
                    Some(_) | None => *held = None,
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, stream: &mut Stream, out: &mut Vec<u8>) -> Result<(), Lost> {
        match mem::replace(&mut stream.line, Line::Skipped) {
            Line::Skipped => {}
            Line::Written(stamp, hash) => self.note(stream, stamp, hash.finish()),
            Line::Doubtful(stamp, hash, held) => {
                let hash = hash.finish();
                match self.cursor.judge_hash(&mut stream.repeated, hash) {
                    Known::Old => {
                        if self.cursor.is_passed(&stream.repeated) {
                            self.must_repeat = false;
                        }
                    }
                    Known::New | Known::Perhaps => {
                        self.check_first(stream)?;
                        // Too long to be held, and not the one that was expected: its text is gone.
                        let text = held.ok_or(self.lost())?;
                        stream.put(&text, out);
                        self.note(stream, stamp, hash);
                    }
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, stream: &mut Stream, stamp: Timestamp, hash: u64) {
        self.cursor.note(stamp, hash, stream.at);
        self.must_repeat = false;
    }

    /// The first new line of a stream: whether it follows the last that was written.
    fn check_first(&self, stream: &mut Stream) -> Result<(), Lost> {
        stream.has_new = stream.has_new || self.follows(stream);
        if stream.has_new { Ok(()) } else { Err(self.lost()) }
    }

    /// Whether what a stream brings from here on follows what was written: it has brought the last line, or need not.
    fn follows(&self, stream: &Stream) -> bool {
        let must_repeat = self.must_repeat || self.parked.is_some();
        self.cursor.is_passed(&stream.repeated) || !must_repeat && self.cursor.is_certain(&stream.repeated)
    }

    /// What to say when stdout holds something else than a stream repeats, too.
    pub fn lost(&self) -> Lost {
        Lost { after: self.cursor.last().unwrap_or(Timestamp::UNIX_EPOCH) }
    }

    /// The stream has ended. Gives what kubelet or API server said at its end.
    pub fn close(&mut self, end: StreamEnd) -> Option<String> {
        let mut stream = self.stream.take()?;
        if stream.has_new {
            // What was set aside is behind now.
            self.parked = None;
        }
        let rest = (end == StreamEnd::InOrder).then(|| stream.parser.rest()).flatten();
        let is_uncertain = !stream.has_new && !self.cursor.is_certain(&stream.repeated);
        if end == StreamEnd::Broken || rest.is_some() || is_uncertain {
            self.must_repeat = true;
        }
        rest
    }

    /// The stream has ended in order, and it is the whole rest of a log that does not grow any more.
    ///
    /// # Errors
    /// [`Lost`] when it did not bring the last line that was written, though it had to.
    pub fn complete(&mut self) -> Result<(), Lost> {
        let Some(stream) = &self.stream else { return Err(self.lost()) };
        if stream.has_new || self.follows(stream) { Ok(()) } else { Err(self.lost()) }
    }

    /// Sets the stream aside, unread from here on, for another that may bring the rest sooner.
    pub fn park(&mut self) {
        self.parked = self.stream.take();
    }

    /// Whether a stream is set aside.
    pub fn has_parked(&self) -> bool {
        self.parked.is_some()
    }

    /// Goes back to the stream that was set aside, if the other has brought nothing new: says whether it could.
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

    /// Whether a stream set aside can tell what another has missed: there is a line to find again.
    pub fn has_anchor(&self) -> bool {
        self.cursor.last().is_some()
    }
}

impl Default for LogReader {
    fn default() -> Self {
        Self::new()
    }
}

impl Stream {
    fn put(&mut self, text: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(text);
        self.at += text.len() as u64;
    }
}

/// What is to be written of `brought`, where stdout holds `existing` already: none if the two differ, and then lines
/// were lost.
pub fn new_part<'a>(existing: &[u8], brought: &'a [u8]) -> Option<&'a [u8]> {
    let common = existing.len().min(brought.len());
    (existing[..common] == brought[..common]).then(|| &brought[common..])
}

#[cfg(test)]
mod tests;
