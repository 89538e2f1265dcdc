//! Checks a submission while it arrives: an optional header line, then a transmit stream from its kwargs line to its
//! end line. It keeps one line at most; the caller stores the bytes unchanged.

use super::asked::Asked;
use super::line::RunnerLine;
use super::scan::{Piece, Scanner};
use super::zip::StoredZip;
use crate::controller::header::Header;
use crate::controller::refusal::{Awaited, LINE_LIMIT, Refusal, StreamFault};
use crate::work::jobs::is_header;

/// A submission on its way in.
#[derive(Debug)]
pub struct Submission {
    scanner: Scanner,
    awaited: Awaited,
    limit: u64,
    header: Option<Header>,
    header_length: u64,
    kwargs_length: u64,
    asked: Asked,
    /// The zip, once its length is known.
    zip: Option<StoredZip>,
}

/// A submission that arrived completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeSubmission {
    /// What it asks for.
    pub header: Header,
    /// Bytes of the header line before the stream.
    pub header_length: u64,
    /// Bytes of the stream's first line, its newline included.
    pub kwargs_length: u64,
    /// What the kwargs say.
    pub asked: Asked,
    /// A zip that must bring no project, because the header names one. Judge it once the stream is stored.
    pub unjudged: Option<StoredZip>,
    /// All its bytes.
    pub length: u64,
}

impl Submission {
    /// A submission of at most `limit` bytes, with the header if it came as a parameter.
    pub fn new(limit: u64, header: Option<Header>) -> Self {
        let awaited = if header.is_some() { Awaited::Kwargs } else { Awaited::FirstLine };
        Self {
            scanner: Scanner::new(LINE_LIMIT),
            awaited,
            limit,
            header,
            header_length: 0,
            kwargs_length: 0,
            asked: Asked::default(),
            zip: None,
        }
    }

    /// The header, as soon as it is known.
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    /// Checks the next bytes.
    ///
    /// # Errors
    /// [`Refusal`]. After it, nothing more must be pushed.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), Refusal> {
        if self.scanner.position() + bytes.len() as u64 > self.limit {
            return Err(Refusal::TooLarge { limit: self.limit });
        }
        loop {
            let start = self.scanner.position() - self.scanner.unfinished().len() as u64;
            let Some(piece) = self.scanner.next(&mut bytes) else { break };
            match piece {
                Piece::Line(line) => {
                    let length = line.len() as u64 + 1;
                    match read_line(self.awaited, line, start)? {
                        Step::Header(header) => {
                            (self.header, self.header_length) = (Some(*header), length);
                            self.awaited = Awaited::Kwargs;
                        }
                        Step::Kwargs(asked) => {
                            (self.asked, self.kwargs_length) = (asked, length);
                            self.header.get_or_insert_default();
                            self.awaited = Awaited::ZipOrEnd;
                        }
                        Step::Zip(bytes) => {
                            self.scanner.begin_zip(bytes);
                            self.zip = Some(StoredZip { start: self.scanner.position(), length: bytes });
                            self.awaited = Awaited::Zip;
                        }
                        Step::End => self.awaited = Awaited::Nothing,
                    }
                }
                Piece::LongLine => return Err(self.too_long()),
                Piece::Zip(_) => {}
                Piece::ZipEnd => {
                    let letters = self.zip.map_or(0, |zip| self.scanner.position() - zip.start);
                    let has_blanks = self.zip.is_some_and(|zip| letters != zip.length.div_ceil(3) * 4);
                    if self.has_sync() && has_blanks {
                        return Err(StreamFault::Unreadable.into());
                    }
                    self.awaited = Awaited::End;
                }
                Piece::BadZip => return Err(StreamFault::BadZip(self.scanner.position()).into()),
            }
        }
        if self.scanner.is_in_long_line() { Err(self.too_long()) } else { Ok(()) }
    }

    /// Ends the submission when its sender has sent everything.
    ///
    /// # Errors
    /// The submission ended too early, or more follows its end line.
    pub fn finish(self) -> Result<WholeSubmission, Refusal> {
        let length = self.scanner.position();
        let unjudged = self.zip.filter(|_| self.has_sync());
        if !self.scanner.unfinished().is_empty() && self.awaited == Awaited::Nothing {
            return Err(StreamFault::Unexpected(Awaited::Nothing, length).into());
        }
        match self.header {
            Some(header) if self.awaited == Awaited::Nothing => Ok(WholeSubmission {
                header,
                header_length: self.header_length,
                kwargs_length: self.kwargs_length,
                asked: self.asked,
                unjudged,
                length,
            }),
            Some(_) | None => Err(StreamFault::EndsEarly(self.awaited, length).into()),
        }
    }

    fn has_sync(&self) -> bool {
        self.header.as_ref().is_some_and(|header| header.sync.is_some())
    }

    fn too_long(&self) -> Refusal {
        match self.awaited {
            Awaited::FirstLine => Refusal::LongFirstLine,
            awaited => StreamFault::LongLine(awaited).into(),
        }
    }
}

/// What a line means.
enum Step {
    Header(Box<Header>),
    Kwargs(Asked),
    Zip(u64),
    End,
}

/// Reads the line that begins at `start`.
fn read_line(awaited: Awaited, line: &[u8], start: u64) -> Result<Step, Refusal> {
    let unexpected = || Refusal::Stream(StreamFault::Unexpected(awaited, start));
    let parsed = RunnerLine::parse(line);
    match (awaited, parsed) {
        (Awaited::FirstLine, _) if is_header(line) => Ok(Step::Header(Box::new(Header::parse(line)?))),
        (Awaited::Kwargs, _) if is_header(line) => Err(unexpected()),
        (Awaited::FirstLine | Awaited::Kwargs, Some(RunnerLine { kwargs: Some(kwargs), .. })) => {
            if kwargs.get().starts_with('{') {
                Ok(Step::Kwargs(Asked::read(kwargs)))
            } else {
                Err(unexpected())
            }
        }
        (Awaited::FirstLine, _) => Err(Refusal::NoHeader),
        (Awaited::ZipOrEnd, Some(RunnerLine { zipfile: Some(bytes), .. })) => Ok(Step::Zip(bytes)),
        (Awaited::ZipOrEnd | Awaited::End, Some(RunnerLine { eof: Some(_), zipfile: None, .. })) => {
            Ok(Step::End)
        }
        (_, _) => Err(unexpected()),
    }
}
