//! TLS profiles: how a node shows itself, and whom it accepts, under a name from the configuration.
//!
//! A profile's files are read when it is made and again when they change; connections made before keep going,
//! unless their certificate is no longer accepted. It gives out rustls settings for each handshake, and
//! refuses to know what runs over the connection.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig, SignatureScheme, SupportedProtocolVersion, version};
use tracing::{info, warn};

use super::error::{ProfileError, Rejection};
use super::fingerprint::Fingerprint;
use super::live::{Admitted, Guard, Live};
use super::material::{Files, Material, Stamp, Wanted};
use super::names::Names;
use super::verify::{self, Demands, Expected, PeerVerifier, Role, Verdict};
use crate::wire::NodeId;

/// Settings of a `tls-server`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerOptions {
    /// The profile's name.
    pub name: String,
    /// Its files; `identity` is needed, `authorities` sign client certificates.
    pub files: Files,
    /// Whether clients must show a certificate.
    pub require_client_cert: bool,
    /// The only client certificates to accept; empty for all that the authorities signed.
    pub pinned: Vec<Fingerprint>,
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

/// What both kinds of profiles are made of.
#[derive(Debug)]
pub(super) struct Core {
    directive: &'static str,
    name: String,
    node: Option<NodeId>,
    files: Files,
    /// The part that peers play.
    role: Role,
    demands: Demands,
    require_client_cert: bool,
    skip_names_check: bool,
    min_tls13: bool,
    provider: Arc<CryptoProvider>,
    material: ArcSwap<Material>,
    live: Live,
    /// Only the watcher locks it.
    seen: Mutex<Seen>,
}

/// What is known of a profile's files.
#[derive(Debug)]
struct Seen {
    /// As they were read last.
    read: Stamp,
    /// As they were looked at last.
    looked_at: Stamp,
    /// What was wrong with them, so that it is said once.
    complaint: Option<String>,
}

impl Seen {
    fn new(files: &Files) -> Mutex<Self> {
        Mutex::new(Self { read: files.stamp(), looked_at: files.stamp(), complaint: None })
    }
}

impl Core {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn provider(&self) -> &CryptoProvider {
        &self.provider
    }

    pub(super) fn requires_client_certificate(&self) -> bool {
        self.require_client_cert
    }

    /// Decides about a peer's certificate as things stand now.
    pub(super) fn check(&self, expected: &Expected, chain: &[CertificateDer<'_>]) -> Result<(), Rejection> {
        self.check_as_of(expected, chain, Timestamp::now())
    }

    fn check_as_of(
        &self,
        expected: &Expected,
        chain: &[CertificateDer<'_>],
        when: Timestamp,
    ) -> Result<(), Rejection> {
        let material = self.material.load();
        verify::check(&material.trust, &self.demands, self.role, expected, chain, when)
    }

    /// True if a connection lives that this profile has let in.
    pub(super) fn has_let_in(&self) -> bool {
        !self.live.is_empty()
    }

    pub(super) fn admit(&self, chain: Vec<CertificateDer<'static>>, expected: Expected) -> Guard {
        self.admit_at(chain, expected, Timestamp::now())
    }

    pub(super) fn admit_at(
        &self,
        chain: Vec<CertificateDer<'static>>,
        expected: Expected,
        since: Timestamp,
    ) -> Guard {
        let admitted = Admitted::new(chain, expected, since);
        let guard = self.live.admit(admitted.clone());
        // The handshake has looked at the certificate before the connection was listed to be cut: whoever was
        // revoked in between would not be looked at again.
        self.cut_if_rejected(&admitted);
        guard
    }

    /// The nodes that a certificate names, if that is to be believed and it names any.
    pub(super) fn certified_nodes(&self, chain: &[CertificateDer<'_>]) -> Option<Vec<String>> {
        if self.skip_names_check || self.demands.insecure {
            return None;
        }
        let names = Names::of(chain.first()?).ok()?;
        (!names.node_ids.is_empty()).then_some(names.node_ids)
    }

    fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        const ANY: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
        const NEW: &[&SupportedProtocolVersion] = &[&version::TLS13];
        if self.min_tls13 { NEW } else { ANY }
    }

    fn setup(&self, error: &rustls::Error) -> ProfileError {
        let (directive, name) = (self.directive, self.name.clone());
        ProfileError::Setup { directive, name, reason: error.to_string() }
    }

    fn read(&self) -> Result<Material, ProfileError> {
        let wanted = Wanted {
            directive: self.directive,
            name: &self.name,
            authorities: authorities_parameter(self.role),
            node: self.node.as_ref().filter(|_| !self.skip_names_check),
            system: self.role == Role::Server && !self.demands.insecure,
        };
        Material::read(&self.files, &wanted, &self.provider)
    }

    /// Takes changed files up. Files count as changed once they have stood still between two calls: one that
    /// is being written may look whole when it is not.
    pub(super) fn refresh(&self) {
        self.refresh_by(|| self.read());
    }

    /// The same with another way to read them.
    pub(super) fn refresh_by(&self, read: impl FnOnce() -> Result<Material, ProfileError>) {
        let now = self.files.stamp();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let settled = seen.looked_at == now;
        seen.looked_at = now.clone();
        if !settled || seen.read == now {
            return;
        }
        match read() {
            Ok(material) => {
                (seen.read, seen.complaint) = (now, None);
                drop(seen);
                info!(profile = self.name, "TLS files have changed and are taken up");
                self.material.store(Arc::new(material));
                self.warn_of_expiry();
                self.cut_rejected();
            }
            Err(error) => {
                // What cannot be read may be readable without another change: without descriptors, nothing is.
                if !error.may_pass() {
                    seen.read = now;
                }
                let complaint = Some(error.to_string());
                if seen.complaint != complaint {
                    seen.complaint = complaint;
                    warn!(%error, "TLS files have changed and cannot be used: the old ones stay in force");
                }
            }
        }
    }

    fn cut_rejected(&self) {
        self.live.all().iter().for_each(|admitted| self.cut_if_rejected(admitted));
    }

    /// Judges a connection by what is trusted now, as of the time when it was made: its certificate may have expired
    /// since. Who has shown none is let in without.
    fn cut_if_rejected(&self, admitted: &Admitted) {
        if admitted.chain.is_empty() {
            return;
        }
        let checked = self.check_as_of(&admitted.expected, &admitted.chain, admitted.since);
        if let Err(rejection) = checked {
            warn!(profile = self.name, %rejection, "connection cut");
            admitted.cut();
        }
    }

    pub(super) fn expiry_warning(&self) -> Option<String> {
        self.material.load().expiry_warning(Timestamp::now())
    }

    #[cfg(test)]
    pub(super) fn living(&self) -> usize {
        self.live.all().len()
    }

    /// Logs what a person should do about the own certificate.
    pub(super) fn warn_of_expiry(&self) {
        if let Some(warning) = self.expiry_warning() {
            let file = self.files.identity.as_ref().map(|(cert, _)| cert.display().to_string());
            warn!(profile = self.name, file = file.unwrap_or_default(), "the certificate {warning}");
        }
    }
}

fn authorities_parameter(peer: Role) -> &'static str {
    match peer {
        Role::Server => "rootcas",
        Role::Client => "clientcas",
    }
}

fn empty_material() -> ArcSwap<Material> {
    ArcSwap::from_pointee(Material::empty())
}

/// A `tls-server`. Clones are the same.
#[derive(Debug, Clone)]
pub struct ServerProfile {
    pub(super) core: Arc<Core>,
    wants_certificate: bool,
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
        let ServerOptions { name, files, require_client_cert, pinned, skip_names_check, min_tls13 } = options;
        if require_client_cert && files.authorities.is_none() {
            return Err(ProfileError::NoClientAuthorities { name });
        }
        let wants_certificate = files.authorities.is_some();
        let core = Core {
            directive: "tls-server",
            name,
            node: node.cloned(),
            role: Role::Client,
            demands: Demands { pins: pinned, insecure: false },
            require_client_cert,
            skip_names_check,
            min_tls13,
            provider: Arc::new(aws_lc_rs::default_provider()),
            material: empty_material(),
            live: Live::default(),
            seen: Seen::new(&files),
            files,
        };
        core.material.store(Arc::new(core.read()?));
        Ok(Self { core: Arc::new(core), wants_certificate })
    }

    /// The profile's name.
    pub fn name(&self) -> &str {
        self.core.name()
    }

    /// Whether clients must show a certificate.
    pub fn requires_client_certificate(&self) -> bool {
        self.core.require_client_cert
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
        let builder = ServerConfig::builder_with_provider(self.core.provider.clone())
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
        let core = Core {
            directive: "tls-client",
            name,
            node: node.cloned(),
            role: Role::Server,
            demands: Demands { pins: pinned, insecure: insecure_skip_verify },
            require_client_cert: false,
            skip_names_check,
            min_tls13,
            provider: Arc::new(aws_lc_rs::default_provider()),
            material: empty_material(),
            live: Live::default(),
            seen: Seen::new(&files),
            files,
        };
        core.material.store(Arc::new(core.read()?));
        Ok(Self { core: Arc::new(core) })
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
        let mut config = ClientConfig::builder_with_provider(self.core.provider.clone())
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
        self.0.material.load().identity.clone()
    }
}

impl ResolvesClientCert for OwnCertificate {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.material.load().identity.clone()
    }

    fn has_certs(&self) -> bool {
        self.0.material.load().identity.is_some()
    }
}
