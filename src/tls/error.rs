//! Errors in the files of a profile, and reasons to reject the certificate that a peer shows.
//!
//! Owns the texts: each says what was expected, what was found, in which file, and what to do. It decides
//! nothing.

use std::fmt;
use std::io;
use std::path::PathBuf;

use jiff::Timestamp;

use super::fingerprint::Fingerprint;
use super::names::Names;

/// A file of a profile is not what it should be.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// The problem.
    pub problem: FileProblem,
}

/// A certificate is older than what nodes can check.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the certificate of {subject} is of X.509 version {version}, which holds no names: make one with `meshctl cert makereq` and `meshctl cert signreq`, or give `openssl x509 -req` an -extfile with its subjectAltName"
)]
pub struct OldVersion {
    /// The certificate's subject.
    pub subject: String,
    /// 1 or 2.
    pub version: u32,
}

impl fmt::Debug for OldVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The problem with a file.
#[derive(Debug, thiserror::Error)]
pub enum FileProblem {
    /// It cannot be opened or read.
    #[error("cannot be read: {0}")]
    Read(#[source] io::Error),
    /// It cannot be written.
    #[error("cannot be written: {0}")]
    Write(#[source] io::Error),
    /// Larger than any such file is.
    #[error("is larger than {} MiB: is this the right file?", super::files::MAX_FILE >> 20)]
    TooLarge,
    /// Nothing of the wanted kind is in it.
    #[error("holds no {wanted}{}", found_instead(.found))]
    Nothing {
        /// The wanted kind, as `certificate`.
        wanted: &'static str,
        /// The kinds of PEM sections that are there.
        found: Vec<String>,
    },
    /// More than one private key, where there must be one.
    #[error("holds {count} private keys where one is needed: keep the one that belongs to the certificate")]
    SeveralKeys {
        /// How many there are.
        count: usize,
    },
    /// The PEM text is damaged.
    #[error("is damaged PEM: {0}; copy it again, with its BEGIN and END lines")]
    Pem(String),
    /// The key is protected by a passphrase.
    #[error("is encrypted, and a node has nobody to ask for the passphrase: decrypt it with `openssl pkey`")]
    Encrypted,
    /// The key cannot be used.
    #[error(
        "holds a private key that cannot be used: {0}; use RSA of 2048 to 8192 bits, ECDSA P-256, P-384 or P-521, or Ed25519"
    )]
    Key(String),
    /// A certificate cannot be read.
    #[error("certificate {number} in it cannot be used: {reason}")]
    Certificate {
        /// Its place in the file, from 1.
        number: usize,
        /// Why.
        reason: String,
    },
    /// The own certificate is too old.
    #[error(transparent)]
    OldVersion(OldVersion),
    /// The key does not belong to the certificate.
    #[error("its private key does not belong to the certificate in {}", .0.display())]
    Mismatch(PathBuf),
    /// The certificate does not name this node.
    #[error(
        "the certificate does not name this node: expected node {expected}, found {found}; make one with `meshctl cert makereq --nodeid {expected}`, or set skipreceptornamescheck"
    )]
    NotThisNode {
        /// The ID of this node.
        expected: String,
        /// The names in it.
        found: Box<Names>,
    },
    /// A certificate among the authorities that may not sign others.
    #[error(
        "the certificate of {0} in it is not one of an authority (it has no CA flag, and is not self-signed)"
    )]
    NotAnAuthority(String),
    /// The certificate has expired.
    #[error("the certificate of {subject} has expired on {end}: renew it")]
    Expired {
        /// The certificate's subject.
        subject: String,
        /// The end of its validity.
        end: Timestamp,
    },
    /// A revocation list cannot be read.
    #[error("revocation list {number} in it cannot be used: {reason}")]
    RevocationList {
        /// Its place in the file, from 1.
        number: usize,
        /// Why.
        reason: String,
    },
    /// A line of a blocklist is no fingerprint.
    #[error("line {line}: {reason}")]
    BlocklistLine {
        /// The line, from 1.
        line: usize,
        /// Why.
        reason: &'static str,
    },
}

fn found_instead(found: &[String]) -> String {
    match found {
        [] => ": it has no PEM section at all".to_owned(),
        kinds => format!(": it has {}", kinds.join(", ")),
    }
}

/// A profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// One of its files is wrong.
    #[error("{directive} {name}: {parameter} {source}")]
    File {
        /// `tls-server` or `tls-client`.
        directive: &'static str,
        /// The profile's name.
        name: String,
        /// Which setting names the file.
        parameter: &'static str,
        /// The problem.
        source: Box<FileError>,
    },
    /// The profile names no authorities, and the system has none.
    #[error("{directive} {name}: the system has no authorities to trust ({reason}): set {parameter}")]
    NoSystemRoots {
        /// `tls-server` or `tls-client`.
        directive: &'static str,
        /// The setting that names authorities.
        parameter: &'static str,
        /// The profile's name.
        name: String,
        /// Why the system has none.
        reason: String,
    },
    /// The TLS library refuses the settings.
    #[error("{directive} {name}: {reason}")]
    Setup {
        /// `tls-server` or `tls-client`.
        directive: &'static str,
        /// The profile's name.
        name: String,
        /// The library's text.
        reason: String,
    },
}

impl ProfileError {
    /// Whether the same files may be readable a moment later, because the file is there and the system failed to read
    /// it.
    pub(super) fn may_pass(&self) -> bool {
        let Self::File { source, .. } = self else { return false };
        matches!(&source.problem, FileProblem::Read(error) if error.kind() != io::ErrorKind::NotFound)
    }
}

/// Why a peer's certificate is not accepted.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The certificate, or one above it, makes no sense.
    #[error("the certificate cannot be used: {0}")]
    Unusable(String),
    /// It is too old.
    #[error(transparent)]
    OldVersion(OldVersion),
    /// Its RSA key is too short.
    #[error(
        "the certificate of {subject} has an RSA key of {bits} bits, but only 2048 to 8192 are accepted: make \
         another one with `meshctl cert makereq`"
    )]
    ShortKey {
        /// The certificate's subject.
        subject: String,
        /// Its length.
        bits: usize,
    },
    /// It may sign others, and is not itself among the authorities.
    #[error(
        "the certificate of {subject} is an authority's (CA:TRUE): it is accepted only if this very certificate is \
         among the authorities, and it is not in {authorities}"
    )]
    Authority {
        /// The certificate's subject.
        subject: String,
        /// The file, or `the system's`.
        authorities: String,
    },
    /// It names no node where it must.
    #[error(
        "the certificate of {subject} names no node: make one with its node ID (`meshctl cert makereq --nodeid`), or set `requirenodeid: false` or skipreceptornamescheck in the listener's tls-server"
    )]
    NoNodeId {
        /// The certificate's subject.
        subject: String,
    },
    /// It has expired.
    #[error(
        "the certificate of {subject} has expired on {end}: renew it, or set the clock (it is {now} here)"
    )]
    Expired {
        /// The certificate's subject.
        subject: String,
        /// The end of its validity.
        end: Timestamp,
        /// The time on this node.
        now: Timestamp,
    },
    /// It is not in force yet.
    #[error("the certificate of {subject} is valid from {start} on: set the clock (it is {now} here)")]
    NotYet {
        /// The certificate's subject.
        subject: String,
        /// The start of its validity.
        start: Timestamp,
        /// The time on this node.
        now: Timestamp,
    },
    /// No trusted authority has signed it.
    #[error(
        "the certificate of {subject} is signed by {issuer}, which is not among the authorities in {authorities}"
    )]
    UnknownIssuer {
        /// The certificate's subject.
        subject: String,
        /// Who signed it.
        issuer: String,
        /// The file, or `the system's`.
        authorities: String,
    },
    /// It claims an authority that did not sign it.
    #[error(
        "the certificate of {subject} names {issuer} as its signer, but an authority of that name with another key is in {authorities}"
    )]
    BadSignature {
        /// The certificate's subject.
        subject: String,
        /// Who signed it, as it says.
        issuer: String,
        /// The file, or `the system's`.
        authorities: String,
    },
    /// It is not made for this use.
    #[error("the certificate of {subject} is not made for {purpose}: its extended key usage lacks it")]
    WrongPurpose {
        /// The certificate's subject.
        subject: String,
        /// `servers` or `clients`.
        purpose: &'static str,
    },
    /// The authority has revoked it.
    #[error("the certificate of {subject}, or one above it, is revoked by the list in {list}")]
    Revoked {
        /// The certificate's subject.
        subject: String,
        /// The file.
        list: String,
    },
    /// Its fingerprint is on the blocklist.
    #[error("the certificate of {subject} is blocked: {fingerprint} is in {list}")]
    Blocked {
        /// The certificate's subject.
        subject: String,
        /// The fingerprint in the list.
        fingerprint: Fingerprint,
        /// The file.
        list: String,
    },
    /// It is not one of the pinned ones.
    #[error("the certificate of {subject} is not pinned: its SHA-256 is {fingerprint}")]
    NotPinned {
        /// The certificate's subject.
        subject: String,
        /// Its hash.
        fingerprint: Fingerprint,
    },
    /// It does not have the expected name.
    #[error("the certificate is for somebody else: expected {expected}, found {found}")]
    WrongName {
        /// Who was expected, as `node a` or `host h`.
        expected: String,
        /// The names in it.
        found: Box<Names>,
    },
}

impl fmt::Debug for Rejection {
    /// Like [`fmt::Display`], because TLS libraries print the errors of others only with `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// We do not accept the peer's certificate.
    #[error("TLS profile {profile}: {rejection}")]
    Rejected {
        /// The profile.
        profile: String,
        /// Why.
        rejection: Box<Rejection>,
    },
    /// Anything else.
    #[error("TLS profile {profile}: {reason}")]
    Failed {
        /// The profile.
        profile: String,
        /// The reason, and what to do.
        reason: String,
    },
}

impl From<HandshakeError> for io::Error {
    fn from(error: HandshakeError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}
