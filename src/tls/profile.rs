//! TLS profiles: which certificate a node shows, and which it accepts, under a name from the configuration.
//!
//! Owns when a profile's files are read again, and when a connection that was let in is verified again. It gives out
//! rustls settings for each handshake, and refuses to know what runs over the connection.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig, SignatureScheme, SupportedProtocolVersion, version};
use tokio::sync::Notify;
use tracing::{info, warn};

use super::error::{ProfileError, Rejection};
use super::material::{Material, Stamp};
use super::names::Names;
use super::options::{ClientOptions, Files, ServerOptions, Settings};
use super::revocation::{Admitted, AdmittedList, Guard};
use super::verify::{self, Demands, Expected, HandshakeVerdict, PeerVerifier, Role};
use crate::wire::NodeId;

/// The protocol of a newcomer's handshake: a host without a certificate that asks to become a node.
const ENROLMENT: &[u8] = b"meshd-enrol/1";

/// Declares a handle to a profile of one kind. Handles are equal if they are clones.
macro_rules! handle {
    ($(#[doc = $doc:literal] $name:ident;)+) => {$(
        #[doc = $doc]
        #[derive(Debug, Clone)]
        pub struct $name(pub(super) Arc<Profile>);

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.0, &other.0)
            }
        }

        impl Eq for $name {}

        impl Deref for $name {
            type Target = Profile;

            fn deref(&self) -> &Profile {
                &self.0
            }
        }
    )+};
}

handle! {
    /// A `tls-server`.
    ServerProfile;
    /// A `tls-client`.
    ClientProfile;
}

impl ServerProfile {
    /// Reads the profile's files. `node` is the node that its certificate must name, unless that check is off.
    ///
    /// # Errors
    /// [`ProfileError`] names the file and what is wrong with it.
    pub fn open(options: ServerOptions, node: Option<&NodeId>) -> Result<Self, ProfileError> {
        Ok(Self(Profile::open(Settings::of_server(options, node))?))
    }

    /// Whether clients must show a certificate.
    pub fn requires_client_certificate(&self) -> bool {
        self.settings.require_client_cert
    }

    /// The names that a listener for neighbours expects: where certificates are required, each must name a node.
    /// Whether it is the neighbour's own ID is checked later, when the neighbour has said its ID.
    pub fn expected_neighbour(&self) -> Expected {
        let Settings { require_client_cert, admit_nameless, skip_names_check, .. } = &self.settings;
        let is_named = *require_client_cert && !admit_nameless && !skip_names_check;
        if is_named { Expected::SomeNode } else { Expected::Anyone }
    }

    /// Settings of one handshake, and the verdict that shows a refusal of the client's certificate.
    pub fn config(&self, expected: Expected) -> Result<(ServerConfig, HandshakeVerdict), ProfileError> {
        self.config_of(expected, self.versions(), false)
    }

    /// The same for QUIC, which has TLS 1.3 only.
    pub fn quic_config(
        &self,
        expected: Expected,
        alpn: &[u8],
    ) -> Result<(ServerConfig, HandshakeVerdict), ProfileError> {
        let (mut config, verdict) = self.config_of(expected, &[&version::TLS13], false)?;
        config.alpn_protocols = vec![alpn.to_vec()];
        Ok((config, verdict))
    }

    /// Settings for a handshake with a neighbour, or with a newcomer while they are admitted.
    pub(super) fn neighbour_config(&self) -> Result<(ServerConfig, HandshakeVerdict), ProfileError> {
        self.config_of(self.expected_neighbour(), self.versions(), self.admits_newcomers())
    }

    /// The same for QUIC.
    pub fn quic_neighbour_config(
        &self,
        alpn: &[u8],
    ) -> Result<(ServerConfig, HandshakeVerdict), ProfileError> {
        let admits = self.admits_newcomers();
        let (mut config, verdict) = self.config_of(self.expected_neighbour(), &[&version::TLS13], admits)?;
        config.alpn_protocols = vec![alpn.to_vec()];
        config.alpn_protocols.extend(admits.then(|| ENROLMENT.to_vec()));
        Ok((config, verdict))
    }

    fn config_of(
        &self,
        expected: Expected,
        versions: &[&'static SupportedProtocolVersion],
        admits_newcomers: bool,
    ) -> Result<(ServerConfig, HandshakeVerdict), ProfileError> {
        let verdict = HandshakeVerdict::default();
        let builder = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(versions)
            .map_err(|e| self.setup(&e))?;
        let builder = if self.settings.require_client_cert || self.settings.files.authorities.is_some() {
            let (profile, verdict) = (self.0.clone(), verdict.clone());
            builder.with_client_cert_verifier(Arc::new(PeerVerifier { profile, expected, verdict }))
        } else {
            builder.with_client_cert_verifier(WebPkiClientVerifier::no_client_auth())
        };
        let newcomers = admits_newcomers.then(|| verdict.clone());
        let mut config =
            builder.with_cert_resolver(Arc::new(ServerCertificate { profile: self.0.clone(), newcomers }));
        // A resumed session would not show its certificate again, revoked or not.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok((config, verdict))
    }
}

impl ClientProfile {
    /// Reads the profile's files. `node` is the node that its certificate must name, unless that check is off.
    ///
    /// # Errors
    /// [`ProfileError`] names the file and what is wrong with it.
    pub fn open(options: ClientOptions, node: Option<&NodeId>) -> Result<Self, ProfileError> {
        Ok(Self(Profile::open(Settings::of_client(options, node))?))
    }

    /// For a host without a certificate that asks to become a node: any server is accepted, because whoever relays what
    /// the newcomer sends need not be trusted.
    pub fn of_newcomer() -> Result<Self, ProfileError> {
        let name = "of a newcomer".to_owned();
        let options =
            ClientOptions { name, insecure_skip_verify: true, min_tls13: true, ..ClientOptions::default() };
        let settings = Settings { is_newcomer: true, ..Settings::of_client(options, None) };
        Ok(Self(Profile::open(settings)?))
    }

    /// Whether a server has to show a certificate that names it.
    pub fn proves_names(&self) -> bool {
        !(self.settings.skip_names_check || self.settings.demands.insecure)
    }

    /// Settings of one handshake, and the verdict that shows a refusal of the server's certificate.
    pub fn config(&self, expected: Expected) -> Result<(ClientConfig, HandshakeVerdict), ProfileError> {
        self.config_of(expected, self.versions())
    }

    /// The same for QUIC, which has TLS 1.3 only.
    pub fn quic_config(
        &self,
        expected: Expected,
        alpn: &[u8],
    ) -> Result<(ClientConfig, HandshakeVerdict), ProfileError> {
        let (mut config, verdict) = self.config_of(expected, &[&version::TLS13])?;
        if !self.settings.is_newcomer {
            config.alpn_protocols = vec![alpn.to_vec()];
        }
        Ok((config, verdict))
    }

    fn config_of(
        &self,
        expected: Expected,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Result<(ClientConfig, HandshakeVerdict), ProfileError> {
        let verdict = HandshakeVerdict::default();
        let verifier = PeerVerifier { profile: self.0.clone(), expected, verdict: verdict.clone() };
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(versions)
            .map_err(|e| self.setup(&e))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(OwnCertificate(self.0.clone())));
        config.resumption = Resumption::disabled();
        config.alpn_protocols.extend(self.settings.is_newcomer.then(|| ENROLMENT.to_vec()));
        Ok((config, verdict))
    }
}

/// The common part of a `tls-server` and a `tls-client`: settings, the contents of files, the connections let in.
#[derive(Debug)]
pub struct Profile {
    pub(super) settings: Settings,
    pub(super) provider: Arc<CryptoProvider>,
    material: ArcSwap<Material>,
    admitted: AdmittedList,
    /// Whether a link's listener lets newcomers in.
    admits_newcomers: AtomicBool,
    /// Notified when files were read again.
    reloaded: Notify,
    /// Only the watcher locks it.
    seen: Mutex<FilesSeen>,
}

/// The state of a profile's files.
#[derive(Debug)]
struct FilesSeen {
    /// The files as they were last read.
    read: Stamp,
    /// The files as they were last looked at.
    looked_at: Stamp,
    /// The last error, so that it is logged once.
    complaint: Option<String>,
}

impl Profile {
    /// Reads a profile's files.
    fn open(settings: Settings) -> Result<Arc<Self>, ProfileError> {
        let stamp = Stamp::of(&settings.files);
        let provider = Arc::new(aws_lc_rs::default_provider());
        let material = ArcSwap::from_pointee(Material::read(&settings, &provider)?);
        let seen = Mutex::new(FilesSeen { read: stamp.clone(), looked_at: stamp, complaint: None });
        let (admitted, admits_newcomers) = (AdmittedList::default(), AtomicBool::new(false));
        let reloaded = Notify::new();
        Ok(Arc::new(Self { settings, provider, material, admitted, admits_newcomers, reloaded, seen }))
    }

    /// The profile's name.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Whether a link's listener lets newcomers in. They are strangers, and never become neighbours by this.
    fn admits_newcomers(&self) -> bool {
        self.admits_newcomers.load(Ordering::Relaxed)
    }

    pub(super) fn admit_newcomers(&self, admits: bool) {
        self.admits_newcomers.store(admits, Ordering::Relaxed);
    }

    /// Returns when its files are read again.
    pub async fn reloaded(&self) {
        self.reloaded.notified().await;
    }

    /// Its files.
    pub fn files(&self) -> &Files {
        &self.settings.files
    }

    /// The directive that configures it.
    pub(super) fn directive(&self) -> &'static str {
        self.settings.directive
    }

    /// Why peers would reject the own certificate, as far as this node can know: peers may trust other authorities.
    pub fn own_flaw(&self) -> Option<Rejection> {
        let material = self.material.load();
        let chain = &material.identity.as_ref()?.cert;
        let own_role = match self.settings.role {
            Role::Server => Role::Client,
            Role::Client => Role::Server,
        };
        let checked = verify::check(
            &material.trust,
            &Demands::default(),
            own_role,
            &Expected::Anyone,
            chain,
            Timestamp::now(),
        );
        checked.err().filter(|rejection| match rejection {
            // Peers may trust other authorities, and the expiry warning covers the end.
            Rejection::UnknownIssuer { .. } | Rejection::BadSignature { .. } | Rejection::Expired { .. } => {
                false
            }
            Rejection::Unusable(_)
            | Rejection::OldVersion(_)
            | Rejection::ShortKey { .. }
            | Rejection::Authority { .. }
            | Rejection::NotYet { .. }
            | Rejection::WrongPurpose { .. }
            | Rejection::Revoked { .. }
            | Rejection::Blocked { .. }
            | Rejection::NotPinned { .. }
            | Rejection::NoNodeId { .. }
            | Rejection::WrongName { .. } => true,
        })
    }

    /// Whether a peer's certificate is accepted now.
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
        verify::check(&material.trust, &self.settings.demands, self.settings.role, expected, chain, when)
    }

    /// Whether a connection that this profile has let in still lives.
    pub(super) fn has_let_in(&self) -> bool {
        !self.admitted.is_empty()
    }

    /// Notes a connection that was made with this profile. The caller ends it when the guard says so.
    pub fn admit(&self, chain: Vec<CertificateDer<'static>>, expected: Expected) -> Guard {
        self.admit_at(chain, expected, Timestamp::now())
    }

    pub(super) fn admit_at(
        &self,
        chain: Vec<CertificateDer<'static>>,
        expected: Expected,
        since: Timestamp,
    ) -> Guard {
        let admitted = Admitted::new(chain, expected, since);
        let guard = self.admitted.admit(admitted.clone());
        // Checked again, because a revocation between the handshake's check and the listing would go unnoticed.
        self.cut_if_rejected(&admitted);
        guard
    }

    /// The node IDs that a peer's certificate names; `None` if it names none, or the profile does not look.
    pub fn certified_nodes(&self, chain: &[CertificateDer<'_>]) -> Option<Vec<String>> {
        if self.settings.skip_names_check || self.settings.demands.insecure {
            return None;
        }
        let names = Names::of(chain.first()?).ok()?;
        (!names.node_ids.is_empty()).then_some(names.node_ids)
    }

    fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        const ANY: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
        const NEW: &[&SupportedProtocolVersion] = &[&version::TLS13];
        if self.settings.min_tls13 { NEW } else { ANY }
    }

    fn setup(&self, error: &rustls::Error) -> ProfileError {
        let (directive, name) = (self.settings.directive, self.settings.name.clone());
        ProfileError::Setup { directive, name, reason: error.to_string() }
    }

    /// Reads changed files again. Files count as changed once they have stood still between two calls, because a
    /// file that is being written may look whole when it is not.
    pub(super) fn refresh(&self) {
        self.refresh_by(|| Material::read(&self.settings, &self.provider));
    }

    /// The same with another function that reads the files.
    pub(super) fn refresh_by(&self, read: impl FnOnce() -> Result<Material, ProfileError>) {
        let now = Stamp::of(&self.settings.files);
        let mut seen = self.seen.lock();
        let settled = seen.looked_at == now;
        seen.looked_at = now.clone();
        if !settled || seen.read == now {
            return;
        }
        match read() {
            Ok(material) => {
                (seen.read, seen.complaint) = (now, None);
                drop(seen);
                info!(profile = self.settings.name, "reloaded TLS files");
                self.material.store(Arc::new(material));
                self.reloaded.notify_waiters();
                self.warn_of_files();
                self.cut_rejected();
            }
            Err(error) => {
                // Tried again at the next look, because the file may become readable without a change, for instance
                // when the process has descriptors again.
                if !error.may_pass() {
                    seen.read = now;
                }
                let complaint = Some(error.to_string());
                if seen.complaint != complaint {
                    seen.complaint = complaint;
                    warn!(%error, "failed to reload TLS files: the old ones stay in force");
                }
            }
        }
    }

    fn cut_rejected(&self) {
        self.admitted.all().iter().for_each(|admitted| self.cut_if_rejected(admitted));
    }

    /// Cuts a connection whose certificate is no longer trusted. The certificate's dates are checked as of the time
    /// when the connection was made, because an expiry does not end a connection. A peer that had to show none is not
    /// cut.
    fn cut_if_rejected(&self, admitted: &Admitted) {
        if admitted.chain.is_empty() {
            return;
        }
        let checked = self.check_as_of(&admitted.expected, &admitted.chain, admitted.since);
        if let Err(rejection) = checked {
            warn!(profile = self.settings.name, %rejection, "connection cut");
            admitted.cut();
        }
    }

    /// Advice about the own certificate, if it expires soon.
    pub fn expiry_warning(&self) -> Option<String> {
        self.material.load().expiry_warning(Timestamp::now())
    }

    /// The end of the own certificate, if there is one.
    pub(super) fn not_after(&self) -> Option<Timestamp> {
        self.material.load().not_after()
    }

    /// The file and the end of the own certificate, if it expires soon.
    pub fn ends_soon(&self) -> Option<(PathBuf, Timestamp)> {
        let (file, _key) = self.settings.files.identity.as_ref()?;
        Some((file.clone(), self.material.load().ends_soon(Timestamp::now())?))
    }

    /// Advice about the authorities, each with its file.
    pub fn authority_warnings(&self) -> Vec<String> {
        let setting = self.settings.authorities();
        self.material.load().authority_warnings().map(|warning| format!("{setting} {warning}")).collect()
    }

    #[cfg(test)]
    pub(super) fn living(&self) -> usize {
        self.admitted.all().len()
    }

    /// Logs what a person should do about the own certificate and the authorities.
    pub(super) fn warn_of_files(&self) {
        for warning in self.authority_warnings() {
            warn!(profile = self.settings.name, "{warning}");
        }
        if let Some(warning) = self.expiry_warning() {
            let file = self.settings.files.identity.as_ref().map(|(cert, _)| cert.display().to_string());
            warn!(profile = self.settings.name, file = file.unwrap_or_default(), "the certificate {warning}");
        }
    }
}

/// Shows the certificate that is in force at the time of a handshake, and notes that the client is a newcomer.
#[derive(Debug)]
struct ServerCertificate {
    profile: Arc<Profile>,
    /// The verdict of the handshake, if newcomers are admitted.
    newcomers: Option<HandshakeVerdict>,
}

impl ResolvesServerCert for ServerCertificate {
    /// Called before the handshake decides whether to ask for a certificate.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_newcomer = hello.alpn().is_some_and(|mut offered| offered.any(|one| one == ENROLMENT));
        if let Some(verdict) = self.newcomers.as_ref().filter(|_| is_newcomer) {
            verdict.note_newcomer();
        }
        self.profile.material.load().identity.clone()
    }
}

/// Shows the certificate that is in force at the time of each handshake.
#[derive(Debug)]
struct OwnCertificate(Arc<Profile>);

impl ResolvesClientCert for OwnCertificate {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.material.load().identity.clone()
    }

    fn has_certs(&self) -> bool {
        self.0.material.load().identity.is_some()
    }
}
