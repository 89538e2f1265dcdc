//! TLS profiles: how a node shows itself, and whom it accepts, under a name from the configuration.
//!
//! A profile's files are read when it is made and again when they change; connections made before keep going,
//! unless their certificate is no longer accepted. It gives out rustls settings for each handshake, and
//! refuses to know what runs over the connection.

use std::sync::Arc;

use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig, SignatureScheme, SupportedProtocolVersion, version};

use super::core::{Core, Settings};
use super::error::{ProfileError, Rejection};
use super::fingerprint::Fingerprint;
use super::material::Files;
use super::revocation::Guard;
use super::verify::{Demands, Expected, PeerVerifier, Role, Verdict};
use crate::wire::NodeId;

/// Settings of a `tls-server`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerOptions {
    /// The profile's name.
    pub name: String,
    /// Its files; `identity` is needed, `authorities` sign client certificates. Where these are required and no
    /// authorities named, the system's are trusted.
    pub files: Files,
    /// Whether clients must show a certificate.
    pub require_client_cert: bool,
    /// The only client certificates to accept; empty for all that the authorities signed.
    pub pinned: Vec<Fingerprint>,
    /// Whether a required certificate of a neighbour need not name any node. If it names some, they count.
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

/// A `tls-server`. Clones are the same.
#[derive(Debug, Clone)]
pub struct ServerProfile {
    pub(super) core: Arc<Core>,
    wants_certificate: bool,
    admit_nameless: bool,
}

impl PartialEq for ServerProfile {
    /// Whether both are clones of one profile.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}

impl Eq for ServerProfile {}

impl ServerProfile {
    /// Reads the profile's files. `node` is the node that its certificate must name, unless that check is off.
    ///
    /// # Errors
    /// [`ProfileError`] names the file and what is wrong with it.
    pub fn open(options: ServerOptions, node: Option<&NodeId>) -> Result<Self, ProfileError> {
        let ServerOptions {
            name,
            files,
            require_client_cert,
            pinned,
            admit_nameless,
            skip_names_check,
            min_tls13,
        } = options;
        let wants_certificate = require_client_cert || files.authorities.is_some();
        let settings = Settings {
            directive: "tls-server",
            name,
            node: node.cloned(),
            role: Role::Client,
            demands: Demands { pins: pinned, insecure: false },
            require_client_cert,
            skip_names_check,
            min_tls13,
            files,
        };
        Ok(Self { core: Core::open(settings)?, wants_certificate, admit_nameless })
    }

    /// The profile's name.
    pub fn name(&self) -> &str {
        self.core.name()
    }

    /// Whether clients must show a certificate.
    pub fn requires_client_certificate(&self) -> bool {
        self.core.requires_client_certificate()
    }

    /// Whom a listener for neighbours expects: where they must show a certificate, one that names its node. Whether
    /// that is the one which the neighbour calls itself shows when it does.
    pub fn expected_neighbour(&self) -> Expected {
        let nameless = self.admit_nameless || self.core.skips_names_check();
        if self.requires_client_certificate() && !nameless { Expected::SomeNode } else { Expected::Anyone }
    }

    /// Settings of one handshake, and the place where a refusal of the client's certificate shows.
    ///
    /// # Errors
    /// If rustls does not take them.
    pub fn config(&self, expected: Expected) -> Result<(ServerConfig, Verdict), ProfileError> {
        self.config_of(expected, self.core.versions())
    }

    /// The same for QUIC, which has TLS 1.3 only.
    ///
    /// # Errors
    /// If rustls does not take them.
    pub fn quic_config(
        &self,
        expected: Expected,
        alpn: &[u8],
    ) -> Result<(ServerConfig, Verdict), ProfileError> {
        let (mut config, verdict) = self.config_of(expected, &[&version::TLS13])?;
        config.alpn_protocols = vec![alpn.to_vec()];
        Ok((config, verdict))
    }

    fn config_of(
        &self,
        expected: Expected,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Result<(ServerConfig, Verdict), ProfileError> {
        let verdict = Verdict::default();
        let builder = ServerConfig::builder_with_provider(self.core.provider().clone())
            .with_protocol_versions(versions)
            .map_err(|e| self.core.setup(&e))?;
        let builder = if self.wants_certificate {
            let (core, verdict) = (self.core.clone(), verdict.clone());
            builder.with_client_cert_verifier(Arc::new(PeerVerifier { core, expected, verdict }))
        } else {
            builder.with_client_cert_verifier(WebPkiClientVerifier::no_client_auth())
        };
        let mut config = builder.with_cert_resolver(Arc::new(OwnCertificate(self.core.clone())));
        // A resumed session would not show its certificate again, revoked or not.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok((config, verdict))
    }

    /// What a person should do about the own certificate, if it ends soon.
    pub fn expiry_warning(&self) -> Option<String> {
        self.core.expiry_warning()
    }

    /// Why clients would refuse the own certificate, as far as that can be told here.
    pub fn own_flaw(&self) -> Option<Rejection> {
        self.core.own_flaw()
    }

    /// The node IDs that a client's certificate names; `None` if it names none or they are not looked at.
    pub fn certified_nodes(&self, chain: &[CertificateDer<'_>]) -> Option<Vec<String>> {
        self.core.certified_nodes(chain)
    }

    /// Notes a connection that this profile has let in: it is to be ended when the guard says so.
    pub fn admit(&self, chain: Vec<CertificateDer<'static>>, expected: Expected) -> Guard {
        self.core.admit(chain, expected)
    }
}

/// A `tls-client`. Clones are the same.
#[derive(Debug, Clone)]
pub struct ClientProfile {
    pub(super) core: Arc<Core>,
}

impl PartialEq for ClientProfile {
    /// Whether both are clones of one profile.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}

impl Eq for ClientProfile {}

impl ClientProfile {
    /// Reads the profile's files. `node` is the node that its certificate must name, unless that check is off.
    ///
    /// # Errors
    /// [`ProfileError`] names the file and what is wrong with it.
    pub fn open(options: ClientOptions, node: Option<&NodeId>) -> Result<Self, ProfileError> {
        let ClientOptions { name, files, insecure_skip_verify, pinned, skip_names_check, min_tls13 } =
            options;
        let settings = Settings {
            directive: "tls-client",
            name,
            node: node.cloned(),
            role: Role::Server,
            demands: Demands { pins: pinned, insecure: insecure_skip_verify },
            require_client_cert: false,
            skip_names_check,
            min_tls13,
            files,
        };
        Ok(Self { core: Core::open(settings)? })
    }

    /// The profile's name.
    pub fn name(&self) -> &str {
        self.core.name()
    }

    /// Settings of one handshake, and the place where a refusal of the server's certificate shows.
    ///
    /// # Errors
    /// If rustls does not take them.
    pub fn config(&self, expected: Expected) -> Result<(ClientConfig, Verdict), ProfileError> {
        self.config_of(expected, self.core.versions())
    }

    /// The same for QUIC, which has TLS 1.3 only.
    ///
    /// # Errors
    /// If rustls does not take them.
    pub fn quic_config(
        &self,
        expected: Expected,
        alpn: &[u8],
    ) -> Result<(ClientConfig, Verdict), ProfileError> {
        let (mut config, verdict) = self.config_of(expected, &[&version::TLS13])?;
        config.alpn_protocols = vec![alpn.to_vec()];
        Ok((config, verdict))
    }

    fn config_of(
        &self,
        expected: Expected,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Result<(ClientConfig, Verdict), ProfileError> {
        let verdict = Verdict::default();
        let verifier = PeerVerifier { core: self.core.clone(), expected, verdict: verdict.clone() };
        let mut config = ClientConfig::builder_with_provider(self.core.provider().clone())
            .with_protocol_versions(versions)
            .map_err(|e| self.core.setup(&e))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(OwnCertificate(self.core.clone())));
        config.resumption = Resumption::disabled();
        Ok((config, verdict))
    }

    /// What a person should do about the own certificate, if it ends soon.
    pub fn expiry_warning(&self) -> Option<String> {
        self.core.expiry_warning()
    }

    /// Why servers would refuse the own certificate, as far as that can be told here.
    pub fn own_flaw(&self) -> Option<Rejection> {
        self.core.own_flaw()
    }

    /// The node IDs that a server's certificate names; `None` if it names none or they are not looked at.
    pub fn certified_nodes(&self, chain: &[CertificateDer<'_>]) -> Option<Vec<String>> {
        self.core.certified_nodes(chain)
    }

    /// Notes a connection that was made with this profile: it is to be ended when the guard says so.
    pub fn admit(&self, chain: Vec<CertificateDer<'static>>, expected: Expected) -> Guard {
        self.core.admit(chain, expected)
    }
}

/// Shows the certificate as it stands at each handshake.
#[derive(Debug)]
struct OwnCertificate(Arc<Core>);

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.identity()
    }
}

impl ResolvesClientCert for OwnCertificate {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.identity()
    }

    fn has_certs(&self) -> bool {
        self.0.identity().is_some()
    }
}
