//! The options of TLS profiles, as they are configured.
//!
//! Owns the settings of a `tls-server` and of a `tls-client`, and the common form of both. Opens no files.

use std::path::{Path, PathBuf};

use super::fingerprint::Fingerprint;
use super::verify::{Demands, Role};
use crate::wire::NodeId;

/// The files of a profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// Certificate, with the ones above it if any, and private key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Authorities.
    pub authorities: Option<PathBuf>,
    /// Revocation lists.
    pub crl: Option<PathBuf>,
    /// Fingerprints of certificates to refuse.
    pub blocklist: Option<PathBuf>,
}

/// Settings of a `tls-server`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerOptions {
    /// The profile's name.
    pub name: String,
    /// Its files. `identity` is needed; `authorities` sign client certificates. If client certificates are required and
    /// no authorities are named, the system's are trusted.
    pub files: Files,
    /// Whether clients must show a certificate.
    pub require_client_cert: bool,
    /// The only client certificates to accept; empty for all that the authorities signed.
    pub pinned: Vec<Fingerprint>,
    /// Whether the required certificate of a neighbour may name no node. Node IDs that it names still count.
    pub admit_nameless: bool,
    /// Whether certificates need not name their nodes on links.
    pub skip_names_check: bool,
    /// Whether TLS 1.2 is refused.
    pub min_tls13: bool,
}

/// Settings of a `tls-client`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientOptions {
    /// The profile's name.
    pub name: String,
    /// Its files; without `authorities` the system's are trusted.
    pub files: Files,
    /// Whether any server is accepted. Pins and the blocklist still hold.
    pub insecure_skip_verify: bool,
    /// The only server certificates to accept; empty for all that the authorities signed.
    pub pinned: Vec<Fingerprint>,
    /// Whether certificates need not name their nodes on links.
    pub skip_names_check: bool,
    /// Whether TLS 1.2 is refused.
    pub min_tls13: bool,
}

impl Files {
    /// All files.
    pub(super) fn all(&self) -> impl Iterator<Item = &Path> {
        let (cert, key) = self.identity.as_ref().map(|(cert, key)| (cert, key)).unzip();
        let others = [self.authorities.as_ref(), self.crl.as_ref(), self.blocklist.as_ref()];
        [cert, key].into_iter().chain(others).flatten().map(PathBuf::as_path)
    }
}

/// The options of a profile of either kind.
#[derive(Debug)]
pub(super) struct Settings {
    /// `tls-server` or `tls-client`.
    pub(super) directive: &'static str,
    pub(super) name: String,
    /// The node that the own certificate must name.
    pub(super) node: Option<NodeId>,
    pub(super) files: Files,
    /// The part that peers play.
    pub(super) role: Role,
    pub(super) demands: Demands,
    pub(super) require_client_cert: bool,
    pub(super) admit_nameless: bool,
    pub(super) skip_names_check: bool,
    pub(super) min_tls13: bool,
    /// Whether this host has no certificate yet, and asks for one.
    pub(super) is_newcomer: bool,
}

impl Settings {
    pub(super) fn of_server(options: ServerOptions, node: Option<&NodeId>) -> Self {
        Self {
            directive: "tls-server",
            name: options.name,
            node: node.filter(|_| !options.skip_names_check).cloned(),
            files: options.files,
            role: Role::Client,
            demands: Demands { pins: options.pinned, insecure: false },
            require_client_cert: options.require_client_cert,
            admit_nameless: options.admit_nameless,
            skip_names_check: options.skip_names_check,
            min_tls13: options.min_tls13,
            is_newcomer: false,
        }
    }

    pub(super) fn of_client(options: ClientOptions, node: Option<&NodeId>) -> Self {
        Self {
            directive: "tls-client",
            name: options.name,
            node: node.filter(|_| !options.skip_names_check).cloned(),
            files: options.files,
            role: Role::Server,
            demands: Demands { pins: options.pinned, insecure: options.insecure_skip_verify },
            require_client_cert: false,
            admit_nameless: false,
            skip_names_check: options.skip_names_check,
            min_tls13: options.min_tls13,
            is_newcomer: false,
        }
    }

    /// The setting that names the authorities.
    pub(super) fn authorities(&self) -> &'static str {
        match self.role {
            Role::Server => "rootcas",
            Role::Client => "clientcas",
        }
    }

    /// Whether the system's authorities are trusted if no file is named.
    pub(super) fn trusts_system(&self) -> bool {
        match self.role {
            Role::Server => !self.demands.insecure,
            Role::Client => self.require_client_cert,
        }
    }
}
