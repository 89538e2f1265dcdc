//! Cuts a stream into lines and the bodies of zips, wherever its bytes are split. A zip's length is in the line before
//! it, which only the caller understands, so the caller calls [`Scanner::begin_zip`].

/// A buffer that has grown beyond this is shrunk after its line.
const KEPT: usize = 64 << 10;

/// Reads pieces off a stream.
#[derive(Debug)]
pub struct Scanner {
    limit: usize,
    state: Within,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    /// The buffered line was handed out.
    spent: bool,
    /// Bytes read so far.
    position: u64,
}

#[derive(Debug, Clone, Copy)]
enum Within {
    Line,
    /// In a line beyond the limit.
    LongLine,
    Zip(Body),
}

/// What is left of a zip: its letters, the last `padding` of which are `=`.
#[derive(Debug, Clone, Copy)]
struct Body {
    letters: u64,
    padding: u64,
}

/// A piece of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A whole line, without its newline.
    Line(&'a [u8]),
    /// The end of a line beyond the limit.
    LongLine,
    /// Bytes of a zip: base64 and blanks.
    Zip(&'a [u8]),
    /// The zip is whole.
    ZipEnd,
    /// The zip is interrupted by other bytes, which come next.
    BadZip,
}

impl Scanner {
    /// Begins a stream whose lines may have up to `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, state: Within::Line, line: Vec::new(), spent: false, position: 0 }
    }

    /// Bytes read so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Whether the line at hand is beyond the limit.
    pub fn is_in_long_line(&self) -> bool {
        matches!(self.state, Within::LongLine)
    }

    /// The beginning of a line whose end has not come.
    pub fn unfinished(&self) -> &[u8] {
        if self.spent { &[] } else { &self.line }
    }

    /// The line just read says that a zip of that many bytes follows.
    pub fn begin_zip(&mut self, bytes: u64) {
        let letters = bytes.div_ceil(3).saturating_mul(4);
        self.state = Within::Zip(Body { letters, padding: (3 - bytes % 3) % 3 });
    }

    /// Takes the next piece off the input; `None` once it is used up.
    pub fn next<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8]) -> Option<Piece<'a>> {
        if std::mem::take(&mut self.spent) {
            self.line.clear();
            self.line.shrink_to(KEPT);
        }
        match &mut self.state {
            Within::Zip(Body { letters: 0, padding: _ }) => {
                self.state = Within::Line;
                Some(Piece::ZipEnd)
            }
            _ if input.is_empty() => None,
            Within::Zip(body) => {
                let length = body.accept(input);
                if length == 0 {
                    self.state = Within::Line;
                    return Some(Piece::BadZip);
                }
                Some(Piece::Zip(self.take(input, length)))
            }
            Within::Line | Within::LongLine => self.next_line(input),
        }
    }

    fn next_line<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8]) -> Option<Piece<'a>> {
        let end = memchr::memchr(b'\n', input);
        let part = self.take(input, end.map_or(input.len(), |at| at + 1));
        let part = part.strip_suffix(b"\n").unwrap_or(part);
        if self.line.len() + part.len() > self.limit {
            self.state = Within::LongLine;
        }
        if self.is_in_long_line() {
            self.line = Vec::new();
            end?;
            self.state = Within::Line;
            return Some(Piece::LongLine);
        }
        if self.line.is_empty() && end.is_some() {
            return Some(Piece::Line(part));
        }
        self.line.extend_from_slice(part);
        end?;
        self.spent = true;
        Some(Piece::Line(&self.line))
    }

    fn take<'i>(&mut self, input: &mut &'i [u8], length: usize) -> &'i [u8] {
        let (taken, rest) = input.split_at(length);
        *input = rest;
        self.position += length as u64;
        taken
    }
}

impl Body {
    /// How many of these bytes belong to the zip. Blanks before its last letter do.
    fn accept(&mut self, input: &[u8]) -> usize {
        let mut length = 0;
        for byte in input {
            let fits = match byte {
                b'=' => self.letters <= self.padding,
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' => self.letters > self.padding,
                byte if byte.is_ascii_whitespace() => {
                    length += 1;
                    continue;
                }
                _ => false,
            };
            if !fits {
                break;
            }
            length += 1;
            self.letters -= 1;
            if self.letters == 0 {
                break;
            }
        }
        length
    }
}
