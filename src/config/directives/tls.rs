//! TLS profiles: which certificate to show and which to accept.
//!
//! Owns their declarations; the settings themselves are types of [`crate::tls`]. It refuses to open certificate files.

use std::path::PathBuf;

use super::super::declare::directive;
use super::super::parameters::{any, grammar};
use super::super::schema::ValueRole;
use crate::tls::{ClientOptions, Files, Fingerprint, ServerOptions};

directive! {
    /// A TLS profile for listening
    "tls-server" in Tls;
    TlsServer => ServerOptions {
        /// name of the profile
        name: ServerName [required],
        /// certificate file
        cert: PathBuf [required],
        /// private key file
        key: PathBuf [required],
        /// refuse clients without a certificate
        require_client_cert "requireclientcert": bool,
        /// file of authorities that sign client certificates
        authorities "clientcas": Option<PathBuf>,
        /// fingerprints of allowed client certificates
        pinned "pinnedclientcert": Vec<Fingerprint>,
        /// neighbours' certificates must name a node
        require_node_id "requirenodeid": bool = "true",
        /// do not look for the node ID in the certificate
        skip_names_check "skipreceptornamescheck": bool,
        /// refuse TLS 1.2
        min_tls13 "mintls13": bool,
        /// file of revocation lists, read again when it changes
        crl: Option<PathBuf>,
        /// file of fingerprints to refuse, read again when it changes
        blocklist: Option<PathBuf>,
    }
    warn trusts_all_authorities(require_client_cert, authorities);
    make ServerOptions {
        name,
        files: Files { identity: Some((cert, key)), authorities, crl, blocklist },
        require_client_cert,
        admit_nameless: !require_node_id,
        pinned,
        skip_names_check,
        min_tls13,
    }
}

directive! {
    /// A TLS profile for connecting
    "tls-client" in Tls;
    TlsClient => ClientOptions {
        /// name of the profile
        name: ClientName [required],
        /// certificate file; needs key
        cert: Option<PathBuf>,
        /// private key file; needs cert
        key: Option<PathBuf>,
        /// file of authorities, instead of the system's
        authorities "rootcas": Option<PathBuf>,
        /// accept any server certificate
        insecure_skip_verify "insecureskipverify": bool,
        /// fingerprints of allowed server certificates
        pinned "pinnedservercert": Vec<Fingerprint>,
        /// do not look for the node ID in the certificate
        skip_names_check "skipreceptornamescheck": bool,
        /// refuse TLS 1.2
        min_tls13 "mintls13": bool,
        /// file of revocation lists, read again when it changes
        crl: Option<PathBuf>,
        /// file of fingerprints to refuse, read again when it changes
        blocklist: Option<PathBuf>,
    }
    check half_an_identity(cert, key);
    make ClientOptions {
        name,
        files: Files { identity: cert.zip(key), authorities, crl, blocklist },
        insecure_skip_verify,
        pinned,
        skip_names_check,
        min_tls13,
    }
}

fn trusts_all_authorities(require_client_cert: &bool, authorities: &Option<PathBuf>) -> Option<&'static str> {
    (*require_client_cert && authorities.is_none()).then_some(
        "requireclientcert without clientcas trusts the system's authorities: every certificate of any public authority \
         passes; set clientcas to the file of your own",
    )
}

fn half_an_identity(cert: &Option<PathBuf>, key: &Option<PathBuf>) -> Option<&'static str> {
    (cert.is_some() != key.is_some()).then_some("`cert` and `key` go together: give both or neither")
}

grammar! {
    /// The name of a `tls-server`.
    struct ServerName => String = Text any, role ValueRole::Defines("tls-server");
    /// The name of a `tls-client`.
    struct ClientName => String = Text any, role ValueRole::Defines("tls-client");
}
