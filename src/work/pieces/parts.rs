//! The parts of a payload that ansible-runner has written: lines of JSON, one of which announces a zip whose base64
//! follows. Pure. Owns where a part begins, and which files of a zip may be kept. Bytes that are anything else are
//! passed on as they are, and so is the rest of a payload that is no such stream after all.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;

/// The longest line that may announce a zip.
const ANNOUNCEMENT: usize = 64;
/// A local file header without name and extra field, its signature, and the tag of a field of 64-bit sizes.
const HEADER: usize = 30;
const SIGNATURE: &[u8] = b"PK\x03\x04";
const SIZES_64: u16 = 1;
/// The flag of a file whose size comes after it.
const SIZE_FOLLOWS: u16 = 1 << 3;
/// Where a private data directory has what was written for many jobs. What was written for one, `env` and `inventory`
/// for example, may hold its secrets and is never kept.
const KEPT: [&[u8]; 5] =
    [b"project/", b"roles/", b"collections/", b"requirements_roles/", b"requirements_collections/"];

/// A part of a payload. PayloadParts that follow each other may be of the same kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PayloadPart<'a> {
    /// Bytes of the payload.
    Raw(&'a [u8]),
    /// Bytes whose base64 is in the payload.
    Decoded(&'a [u8]),
    /// A file of this many bytes follows, which may be kept.
    Begins(u64),
    /// Bytes of that file, as they are in the zip. Their base64 is in the payload.
    File(&'a [u8]),
}

/// A payload that arrives bit by bit.
#[derive(Debug)]
pub(super) struct PayloadParts(State);

#[derive(Debug)]
enum State {
    /// In a line, which begins like this.
    Line(Vec<u8>),
    Zip(Base64),
    /// Passes everything on.
    Rest,
}

#[derive(Debug)]
struct Base64 {
    /// Characters that are still to come.
    left: u64,
    /// Bytes that they and the waiting ones stand for.
    bytes: u64,
    /// Characters that wait for more.
    waiting: Vec<u8>,
    zip: Zip,
}

/// A line that announces a zip.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Announcement {
    zipfile: u64,
}

impl Default for PayloadParts {
    fn default() -> Self {
        Self(State::Line(Vec::new()))
    }
}

impl PayloadParts {
    /// Takes the next bytes of the payload.
    pub(super) fn push(&mut self, mut bytes: &[u8], part: &mut impl FnMut(PayloadPart<'_>)) {
        while !bytes.is_empty() {
            match &mut self.0 {
                State::Rest => return part(PayloadPart::Raw(bytes)),
                // Lines of JSON objects and nothing else.
                State::Line(start) if start.is_empty() && bytes[0] != b'{' => self.0 = State::Rest,
                State::Line(start) => {
                    let (line, rest, ends) = match bytes.iter().position(|byte| *byte == b'\n') {
                        Some(end) => (&bytes[..=end], &bytes[end + 1..], true),
                        None => (bytes, &bytes[..0], false),
                    };
                    start.extend_from_slice(&line[..line.len().min(ANNOUNCEMENT + 1 - start.len())]);
                    part(PayloadPart::Raw(line));
                    bytes = rest;
                    if ends {
                        let announced = Base64::announced(start);
                        start.clear();
                        self.0 = announced.map_or(State::Line(Vec::new()), State::Zip);
                    }
                }
                State::Zip(base64) => {
                    let count = bytes.len().min(usize::try_from(base64.left).unwrap_or(usize::MAX));
                    let is_base64 = base64.push(&bytes[..count], part);
                    bytes = &bytes[count..];
                    if !is_base64 {
                        self.end(part);
                        self.0 = State::Rest;
                    } else if base64.left == 0 {
                        self.end(part);
                        self.0 = State::Line(Vec::new());
                    }
                }
            }
        }
    }

    /// The payload has ended, or its base64 has.
    pub(super) fn end(&mut self, part: &mut impl FnMut(PayloadPart<'_>)) {
        if let State::Zip(Base64 { waiting, zip, .. }) = &mut self.0 {
            if let Zip::Header(header) = zip {
                part(PayloadPart::Decoded(header));
            }
            part(PayloadPart::Raw(waiting));
        }
    }
}

impl Base64 {
    fn announced(line: &[u8]) -> Option<Self> {
        let bytes = serde_json::from_slice::<Announcement>(line).ok()?.zipfile;
        let left = bytes.div_ceil(3).checked_mul(4).filter(|left| *left > 0)?;
        Some(Self { left, bytes, waiting: Vec::new(), zip: Zip::Header(Vec::new()) })
    }

    /// Takes characters; `false` if they are no base64, or another form of it than that which encoding gives.
    fn push(&mut self, characters: &[u8], part: &mut impl FnMut(PayloadPart<'_>)) -> bool {
        self.left -= characters.len() as u64;
        self.waiting.extend_from_slice(characters);
        let whole = self.waiting.len() / 4 * 4;
        let quads = &self.waiting[..whole];
        let Ok(decoded) = BASE64.decode(quads) else { return false };
        let is_last = self.left == 0;
        // Padding stands at the very end and nowhere else.
        let fits = if is_last { decoded.len() as u64 == self.bytes } else { !quads.ends_with(b"=") };
        if !fits {
            return false;
        }
        self.bytes -= decoded.len() as u64;
        self.waiting.drain(..whole);
        self.zip.push(&decoded, part);
        true
    }
}

/// A zip that arrives bit by bit.
#[derive(Debug)]
enum Zip {
    /// In the header of a file, which begins like this.
    Header(Vec<u8>),
    /// In a file with this many bytes to come.
    File { left: u64, is_kept: bool },
    /// In the directory at its end, or in something unknown.
    Rest,
}

impl Zip {
    fn push(&mut self, mut bytes: &[u8], part: &mut impl FnMut(PayloadPart<'_>)) {
        while !bytes.is_empty() {
            match self {
                Self::Rest => return part(PayloadPart::Decoded(bytes)),
                Self::File { left, is_kept } => {
                    let count = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    part(if *is_kept {
                        PayloadPart::File(&bytes[..count])
                    } else {
                        PayloadPart::Decoded(&bytes[..count])
                    });
                    bytes = &bytes[count..];
                    *left -= count as u64;
                    if *left == 0 {
                        *self = Self::Header(Vec::new());
                    }
                }
                Self::Header(header) => {
                    let missing = header_length(header).saturating_sub(header.len());
                    let count = missing.min(bytes.len());
                    header.extend_from_slice(&bytes[..count]);
                    bytes = &bytes[count..];
                    if header.len() < HEADER || header.len() < header_length(header) {
                        continue;
                    }
                    part(PayloadPart::Decoded(header));
                    *self = match file_of(header) {
                        None => Self::Rest,
                        Some((0, _)) => Self::Header(Vec::new()),
                        Some((left, is_kept)) => {
                            if is_kept {
                                part(PayloadPart::Begins(left));
                            }
                            Self::File { left, is_kept }
                        }
                    };
                }
            }
        }
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    number(bytes, at).map(u16::from_le_bytes)
}

/// The length of a header as far as its beginning tells it.
fn header_length(header: &[u8]) -> usize {
    let lengths = u16_at(header, 26).zip(u16_at(header, 28)).filter(|_| header.starts_with(SIGNATURE));
    lengths.map_or(HEADER, |(name, extra)| HEADER + usize::from(name) + usize::from(extra))
}

/// The bytes of a file in the zip, and whether it may be kept. `None` if no file follows this header, or nothing says
/// where it ends.
fn file_of(header: &[u8]) -> Option<(u64, bool)> {
    if !header.starts_with(SIGNATURE) || u16_at(header, 6)? & SIZE_FOLLOWS != 0 {
        return None;
    }
    let [packed, full] = [18, 22].map(|at| number(header, at).map(u32::from_le_bytes));
    let (name, mut extra) = header[HEADER..].split_at_checked(usize::from(u16_at(header, 26)?))?;
    let is_kept = KEPT.iter().any(|kept| name.starts_with(kept));
    let (packed, full) = (packed?, full?);
    if packed != u32::MAX {
        return Some((packed.into(), is_kept));
    }
    loop {
        let (tag, length) = (u16_at(extra, 0)?, usize::from(u16_at(extra, 2)?));
        let (field, rest) = extra[4..].split_at_checked(length)?;
        if tag == SIZES_64 {
            // The full size comes first, if its 32 bits are not enough either.
            let at = if full == u32::MAX { 8 } else { 0 };
            return Some((u64::from_le_bytes(number(field, at)?), is_kept));
        }
        extra = rest;
    }
}
