//! Writes a job as the stream of ansible-runner transmit. The zip is first made in a nameless file, because the stream
//! names its length before it.

use std::fs::{File, OpenOptions};
use std::io::{self, Chain, Cursor, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::pin::Pin;
use std::task::{Context, Poll};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, ReadBuf};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::tree::{Content, Packed, Tree};
use crate::os::regular_file;

/// Bytes encoded as base64 at a time; a multiple of three, so that only the last ones are padded.
const BLOCK: usize = 48 << 10;
/// Files of this size or more get the large form of zip.
const LARGE: u64 = 2 << 30;

type TextPart = Cursor<Vec<u8>>;

/// A readable stream of known length.
pub(crate) struct PackedStream {
    bytes: Chain<Chain<TextPart, Base64Reader<File>>, TextPart>,
    length: u64,
}

impl PackedStream {
    /// Packs a job whose arguments are `kwargs`. Blocks on the disk; needs room for its zip in the directory of temporary files.
    ///
    /// # Errors
    /// A file cannot be read, or there is no room.
    pub(crate) fn new(kwargs: &Map<String, Value>, tree: &Tree) -> io::Result<Self> {
        let mut zip = write_zip(tree, nameless_file()?)?;
        let size = zip.seek(SeekFrom::End(0))?;
        zip.rewind()?;
        let start = format!("{}\n{}\n", json!({"kwargs": kwargs}), json!({"zipfile": size}));
        let end = format!("{}\n", json!({"eof": true}));
        let length = start.len() as u64 + size.div_ceil(3) * 4 + end.len() as u64;
        let body = Base64Reader { inner: zip, block: Vec::new(), at: 0 };
        Ok(Self {
            bytes: Cursor::new(start.into_bytes()).chain(body).chain(Cursor::new(end.into_bytes())),
            length,
        })
    }

    /// Number of its bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }
}

impl Read for PackedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.bytes.read(buffer)
    }
}

/// Blocks while it reads a local file, which takes no longer than the node takes to accept the bytes.
impl AsyncRead for PackedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = self.bytes.read(buffer.initialize_unfilled())?;
        buffer.advance(count);
        Poll::Ready(Ok(()))
    }
}

/// A file that only this process can open, and that is gone when the process ends.
///
/// # Errors
/// Those of the directory of temporary files.
pub(crate) fn nameless_file() -> io::Result<File> {
    let name = format!(".meshd-{:016x}", rand::random::<u64>());
    let path = std::env::temp_dir().join(name);
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

fn write_zip(tree: &Tree, file: File) -> io::Result<File> {
    let mut zip = ZipWriter::new(io::BufWriter::new(file));
    let zone = TimeZone::system();
    for (name, entry) in tree.entries() {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .unix_permissions(entry.mode)
            .last_modified_time(local_time(entry, &zone));
        match &entry.content {
            Content::Directory => zip.add_directory(name, options)?,
            Content::Link(target) => zip.add_symlink(name, target, options)?,
            Content::Text(text) => {
                zip.start_file(name, options)?;
                zip.write_all(text)?;
            }
            Content::File(path, size) => {
                zip.start_file(name, options.large_file(*size >= LARGE))?;
                let copied =
                    regular_file::open_without_links(path).and_then(|mut file| io::copy(&mut file, &mut zip));
                copied.map_err(|error| {
                    io::Error::new(error.kind(), format!("cannot pack {}: {error}", path.display()))
                })?;
            }
        }
    }
    Ok(zip.finish()?.into_inner()?)
}

/// The time in this machine's zone, because zips know no zones, and the runner restores times in its own machine's
/// zone.
fn local_time(entry: &Packed, zone: &TimeZone) -> DateTime {
    let time = zone.to_datetime(entry.modified);
    let part = |number: i8| u8::try_from(number).unwrap_or(0);
    let (year, month, day) = (u16::try_from(time.year()).unwrap_or(0), part(time.month()), part(time.day()));
    let time = DateTime::from_date_and_time(
        year,
        month,
        day,
        part(time.hour()),
        part(time.minute()),
        part(time.second()),
    );
    time.unwrap_or_default()
}

/// Reads bytes as base64.
struct Base64Reader<R> {
    inner: R,
    block: Vec<u8>,
    at: usize,
}

impl<R: Read> Read for Base64Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.block.len() {
            let mut raw = Vec::with_capacity(BLOCK);
            self.inner.by_ref().take(BLOCK as u64).read_to_end(&mut raw)?;
            self.block = STANDARD.encode(raw).into_bytes();
            self.at = 0;
        }
        let length = buffer.len().min(self.block.len() - self.at);
        buffer[..length].copy_from_slice(&self.block[self.at..self.at + length]);
        self.at += length;
        Ok(length)
    }
}
