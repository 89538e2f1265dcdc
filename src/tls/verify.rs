//! Whether a peer's certificate is accepted: chain, dates, revocation, blocklist, pins, names.
//!
//! [`check`] is the whole decision, as a function of the certificate, the trust and the time; the rest hands
//! it to rustls. Opens no files, and keeps no state but the verdict of one handshake.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, ServerName, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme};
use webpki::{EndEntityCert, KeyUsage, RawPublicKeyEntity};

use super::error::{OldVersion, Rejection};
use super::fingerprint::Fingerprint;
use super::material::{Authorities, Trust};
use super::names::{Facts, Names, key_of_old};
use super::profile::Profile;
use super::short_keys::{LEAST_BITS, with_algorithms};
use crate::wire::{NameHash, NodeId};

/// The name that a certificate must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// None: anybody with a certificate that the authorities signed.
    Anyone,
    /// The ID of any node.
    SomeNode,
    /// The host that was dialled.
    Host(ServerName<'static>),
    /// The ID of this node.
    Node(NodeId),
    /// The ID of the node with this hash.
    NodeHash(NameHash),
}

impl Expected {
    fn is_named_by(&self, certificate: &EndEntityCert<'_>, names: &Names) -> bool {
        match self {
            Self::Anyone => true,
            Self::SomeNode => !names.node_ids.is_empty(),
            Self::Host(host) => certificate.verify_is_valid_for_subject_name(host).is_ok(),
            Self::Node(node) => names.node_ids.iter().any(|id| id == node.as_str()),
            Self::NodeHash(hash) => names.node_ids.iter().any(|id| NameHash::of(id) == *hash),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Anyone => "anybody".to_owned(),
            Self::SomeNode => "a node".to_owned(),
            Self::Host(host) => format!("host {}", host.to_str()),
            Self::Node(node) => format!("node {node}"),
            Self::NodeHash(hash) => format!("the node of hash {hash}, which sent it"),
        }
    }
}

/// Which part the owner of a certificate plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It listens, or offers a service.
    Server,
    /// It dials.
    Client,
}

/// Demands of a profile that are not in its files.
#[derive(Debug, Clone, Default)]
pub(super) struct Demands {
    pub(super) pins: Vec<Fingerprint>,
    /// Accepts any certificate, unless it is blocked, not pinned or has a short key.
    pub(super) insecure: bool,
}

/// Decides about the first certificate in `chain`; the ones after it lead to an authority.
///
/// # Errors
/// Why it is not accepted.
pub(super) fn check(
    trust: &Trust,
    demands: &Demands,
    role: Role,
    expected: &Expected,
    chain: &[CertificateDer<'_>],
    now: Timestamp,
) -> Result<(), Rejection> {
    let Some((own, above)) = chain.split_first() else {
        return Err(Rejection::Unusable("there is none".to_owned()));
    };
    let facts = Facts::of(own).map_err(|e| Rejection::Unusable(e.to_string()))?;
    let subject = facts.names.subject.clone();
    if let Some(fingerprint) = trust.blocked.iter().find(|b| chain.iter().any(|c| b.is_of(c))) {
        let (fingerprint, list) = (fingerprint.clone(), trust.blocked_from.clone());
        return Err(Rejection::Blocked { subject, fingerprint, list });
    }
    if !demands.pins.is_empty() && !demands.pins.iter().any(|pin| pin.is_of(own)) {
        return Err(Rejection::NotPinned { subject, fingerprint: Fingerprint::sha256(own) });
    }
    // Refused here with a clear reason, because handshakes with such a key fail in any case.
    if let Some(bits) = facts.rsa_bits.filter(|bits| *bits < LEAST_BITS) {
        return Err(Rejection::ShortKey { subject, bits });
    }
    if demands.insecure {
        return Ok(());
    }
    if facts.version < 3 {
        return Err(Rejection::OldVersion(OldVersion { subject, version: facts.version }));
    }
    let certificate = EndEntityCert::try_from(own).map_err(|e| Rejection::Unusable(format!("{e:?}")))?;
    if trust.authorities.certificates.contains(own) {
        check_anchor(&facts, role, now)?;
    } else {
        check_chain(trust, role, &certificate, above, now)
            .map_err(|e| explain(e, facts.clone(), trust, role, now))?;
    }
    if !expected.is_named_by(&certificate, &facts.names) {
        if *expected == Expected::SomeNode {
            return Err(Rejection::NoNodeId { subject });
        }
        return Err(Rejection::WrongName { expected: expected.describe(), found: Box::new(facts.names) });
    }
    Ok(())
}

/// Checks a certificate that is itself among the authorities, such as a self-signed one that peers were given. It needs
/// no other signature. No list revokes it: an operator takes it out of the file, or blocks it.
fn check_anchor(facts: &Facts, role: Role, now: Timestamp) -> Result<(), Rejection> {
    let subject = facts.names.subject.clone();
    let (serves, purpose) = match role {
        Role::Server => (facts.for_servers, SERVERS),
        Role::Client => (facts.for_clients, CLIENTS),
    };
    if now > facts.not_after {
        Err(Rejection::Expired { subject, end: facts.not_after, now })
    } else if now < facts.not_before {
        Err(Rejection::NotYet { subject, start: facts.not_before, now })
    } else if !serves {
        Err(Rejection::WrongPurpose { subject, purpose })
    } else {
        Ok(())
    }
}

/// The purposes that a certificate may lack.
const SERVERS: &str = "servers";
const CLIENTS: &str = "clients";

fn check_chain(
    trust: &Trust,
    role: Role,
    certificate: &EndEntityCert<'_>,
    above: &[CertificateDer<'_>],
    now: Timestamp,
) -> Result<(), webpki::Error> {
    let seconds = u64::try_from(now.as_second()).unwrap_or(0);
    let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    let usage = match role {
        Role::Server => KeyUsage::server_auth(),
        Role::Client => KeyUsage::client_auth(),
    };
    let lists: Vec<_> = trust.crls.iter().collect();
    // An authority without a list has revoked nothing. A list past its next update still counts, because forgetting
    // the certificates in it would be worse than missing those in a newer one.
    let revocation = webpki::RevocationOptionsBuilder::new(&lists)
        .ok()
        .map(|options| options.with_status_policy(webpki::UnknownStatusPolicy::Allow).build());
    let Authorities { anchors, short_keys, .. } = &trust.authorities;
    with_algorithms(short_keys, |algorithms| {
        certificate.verify_for_usage(algorithms, anchors, above, time, usage, revocation, None).map(drop)
    })
}

fn explain(error: webpki::Error, facts: Facts, trust: &Trust, role: Role, now: Timestamp) -> Rejection {
    use webpki::Error;
    let (subject, issuer) = (facts.names.subject, facts.issuer);
    let authorities = trust.anchors_from.clone();
    match error {
        Error::CertExpired { .. } => Rejection::Expired { subject, end: facts.not_after, now },
        Error::CertNotValidYet { .. } => Rejection::NotYet { subject, start: facts.not_before, now },
        Error::UnknownIssuer => Rejection::UnknownIssuer { subject, issuer, authorities },
        Error::InvalidSignatureForPublicKey => Rejection::BadSignature { subject, issuer, authorities },
        Error::CertRevoked => Rejection::Revoked { subject, list: trust.crl_from.clone() },
        Error::RequiredEkuNotFoundContext(_) => Rejection::WrongPurpose {
            subject,
            purpose: match role {
                Role::Server => SERVERS,
                Role::Client => CLIENTS,
            },
        },
        Error::CaUsedAsEndEntity => Rejection::Authority { subject, authorities },
        Error::UnsupportedCertVersion => {
            Rejection::Unusable(format!("one above that of {subject} is not of X.509 version 3"))
        }
        other => Rejection::Unusable(format!("the one of {subject}: {other:?}")),
    }
}

/// What a handshake has found out about the other side.
#[derive(Debug, Clone, Default)]
pub struct HandshakeVerdict(Arc<HandshakeFindings>);

#[derive(Debug, Default)]
struct HandshakeFindings {
    rejection: OnceLock<Rejection>,
    is_newcomer: AtomicBool,
}

impl HandshakeVerdict {
    /// Why the certificate was refused, if it was.
    pub fn rejection(&self) -> Option<&Rejection> {
        self.0.rejection.get()
    }

    /// Whether the client is a newcomer, which was not asked for a certificate: it is nobody's neighbour.
    pub fn is_newcomer(&self) -> bool {
        self.0.is_newcomer.load(Ordering::Relaxed)
    }

    pub(super) fn note_newcomer(&self) {
        self.0.is_newcomer.store(true, Ordering::Relaxed);
    }
}

/// Checks the certificate of one handshake.
#[derive(Debug)]
pub(super) struct PeerVerifier {
    pub(super) profile: Arc<Profile>,
    pub(super) expected: Expected,
    pub(super) verdict: HandshakeVerdict,
}

impl PeerVerifier {
    /// The key of a certificate that is too old for the TLS library, if the profile accepts any certificate.
    fn key_of_old<'a>(&self, certificate: &'a CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'a>> {
        self.profile.settings.demands.insecure.then(|| key_of_old(certificate)).flatten()
    }

    fn decide(&self, own: &CertificateDer<'_>, above: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        let chain: Vec<_> = std::iter::once(own.clone()).chain(above.iter().cloned()).collect();
        self.profile.check(&self.expected, &chain).map_err(|rejection| {
            let certificate = match &rejection {
                Rejection::Expired { .. } => CertificateError::Expired,
                Rejection::NotYet { .. } => CertificateError::NotValidYet,
                Rejection::Revoked { .. } | Rejection::Blocked { .. } => CertificateError::Revoked,
                Rejection::UnknownIssuer { .. } => CertificateError::UnknownIssuer,
                Rejection::Unusable(_)
                | Rejection::OldVersion(_)
                | Rejection::ShortKey { .. }
                | Rejection::Authority { .. }
                | Rejection::NoNodeId { .. }
                | Rejection::BadSignature { .. }
                | Rejection::WrongPurpose { .. }
                | Rejection::NotPinned { .. }
                | Rejection::WrongName { .. } => {
                    CertificateError::Other(OtherError(Arc::new(rejection.clone())))
                }
            };
            // Set once: a handshake shows one certificate.
            let _first = self.verdict.0.rejection.set(rejection);
            rustls::Error::InvalidCertificate(certificate)
        })
    }
}

/// Verifies by a bare key as rustls does by a certificate. Rustls has a function for bare keys only in TLS 1.3.
fn verify_tls12_signature_with_key(
    message: &[u8],
    key: &SubjectPublicKeyInfoDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    let bad = rustls::Error::InvalidCertificate(CertificateError::BadSignature);
    let Ok(key) = RawPublicKeyEntity::try_from(key) else { return Err(bad) };
    let fitting = algorithms.mapping.iter().filter(|(scheme, _)| *scheme == signed.scheme);
    let verifies = |algorithm: &&dyn SignatureVerificationAlgorithm| {
        key.verify_signature(*algorithm, message, signed.signature()).is_ok()
    };
    let valid = fitting.flat_map(|(_, algorithms)| algorithms.iter()).any(verifies);
    if valid { Ok(HandshakeSignatureValid::assertion()) } else { Err(bad) }
}

/// The methods that verify signatures of a handshake, which both of rustls's traits declare alike.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.profile.provider.signature_verification_algorithms;
            match self.key_of_old(certificate) {
                Some(key) => verify_tls12_signature_with_key(message, &key, signed, algorithms),
                None => verify_tls12_signature(message, certificate, signed, algorithms),
            }
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.profile.provider.signature_verification_algorithms;
            match self.key_of_old(certificate) {
                Some(key) => verify_tls13_signature_with_raw_key(message, &key, signed, algorithms),
                None => verify_tls13_signature(message, certificate, signed, algorithms),
            }
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.profile.provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.decide(end_entity, intermediates).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for PeerVerifier {
    fn offer_client_auth(&self) -> bool {
        !self.verdict.is_newcomer()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.profile.settings.require_client_cert
    }

    /// No hints, because a client has one certificate to show, and a long list of names makes handshakes large.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.decide(end_entity, intermediates).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}
