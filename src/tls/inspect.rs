//! Looks at certificate files for people: what is in them, and whether a node would accept them.
//!
//! Judges by the very function that handshakes use. It prints nothing.

use std::path::Path;

use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, ServerName};

use super::error::{FileError, FileProblem, Rejection};
use super::files::{self, wrong};
use super::fingerprint::Fingerprint;
use super::material::{Trust, anchors};
use super::names::Facts;
use super::profile::{ClientProfile, ServerProfile};
use super::verify::{self, Demands, Expected, Role};
use crate::wire::NodeId;

/// What a certificate is to be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To be shown by a listener or a service.
    Server,
    /// To be shown by a dialer.
    Client,
}

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
    #[error("{0:?} is no host name")]
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
    let read = |(at, certificate): (usize, &rustls::pki_types::CertificateDer<'_>)| {
        let facts = Facts::of(certificate)
            .map_err(|e| wrong(path, FileProblem::Certificate { number: at + 1, reason: e.to_string() }))?;
        Ok((facts, Fingerprint::sha256(certificate).to_string()))
    };
    all.iter().enumerate().map(read).collect()
}

/// By whom a certificate is judged.
#[derive(Debug)]
pub enum Judge {
    /// A `tls-server`: judges what clients show.
    Server(ServerProfile),
    /// A `tls-client`: judges what servers show.
    Client(ClientProfile),
    /// Nobody's profile: bare authorities.
    Authorities(Authorities),
}

/// Authorities, and for what they judge.
#[derive(Debug)]
pub struct Authorities {
    trust: Trust,
    role: Role,
}

impl Judge {
    /// Judges by the files of authorities and of revocation lists alone.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn by_authorities(
        authorities: &Path,
        crl: Option<&Path>,
        purpose: Purpose,
    ) -> Result<Self, FileError> {
        let (anchors, certificates) = anchors(authorities)?;
        let trust = Trust {
            anchors,
            certificates,
            anchors_from: authorities.display().to_string(),
            crls: crl.map_or(Ok(Vec::new()), files::revocation_lists)?,
            crl_from: crl.map_or_else(String::new, |path| path.display().to_string()),
            blocked: Vec::new(),
            blocked_from: String::new(),
        };
        let role = match purpose {
            Purpose::Server => Role::Server,
            Purpose::Client => Role::Client,
        };
        Ok(Self::Authorities(Authorities { trust, role }))
    }

    fn check(&self, expected: &Expected, chain: &[CertificateDer<'_>]) -> Result<(), Rejection> {
        match self {
            Self::Server(profile) => profile.core.check(expected, chain),
            Self::Client(profile) => profile.core.check(expected, chain),
            Self::Authorities(Authorities { trust, role }) => {
                verify::check(trust, &Demands::default(), *role, expected, chain, Timestamp::now())
            }
        }
    }
}

/// Whether `judge` would accept the certificate in `file` now, from that node or host if one is named.
///
/// # Errors
/// Why not.
pub fn verify(judge: &Judge, file: &Path, node: Option<&str>, host: Option<&str>) -> Result<(), VerifyError> {
    let expected = match (node, host) {
        (Some(node), _) => Expected::Node(NodeId::new(node)?),
        (None, Some(host)) => Expected::Host(
            ServerName::try_from(host.to_owned()).map_err(|_| VerifyError::Host(host.to_owned()))?,
        ),
        (None, None) => Expected::Anyone,
    };
    Ok(judge.check(&expected, &files::certificates(file)?)?)
}
