//! The contents of a profile's files: its own certificate, the trusted authorities, the revoked certificates.
//!
//! A material is read whole or not at all, so that a file which is just being written never takes the place
//! of a good one. It refuses to know handshakes and when to read again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use jiff::Timestamp;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, TrustAnchor};
use rustls::sign::CertifiedKey;
use webpki::CertRevocationList;

use super::error::{FileError, FileProblem, ProfileError};
use super::files::{self, wrong};
use super::fingerprint::Fingerprint;
use super::names::{Facts, Names};
use super::options::{Files, Settings};
use crate::wire::NodeId;

/// From how long before its end a certificate's expiry is warned of.
const WARN_BEFORE: jiff::SignedDuration = jiff::SignedDuration::from_hours(30 * 24);

/// Changes whenever a file does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp(Vec<Option<(SystemTime, u64, u64)>>);

impl Stamp {
    pub(super) fn of(files: &Files) -> Self {
        use std::os::unix::fs::MetadataExt;
        let look = |path: &Path| {
            let file = std::fs::metadata(path).ok()?;
            Some((file.modified().ok()?, file.len(), file.ino()))
        };
        Self(files.all().map(look).collect())
    }
}

/// Trusted authorities, revoked and blocked certificates.
#[derive(Debug)]
pub(super) struct Trust {
    pub(super) anchors: Vec<TrustAnchor<'static>>,
    /// The certificates of these authorities, unless they are the system's.
    pub(super) certificates: Vec<CertificateDer<'static>>,
    /// Where the authorities come from, for messages.
    pub(super) anchors_from: String,
    pub(super) crls: Vec<CertRevocationList<'static>>,
    pub(super) crl_from: String,
    pub(super) blocked: Vec<Fingerprint>,
    pub(super) blocked_from: String,
}

/// The contents of a profile's files.
#[derive(Debug)]
pub(super) struct Material {
    pub(super) identity: Option<Arc<CertifiedKey>>,
    pub(super) trust: Trust,
}

impl Material {
    /// Reads all files.
    ///
    /// # Errors
    /// The first thing that is wrong with them.
    pub(super) fn read(settings: &Settings, provider: &CryptoProvider) -> Result<Self, ProfileError> {
        let files = &settings.files;
        let of = |parameter| {
            move |source| ProfileError::File {
                directive: settings.directive,
                name: settings.name.clone(),
                parameter,
                source: Box::new(source),
            }
        };
        let identity = match &files.identity {
            Some((cert, key)) => Some(identity(cert, key, settings.node.as_ref(), &of, provider)?),
            None => None,
        };
        let ((anchors, certificates), anchors_from) = match &files.authorities {
            Some(path) => (anchors(path).map_err(of(settings.authorities()))?, path.display().to_string()),
            None if settings.trusts_system() => {
                ((system_anchors(settings)?, Vec::new()), "the system's bundle".to_owned())
            }
            None => ((Vec::new(), Vec::new()), "(none configured)".to_owned()),
        };
        let name =
            |path: &Option<PathBuf>| path.as_ref().map_or_else(String::new, |p| p.display().to_string());
        let crls = files.crl.as_deref().map_or(Ok(Vec::new()), files::revocation_lists).map_err(of("crl"))?;
        let blocked = files.blocklist.as_deref().map_or(Ok(Vec::new()), files::blocklist);
        let trust = Trust {
            anchors,
            certificates,
            anchors_from,
            crls,
            crl_from: name(&files.crl),
            blocked: blocked.map_err(of("blocklist"))?,
            blocked_from: name(&files.blocklist),
        };
        Ok(Self { identity, trust })
    }

    /// Advice about the own certificate, if it expires soon.
    pub(super) fn expiry_warning(&self, now: Timestamp) -> Option<String> {
        let facts = Facts::of(self.identity.as_ref()?.end_entity_cert().ok()?).ok()?;
        let left = facts.not_after.duration_since(now);
        if left.is_negative() {
            return Some(format!("has expired on {}: peers refuse it, renew it", facts.not_after));
        }
        (left < WARN_BEFORE).then(|| {
            let days = left.as_hours() / 24;
            format!(
                "expires on {}, in {days} days: renew it; it is reloaded without a restart",
                facts.not_after
            )
        })
    }
}

fn identity<F: FnOnce(FileError) -> ProfileError>(
    cert: &Path,
    key: &Path,
    node: Option<&NodeId>,
    of: &impl Fn(&'static str) -> F,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, ProfileError> {
    let chain = files::certificates(cert).map_err(of("cert"))?;
    let names = check_readable(cert, &chain).map_err(of("cert"))?;
    let secret = files::private_key(key).map_err(of("key"))?;
    let unusable = |e: rustls::Error| wrong(key, FileProblem::Key(reason(&e)));
    let signing = provider.key_provider.load_private_key(secret).map_err(unusable).map_err(of("key"))?;
    let certified = CertifiedKey::new(chain, signing);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
        Err(_) => return Err(of("key")(wrong(key, FileProblem::Mismatch(cert.to_owned())))),
    }
    if let Some(node) = node
        && !names.node_ids.iter().any(|id| id == node.as_str())
    {
        let problem = FileProblem::NotThisNode { expected: node.to_string(), found: Box::new(names) };
        return Err(of("cert")(wrong(cert, problem)));
    }
    Ok(Arc::new(certified))
}

/// Checks that all certificates can be read; gives the names of the first.
fn check_readable(path: &Path, chain: &[CertificateDer<'_>]) -> Result<Names, FileError> {
    let mut first = None;
    for (at, certificate) in chain.iter().enumerate() {
        let facts = Facts::of(certificate)
            .map_err(|e| wrong(path, FileProblem::Certificate { number: at + 1, reason: e.to_string() }))?;
        first.get_or_insert(facts.names);
    }
    Ok(first.unwrap_or_default())
}

/// Authorities, and their certificates.
type Anchors = (Vec<TrustAnchor<'static>>, Vec<CertificateDer<'static>>);

/// All authorities of a bundle.
pub(super) fn anchors(path: &Path) -> Result<Anchors, FileError> {
    let mut anchors = Vec::new();
    let certificates = files::certificates(path)?;
    for (at, certificate) in certificates.iter().enumerate() {
        let unusable = |reason: String| wrong(path, FileProblem::Certificate { number: at + 1, reason });
        let facts = Facts::of(certificate).map_err(|e| unusable(e.to_string()))?;
        if !facts.is_ca {
            return Err(wrong(path, FileProblem::NotAnAuthority(facts.names.subject)));
        }
        let anchor = webpki::anchor_from_trusted_cert(certificate).map_err(|e| unusable(format!("{e:?}")))?;
        anchors.push(anchor.to_owned());
    }
    Ok((anchors, certificates))
}

fn system_anchors(settings: &Settings) -> Result<Vec<TrustAnchor<'static>>, ProfileError> {
    let found = rustls_native_certs::load_native_certs();
    // The system's bundle is not ours to judge: what cannot be read of it is left out.
    let anchors: Vec<_> = found
        .certs
        .iter()
        .filter_map(|certificate| webpki::anchor_from_trusted_cert(certificate).ok().map(|a| a.to_owned()))
        .collect();
    if anchors.is_empty() {
        let reason = found.errors.first().map_or_else(|| "none found".to_owned(), ToString::to_string);
        let (directive, name, parameter) =
            (settings.directive, settings.name.clone(), settings.authorities());
        return Err(ProfileError::NoSystemRoots { directive, name, parameter, reason });
    }
    Ok(anchors)
}

fn reason(error: &rustls::Error) -> String {
    match error {
        rustls::Error::General(text) => text.clone(),
        other => other.to_string(),
    }
}
