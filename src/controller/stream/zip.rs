//! The bytes of a zip in a stored stream, where they are in base64 without blanks, read from the stream's file on
//! demand. This module does not know what is in a zip.

use std::io::{self, Read, Seek, SeekFrom};

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

/// Base64 as Python reads it, which ignores the bits after the last byte.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));
/// The most that one read decodes.
const CHUNK: u64 = 48 << 10;

/// Where a zip is in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredZip {
    /// The byte of the stream at which it begins.
    pub start: u64,
    /// Bytes of the zip.
    pub length: u64,
}

impl StoredZip {
    /// Reads the zip from its first byte on.
    pub fn open<R: Read + Seek>(self, stream: R) -> StoredZipReader<R> {
        StoredZipReader { stream, zip: self, at: 0 }
    }
}

/// The bytes of a zip.
#[derive(Debug)]
pub struct StoredZipReader<R> {
    stream: R,
    zip: StoredZip,
    at: u64,
}

impl<R: Read + Seek> Read for StoredZipReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = (buffer.len() as u64).min(CHUNK).min(self.zip.length.saturating_sub(self.at));
        if length == 0 {
            return Ok(0);
        }
        let (from, to) = (self.at / 3 * 4, (self.at + length).div_ceil(3) * 4);
        self.stream.seek(SeekFrom::Start(self.zip.start + from))?;
        let mut letters = vec![0; (to - from) as usize];
        self.stream.read_exact(&mut letters)?;
        let bytes = BASE64.decode(letters).map_err(io::Error::other)?;
        let mut wanted = bytes.get((self.at % 3) as usize..).unwrap_or_default().take(length);
        let count = wanted.read(buffer)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl<R> Seek for StoredZipReader<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.zip.length.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
