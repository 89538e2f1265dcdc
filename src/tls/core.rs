//! What both kinds of profiles are made of: settings, the contents of files, and who was let in.
//!
//! Owns when files are read again, and when a connection that was let in is judged again. It refuses to know
//! handshakes; the settings of those are `profile`'s.

use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use rustls::{SupportedProtocolVersion, version};
use tracing::{info, warn};

use super::error::{ProfileError, Rejection};
use super::material::{Files, Material, Stamp, Wanted};
use super::names::Names;
use super::revocation::{Admitted, Guard, Live};
use super::verify::{self, Demands, Expected, Role};
use crate::wire::NodeId;

/// What a profile is, but for the contents of its files.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) directive: &'static str,
    pub(super) name: String,
    /// The node that the own certificate must name.
    pub(super) node: Option<NodeId>,
    pub(super) files: Files,
    /// The part that peers play.
    pub(super) role: Role,
    pub(super) demands: Demands,
    pub(super) require_client_cert: bool,
    pub(super) skip_names_check: bool,
    pub(super) min_tls13: bool,
}

/// What both kinds of profiles are made of.
#[derive(Debug)]
pub(super) struct Core {
    settings: Settings,
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

impl Core {
    /// Reads a profile's files.
    pub(super) fn open(settings: Settings) -> Result<Arc<Self>, ProfileError> {
        let stamp = settings.files.stamp();
        let core = Self {
            settings,
            provider: Arc::new(aws_lc_rs::default_provider()),
            material: ArcSwap::from_pointee(Material::empty()),
            live: Live::default(),
            seen: Mutex::new(Seen { read: stamp.clone(), looked_at: stamp, complaint: None }),
        };
        core.material.store(Arc::new(core.read()?));
        Ok(Arc::new(core))
    }

    /// The own certificate as it stands.
    pub(super) fn identity(&self) -> Option<Arc<CertifiedKey>> {
        self.material.load().identity.clone()
    }

    pub(super) fn name(&self) -> &str {
        &self.settings.name
    }

    pub(super) fn provider(&self) -> &Arc<CryptoProvider> {
        &self.provider
    }

    pub(super) fn requires_client_certificate(&self) -> bool {
        self.settings.require_client_cert
    }

    pub(super) fn skips_names_check(&self) -> bool {
        self.settings.skip_names_check
    }

    /// What is wrong with the own certificate in the eyes of a peer, whoever the authorities are that it trusts.
    pub(super) fn own_flaw(&self) -> Option<Rejection> {
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
            // Peers have authorities of their own, and that it expires is told elsewhere.
            Rejection::UnknownIssuer { .. } | Rejection::BadSignature { .. } | Rejection::Expired { .. } => {
                false
            }
            Rejection::Unusable(_)
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
        verify::check(&material.trust, &self.settings.demands, self.settings.role, expected, chain, when)
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
        if self.settings.skip_names_check || self.settings.demands.insecure {
            return None;
        }
        let names = Names::of(chain.first()?).ok()?;
        (!names.node_ids.is_empty()).then_some(names.node_ids)
    }

    pub(super) fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        const ANY: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
        const NEW: &[&SupportedProtocolVersion] = &[&version::TLS13];
        if self.settings.min_tls13 { NEW } else { ANY }
    }

    pub(super) fn setup(&self, error: &rustls::Error) -> ProfileError {
        let (directive, name) = (self.settings.directive, self.settings.name.clone());
        ProfileError::Setup { directive, name, reason: error.to_string() }
    }

    fn read(&self) -> Result<Material, ProfileError> {
        let wanted = Wanted {
            directive: self.settings.directive,
            name: &self.settings.name,
            authorities: authorities_parameter(self.settings.role),
            node: self.settings.node.as_ref().filter(|_| !self.settings.skip_names_check),
            system: match self.settings.role {
                Role::Server => !self.settings.demands.insecure,
                Role::Client => self.settings.require_client_cert,
            },
        };
        Material::read(&self.settings.files, &wanted, &self.provider)
    }

    /// Takes changed files up. Files count as changed once they have stood still between two calls: one that
    /// is being written may look whole when it is not.
    pub(super) fn refresh(&self) {
        self.refresh_by(|| self.read());
    }

    /// The same with another way to read them.
    pub(super) fn refresh_by(&self, read: impl FnOnce() -> Result<Material, ProfileError>) {
        let now = self.settings.files.stamp();
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
                info!(profile = self.settings.name, "TLS files have changed and are taken up");
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
            warn!(profile = self.settings.name, %rejection, "connection cut");
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
            let file = self.settings.files.identity.as_ref().map(|(cert, _)| cert.display().to_string());
            warn!(profile = self.settings.name, file = file.unwrap_or_default(), "the certificate {warning}");
        }
    }
}

fn authorities_parameter(peer: Role) -> &'static str {
    match peer {
        Role::Server => "rootcas",
        Role::Client => "clientcas",
    }
}
