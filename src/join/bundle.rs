//! A bundle: one tar file, compressed or not, with the few small files that a node needs to join.
//!
//! Whoever sends a bundle decides every byte of it. So it is read into memory whole, within bounds, only plain
//! files count, and their names must stay below the bundle. Nothing is unpacked to disk. It refuses to know what
//! the files are for.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use flate2::read::GzDecoder;
use tar::{Archive, Builder, EntryType, Header};

use super::JoinError;
use crate::os::regular_file;
use crate::os::replace::replace;

/// The most files in a bundle; AWX's have nine.
const MAX_FILES: usize = 64;
/// The most bytes of one file; a bundle of all public authorities takes a quarter of this.
const MAX_FILE: u64 = 1 << 20;
/// The most bytes of the whole archive, once inflated.
const MAX_ALL: u64 = 8 << 20;
/// The most bytes of a name.
const MAX_NAME: usize = 256;
/// The first bytes of gzip data.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The files of a bundle, by name.
pub(crate) struct Bundle {
    files: BTreeMap<String, Vec<u8>>,
    /// Whether others than its owner may read the file, which holds a private key.
    pub(crate) is_exposed: bool,
}

impl Bundle {
    /// Reads a bundle. If one directory contains all files, their names are given without it.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub(crate) fn read(path: &Path) -> Result<Self, JoinError> {
        let file = regular_file::open(path).map_err(JoinError::of(path))?;
        let found = file.metadata().map_err(JoinError::of(path))?;
        let wrong = |reason: String| JoinError::Bundle { path: path.to_owned(), reason };
        let files = inflated(file).and_then(|bytes| entries(&bytes)).map_err(wrong)?;
        Ok(Self { files: without_top(files), is_exposed: found.mode() & 0o077 != 0 })
    }

    /// Whether it holds this file.
    pub(super) fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// Takes a file out of the bundle.
    pub(crate) fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        self.files.remove(name)
    }

    /// The names of the files that were not taken.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }
}

/// Writes a bundle that only its owner may read.
pub(crate) fn write(path: &Path, files: &[(&str, &str)], modified: u64) -> Result<(), JoinError> {
    let packed = pack(files, modified).and_then(|bytes| replace(path, &bytes, 0o600));
    packed.map_err(JoinError::of(path))
}

fn pack(files: &[(&str, &str)], modified: u64) -> io::Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    for (name, text) in files {
        let mut header = Header::new_ustar();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(modified);
        archive.append_data(&mut header, name, text.as_bytes())?;
    }
    archive.into_inner()
}

/// The bytes of the archive, at most [`MAX_ALL`].
fn inflated(file: File) -> Result<Vec<u8>, String> {
    let mut file = BufReader::new(file);
    let begin = io::BufRead::fill_buf(&mut file).map_err(|error| error.to_string())?;
    let mut reader: Box<dyn Read> = match begin.starts_with(&GZIP) {
        true => Box::new(GzDecoder::new(file)),
        false => Box::new(file),
    };
    let mut bytes = Vec::new();
    reader.by_ref().take(MAX_ALL + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    match bytes.len() as u64 > MAX_ALL {
        true => Err(format!("it holds more than {MAX_ALL} bytes, so it is not a bundle")),
        false => Ok(bytes),
    }
}

fn entries(bytes: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let not_tar = |error: io::Error| format!("it is not a bundle: {error}");
    let mut files = BTreeMap::new();
    for entry in Archive::new(bytes).entries().map_err(not_tar)? {
        let mut entry = entry.map_err(not_tar)?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let kind = entry.header().entry_type();
        if kind == EntryType::Directory || kind == EntryType::XGlobalHeader {
            continue;
        }
        let name = plain(&name)
            .ok_or_else(|| format!("{name:?} in it leads out of the bundle, or is not a name"))?;
        if kind != EntryType::Regular {
            return Err(format!("{name} in it is not a regular file"));
        }
        if entry.size() > MAX_FILE {
            return Err(format!("{name} in it has more than {MAX_FILE} bytes"));
        }
        if files.len() == MAX_FILES {
            return Err(format!("it holds more than {MAX_FILES} files"));
        }
        let mut contents = Vec::new();
        entry.read_to_end(&mut contents).map_err(not_tar)?;
        if files.insert(name.clone(), contents).is_some() {
            return Err(format!("{name} is in it twice"));
        }
    }
    match files.is_empty() {
        true => Err("it holds no files".to_owned()),
        false => Ok(files),
    }
}

/// The name, if it stays below its directory.
fn plain(name: &str) -> Option<String> {
    let name = name.strip_prefix("./").unwrap_or(name);
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    let is_fine = name.len() <= MAX_NAME
        && name.split('/').all(is_part)
        && !name.chars().any(|letter| letter.is_control() || letter == '\\');
    is_fine.then(|| name.to_owned())
}

fn without_top(files: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    let top = files.keys().next().and_then(|name| name.split_once('/')).map(|(top, _)| format!("{top}/"));
    match top.filter(|top| files.keys().all(|name| name.starts_with(top))) {
        Some(top) => {
            files.into_iter().map(|(name, contents)| (name[top.len()..].to_owned(), contents)).collect()
        }
        None => files,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// An archive of entries of any name, kind and size, also such as no honest program makes.
    fn archive(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut archive = Builder::new(Vec::new());
        for (name, kind, contents) in entries {
            let mut header = Header::new_ustar();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(contents.len() as u64);
            header.set_mode(0o600);
            if *kind == EntryType::Symlink || *kind == EntryType::Link {
                header.set_link_name("/etc/passwd").unwrap();
            }
            header.set_cksum();
            archive.append(&header, *contents).unwrap();
        }
        archive.into_inner().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Bundle, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.tar");
        std::fs::write(&path, bytes).unwrap();
        Bundle::read(&path).map_err(|error| error.to_string())
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_bundle_is_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.tar");
        write(&path, &[("one", "1"), ("two", "2")], 0).unwrap();
        let mut bundle = Bundle::read(&path).unwrap();
        assert!(!bundle.is_exposed);
        assert_eq!((bundle.take("one"), bundle.take("three")), (Some(b"1".to_vec()), None));
        assert_eq!(bundle.names().collect::<Vec<_>>(), ["two"]);
    }

    #[test]
    fn a_directory_around_all_files_is_left_out_also_of_a_compressed_one() {
        let file = EntryType::Regular;
        let entries: [(&str, EntryType, &[u8]); 3] = [
            ("./x_bundle/", EntryType::Directory, b""),
            ("x_bundle/a", file, b"a"),
            ("./x_bundle/b/c", file, b"c"),
        ];
        let bundle = read(&gzip(&archive(&entries))).unwrap();
        assert_eq!(bundle.names().collect::<Vec<_>>(), ["a", "b/c"]);
        assert!(bundle.is_exposed);
    }

    #[test]
    fn nothing_leads_out_of_a_bundle_and_nothing_in_it_is_large() {
        let file = EntryType::Regular;
        let large = vec![0; (MAX_FILE + 1) as usize];
        let names: Vec<String> = (0..=MAX_FILES).map(|number| format!("f{number}")).collect();
        let many: Vec<(&str, EntryType, &[u8])> =
            names.iter().map(|name| (name.as_str(), file, b"".as_slice())).collect();
        let cases: Vec<(Vec<u8>, &str)> = vec![
            (archive(&[("../evil", file, b"")]), "leads out of the bundle"),
            (archive(&[("a/../../evil", file, b"")]), "leads out of the bundle"),
            (archive(&[("/etc/passwd", file, b"")]), "leads out of the bundle"),
            (archive(&[("a\nb", file, b"")]), "or is not a name"),
            (archive(&[("a//b", file, b"")]), "or is not a name"),
            (archive(&[("node.key", EntryType::Symlink, b"")]), "node.key in it is not a regular file"),
            (archive(&[("node.key", EntryType::Link, b"")]), "not a regular file"),
            (archive(&[("node.key", EntryType::Char, b"")]), "not a regular file"),
            (archive(&[("node.key", EntryType::Fifo, b"")]), "not a regular file"),
            (archive(&[("a", file, b"1"), ("./a", file, b"2")]), "a is in it twice"),
            (archive(&[("a", file, &large)]), "more than 1048576 bytes"),
            (archive(&many), "more than 64 files"),
            (gzip(&vec![0; 64 << 20]), "more than 8388608 bytes"),
            (archive(&[]), "no files"),
            (archive(&[("a", file, b"1234")])[..514].to_vec(), "not a bundle"),
            (b"\x1f\x8bnot gzip".to_vec(), "b.tar: "),
            (vec![b'x'; 2048], "not a bundle"),
        ];
        for (bytes, expected) in cases {
            let error = read(&bytes).err().unwrap_or_else(|| panic!("{expected}: it was read"));
            assert!(error.contains(expected), "{error} is not {expected}");
        }
    }
}
