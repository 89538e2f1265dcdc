//! Looks at certificate files for people: what is in them, and whether a node would accept them.
//!
//! Judges by the function that handshakes use. Prints nothing.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};

use super::error::{FileError, FileProblem, ProfileError, Rejection};
use super::files::{self, wrong};
use super::fingerprint::Fingerprint;
use super::material::{self, Trust};
use super::names::Facts;
use super::options::{ClientOptions, ServerOptions};
use super::profile::{ClientProfile, Profile, ServerProfile};
use super::verify::{self, Demands, Expected, Role};
use crate::wire::NodeId;

/// Why a certificate would not be accepted.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A node would refuse it.
    #[error("refused: {0}")]
    Rejected(#[from] Rejection),
    /// No host has such a name.
    #[error("{0:?} is not a host name")]
    Host(String),
    /// No node has such an ID.
    #[error("{0}")]
    Node(#[from] crate::wire::InvalidNodeId),
}

/// All certificates of a file, each with its SHA-256.
///
/// # Errors
/// A file that holds none, or one that cannot be read.
pub fn certificates(path: &Path) -> Result<Vec<(Facts, String)>, FileError> {
    let all = files::certificates(path)?;
    let read = |(at, certificate): (usize, &CertificateDer<'_>)| {
        let facts = Facts::of(certificate)
            .map_err(|e| wrong(path, FileProblem::Certificate { number: at + 1, reason: e.to_string() }))?;
        Ok((facts, Fingerprint::sha256(certificate).to_string()))
    };
    all.iter().enumerate().map(read).collect()
}

/// A party that verifies certificates.
#[derive(Debug)]
pub struct VerifyingParty(By);

#[derive(Debug)]
enum By {
    /// A `tls-server` verifies the certificates of clients, a `tls-client` those of servers.
    Profile(Arc<Profile>),
    /// Bare authorities, for certificates of owners in this role.
    Authorities(Box<Trust>, Role),
}

impl VerifyingParty {
    /// Verifies as this `tls-server` does.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn by_server(options: ServerOptions) -> Result<Self, ProfileError> {
        ServerProfile::open(options, None).map(|profile| Self(By::Profile(profile.0)))
    }

    /// Verifies as this `tls-client` does.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn by_client(options: ClientOptions) -> Result<Self, ProfileError> {
        ClientProfile::open(options, None).map(|profile| Self(By::Profile(profile.0)))
    }

    /// Verifies only by the files of authorities and of revocation lists.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn by_authorities(authorities: &Path, crl: Option<&Path>, role: Role) -> Result<Self, FileError> {
        let trust = Trust {
            authorities: material::authorities(authorities)?,
            anchors_from: authorities.display().to_string(),
            crls: crl.map_or(Ok(Vec::new()), files::revocation_lists)?,
            crl_from: crl.map_or_else(String::new, |path| path.display().to_string()),
            blocked: Vec::new(),
            blocked_from: String::new(),
        };
        Ok(Self(By::Authorities(Box::new(trust), role)))
    }
}

/// Whether the verifier would accept the certificate in `file` now. If a node or a host is named, the certificate must
/// name it.
pub fn verify(
    verifier: &VerifyingParty,
    file: &Path,
    node: Option<&str>,
    host: Option<&str>,
) -> Result<(), VerifyError> {
    let expected = match (node, host) {
        (Some(node), _) => Expected::Node(NodeId::new(node)?),
        (None, Some(host)) => Expected::Host(
            ServerName::try_from(host.to_owned()).map_err(|_| VerifyError::Host(host.to_owned()))?,
        ),
        (None, None) => Expected::Anyone,
    };
    judge(verifier, &expected, &files::certificates(file)?)
}

/// Whether the verifier would accept a certificate in PEM now, as that of this node.
///
/// # Errors
/// It would not, or there is no certificate.
pub fn verify_text(verifier: &VerifyingParty, certificate: &str, node: &str) -> Result<(), VerifyError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
    let chain = chain.unwrap_or_default();
    if chain.is_empty() {
        return Err(Rejection::Unusable("there is none".to_owned()).into());
    }
    judge(verifier, &Expected::Node(NodeId::new(node)?), &chain)
}

fn judge(
    verifier: &VerifyingParty,
    expected: &Expected,
    chain: &[CertificateDer<'_>],
) -> Result<(), VerifyError> {
    Ok(match &verifier.0 {
        By::Profile(profile) => profile.check(expected, chain),
        By::Authorities(trust, role) => {
            verify::check(trust, &Demands::default(), *role, expected, chain, Timestamp::now())
        }
    }?)
}
