//! The authority of a mesh: a directory of root's, with a key that the daemon cannot read.
//!
//! Owns its files: `ca.crt`, `ca.key`, `ca.crl` (the revoked certificates) and `nodes/NAME.json`. One process at a time
//! changes them. It refuses to know where else certificates and lists are put.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};

use super::JoinError;
use super::record::{Issued, Record, check_name};
use crate::os::regular_file::read_text;
use crate::os::replace::replace;
use crate::tls::Facts;
use crate::tls::make::{self, Dates, KeyKind, Subject};

const CERTIFICATE: &str = "ca.crt";
const KEY: &str = "ca.key";
const LIST: &str = "ca.crl";
const NODES: &str = "nodes";
/// Nodes read it, receptor's among them.
const KIND: KeyKind = KeyKind::EcdsaP256;

/// An authority, which nobody else changes as long as this value lives.
pub(crate) struct Authority {
    dir: PathBuf,
    certificate: String,
    key: String,
    _lock: File,
}

/// A certificate and its private key, in PEM.
pub(crate) struct Certified {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    /// The authority in a directory, if one is there.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn open(dir: &Path) -> Result<Option<Self>, JoinError> {
        if !dir.join(CERTIFICATE).try_exists().map_err(JoinError::of(dir))? {
            return Ok(None);
        }
        let lock = lock(dir)?;
        let read = |name: &str| {
            let path = dir.join(name);
            read_text(&path).map_err(JoinError::of(&path))
        };
        let (certificate, key) = (read(CERTIFICATE)?, read(KEY)?);
        let this = Self { dir: dir.to_owned(), certificate, key, _lock: lock };
        // One that was made by hand has no list yet.
        if !dir.join(LIST).try_exists().map_err(JoinError::of(dir))? {
            this.write_list(Timestamp::now())?;
        }
        Ok(Some(this))
    }

    /// Makes one, for the mesh of this node.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn create(dir: &Path, node: &str, now: Timestamp) -> Result<Self, JoinError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(JoinError::of(dir))?;
        let lock = lock(dir)?;
        let key = make::private_key(KIND)?;
        let certificate = make::authority(&format!("mesh of {node}"), &key, Dates::default(), now)?;
        let this = Self { dir: dir.to_owned(), certificate, key, _lock: lock };
        // What makes it an authority comes last.
        this.write(KEY, &this.key, 0o600)?;
        this.write_list(now)?;
        this.write(CERTIFICATE, &this.certificate, 0o644)?;
        Ok(this)
    }

    /// Its own certificate, in PEM.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The file of the certificates that it has revoked.
    pub(crate) fn list_path(&self) -> PathBuf {
        self.dir.join(LIST)
    }

    /// The certificates that it has revoked, in PEM.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn list(&self) -> Result<String, JoinError> {
        let path = self.list_path();
        read_text(&path).map_err(JoinError::of(&path))
    }

    /// All nodes, by name.
    ///
    /// # Errors
    /// A record that cannot be read.
    pub(crate) fn records(&self) -> Result<Vec<Record>, JoinError> {
        let dir = self.dir.join(NODES);
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
        names.iter().filter_map(|name| self.record(name).transpose()).collect()
    }

    /// What it knows of a node.
    ///
    /// # Errors
    /// The record cannot be read.
    pub(crate) fn record(&self, node: &str) -> Result<Option<Record>, JoinError> {
        check_name(node)?;
        let path = self.record_path(node);
        let text = match read_text(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(JoinError::of(&path))?,
        };
        let damaged = |error: serde_json::Error| JoinError::Record { path, reason: error.to_string() };
        serde_json::from_str(&text).map(Some).map_err(damaged)
    }

    /// Makes a certificate with the names of a node, and notes it if `is_fit` finds nothing wrong with it.
    ///
    /// # Errors
    /// It cannot be made, is not fit, or the record cannot be written.
    pub(crate) fn certify(
        &self,
        record: &mut Record,
        now: Timestamp,
        is_fit: impl FnOnce(&str) -> Result<(), JoinError>,
    ) -> Result<Certified, JoinError> {
        let key = make::private_key(KIND)?;
        let request = make::request(&subject(record), &key)?;
        let certificate = make::sign(&request, &self.certificate, &self.key, Dates::default(), now)?;
        is_fit(&certificate)?;
        let facts = facts(&certificate)?;
        record.certificates.retain(|issued| issued.not_after > now);
        record.certificates.push(Issued { serial: facts.serial, not_after: facts.not_after, revoked: None });
        self.write_record(record)?;
        Ok(Certified { certificate, key })
    }

    /// Takes back all certificates of a node; the list names them until they would have ended anyway.
    ///
    /// # Errors
    /// The record or the list cannot be written.
    pub(crate) fn revoke(&self, record: &mut Record, now: Timestamp) -> Result<(), JoinError> {
        for issued in &mut record.certificates {
            issued.revoked.get_or_insert(now);
        }
        self.write_record(record)?;
        self.write_list(now)
    }

    fn write_list(&self, now: Timestamp) -> Result<(), JoinError> {
        let records = self.records()?;
        let issued = records.iter().flat_map(|record| &record.certificates);
        let counts = issued.filter(|issued| issued.not_after > now);
        let revoked: Vec<_> =
            counts.filter_map(|issued| Some((issued.serial.clone(), issued.revoked?))).collect();
        let list = make::revocation_list(&self.certificate, &self.key, &revoked, now)?;
        self.write(LIST, &list, 0o644)
    }

    fn write_record(&self, record: &Record) -> Result<(), JoinError> {
        let dir = self.dir.join(NODES);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.map_err(JoinError::of(&dir))?;
        let path = self.record_path(&record.node);
        let text = serde_json::to_string_pretty(record)
            .map_err(|error| JoinError::Record { path: path.clone(), reason: error.to_string() })?;
        replace(&path, format!("{text}\n").as_bytes(), 0o600).map_err(JoinError::of(&path))
    }

    fn record_path(&self, node: &str) -> PathBuf {
        self.dir.join(NODES).join(format!("{node}.json"))
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> Result<(), JoinError> {
        let path = self.dir.join(name);
        replace(&path, text.as_bytes(), mode).map_err(JoinError::of(&path))
    }
}

/// What a certificate says.
pub(super) fn facts(certificate: &str) -> Result<Facts, JoinError> {
    make::facts(certificate).map_err(JoinError::from)
}

fn subject(record: &Record) -> Subject {
    let (addresses, dns): (Vec<&String>, Vec<&String>) =
        record.hosts.iter().partition(|host| host.parse::<IpAddr>().is_ok());
    Subject {
        common_name: record.node.clone(),
        dns: dns.into_iter().cloned().collect(),
        addresses: addresses.into_iter().filter_map(|host| host.parse().ok()).collect(),
        node_ids: vec![record.node.clone()],
    }
}

/// Only one process changes an authority at a time; others wait for it.
fn lock(dir: &Path) -> Result<File, JoinError> {
    let file = File::open(dir).map_err(JoinError::of(dir))?;
    flock(&file, FlockOperation::LockExclusive).map_err(|error| JoinError::of(dir)(error.into()))?;
    Ok(file)
}
