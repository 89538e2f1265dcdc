//! TLS profiles: which certificate to show and which to accept.
//!
//! Owns their settings. It refuses to open certificate files: that is for the
//! room that uses them.

use std::path::PathBuf;

use super::super::fields::Fields;

pub use crate::tls::Fingerprint;

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
    /// True to refuse neighbours whose certificate names no node, where clients must show one.
    pub require_node_id: bool,
    /// True if the own certificate need not name this node.
    pub skip_receptor_names_check: bool,
    /// True to refuse TLS 1.2.
    pub min_tls13: bool,
    /// File of revocation lists.
    pub crl: Option<PathBuf>,
    /// File of fingerprints of certificates to refuse.
    pub blocklist: Option<PathBuf>,
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
    /// File of revocation lists.
    pub crl: Option<PathBuf>,
    /// File of fingerprints of certificates to refuse.
    pub blocklist: Option<PathBuf>,
}

pub(super) fn server(fields: &mut Fields<'_>) -> Option<TlsServer> {
    let name = fields.must("name");
    let cert = fields.must_path("cert");
    let key = fields.must_path("key");
    let pins = fields.each("pinnedclientcert", str::parse);
    let (require_client_cert, client_cas) = (fields.flag("requireclientcert"), fields.path("clientcas"));
    if require_client_cert && client_cas.is_none() {
        fields.warn(
            "requireclientcert without clientcas trusts the system's authorities: every certificate of any public \
             authority passes; set clientcas to the file of your own",
        );
    }
    Some(TlsServer {
        name: name?,
        identity: Identity { cert: cert?, key: key? },
        require_client_cert,
        client_cas,
        pinned_client_certs: pins?,
        require_node_id: fields.flag("requirenodeid"),
        skip_receptor_names_check: fields.flag("skipreceptornamescheck"),
        min_tls13: fields.flag("mintls13"),
        crl: fields.path("crl"),
        blocklist: fields.path("blocklist"),
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
        crl: fields.path("crl"),
        blocklist: fields.path("blocklist"),
    })
}
