//! Reads a worker's zip while it passes, for its exit code: that is in the file `rc`, and nowhere else in the stream. It
//! follows the headers in front of the entries, as far as these have their sizes, and keeps nothing but that file. What a
//! zip unpacks into only `directory` can tell.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use flate2::{Decompress, FlushDecompress};

/// As Python reads it, which does not look at the bits behind the last byte.
pub(super) const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// The largest file that may be an exit code.
const LARGEST: u64 = 64;
/// The header of an entry behind its signature.
const HEADER: usize = 26;
const SIGNATURE: usize = 4;
const ENTRY: [u8; SIGNATURE] = *b"PK\x03\x04";
const STORED: u16 = 0;
const DEFLATED: u16 = 8;
/// The bit of an entry whose size comes behind it.
const SIZE_FOLLOWS: u16 = 8;
/// The extra field with the sizes of a large entry.
const ZIP64: u16 = 1;

/// Turns base64 with blanks, in parts of any size, into bytes.
#[derive(Debug, Default)]
pub struct Letters {
    /// Those that are not four yet.
    left: Vec<u8>,
}

impl Letters {
    /// The bytes that are whole with the next part; `None` if it is no base64.
    pub fn push(&mut self, base64: &[u8]) -> Option<Vec<u8>> {
        self.left.extend(base64.iter().filter(|byte| !byte.is_ascii_whitespace()));
        let whole = self.left.len() / 4 * 4;
        let bytes = BASE64.decode(&self.left[..whole]).ok()?;
        self.left.drain(..whole);
        Some(bytes)
    }
}

/// Looks at the entries of one zip.
#[derive(Debug, Default)]
pub(super) struct PassingZip {
    letters: Letters,
    at: Place,
    bytes: Vec<u8>,
    found: Option<i32>,
}

/// Where in the zip the next byte belongs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Signature,
    Header,
    /// Name and extra field.
    Name(ZipEntry),
    /// The content of `rc`.
    Code {
        method: u16,
        size: usize,
    },
    /// The content of another file: this many bytes.
    Other(u64),
    /// Behind all entries, or in what we do not understand.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ZipEntry {
    method: u16,
    size_follows: bool,
    packed: u32,
    size: u32,
    name: usize,
    extra: usize,
}

impl PassingZip {
    /// The exit code, once it has passed.
    pub(super) fn exit_code(&self) -> Option<i32> {
        self.found
    }

    /// Looks at the next part of the zip, in base64 with blanks.
    pub(super) fn push(&mut self, base64: &[u8]) {
        if self.at == Place::Unknown {
            return;
        }
        for part in base64.chunks(4_096) {
            let Some(bytes) = self.letters.push(part) else {
                self.at = Place::Unknown;
                return;
            };
            self.read(&bytes);
        }
    }

    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.at {
                Place::Unknown => return,
                Place::Other(left) => {
                    let skipped = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    bytes = &bytes[skipped..];
                    self.at = Place::behind(left - skipped as u64);
                }
                Place::Signature => self.collect(&mut bytes, SIGNATURE, |_, signature| {
                    if signature == ENTRY { Place::Header } else { Place::Unknown }
                }),
                Place::Header => {
                    self.collect(&mut bytes, HEADER, |_, header| Place::Name(ZipEntry::parse(header)));
                }
                Place::Name(entry) => {
                    self.collect(&mut bytes, entry.name + entry.extra, |_, both| {
                        let (name, extra) = both.split_at(entry.name);
                        entry.content(name, extra)
                    });
                }
                Place::Code { method, size } => self.collect(&mut bytes, size, |zip, content| {
                    zip.found = exit_code(method, content);
                    Place::Signature
                }),
            }
        }
    }

    /// Collects that many bytes, and then goes where they lead.
    fn collect(&mut self, bytes: &mut &[u8], wanted: usize, then: impl FnOnce(&mut Self, &[u8]) -> Place) {
        let (taken, rest) = bytes.split_at(bytes.len().min(wanted - self.bytes.len()));
        self.bytes.extend_from_slice(taken);
        *bytes = rest;
        if self.bytes.len() == wanted {
            let whole = std::mem::take(&mut self.bytes);
            self.at = then(self, &whole);
        }
    }
}

impl Place {
    /// Where that many bytes of a file lead.
    fn behind(left: u64) -> Self {
        if left == 0 { Self::Signature } else { Self::Other(left) }
    }
}

impl ZipEntry {
    fn parse(header: &[u8]) -> Self {
        let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let long = |at: usize| u32::from(short(at)) | u32::from(short(at + 2)) << 16;
        Self {
            method: short(4),
            size_follows: short(2) & SIZE_FOLLOWS != 0,
            packed: long(14),
            size: long(18),
            name: short(22).into(),
            extra: short(24).into(),
        }
    }

    /// What comes behind its name.
    fn content(self, name: &[u8], extra: &[u8]) -> Place {
        let zip64 = find_field(extra, ZIP64);
        if self.size_follows {
            return Place::Unknown;
        }
        let packed = match self.packed {
            u32::MAX => zip64.and_then(|field| {
                let at = if self.size == u32::MAX { 8 } else { 0 };
                Some(u64::from_le_bytes(field.get(at..at + 8)?.try_into().ok()?))
            }),
            packed => Some(packed.into()),
        };
        match (name, packed) {
            (_, None) => Place::Unknown,
            (b"rc", Some(size @ 1..=LARGEST)) => Place::Code { method: self.method, size: size as usize },
            (_, Some(size)) => Place::behind(size),
        }
    }
}

pub(super) fn find_field(mut extra: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let (head, rest) = extra.split_at_checked(4)?;
        let field = rest.get(..u16::from_le_bytes([head[2], head[3]]).into())?;
        if u16::from_le_bytes([head[0], head[1]]) == kind {
            return Some(field);
        }
        extra = &rest[field.len()..];
    }
}

fn exit_code(method: u16, content: &[u8]) -> Option<i32> {
    let mut text = Vec::with_capacity(LARGEST as usize);
    match method {
        STORED => text.extend_from_slice(content),
        DEFLATED => {
            let mut inflate = Decompress::new(false);
            inflate.decompress_vec(content, &mut text, FlushDecompress::Finish).ok()?;
        }
        _ => return None,
    }
    std::str::from_utf8(&text).ok()?.trim().parse().ok()
}
