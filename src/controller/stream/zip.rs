//! Reads a zip while it passes: the exit code of a worker, which is in the file `rc` and nowhere else in the stream, and
//! whether a client brings a project. It follows the headers in front of the entries and keeps nothing but that file.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use flate2::{Decompress, FlushDecompress};

/// As Python reads it, which does not look at the bits behind the last byte.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// The largest file that may be an exit code.
const LARGEST: u32 = 64;
const HEADER: usize = 30;
const SIGNATURE: [u8; 4] = *b"PK\x03\x04";
const STORED: u16 = 0;
const DEFLATED: u16 = 8;

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

/// What a project's entries begin with.
const PROJECT: &[u8] = b"project/";

/// Looks at the entries of one zip.
#[derive(Debug, Default)]
pub(super) struct PassingZip {
    letters: Letters,
    at: Place,
    bytes: Vec<u8>,
    found: Option<i32>,
    has_project: bool,
}

/// Where in the zip the next byte belongs.
#[derive(Debug, Default, Clone, Copy)]
enum Place {
    #[default]
    Header,
    /// Name and extra field.
    Name(ZipEntry),
    /// The content of `rc`.
    Code(ZipEntry),
    /// The content of another file: this many bytes.
    Other(u64),
    /// No more entries, or nothing that we understand.
    End,
}

#[derive(Debug, Clone, Copy)]
struct ZipEntry {
    method: u16,
    size: u32,
    name: usize,
    extra: usize,
}

impl PassingZip {
    /// The exit code, once it has passed.
    pub(super) fn exit_code(&self) -> Option<i32> {
        self.found
    }

    /// Something below `project/` has passed.
    pub(super) fn has_project(&self) -> bool {
        self.has_project
    }

    /// Looks at the next part of the zip, in base64 with blanks.
    pub(super) fn push(&mut self, base64: &[u8]) {
        if matches!(self.at, Place::End) {
            return;
        }
        for part in base64.chunks(4_096) {
            let Some(bytes) = self.letters.push(part) else {
                self.at = Place::End;
                return;
            };
            self.read(&bytes);
        }
    }

    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.at {
                Place::End => return,
                Place::Other(left) => {
                    let skipped = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    bytes = &bytes[skipped..];
                    let left = left - skipped as u64;
                    self.at = if left == 0 { Place::Header } else { Place::Other(left) };
                }
                Place::Header => {
                    self.collect(&mut bytes, HEADER, |_, header| match ZipEntry::parse(header) {
                        Some(entry) => Place::Name(entry),
                        None => Place::End,
                    })
                }
                Place::Name(entry) => {
                    self.collect(&mut bytes, entry.name + entry.extra, |zip, name| {
                        let name = &name[..entry.name];
                        zip.has_project |= name.len() > PROJECT.len() && name.starts_with(PROJECT);
                        entry.content(name)
                    });
                }
                Place::Code(entry) => self.collect(&mut bytes, entry.size as usize, |zip, content| {
                    zip.found = entry.read(content);
                    Place::Header
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

impl ZipEntry {
    /// Reads the header of an entry; `None` if it is none, or one whose size comes later.
    fn parse(header: &[u8]) -> Option<Self> {
        let number = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let size_follows = number(6) & 8 != 0;
        let size = u32::from_le_bytes([header[18], header[19], header[20], header[21]]);
        if header[..4] != SIGNATURE || size_follows || size == u32::MAX {
            return None;
        }
        Some(Self { method: number(8), size, name: number(26).into(), extra: number(28).into() })
    }

    fn content(self, name: &[u8]) -> Place {
        match (name, self.size) {
            (_, 0) => Place::Header,
            (b"rc", 1..=LARGEST) => Place::Code(self),
            (_, size) => Place::Other(size.into()),
        }
    }

    fn read(self, content: &[u8]) -> Option<i32> {
        let mut text = Vec::with_capacity(LARGEST as usize);
        match self.method {
            STORED => text.extend_from_slice(content),
            DEFLATED => {
                let mut inflate = Decompress::new(false);
                inflate.decompress_vec(content, &mut text, FlushDecompress::Finish).ok()?;
            }
            _ => return None,
        }
        std::str::from_utf8(&text).ok()?.trim().parse().ok()
    }
}
