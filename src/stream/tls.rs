//! TLS of streams: the protocol's names, and which certificate each side expects.
//!
//! Without a user's profile a listener presents a self-signed certificate with a fixed name, and a dialer accepts any
//! certificate with that name (docs/protocol.md#stream-trust). It proves nothing about the other side, and its validity
//! dates mean nothing, because receptor's dialers ignore them. Under a profile, the certificate must name the node at
//! the other end; the room `tls` decides whether it is accepted.

use std::sync::Arc;

use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, ServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::settings;
use crate::tls::{ClientProfile, Expected, HandshakeVerdict, ServerProfile};
use crate::wire::{NameHash, NodeId};

/// The common name of a certificate without a profile.
const COMMON_NAME: &str = "netceptor-insecure-common-name";

/// The kind of node at the other end of a connection, known by the protocol's name that both ends have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A Go node, or anything else that speaks only receptor's protocol: one stream on a connection.
    Receptor,
    /// A node of ours: many streams on a connection, and all that docs/protocol.md#between-meshd-nodes says of
    /// `meshd/1`.
    Meshd,
}

impl Peer {
    const BEST_FIRST: [Self; 2] = [Self::Meshd, Self::Receptor];

    /// The protocol's name in the handshake. A later version of ours gets a new number, prefers it, and for one release
    /// still speaks this one.
    const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Receptor => b"netceptor",
            Self::Meshd => b"meshd/1",
        }
    }

    /// Whether one connection to this peer can carry many streams.
    pub(super) fn shares(self) -> bool {
        self == Self::Meshd
    }

    /// The node at the other end of an open connection.
    pub(super) fn of(connection: &Connection) -> Self {
        let data = connection.handshake_data().and_then(|any| any.downcast::<HandshakeData>().ok());
        let agreed = data.and_then(|data| data.protocol);
        let is_agreed = |peer: &Self| agreed.as_deref() == Some(peer.alpn());
        Self::BEST_FIRST.into_iter().find(is_agreed).unwrap_or(Self::Receptor)
    }
}

/// The protocol's names, best first; without `share`, only the one for a single stream.
fn protocols(share: bool) -> Vec<Vec<u8>> {
    Peer::BEST_FIRST
        .into_iter()
        .filter(|peer| share || !peer.shares())
        .map(|peer| peer.alpn().to_vec())
        .collect()
}

/// TLS could not be set up; nothing that a peer does causes this.
#[derive(Debug, thiserror::Error)]
#[error("failed to set up TLS for streams: {0}")]
pub struct TrustError(#[source] Box<dyn std::error::Error + Send + Sync>);

impl TrustError {
    pub(super) fn new(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}

/// A listener's side of one handshake under a profile, or of all handshakes without a profile.
fn server_config(mut config: rustls::ServerConfig) -> Result<ServerConfig, TrustError> {
    config.alpn_protocols = protocols(true);
    let crypto = QuicServerConfig::try_from(config).map_err(TrustError::new)?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    settings::limit(&mut config);
    Ok(config)
}

/// A dialer's side; with `share`, for a connection that may carry many streams.
fn client_config(mut config: rustls::ClientConfig, share: bool) -> Result<ClientConfig, TrustError> {
    config.alpn_protocols = protocols(share);
    // Node IDs are no DNS names.
    config.enable_sni = false;
    let crypto = QuicClientConfig::try_from(config).map_err(TrustError::new)?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(settings::transport(true));
    Ok(config)
}

/// A listener's side of one handshake under a profile.
pub(super) fn server_of(
    profile: &ServerProfile,
    expected: Expected,
) -> Result<(ServerConfig, HandshakeVerdict), TrustError> {
    let (config, verdict) = profile.quic_config(expected, Peer::Receptor.alpn()).map_err(TrustError::new)?;
    Ok((server_config(config)?, verdict))
}

/// The dialer that a listener under a profile expects: with required certificates, the node that the packets come from.
pub(super) fn expected_client(profile: &ServerProfile, from: Option<NameHash>) -> Expected {
    match from {
        Some(node) if profile.requires_client_certificate() => Expected::NodeHash(node),
        Some(_) | None => Expected::Anyone,
    }
}

/// A dialer's side of one handshake under a profile.
pub(super) fn client_of(
    profile: &ClientProfile,
    node: &NodeId,
    share: bool,
) -> Result<(ClientConfig, HandshakeVerdict), TrustError> {
    let expected = Expected::Node(node.clone());
    let (config, verdict) = profile.quic_config(expected, Peer::Receptor.alpn()).map_err(TrustError::new)?;
    Ok((client_config(config, share)?, verdict))
}

/// The certificates that the other end has shown.
pub(super) fn peer_chain(connection: &Connection) -> Vec<CertificateDer<'static>> {
    let identity = connection.peer_identity();
    identity.and_then(|any| any.downcast().ok()).map_or_else(Vec::new, |chain| *chain)
}

/// A listener's side without a profile, with a new certificate. The key is ECDSA P-256, because no dialer checks its
/// kind and RSA takes many times as long.
pub(super) fn server() -> Result<ServerConfig, TrustError> {
    let key = rcgen::KeyPair::generate().map_err(TrustError::new)?;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, COMMON_NAME);
    let certificate = params.self_signed(&key).map_err(TrustError::new)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TrustError::new)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .map_err(TrustError::new)?;
    server_config(config)
}

/// A dialer's side without a profile.
pub(super) fn client(share: bool) -> Result<ClientConfig, TrustError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = FixedName { provider: provider.clone() };
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TrustError::new)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    client_config(config, share)
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
        Err(rustls::Error::General(
            "insecure connection to secure service: it has TLS, so name a tls-client (--tls-client, tlsclient)".to_owned(),
        ))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The configuration of a dialer that accepts the fixed name.
    fn trusting() -> rustls::ClientConfig {
        let provider = Arc::new(aws_lc_rs::default_provider());
        rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(FixedName { provider }))
            .with_no_client_auth()
    }

    /// The address of a listener that accepts everybody until the test ends.
    fn listening() -> std::net::SocketAddr {
        let listener = quinn::Endpoint::server(server().unwrap(), "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut connections = Vec::new();
            while let Some(incoming) = listener.accept().await {
                connections.push(incoming.await);
            }
        });
        address
    }

    fn dialer(config: ClientConfig) -> quinn::Endpoint {
        let mut dialer = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        dialer.set_default_client_config(config);
        dialer
    }

    #[tokio::test]
    async fn nothing_is_taken_before_the_handshake() {
        let address = listening();
        // A dialer that would keep tickets and send early data if the listener allowed it.
        let mut config = trusting();
        config.enable_early_data = true;
        let dialer = dialer(client_config(config, true).unwrap());
        for _ in 0..2 {
            let connecting = dialer.connect(address, "netceptor").unwrap();
            let Err(connecting) = connecting.into_0rtt() else { panic!("it may send early") };
            let connection = connecting.await.unwrap();
            // Tickets would come with the first packets after the handshake.
            let (mut sends, _receives) = connection.open_bi().await.unwrap();
            sends.write_all(b"x").await.unwrap();
            sends.finish().unwrap();
            sends.stopped().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_later_version_agrees_down_to_ours_and_one_that_speaks_nothing_older_is_refused() {
        let address = listening();
        for (offered, agreed) in [
            (&["meshd/2", "meshd/1", "netceptor"][..], Some(Peer::Meshd)),
            (&["meshd/2", "netceptor"], Some(Peer::Receptor)),
            (&["meshd/2"], None),
        ] {
            let mut config = trusting();
            config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
            let dialer = dialer(ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap())));
            let connected = dialer.connect(address, "netceptor").unwrap().await;
            assert_eq!(connected.ok().as_ref().map(Peer::of), agreed, "{offered:?}");
        }
    }
}
