//! TLS profiles: which certificate to show and which to accept.
//!
//! Owns their settings and the form of fingerprints. It refuses to open certificate files: that is for the
//! room that uses them.

use std::path::PathBuf;

use super::super::fields::Fields;

/// The hash of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fingerprint {
    /// SHA-256.
    Sha256([u8; 32]),
    /// SHA-512.
    Sha512([u8; 64]),
}

impl std::str::FromStr for Fingerprint {
    type Err = &'static str;

    /// Reads hexadecimal digits, with or without colons between them.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WANTED: &str =
            "a fingerprint is 64 (SHA-256) or 128 (SHA-512) hexadecimal digits, colons allowed";
        let digits: Option<Vec<u8>> =
            text.chars().filter(|c| *c != ':').map(|c| Some(c.to_digit(16)? as u8)).collect();
        let digits = digits.filter(|digits| digits.len() % 2 == 0).ok_or(WANTED)?;
        let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        if let Ok(bytes) = bytes.as_slice().try_into() {
            return Ok(Self::Sha256(bytes));
        }
        bytes.as_slice().try_into().map(Self::Sha512).map_err(|_| WANTED)
    }
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Certificate file.
    pub cert: PathBuf,
    /// Private key file.
    pub key: PathBuf,
}

/// The directive `tls-server`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsServer {
    /// Name of the profile.
    pub name: String,
    /// What to show.
    pub identity: Identity,
    /// True to refuse clients without a certificate.
    pub require_client_cert: bool,
    /// File of authorities for client certificates.
    pub client_cas: Option<PathBuf>,
    /// Client certificates to accept; empty for all that the authorities signed.
    pub pinned_client_certs: Vec<Fingerprint>,
    /// True if the own certificate need not name this node.
    pub skip_receptor_names_check: bool,
    /// True to refuse TLS 1.2.
    pub min_tls13: bool,
}

/// The directive `tls-client`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsClient {
    /// Name of the profile.
    pub name: String,
    /// What to show, if anything.
    pub identity: Option<Identity>,
    /// File of authorities, instead of the system's.
    pub root_cas: Option<PathBuf>,
    /// True to accept any server.
    pub insecure_skip_verify: bool,
    /// Server certificates to accept; empty for all that the authorities signed.
    pub pinned_server_certs: Vec<Fingerprint>,
    /// True if the own certificate need not name this node.
    pub skip_receptor_names_check: bool,
    /// True to refuse TLS 1.2.
    pub min_tls13: bool,
}

pub(super) fn server(fields: &mut Fields<'_>) -> Option<TlsServer> {
    let name = fields.must("name");
    let cert = fields.must_path("cert");
    let key = fields.must_path("key");
    let pins = fields.each("pinnedclientcert", str::parse);
    Some(TlsServer {
        name: name?,
        identity: Identity { cert: cert?, key: key? },
        require_client_cert: fields.flag("requireclientcert"),
        client_cas: fields.path("clientcas"),
        pinned_client_certs: pins?,
        skip_receptor_names_check: fields.flag("skipreceptornamescheck"),
        min_tls13: fields.flag("mintls13"),
    })
}

pub(super) fn client(fields: &mut Fields<'_>) -> Option<TlsClient> {
    let name = fields.must("name");
    let identity = match (fields.path("cert"), fields.path("key")) {
        (Some(cert), Some(key)) => Some(Some(Identity { cert, key })),
        (None, None) => Some(None),
        (Some(_), None) | (None, Some(_)) => {
            fields.conflict("`cert` and `key` go together: give both or neither");
            None
        }
    };
    let pins = fields.each("pinnedservercert", str::parse);
    Some(TlsClient {
        name: name?,
        identity: identity?,
        root_cas: fields.path("rootcas"),
        insecure_skip_verify: fields.flag("insecureskipverify"),
        pinned_server_certs: pins?,
        skip_receptor_names_check: fields.flag("skipreceptornamescheck"),
        min_tls13: fields.flag("mintls13"),
    })
}
