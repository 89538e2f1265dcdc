//! What an authority keeps, by kind and name: a file for each in its directory, or a row in the store that several control
//! nodes share.
//!
//! Owns how it is read and written. Of two control nodes that change the same, the second one is told, and changes nothing.
//! It refuses to know what a document says.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::JoinError;
use super::kept::KeptDocument;
use super::shared::SharedStore;
use crate::controller::store::StoredDocument;
use crate::os::acting::Acting;
use crate::os::regular_file::read_text;
use crate::os::replace::replace;

/// What is appended to the name of a directory once its documents are in the store.
const BROUGHT: &str = "in-store";

/// The documents of an authority.
pub(super) struct Documents {
    dir: PathBuf,
    shared: Option<SharedDocuments>,
}

struct SharedDocuments {
    store: SharedStore,
    /// The versions that were read here: a document is written over no other one.
    versions: RefCell<BTreeMap<(String, String), i64>>,
}

impl SharedDocuments {
    fn note(&self, document: StoredDocument) -> String {
        let StoredDocument { kind, name, version, body } = document;
        self.versions.borrow_mut().insert((kind, name), version);
        body
    }

    fn one(&self, kind: &str, name: &str) -> Result<Option<String>, JoinError> {
        let found = self.store.one(kind, name)?;
        if found.is_none() {
            self.versions.borrow_mut().insert((kind.to_owned(), name.to_owned()), 0);
        }
        Ok(found.map(|found| self.note(found)))
    }

    fn write(&self, kind: &str, name: &str, body: String) -> Result<(), JoinError> {
        let key = (kind.to_owned(), name.to_owned());
        if !self.versions.borrow().contains_key(&key) {
            self.one(kind, name)?;
        }
        let version = self.versions.borrow().get(&key).copied().unwrap_or_default();
        let (kind, name) = key.clone();
        if !self.store.write(StoredDocument { kind, name, version, body })? {
            return Err(JoinError::Raced);
        }
        // The first version has a number of the store's choice.
        let mut versions = self.versions.borrow_mut();
        match version {
            0 => versions.remove(&key),
            version => versions.insert(key, version + 1),
        };
        Ok(())
    }
}

impl Documents {
    /// Those in a directory, or in the store.
    pub(super) fn new(dir: &Path, shared: Option<&SharedStore>) -> Self {
        let shared = shared.cloned().map(|store| SharedDocuments { store, versions: RefCell::default() });
        Self { dir: dir.to_owned(), shared }
    }

    /// Brings what is in files of a kind to the store, once, if there is one.
    pub(super) fn bring<T: KeptDocument + Serialize>(&self, kind: &str) -> Result<(), JoinError> {
        let from = self.dir.join(kind);
        if self.shared.is_none() || !from.is_dir() {
            return Ok(());
        }
        for own in (Self { dir: self.dir.clone(), shared: None }).all::<T>(kind)? {
            let name = own.name().to_owned();
            let merged = match self.one::<T>(kind, &name)? {
                Some(known) => known.merged(own),
                None => own,
            };
            self.write(kind, &name, &merged)?;
        }
        let _acting = self.act()?;
        let to = self.dir.join(format!("{kind}.{BROUGHT}"));
        if to.exists() {
            fs::remove_dir_all(&to).map_err(JoinError::of(&to))?;
        }
        fs::rename(&from, &to).map_err(JoinError::of(&from))
    }

    /// Checks that documents of this kind are not in a store which nobody has named.
    pub(super) fn check_place(&self, kind: &str) -> Result<(), JoinError> {
        let (here, there) = (self.dir.join(kind), self.dir.join(format!("{kind}.{BROUGHT}")));
        if self.shared.is_some() || here.exists() || !there.exists() {
            return Ok(());
        }
        Err(JoinError::Unready(format!(
            "{}: what is known of nodes is in the store that control nodes share, and no such store is configured here: \
             configure it, or name the directory {} again if its files are to count",
            self.dir.display(),
            there.display()
        )))
    }

    /// All of a kind, by name.
    pub(super) fn all<T: KeptDocument>(&self, kind: &str) -> Result<Vec<T>, JoinError> {
        if let Some(shared) = &self.shared {
            let found = shared.store.all(kind)?.into_iter();
            return found.map(|one| self.read(kind, &one.name.clone(), &shared.note(one))).collect();
        }
        let (dir, _acting) = (self.dir.join(kind), self.act()?);
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => {
                entries.and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(JoinError::of(&dir))?
            }
        };
        let mut names: Vec<String> = entries
            .iter()
            .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".json").map(str::to_owned))
            .collect();
        names.sort();
        names.iter().filter_map(|name| self.one(kind, name).transpose()).collect()
    }

    /// One of them.
    pub(super) fn one<T: KeptDocument>(&self, kind: &str, name: &str) -> Result<Option<T>, JoinError> {
        let text = match &self.shared {
            Some(shared) => shared.one(kind, name)?,
            None => {
                let (path, _acting) = (self.path(kind, name), self.act()?);
                match read_text(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                    text => Some(text.map_err(JoinError::of(&path))?),
                }
            }
        };
        text.map(|text| self.read(kind, name, &text)).transpose()
    }

    fn read<T: KeptDocument>(&self, kind: &str, name: &str, text: &str) -> Result<T, JoinError> {
        let damaged = |reason: String| JoinError::Record { path: self.path(kind, name), reason };
        let value: T = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
        match value.name() == name {
            true => Ok(value),
            false => Err(damaged("it is about something else than its name says".to_owned())),
        }
    }

    /// Writes one, over the version that was read here.
    ///
    /// # Errors
    /// It cannot be written, or somebody else has written it since.
    pub(super) fn write<T: Serialize>(&self, kind: &str, name: &str, value: &T) -> Result<(), JoinError> {
        let path = self.path(kind, name);
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| JoinError::Record { path: path.clone(), reason: error.to_string() })?;
        if let Some(shared) = &self.shared {
            return shared.write(kind, name, text);
        }
        let (dir, _acting) = (self.dir.join(kind), self.act()?);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.map_err(JoinError::of(&dir))?;
        replace(&path, format!("{text}\n").as_bytes(), 0o600).map_err(JoinError::of(&path))
    }

    /// Removes one. Returns whether it was there.
    pub(super) fn remove(&self, kind: &str, name: &str) -> Result<bool, JoinError> {
        if let Some(SharedDocuments { store, versions }) = &self.shared {
            versions.borrow_mut().insert((kind.to_owned(), name.to_owned()), 0);
            return store.remove(kind, name);
        }
        let (path, _acting) = (self.path(kind, name), self.act()?);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            removed => removed.map(|()| true).map_err(JoinError::of(&path)),
        }
    }

    fn path(&self, kind: &str, name: &str) -> PathBuf {
        self.dir.join(kind).join(format!("{name}.json"))
    }

    /// The rights of the directory's owner: of the daemon, if it is the daemon's, also for root.
    fn act(&self) -> Result<Acting, JoinError> {
        Acting::as_owner_of(&self.dir).map_err(JoinError::of(&self.dir))
    }
}
