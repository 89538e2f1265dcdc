//! TLS of streams without a user's profile: a listener presents a self-signed certificate with a fixed
//! name, a dialer accepts exactly that (docs/protocol.md#stream-trust).
//!
//! It proves nothing about who the other side is; that is what profiles are for. Its validity dates mean
//! nothing either: receptor's dialers do not look at them.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The name that such a certificate carries.
const COMMON_NAME: &str = "netceptor-insecure-common-name";
/// The protocol's name in the handshake.
pub(super) const ALPN: &[u8] = b"netceptor";

/// TLS could not be set up; nothing that a peer does causes this.
#[derive(Debug, thiserror::Error)]
#[error("failed to set up TLS for streams: {0}")]
pub struct TrustError(#[source] Box<dyn std::error::Error + Send + Sync>);

impl TrustError {
    pub(super) fn new(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}

/// A listener's side, with a certificate made just now. The key is ECDSA P-256 rather than RSA: no dialer
/// looks at its kind, and it is made and used in a fraction of the time.
pub(super) fn server() -> Result<ServerConfig, TrustError> {
    let key = rcgen::KeyPair::generate().map_err(TrustError::new)?;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, COMMON_NAME);
    let certificate = params.self_signed(&key).map_err(TrustError::new)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TrustError::new)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .map_err(TrustError::new)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

/// A dialer's side.
pub(super) fn client() -> Result<ClientConfig, TrustError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = FixedName { provider: provider.clone() };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TrustError::new)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Node IDs are no DNS names, and receptor sends whatever it likes here.
    config.enable_sni = false;
    Ok(config)
}

/// Accepts a chain in which any certificate carries the fixed name.
#[derive(Debug)]
struct FixedName {
    provider: Arc<CryptoProvider>,
}

fn has_fixed_name(certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate)
        .is_ok_and(|(_, parsed)| parsed.subject().iter_common_name().any(|cn| cn.as_str() == Ok(COMMON_NAME)))
}

impl ServerCertVerifier for FixedName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if std::iter::once(end_entity).chain(intermediates).any(has_fixed_name) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::Error::General("insecure connection to secure service".to_owned()))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
