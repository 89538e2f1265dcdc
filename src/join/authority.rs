//! The authority of a mesh: a directory that belongs to root, or to the daemon if that signs what it is asked for.
//!
//! Owns its files: `ca.crt`, `ca.key`, `ca.crl` (the revoked certificates), and the `documents` about each node,
//! invitation, host that asks and renewal that waits. Only one process of a host changes them at a time. It refuses to know
//! where else certificates and lists are put.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _, lchown};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};

use super::JoinError;
use super::asker::Asker;
use super::documents::Documents;
use super::invite::Invitation;
use super::offline::WaitingRenewal;
use super::place::DaemonAccount;
use super::record::{Issued, Record, check_name};
use super::request::{CertificateAnswer, CertificateRequest, Granted};
use super::rotation::{RotationStep, TrustingNode};
use super::shared::SharedStore;
use super::trusted::{TrustedAuthorities, list_signers};
use crate::os::acting::Acting;
use crate::os::hex;
use crate::os::regular_file::read_text;
use crate::os::replace::replace;
use crate::tls::crl::RevocationList;
use crate::tls::inspect::{self, VerifyingParty};
use crate::tls::make::{self, CertSubject, Dates, KeyKind};
use crate::tls::proof::{is_key_of, pem_blocks};
use crate::tls::{Facts, Role, proof};

pub(super) const CERTIFICATE: &str = "ca.crt";
const KEY: &str = "ca.key";
pub(super) const LIST: &str = "ca.crl";
const NODES: &str = "nodes";
const INVITES: &str = "invites";
const ASKERS: &str = "asking";
const RENEWALS: &str = "renewals";
const TRUSTING: &str = "trusting";
/// While there are two authorities, the key that came second, and its certificate by the first one.
const OTHER_KEY: &str = "other.key";
const CROSS: &str = "cross.crt";
pub(super) const TRUSTED: &str = "ca.signed";
/// The directories of its documents.
pub(super) const DOCUMENTS: [&str; 3] = [NODES, INVITES, ASKERS];
/// How far the clock of another host may be behind, if a tenth of the certificate's life is not less.
const BEHIND: Duration = Duration::from_secs(3600);
/// How long a certificate that has expired is known, and stays on the list if it was revoked: a link that was made with it
/// may still be up after its node has renewed it, and has to be cut as well.
const ENDED: Duration = Duration::from_secs(366 * 86_400);
/// How long what a list revoked stays revoked that no record knows: longer than a certificate may be expected to be valid.
const FORGOTTEN: Duration = Duration::from_secs(10 * 366 * 86_400);
/// How often a lock is tried that another process has.
const LOCK_LOOK: Duration = Duration::from_millis(10);
/// The kind of its keys, which all nodes can read, also receptor.
const KIND: KeyKind = KeyKind::EcdsaP256;

/// An authority. No other process changes it while this value lives.
pub(crate) struct Authority {
    dir: PathBuf,
    /// Its certificate, in PEM, and behind it that of another authority whose place it takes, or which takes its place.
    certificate: String,
    /// `None` if it is kept elsewhere.
    key: Option<String>,
    /// That authority's key.
    other_key: Option<String>,
    step: Option<RotationStep>,
    documents: Documents,
    _lock: File,
}

/// A certificate and its private key, in PEM.
pub(crate) struct Certified {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    /// The authority in a directory, if there is one.
    #[cfg(test)]
    pub(crate) fn open(dir: &Path) -> Result<Option<Self>, JoinError> {
        Self::open_in(dir, None, None)
    }

    /// The authority in a directory, if there is one; with its documents in the store that control nodes share, if they do,
    /// and without waiting longer than this for another process that changes it.
    pub(crate) fn open_in(
        dir: &Path,
        shared: Option<&SharedStore>,
        limit: Option<Duration>,
    ) -> Result<Option<Self>, JoinError> {
        if !dir.join(CERTIFICATE).try_exists().map_err(JoinError::of(dir))? {
            return Ok(None);
        }
        let lock = lock(dir, limit)?;
        let acting = Acting::as_owner_of(dir).map_err(JoinError::of(dir))?;
        let read = |name: &str| {
            let path = dir.join(name);
            match read_text(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && name != CERTIFICATE => Ok(None),
                text => text.map(Some).map_err(JoinError::of(&path)),
            }
        };
        let certificate = read(CERTIFICATE)?.unwrap_or_default();
        let (mut key, mut other_key) = (read(KEY)?, read(OTHER_KEY)?);
        drop(acting);
        // The key that came second is that of the signer from the second step on.
        let is_second = other_key.as_ref().is_some_and(|other| is_key_of(other, &certificate));
        if is_second {
            std::mem::swap(&mut key, &mut other_key);
        }
        let has_two = pem_blocks(&certificate, "CERTIFICATE").len() > 1;
        let step = (has_two && other_key.is_some()).then_some(if is_second {
            RotationStep::Renewing
        } else {
            RotationStep::Trusting
        });
        let documents = Documents::new(dir, shared);
        documents.check_place(NODES)?;
        documents.bring::<Record>(NODES)?;
        documents.bring::<Invitation>(INVITES)?;
        documents.bring::<Asker>(ASKERS)?;
        documents.bring::<WaitingRenewal>(RENEWALS)?;
        documents.bring::<TrustingNode>(TRUSTING)?;
        let this = Self { dir: dir.to_owned(), certificate, key, other_key, step, documents, _lock: lock };
        if this.other_key.is_some() && !has_two {
            this.end_rotation()?;
        }
        // An authority made by hand has no list yet.
        if this.key.is_some() && !dir.join(LIST).try_exists().map_err(JoinError::of(dir))? {
            this.write_list(Timestamp::now())?;
        }
        Ok(Some(this))
    }

    /// Makes an authority, for the mesh of this node.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn create(dir: &Path, node: &str, now: Timestamp) -> Result<Self, JoinError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(JoinError::of(dir))?;
        let lock = lock(dir, None)?;
        let key = make::private_key(KIND)?;
        let certificate = make::authority(&format!("mesh of {node}"), &key, Dates::default(), now)?;
        let documents = Documents::new(dir, None);
        let (key, other_key, step) = (Some(key), None, None);
        let this = Self { dir: dir.to_owned(), certificate, key, other_key, step, documents, _lock: lock };
        // The certificate comes last, because it makes the directory an authority.
        this.write(KEY, this.key()?, 0o600)?;
        this.write_list(now)?;
        this.write(CERTIFICATE, &this.certificate, 0o644)?;
        Ok(this)
    }

    fn key(&self) -> Result<&str, JoinError> {
        self.key.as_deref().ok_or_else(|| {
            let text = "the authority's key is not there: do this on the host that has it";
            JoinError::Unready(format!("{}: {text}", self.dir.join(KEY).display()))
        })
    }

    /// Which step of a rotation it is in.
    pub(super) fn step(&self) -> Option<RotationStep> {
        self.step
    }

    /// Goes on to the next step of a rotation, or begins one. Whatever happens in between, the step is the former one or
    /// the next.
    ///
    /// # Errors
    /// A file cannot be written, or the key is on another host.
    pub(crate) fn rotate(mut self, node: &str, now: Timestamp) -> Result<(), JoinError> {
        let key = self.key()?.to_owned();
        let all: Vec<String> =
            pem_blocks(&self.certificate, "CERTIFICATE").iter().map(|one| format!("{one}\n")).collect();
        let own = all.first().cloned().unwrap_or_default();
        let (step, former) = (self.step, self.known_list());
        let number = u64::try_from(now.as_millisecond()).unwrap_or_default();
        let number = number.max(self.trusted_number().saturating_add(1));
        match step {
            None => {
                let (name, new) = (format!("mesh of {node} of {now}"), make::private_key(KIND)?);
                let dates = Dates { not_before: now.checked_sub(BEHIND).ok(), not_after: None };
                let certificate = make::authority(&name, &new, dates, now)?;
                let cross = make::cross_certificate((&name, &new), (&own, &key), dates, now)?;
                self.write(KEY, &key, 0o600)?;
                self.write(OTHER_KEY, &new, 0o600)?;
                self.write(CROSS, &cross, 0o644)?;
                self.certificate = format!("{own}{certificate}");
                self.other_key = Some(new);
            }
            Some(RotationStep::Trusting) => {
                self.certificate = all.into_iter().rev().collect();
                std::mem::swap(&mut self.key, &mut self.other_key);
            }
            Some(RotationStep::Renewing) => {
                self.certificate = own;
                self.other_key = None;
            }
        }
        // The certificates decide which step it is, so they come when the rest is ready for it.
        let trusted = TrustedAuthorities { number, certificates: self.certificate.clone() };
        // By the former one, as long as it is trusted: nodes that never trusted it cannot be told to do so later.
        let signer = if step == Some(RotationStep::Trusting) { &self.other_key } else { &self.key };
        let signer = signer.as_deref().unwrap_or_default();
        self.write(TRUSTED, &trusted.sign(signer)?, 0o644)?;
        if step != Some(RotationStep::Renewing) {
            self.write_list_after(former, now)?;
            return self.write(CERTIFICATE, &self.certificate, 0o644);
        }
        self.write(CERTIFICATE, &self.certificate, 0o644)?;
        self.end_rotation()?;
        self.write_list_after(former, now)
    }

    /// Deletes what is left of the former authority. A start goes on with it that comes after a stop in between.
    fn end_rotation(&self) -> Result<(), JoinError> {
        self.write(KEY, self.key()?, 0o600)?;
        for name in [CROSS, OTHER_KEY] {
            let (path, _acting) = (self.dir.join(name), self.act()?);
            match fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(JoinError::of(&path))?,
            }
        }
        Ok(())
    }

    /// The number of what nodes are told of the authorities; 0 before the first rotation.
    pub(super) fn trusted_number(&self) -> u64 {
        TrustedAuthorities::read(&self.read_own(TRUSTED), &self.certificate)
            .map_or(0, |trusted| trusted.number)
    }

    /// A file of the directory, read with the rights of its owner; nothing if it cannot be read.
    fn read_own(&self, name: &str) -> String {
        self.act().ok().and_then(|_acting| read_text(&self.dir.join(name)).ok()).unwrap_or_default()
    }

    /// The hash of the key that signs new certificates, in hexadecimal.
    pub(super) fn signer(&self) -> Result<String, JoinError> {
        Ok(hex::print(&proof::key_of_certificate(&self.certificate)?))
    }

    pub(super) fn trusting(&self) -> Result<Vec<TrustingNode>, JoinError> {
        self.documents.all(TRUSTING)
    }

    pub(super) fn trusting_node(&self, node: &str) -> Result<Option<TrustingNode>, JoinError> {
        check_name(node)?;
        self.documents.one(TRUSTING, node)
    }

    pub(super) fn write_trusting(&self, node: &TrustingNode) -> Result<(), JoinError> {
        self.documents.write(TRUSTING, &node.node, node)
    }

    /// Its own certificate, in PEM.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Its directory.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of the list of revoked certificates.
    pub(crate) fn list_path(&self) -> PathBuf {
        self.dir.join(LIST)
    }

    /// The list of revoked certificates, in PEM.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn list(&self) -> Result<String, JoinError> {
        let (path, _acting) = (self.list_path(), self.act()?);
        read_text(&path).map_err(JoinError::of(&path))
    }

    /// The records of all nodes, by name.
    ///
    /// # Errors
    /// A record that cannot be read.
    pub(crate) fn records(&self) -> Result<Vec<Record>, JoinError> {
        self.documents.all(NODES)
    }

    /// The record of a node.
    ///
    /// # Errors
    /// The record cannot be read.
    pub(crate) fn record(&self, node: &str) -> Result<Option<Record>, JoinError> {
        check_name(node)?;
        self.documents.one(NODES, node)
    }

    /// Makes a certificate with the names of a node, and records it if `is_fit` finds nothing wrong with it.
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
        let certificate = make::sign(&request, &self.certificate, self.key()?, Dates::default(), now)?;
        let certificate = certificate + &self.cross();
        is_fit(&certificate)?;
        self.note_certificate(record, &certificate, None, now)?;
        Ok(Certified { certificate, key })
    }

    /// Makes a certificate with the names of a node for the key of a request, and records it. What else the request asks
    /// for is not granted.
    ///
    /// # Errors
    /// It cannot be made, or the record cannot be written.
    pub(super) fn certify_request(
        &self,
        record: &mut Record,
        request: &str,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<String, JoinError> {
        let key = hex::print(&proof::key_of_request(request)?);
        let known = |issued: &&Issued| {
            issued.key.as_ref() == Some(&key) && issued.revoked.is_none() && issued.not_after > now
        };
        // The same key gets the same certificate: its answer got lost, or somebody sends the request again.
        if let Some(certificate) =
            record.certificates.iter().rev().find(known).and_then(|one| one.certificate.clone())
        {
            return Ok(certificate);
        }
        let not_after = Some(now.checked_add(lifetime).unwrap_or(Timestamp::MAX));
        // The clocks of other hosts may be behind.
        let not_before = now.checked_sub(BEHIND.min(lifetime / 10)).ok();
        let (names, dates) = (subject(record), Dates { not_before, not_after });
        let certificate = make::sign_names(request, &names, &self.certificate, self.key()?, dates, now)?;
        let certificate = certificate + &self.cross();
        self.note_certificate(record, &certificate, Some(key), now)?;
        Ok(certificate)
    }

    /// What nodes that know the former authority alone need to trust the new one's certificates.
    fn cross(&self) -> String {
        match self.step {
            Some(RotationStep::Renewing) => {
                let text = self.read_own(CROSS);
                let own = pem_blocks(&text, "CERTIFICATE").first().map(|one| format!("{one}\n"));
                own.unwrap_or_default()
            }
            Some(RotationStep::Trusting) | None => String::new(),
        }
    }

    fn note_certificate(
        &self,
        record: &mut Record,
        certificate: &str,
        key: Option<String>,
        now: Timestamp,
    ) -> Result<(), JoinError> {
        let Facts { serial, not_after, .. } = facts(certificate)?;
        record.forget(now, ENDED);
        let certificate = key.is_some().then(|| certificate.to_owned());
        let by = Some(self.signer()?);
        record.certificates.push(Issued { serial, not_after, revoked: None, key, certificate, by });
        self.write_record(record)
    }

    /// Whether a certificate in PEM is one of this authority's for this node, valid now and not revoked; else why not.
    ///
    /// # Errors
    /// The authority's files cannot be used.
    pub(super) fn check(&self, certificate: &str, node: &str) -> Result<Result<(), String>, JoinError> {
        let (authorities, list) = (self.dir.join(CERTIFICATE), self.list_path());
        let verifier = VerifyingParty::by_authorities(&authorities, Some(&list), Role::Client);
        let verifier = verifier.map_err(|error| JoinError::Unready(error.to_string()))?;
        Ok(inspect::verify_text(&verifier, certificate, node).map_err(|error| error.to_string()))
    }

    /// Grants a request in this authority's name.
    pub(super) fn grant(
        &self,
        request: &CertificateRequest,
        granted: &Granted,
    ) -> Result<CertificateAnswer, JoinError> {
        request.grant(granted, self.key()?)
    }

    /// The invitation of a node, if it has one.
    ///
    /// # Errors
    /// It cannot be read, or no node can have this name.
    pub(crate) fn invite(&self, node: &str) -> Result<Option<Invitation>, JoinError> {
        check_name(node)?;
        self.documents.one(INVITES, node)
    }

    /// All invitations, by the names of nodes.
    ///
    /// # Errors
    /// One that cannot be read.
    pub(crate) fn invites(&self) -> Result<Vec<Invitation>, JoinError> {
        self.documents.all(INVITES)
    }

    /// Keeps an invitation, in place of a former one for its node.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write_invite(&self, invite: &Invitation) -> Result<(), JoinError> {
        self.documents.write(INVITES, &invite.record.node, invite)
    }

    /// The hosts that ask without a token.
    pub(super) fn askers(&self) -> Result<Vec<Asker>, JoinError> {
        self.documents.all(ASKERS)
    }

    /// Keeps what is known of a host that asks.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write_asker(&self, asker: &Asker) -> Result<(), JoinError> {
        self.documents.write(ASKERS, &asker.key, asker)
    }

    /// Forgets a host that asked with this key. Returns whether it was known.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn remove_asker(&self, key: &str) -> Result<bool, JoinError> {
        self.documents.remove(ASKERS, key)
    }

    /// The renewals that wait for the key, or whose nodes have not fetched them.
    ///
    /// # Errors
    /// One that cannot be read.
    pub(crate) fn renewals(&self) -> Result<Vec<WaitingRenewal>, JoinError> {
        self.documents.all(RENEWALS)
    }

    pub(super) fn renewal(&self, node: &str) -> Result<Option<WaitingRenewal>, JoinError> {
        check_name(node)?;
        self.documents.one(RENEWALS, node)
    }

    pub(super) fn write_renewal(&self, renewal: &WaitingRenewal) -> Result<(), JoinError> {
        check_name(&renewal.node)?;
        self.documents.write(RENEWALS, &renewal.node, renewal)
    }

    /// Takes an invitation back. Returns whether there was one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn remove_invite(&self, node: &str) -> Result<bool, JoinError> {
        check_name(node)?;
        self.documents.remove(INVITES, node)
    }

    /// Revokes all certificates of a node; the list names them until they would have expired anyway.
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
        self.write_list_after(self.known_list(), now)
    }

    /// Writes the list that follows another one. What was revoked stays so, also if the records of it were lost.
    fn write_list_after(&self, former: Option<RevocationList>, now: Timestamp) -> Result<(), JoinError> {
        let (number, kept) = former.map_or((0, Vec::new()), |list| (list.number, list.revoked));
        self.sign_list(self.revoked(kept, now)?, number, now)
    }

    /// The list in force, if it is one.
    fn known_list(&self) -> Option<RevocationList> {
        RevocationList::read(&self.list().ok()?, &self.list_signers()).ok()
    }

    /// The certificates of those that sign each list.
    fn list_signers(&self) -> String {
        list_signers(&self.read_own(TRUSTED), &self.certificate)
    }

    fn sign_list(
        &self,
        revoked: BTreeMap<String, Timestamp>,
        former: u64,
        now: Timestamp,
    ) -> Result<(), JoinError> {
        let revoked: Vec<_> = revoked.into_iter().collect();
        // Higher than any before, also if the clock was set back.
        let number = u64::try_from(now.as_millisecond()).unwrap_or_default();
        let number = number.max(former.saturating_add(1));
        let certificates = pem_blocks(&self.certificate, "CERTIFICATE");
        let keys = [Some(self.key()?), self.other_key.as_deref()].into_iter().flatten();
        let lists = certificates
            .into_iter()
            .zip(keys)
            .map(|(certificate, key)| make::revocation_list(certificate, key, &revoked, number, now));
        self.write(LIST, &lists.collect::<Result<String, _>>()?, 0o644)
    }

    /// The serial numbers of what is revoked and would be valid otherwise, with the time: what the records say, and what was
    /// `kept` of lists.
    fn revoked(
        &self,
        kept: Vec<(String, Timestamp)>,
        now: Timestamp,
    ) -> Result<BTreeMap<String, Timestamp>, JoinError> {
        let ago = |time: Duration| now.saturating_sub(time).unwrap_or(now);
        let (ended, forgotten) = (ago(ENDED), ago(FORGOTTEN));
        let records = self.records()?;
        let issued = records.iter().flat_map(|record| &record.certificates);
        let known: BTreeMap<&String, &Issued> = issued.map(|issued| (&issued.serial, issued)).collect();
        let counts = |serial: &String, at: Timestamp| {
            known.get(serial).map_or(at > forgotten, |issued| issued.not_after > ended)
        };
        let own = known.values().filter_map(|issued| Some((issued.serial.clone(), issued.revoked?)));
        let all = kept.into_iter().chain(own).filter(|(serial, at)| counts(serial, *at));
        Ok(all.collect())
    }

    /// Takes in what a later list of this authority's revokes, which other nodes have kept: this directory was restored
    /// from a copy.
    ///
    /// # Errors
    /// It is not a later list of this authority's, or cannot be written.
    pub(super) fn adopt(&self, list: &str, now: Timestamp) -> Result<(), JoinError> {
        match self.take_list(list, now)? {
            true => Ok(()),
            false => Err(JoinError::Unready("the list is not a later one".to_owned())),
        }
    }

    /// The same. Returns whether it is a later one.
    pub(super) fn take_list(&self, list: &str, now: Timestamp) -> Result<bool, JoinError> {
        let later = RevocationList::read(list, &self.list_signers());
        let later = later.map_err(|why| JoinError::Unready(why.to_owned()))?;
        let own = self.known_list();
        if own.as_ref().is_some_and(|own| later.number <= own.number) {
            return Ok(false);
        }
        let kept = own.map_or_else(Vec::new, |own| own.revoked);
        let all = self.revoked(kept.into_iter().chain(later.revoked.iter().cloned()).collect(), now)?;
        // As it is, unless more is known here: two control nodes that make lists of the same would outdo each other for ever.
        let is_known = |serial: &String| later.revoked.iter().any(|(known, _)| known == serial);
        match all.keys().all(is_known) || self.key.is_none() {
            true => self.write(LIST, &later.text, 0o644)?,
            false => self.sign_list(all, later.number, now)?,
        }
        Ok(true)
    }

    pub(super) fn write_record(&self, record: &Record) -> Result<(), JoinError> {
        self.documents.write(NODES, &record.node, record)
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> Result<(), JoinError> {
        let _acting = self.act()?;
        let path = self.dir.join(name);
        replace(&path, text.as_bytes(), mode).map_err(JoinError::of(&path))
    }

    /// The rights of the directory's owner: of the daemon, if it is the daemon's, also for root.
    fn act(&self) -> Result<Acting, JoinError> {
        Acting::as_owner_of(&self.dir).map_err(JoinError::of(&self.dir))
    }

    /// Gives an authority of root's to the daemon, which then signs what it is asked for.
    ///
    /// # Errors
    /// A file cannot be given away.
    pub(crate) fn give(&self, DaemonAccount { user, group }: DaemonAccount) -> Result<(), JoinError> {
        // Nobody but root could put a link there so far.
        if fs::symlink_metadata(&self.dir).map_err(JoinError::of(&self.dir))?.uid() == user {
            return Ok(());
        }
        let within =
            |dir: &Path| fs::read_dir(dir).map(|all| all.flatten().map(|one| one.path()).collect::<Vec<_>>());
        let give = |path: &Path| lchown(path, Some(user), Some(group)).map_err(JoinError::of(path));
        for path in within(&self.dir).map_err(JoinError::of(&self.dir))? {
            if path.is_dir() && !path.is_symlink() {
                within(&path).map_err(JoinError::of(&path))?.iter().try_for_each(|file| give(file))?;
            }
            give(&path)?;
        }
        give(&self.dir)
    }
}

/// Checks that there is an authority in a directory, and that nobody but its owner can read the key; or that there is no
/// key, if that is kept elsewhere.
pub(super) fn check_private(dir: &Path, is_offline: bool) -> Result<(), JoinError> {
    [KEY, OTHER_KEY].iter().try_for_each(|name| check_key(dir, name, is_offline))
}

fn check_key(dir: &Path, name: &str, is_offline: bool) -> Result<(), JoinError> {
    let path = dir.join(name);
    let mode = match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return if name == OTHER_KEY || is_offline {
                Ok(())
            } else {
                Err(JoinError::NoAuthority(dir.to_owned()))
            };
        }
        Ok(_) if is_offline => {
            let text = "with `offline: true` the authority's key must not be on this host: move it away";
            return Err(JoinError::Unready(format!("{}: {text}", path.display())));
        }
        found => found.map_err(JoinError::of(&path))?.mode(),
    };
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(JoinError::Unready(format!(
            "{}: others can read the authority's key (mode {:o}), and with it pose as any node: chmod 600 it, and \
             make another authority if somebody may have read it",
            path.display(),
            mode & 0o777
        ))),
    }
}

/// What a certificate contains.
pub(super) fn facts(certificate: &str) -> Result<Facts, JoinError> {
    make::facts(certificate).map_err(JoinError::from)
}

fn subject(record: &Record) -> CertSubject {
    let (addresses, dns): (Vec<&String>, Vec<&String>) =
        record.hosts.iter().partition(|host| host.parse::<IpAddr>().is_ok());
    CertSubject {
        common_name: record.node.clone(),
        dns: dns.into_iter().cloned().collect(),
        addresses: addresses.into_iter().filter_map(|host| host.parse().ok()).collect(),
        node_ids: vec![record.node.clone()],
    }
}

/// Locks the authority: one process changes it at a time, and others wait.
fn lock(dir: &Path, limit: Option<Duration>) -> Result<File, JoinError> {
    let file = File::open(dir).map_err(JoinError::of(dir))?;
    let failed = |error: rustix::io::Errno| JoinError::of(dir)(error.into());
    let Some(limit) = limit else {
        flock(&file, FlockOperation::LockExclusive).map_err(failed)?;
        return Ok(file);
    };
    let begun = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if begun.elapsed() < limit => sleep(LOCK_LOOK),
            Err(error) => return Err(failed(error)),
        }
    }
}
