//! The files of a job by their paths in the stream, in order. It holds names and facts; contents stay on disk
//! until they are written, but for those that the flags made.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, FileType, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::cli::exit::{Exit, Failure};
use crate::cli::table;

/// The most things that are named when they are left out.
const TOLD: usize = 5;
/// A job with more bytes or files than these may have more than its project: it is said.
const MANY_BYTES: u64 = 100 << 20;
const MANY_FILES: u64 = 10_000;

/// Something in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packed {
    pub content: Content,
    /// Permission bits.
    pub mode: u32,
    pub modified: Timestamp,
}

/// What it holds.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Content {
    Directory,
    /// A file on disk, and its size when it was found.
    File(PathBuf, u64),
    /// Made by a flag: often a secret.
    Text(Vec<u8>),
    /// A symbolic link.
    Link(String),
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory => f.write_str("Directory"),
            Self::File(path, size) => write!(f, "File({}, {size})", path.display()),
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Link(target) => write!(f, "Link({target})"),
        }
    }
}

/// The files of a job: a directory sorts before what is in it.
#[derive(Debug, Default)]
pub(super) struct Tree {
    entries: BTreeMap<String, Packed>,
    /// FIFOs, sockets and devices: what they hold is in no file.
    left_out: BTreeSet<String>,
}

impl Tree {
    /// All entries in order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &Packed)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// Whether there is something of that path.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Leaves out a directory with all that is in it.
    pub(super) fn remove(&mut self, directory: &str) {
        let below = format!("{directory}/");
        self.entries.retain(|name, _| name != directory && !name.starts_with(&below));
        self.left_out.retain(|name| !name.starts_with(&below));
    }

    /// What to say of the things that are left out.
    pub(super) fn omission(&self) -> Option<String> {
        let names: Vec<&str> = self.left_out.iter().map(String::as_str).take(TOLD).collect();
        let (count, names) = (self.left_out.len(), names.join(", "));
        (count > 0).then(|| format!("FIFOs, sockets and devices cannot be sent, {count} left out: {names}"))
    }

    /// What to say of very many files, before they are read.
    pub(super) fn bulk(&self) -> Option<String> {
        let size = |entry: &Packed| match &entry.content {
            Content::File(_, size) => Some(*size),
            Content::Directory | Content::Text(_) | Content::Link(_) => None,
        };
        let (mut files, mut bytes) = (0, 0);
        self.entries.values().filter_map(size).for_each(|size| (files, bytes) = (files + 1, bytes + size));
        (files > MANY_FILES || bytes > MANY_BYTES)
            .then(|| format!("all {files} files of the directory are sent, {}", table::size(bytes)))
    }

    /// Adds what is in a directory, below `prefix` (empty for the top), but for the names in `without`. FIFOs,
    /// sockets and devices are left out; symbolic links stay links.
    ///
    /// # Errors
    /// Something cannot be read, has no name in UTF-8, or is there already.
    pub(super) fn add_directory(
        &mut self,
        root: &Path,
        prefix: &str,
        without: &[&str],
    ) -> Result<(), Failure> {
        let mut left = vec![(root.to_owned(), prefix.to_owned())];
        while let Some((directory, prefix)) = left.pop() {
            let unreadable = |error| unreadable(&directory, &error);
            for found in fs::read_dir(&directory).map_err(unreadable)? {
                let found = found.map_err(unreadable)?;
                let name = found.file_name();
                let name = name.to_str().ok_or_else(|| {
                    Failure::new(
                        Exit::Failed,
                        format!("{:?}: its name is not UTF-8: rename it", found.path()),
                    )
                })?;
                if without.contains(&name) {
                    continue;
                }
                let name = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
                if self.add(&found.path(), &name)?.is_some_and(|kind| kind.is_dir()) {
                    left.push((found.path(), name));
                }
            }
        }
        Ok(())
    }

    /// Adds one thing, without what is in it. Returns its kind if it can be packed.
    pub(super) fn add(&mut self, path: &Path, name: &str) -> Result<Option<FileType>, Failure> {
        let facts = fs::symlink_metadata(path).map_err(|error| unreadable(path, &error))?;
        let kind = facts.file_type();
        let content = if kind.is_dir() {
            Content::Directory
        } else if kind.is_symlink() {
            let target = fs::read_link(path).map_err(|error| unreadable(path, &error))?;
            let target = target.into_os_string().into_string().map_err(|_| {
                Failure::new(Exit::Failed, format!("{}: its target is not UTF-8: rename it", path.display()))
            })?;
            Content::Link(target)
        } else if kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device() {
            self.left_out.insert(name.to_owned());
            return Ok(None);
        } else {
            Content::File(path.to_owned(), facts.len())
        };
        let entry = Packed { content, mode: facts.mode() & 0o777, modified: modified(&facts) };
        if self.entries.insert(name.to_owned(), entry).is_some() {
            let text = format!("{}: the job has another {name} already", path.display());
            return Err(Failure::usage(text));
        }
        Ok(Some(kind))
    }

    /// Adds a directory for files that the flags make.
    pub(super) fn make_directory(&mut self, name: &str) {
        let content = Content::Directory;
        self.entries.entry(name.to_owned()).or_insert(Packed {
            content,
            mode: 0o700,
            modified: Timestamp::now(),
        });
    }

    /// Adds a file that only its owner may read, instead of one that is there.
    pub(super) fn make_file(&mut self, directory: &str, name: &str, text: Vec<u8>) {
        self.make_directory(directory);
        let entry = Packed { content: Content::Text(text), mode: 0o600, modified: Timestamp::now() };
        self.entries.insert(format!("{directory}/{name}"), entry);
    }
}

fn modified(facts: &Metadata) -> Timestamp {
    let time = facts.modified().ok().and_then(|time| Timestamp::try_from(time).ok());
    time.unwrap_or(Timestamp::UNIX_EPOCH)
}

/// What was named, or is in what was named, cannot be read.
pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot read {}: {error}", path.display()))
}
