//! The files of a job by their paths in the stream, in order. Holds names and metadata; contents stay on disk until
//! they are written, except those that flags made.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, FileType, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::PackError;

/// The most names listed of things that are left out.
const TOLD: usize = 5;
/// An entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packed {
    pub content: Content,
    /// Permission bits.
    pub mode: u32,
    pub modified: Timestamp,
}

/// What an entry holds.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Content {
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
pub(crate) struct Tree {
    entries: BTreeMap<String, Packed>,
    /// FIFOs, sockets and devices, which cannot be sent.
    left_out: BTreeSet<String>,
    /// How many entries there may be.
    most: Option<usize>,
}

impl Tree {
    /// An empty tree of at most so many entries.
    pub(crate) fn bounded(most: Option<usize>) -> Self {
        Self { most, ..Self::default() }
    }

    /// All entries in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &Packed)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// Whether there is an entry of that path.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Removes a directory with all that is in it.
    pub(crate) fn remove(&mut self, directory: &str) {
        let below = format!("{directory}/");
        self.entries.retain(|name, _| name != directory && !name.starts_with(&below));
        self.left_out.retain(|name| !name.starts_with(&below));
    }

    /// A warning that names things that are left out.
    pub(crate) fn omission(&self) -> Option<String> {
        let names: Vec<&str> = self.left_out.iter().map(String::as_str).take(TOLD).collect();
        let (count, names) = (self.left_out.len(), names.join(", "));
        (count > 0).then(|| format!("FIFOs, sockets and devices cannot be sent, {count} left out: {names}"))
    }

    /// How many files it has, and how many bytes, before they are read.
    pub(crate) fn bulk(&self) -> (u64, u64) {
        let size = |entry: &Packed| match &entry.content {
            Content::File(_, size) => Some(*size),
            Content::Directory | Content::Text(_) | Content::Link(_) => None,
        };
        self.entries.values().filter_map(size).fold((0, 0), |(files, bytes), size| (files + 1, bytes + size))
    }

    /// Adds what is in a directory, below `prefix` (empty for the top), except the names in `without`. FIFOs, sockets
    /// and devices are left out; symbolic links stay links.
    ///
    /// # Errors
    /// Something cannot be read, has no name in UTF-8, or is in the tree already.
    pub(crate) fn add_directory(
        &mut self,
        root: &Path,
        prefix: &str,
        without: &[&str],
    ) -> Result<(), PackError> {
        // A link to a directory is followed, as the shell would. Nothing below it is.
        let root = &root.canonicalize().map_err(PackError::unreadable(root))?;
        let mut left = vec![(root.clone(), prefix.to_owned())];
        while let Some((directory, prefix)) = left.pop() {
            for found in fs::read_dir(&directory).map_err(PackError::unreadable(&directory))? {
                let found = found.map_err(PackError::unreadable(&directory))?;
                let name = found.file_name();
                let name = name.to_str().ok_or_else(|| PackError::Name(found.path()))?;
                if without.contains(&name) {
                    continue;
                }
                if let Some(most) = self.most.filter(|most| self.entries.len() >= *most) {
                    let (path, what) = (root.to_owned(), "files");
                    return Err(PackError::TooMuch { path, most: most as u64, what });
                }
                let name = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
                if self.add(&found.path(), &name)?.is_some_and(|kind| kind.is_dir()) {
                    left.push((found.path(), name));
                }
            }
        }
        Ok(())
    }

    /// Adds a file, a link or a directory without its content. Returns its kind if it can be packed.
    pub(crate) fn add(&mut self, path: &Path, name: &str) -> Result<Option<FileType>, PackError> {
        let facts = fs::symlink_metadata(path).map_err(PackError::unreadable(path))?;
        let kind = facts.file_type();
        let content = if kind.is_dir() {
            Content::Directory
        } else if kind.is_symlink() {
            let target = fs::read_link(path).map_err(PackError::unreadable(path))?;
            let target = target.into_os_string().into_string();
            let target = target.map_err(|_| PackError::Target(path.to_owned()))?;
            Content::Link(target)
        } else if kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device() {
            self.left_out.insert(name.to_owned());
            return Ok(None);
        } else {
            Content::File(path.to_owned(), facts.len())
        };
        let entry = Packed { content, mode: facts.mode() & 0o777, modified: modified(&facts) };
        if self.entries.insert(name.to_owned(), entry).is_some() {
            return Err(PackError::Twice { path: path.to_owned(), name: name.to_owned() });
        }
        Ok(Some(kind))
    }

    /// Adds a directory for files that the flags make.
    pub(crate) fn make_directory(&mut self, name: &str) {
        let content = Content::Directory;
        self.entries.entry(name.to_owned()).or_insert(Packed {
            content,
            mode: 0o700,
            modified: Timestamp::now(),
        });
    }

    /// Adds a file that only its owner may read, replacing one of that name.
    pub(crate) fn make_file(&mut self, directory: &str, name: &str, text: Vec<u8>) {
        self.make_directory(directory);
        let entry = Packed { content: Content::Text(text), mode: 0o600, modified: Timestamp::now() };
        self.entries.insert(format!("{directory}/{name}"), entry);
    }
}

fn modified(facts: &Metadata) -> Timestamp {
    let time = facts.modified().ok().and_then(|time| Timestamp::try_from(time).ok());
    time.unwrap_or(Timestamp::UNIX_EPOCH)
}
