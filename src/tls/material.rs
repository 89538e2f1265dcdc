//! The contents of a profile's files: its own certificate, the trusted authorities, the revoked certificates.
//!
//! A material is read whole or not at all, so that a file which is just being written never takes the place
//! of a good one. This module knows nothing of handshakes, nor when to read again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use jiff::Timestamp;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, TrustAnchor};
use rustls::sign::CertifiedKey;
use webpki::CertRevocationList;

use super::error::{FileError, FileProblem, OldVersion, ProfileError};
use super::files::{self, wrong};
use super::fingerprint::Fingerprint;
use super::names::{Facts, Unreadable, bare_key};
use super::options::{Files, Settings};
use super::short_keys::LEAST_BITS;
use crate::wire::NodeId;

/// The state of a profile's files. It differs after any of them has changed.
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

/// Authorities.
#[derive(Debug, Default)]
pub(super) struct Authorities {
    pub(super) anchors: Vec<TrustAnchor<'static>>,
    /// Their certificates, unless they are the system's.
    pub(super) certificates: Vec<CertificateDer<'static>>,
    /// Keys of authorities whose RSA keys are shorter than is accepted of others.
    pub(super) short_keys: Vec<Vec<u8>>,
    /// Advice about authorities that are used only because an operator named them.
    warnings: Vec<String>,
}

/// Trusted authorities, revoked and blocked certificates.
#[derive(Debug)]
pub(super) struct Trust {
    pub(super) authorities: Authorities,
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
        let (authorities, anchors_from) = match &files.authorities {
            Some(path) => {
                (authorities(path).map_err(of(settings.authorities()))?, path.display().to_string())
            }
            None if settings.trusts_system() => {
                let anchors = system_anchors(settings)?;
                (Authorities { anchors, ..Authorities::default() }, "the system's bundle".to_owned())
            }
            None => (Authorities::default(), "(none configured)".to_owned()),
        };
        let name =
            |path: &Option<PathBuf>| path.as_ref().map_or_else(String::new, |p| p.display().to_string());
        let crls = files.crl.as_deref().map_or(Ok(Vec::new()), files::revocation_lists).map_err(of("crl"))?;
        let blocked = files.blocklist.as_deref().map_or(Ok(Vec::new()), files::blocklist);
        let trust = Trust {
            authorities,
            anchors_from,
            crls,
            crl_from: name(&files.crl),
            blocked: blocked.map_err(of("blocklist"))?,
            blocked_from: name(&files.blocklist),
        };
        Ok(Self { identity, trust })
    }

    /// What a person should know of the authorities.
    pub(super) fn authority_warnings(&self) -> impl Iterator<Item = String> {
        let file = &self.trust.anchors_from;
        self.trust.authorities.warnings.iter().map(move |warning| format!("{file}: {warning}"))
    }

    /// The end of the own certificate.
    pub(super) fn not_after(&self) -> Option<Timestamp> {
        Some(Facts::of(self.identity.as_ref()?.end_entity_cert().ok()?).ok()?.not_after)
    }

    /// The end of the own certificate, if it has expired or expires soon: a node that renews in time never gets there.
    pub(super) fn ends_soon(&self, now: Timestamp) -> Option<Timestamp> {
        let facts = Facts::of(self.identity.as_ref()?.end_entity_cert().ok()?).ok()?;
        facts.ends_soon(now).then_some(facts.not_after)
    }

    /// Advice about the own certificate, if it expires soon.
    pub(super) fn expiry_warning(&self, now: Timestamp) -> Option<String> {
        let end = self.ends_soon(now)?;
        let left = end.duration_since(now);
        Some(match left.as_hours() / 24 {
            _ if left.is_negative() => format!("has expired on {end}: peers refuse it, renew it"),
            days => format!("expires on {end}, in {days} days: renew it; it is reloaded without a restart"),
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
    let Facts { names, version, .. } = check_readable(cert, &chain).map_err(of("cert"))?;
    if version < 3 {
        let old = OldVersion { subject: names.subject, version };
        return Err(of("cert")(wrong(cert, FileProblem::OldVersion(old))));
    }
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

/// Checks that all certificates can be read; gives the facts of the first.
fn check_readable(path: &Path, chain: &[CertificateDer<'_>]) -> Result<Facts, FileError> {
    let read = |(at, certificate): (usize, &CertificateDer<'_>)| {
        let problem = |e: Unreadable| FileProblem::Certificate { number: at + 1, reason: e.to_string() };
        Facts::of(certificate).map_err(|e| wrong(path, problem(e)))
    };
    let all: Vec<Facts> = chain.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let wanted = "certificate";
    all.into_iter().next().ok_or_else(|| wrong(path, FileProblem::Nothing { wanted, found: Vec::new() }))
}

/// All authorities of a bundle. A certificate without the CA flag is used if it is self-issued and does not say that it
/// is no authority, because the operator who names it here vouches for it.
pub(super) fn authorities(path: &Path) -> Result<Authorities, FileError> {
    let mut found = Authorities { certificates: files::certificates(path)?, ..Authorities::default() };
    for (at, certificate) in found.certificates.iter().enumerate() {
        let unusable = |reason: String| wrong(path, FileProblem::Certificate { number: at + 1, reason });
        let facts = Facts::of(certificate).map_err(|e| unusable(e.to_string()))?;
        let subject = &facts.names.subject;
        if !facts.is_ca && (!facts.is_self_issued || facts.denies_ca) {
            return Err(wrong(path, FileProblem::NotAnAuthority(subject.clone())));
        }
        if !facts.is_ca {
            found.warnings.push(format!(
                "the certificate of {subject} has no CA flag (X.509 version {}): it is used as an authority because it is named here; `meshctl cert init` makes one with the flag",
                facts.version
            ));
        }
        if let Some(bits) = facts.rsa_bits.filter(|bits| *bits < LEAST_BITS) {
            found.short_keys.extend(bare_key(certificate));
            found.warnings.push(format!(
                "the authority {subject} has an RSA key of {bits} bits, which can be broken: it is used because it is named here; renew it with {LEAST_BITS} bits or more"
            ));
        }
        let anchor = webpki::anchor_from_trusted_cert(certificate).map_err(|e| unusable(format!("{e:?}")))?;
        found.anchors.push(anchor.to_owned());
    }
    Ok(found)
}

fn system_anchors(settings: &Settings) -> Result<Vec<TrustAnchor<'static>>, ProfileError> {
    let found = rustls_native_certs::load_native_certs();
    // Certificates in it that cannot be read are left out, because the operator did not choose the system's bundle.
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
