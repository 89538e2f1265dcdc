//! TLS of streams under a user's profile: the node at the other end must be named by its certificate.
//!
//! Owns which name is expected of whom, and the settings of one handshake. Whether a certificate is accepted
//! is the room `tls`'s to say.

use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, ServerConfig};
use rustls::pki_types::CertificateDer;

use super::mux::Peer;
use super::settings;
use super::trust::{ALPN, TrustError};
use crate::tls::{ClientProfile, Expected, ServerProfile, Verdict};
use crate::wire::{NameHash, NodeId};

/// Whom a listener expects: with required certificates, the node that the packets come from.
pub(super) fn expected_client(profile: &ServerProfile, from: Option<NameHash>) -> Expected {
    match from {
        Some(node) if profile.requires_client_certificate() => Expected::NodeHash(node),
        Some(_) | None => Expected::Anyone,
    }
}

/// A listener's side of one handshake.
pub(super) fn server(
    profile: &ServerProfile,
    expected: Expected,
) -> Result<(ServerConfig, Verdict), TrustError> {
    let (mut config, verdict) = profile.quic_config(expected, ALPN).map_err(TrustError::new)?;
    config.alpn_protocols = protocols(true);
    let crypto = QuicServerConfig::try_from(config).map_err(TrustError::new)?;
    Ok((ServerConfig::with_crypto(Arc::new(crypto)), verdict))
}

/// A dialer's side of one handshake; with `share`, for a connection that may carry many streams.
pub(super) fn client(
    profile: &ClientProfile,
    node: &NodeId,
    share: bool,
) -> Result<(ClientConfig, Verdict), TrustError> {
    let (mut config, verdict) =
        profile.quic_config(Expected::Node(node.clone()), ALPN).map_err(TrustError::new)?;
    // Node IDs are no DNS names.
    config.enable_sni = false;
    Ok((dialer(config, share)?, verdict))
}

/// A dialer's side, whatever it trusts.
pub(super) fn dialer(mut config: rustls::ClientConfig, share: bool) -> Result<ClientConfig, TrustError> {
    config.alpn_protocols = protocols(share);
    let crypto = QuicClientConfig::try_from(config).map_err(TrustError::new)?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(settings::transport(true));
    Ok(config)
}

/// The protocol's names, best first.
pub(super) fn protocols(share: bool) -> Vec<Vec<u8>> {
    let ours = Peer::OURS.into_iter().filter(|_| share);
    ours.chain([Peer::Receptor]).map(|peer| peer.alpn().to_vec()).collect()
}

/// The certificates that the other end has shown.
pub(super) fn peer_chain(connection: &Connection) -> Vec<CertificateDer<'static>> {
    let identity = connection.peer_identity();
    identity.and_then(|any| any.downcast().ok()).map_or_else(Vec::new, |chain| *chain)
}
