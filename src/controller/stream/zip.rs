//! Reads a zip while it passes: the exit code of a worker, which is in the file `rc` and nowhere else in the stream, and
//! whether a client brings a project. It follows the headers in front of the entries and keeps nothing but that file. The
//! size of an entry that was written to a pipe comes behind it: such an entry is inflated to find its end.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use flate2::{Decompress, FlushDecompress, Status};

/// As Python reads it, which does not look at the bits behind the last byte.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// The largest file that may be an exit code.
const LARGEST: u64 = 64;
/// The header of an entry behind its signature.
const HEADER: usize = 26;
const SIGNATURE: usize = 4;
const ENTRY: [u8; SIGNATURE] = *b"PK\x03\x04";
const BEHIND: [u8; SIGNATURE] = *b"PK\x07\x08";
/// The directory of all entries, or the end of a zip without any.
const DIRECTORY: [[u8; SIGNATURE]; 2] = [*b"PK\x01\x02", *b"PK\x05\x06"];
const STORED: u16 = 0;
const DEFLATED: u16 = 8;
/// The bit of an entry whose size comes behind it.
const SIZE_FOLLOWS: u16 = 8;
/// The extra field with the sizes of a large entry.
const ZIP64: u16 = 1;
/// Bytes that are inflated at a time.
const PIECE: usize = 16 << 10;

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

/// The directory of a project.
const PROJECT: &[u8] = b"project";

/// Looks at the entries of one zip.
#[derive(Debug, Default)]
pub(super) struct PassingZip {
    letters: Letters,
    at: Place,
    bytes: Vec<u8>,
    inflate: Option<Decompress>,
    found: Option<i32>,
    has_project: bool,
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
    /// The content of a file whose size comes behind it.
    Inflated(Sizes),
    /// Its size.
    Behind(Sizes),
    /// All entries have passed.
    Directory,
    /// Nothing that we understand.
    Unknown,
}

/// How long the sizes of an entry are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sizes {
    Short,
    Long,
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

    /// Something below `project/` has passed, or something in its place.
    pub(super) fn has_project(&self) -> bool {
        self.has_project
    }

    /// Every entry was seen.
    pub(super) fn is_understood(&self) -> bool {
        self.at == Place::Directory
    }

    /// Looks at the next part of the zip, in base64 with blanks.
    pub(super) fn push(&mut self, base64: &[u8]) {
        if matches!(self.at, Place::Directory | Place::Unknown) {
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
                Place::Directory | Place::Unknown => return,
                Place::Other(left) => {
                    let skipped = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    bytes = &bytes[skipped..];
                    self.at = Place::behind(left - skipped as u64);
                }
                Place::Signature => self.collect(&mut bytes, SIGNATURE, |_, signature| {
                    if signature == ENTRY {
                        Place::Header
                    } else if DIRECTORY.iter().any(|known| signature == known) {
                        Place::Directory
                    } else {
                        Place::Unknown
                    }
                }),
                Place::Header => {
                    self.collect(&mut bytes, HEADER, |_, header| Place::Name(ZipEntry::parse(header)));
                }
                Place::Name(entry) => {
                    self.collect(&mut bytes, entry.name + entry.extra, |zip, both| {
                        let (name, extra) = both.split_at(entry.name);
                        zip.has_project |= is_of_project(name);
                        entry.content(name, extra)
                    });
                }
                Place::Code { method, size } => self.collect(&mut bytes, size, |zip, content| {
                    zip.found = exit_code(method, content);
                    Place::Signature
                }),
                Place::Inflated(sizes) => self.inflate(&mut bytes, sizes),
                // A signature is not demanded there: its place may be that of the checksum.
                Place::Behind(sizes) => self.collect(&mut bytes, SIGNATURE, |_, first| {
                    let checksum = if first == BEHIND { 4 } else { 0 };
                    Place::Other(checksum + 2 * sizes.bytes())
                }),
            }
        }
    }

    /// Reads on in a file whose end only its content shows.
    fn inflate(&mut self, bytes: &mut &[u8], sizes: Sizes) {
        let inflate = self.inflate.get_or_insert_with(|| Decompress::new(false));
        let (read, made) = (inflate.total_in(), inflate.total_out());
        let status = inflate.decompress(bytes, &mut [0; PIECE], FlushDecompress::None);
        let (read, made) = (inflate.total_in() - read, inflate.total_out() - made);
        *bytes = &bytes[usize::try_from(read).unwrap_or(bytes.len())..];
        match status {
            Ok(Status::StreamEnd) => (self.at, self.inflate) = (Place::Behind(sizes), None),
            Ok(Status::Ok | Status::BufError) if read + made > 0 => {}
            Ok(Status::Ok | Status::BufError) | Err(_) => self.at = Place::Unknown,
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

impl Sizes {
    const fn bytes(self) -> u64 {
        match self {
            Self::Short => 4,
            Self::Long => 8,
        }
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
            let sizes = if zip64.is_some() { Sizes::Long } else { Sizes::Short };
            return match self.method {
                DEFLATED => Place::Inflated(sizes),
                _ if name.ends_with(b"/") => Place::Behind(sizes),
                _ => Place::Unknown,
            };
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

/// The extra field of that kind.
fn find_field(mut extra: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let (head, rest) = extra.split_at_checked(4)?;
        let field = rest.get(..u16::from_le_bytes([head[2], head[3]]).into())?;
        if u16::from_le_bytes([head[0], head[1]]) == kind {
            return Some(field);
        }
        extra = &rest[field.len()..];
    }
}

/// Whether the runner unpacks a file of that name below `project/`, or in its place: Python leaves out parts that are empty
/// or dots.
fn is_of_project(name: &[u8]) -> bool {
    let is_part = |part: &&[u8]| !matches!(*part, b"" | b"." | b"..");
    let mut parts = name.split(|byte| *byte == b'/').filter(is_part);
    parts.next() == Some(PROJECT) && (parts.next().is_some() || !name.ends_with(b"/"))
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
