//! Settings of quinn over the mesh: the limits of docs/protocol.md#stream-limits, and sizes that fit the mesh. Refuses
//! to know who connects.

use std::sync::Arc;
use std::time::Duration;

use quinn::{EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig, TransportConfig, VarInt};

use super::windows::{FIRST_WINDOW, MOST_OF_A_STREAM};
use crate::congestion::DeliveryRate;
use crate::wire::MAX_PAYLOAD;

/// How long a handshake may take (docs/protocol.md#stream-opening).
pub(super) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(15);
/// Milliseconds of silence after which a connection ends (docs/protocol.md#stream-limits).
const IDLE_LIMIT: VarInt = VarInt::from_u32(30_000);
/// The interval of a dialer's keep-alives (docs/protocol.md#stream-limits).
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The packet size that every receptor node accepts; MTU discovery finds larger ones.
const INITIAL_MTU: u16 = 1_452;
/// The round trip that is assumed before the first measurement. With QUIC's default of a third of a second, a lost
/// first packet would delay a job by a whole second.
const INITIAL_RTT: Duration = Duration::from_millis(50);
/// Bytes that may be in flight before anything is known of the route. The links' queues have room for them.
const IN_FLIGHT: u64 = 64 << 10;
/// Connections whose first packet may wait for a listener.
const MOST_INCOMING: usize = 4096;
/// Bytes of further packets of these connections.
const INCOMING_BUFFER: u64 = 16 << 20;
/// Bytes of a handshake that a dialer buffers. More than the 16 KiB of a listener, because a Go node's handshake names
/// the authorities that the node trusts, and some hundred of them need more.
pub(super) const LARGEST_HANDSHAKE: usize = 64 << 10;
/// The largest QUIC packet, in bytes.
const MAX_PACKET: u16 = {
    assert!(MAX_PAYLOAD <= u16::MAX as usize);
    MAX_PAYLOAD as u16
};

/// Settings of an endpoint. The mesh carries larger packets than a network.
pub(super) fn endpoint() -> EndpointConfig {
    let mut config = EndpointConfig::default();
    // Cannot fail: the size is a constant within QUIC's range.
    config.max_udp_payload_size(MAX_PACKET).map_or_else(|_| EndpointConfig::default(), |c| c.clone())
}

/// Sets the limits of a listener.
pub(super) fn limit(config: &mut ServerConfig) {
    config
        .transport_config(transport(false))
        .migration(false)
        .max_incoming(MOST_INCOMING)
        .incoming_buffer_size_total(INCOMING_BUFFER);
}

/// Settings of a connection; only dialers keep it alive.
pub(super) fn transport(dialer: bool) -> Arc<TransportConfig> {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(MAX_PACKET);
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .max_idle_timeout(Some(IdleTimeout::from(IDLE_LIMIT)))
        .keep_alive_interval(dialer.then_some(KEEP_ALIVE))
        .initial_mtu(INITIAL_MTU)
        .mtu_discovery_config(Some(discovery))
        .initial_rtt(INITIAL_RTT)
        .stream_receive_window(VarInt::from_u32(MOST_OF_A_STREAM))
        .receive_window(VarInt::from_u32(FIRST_WINDOW))
        .send_window(u64::from(FIRST_WINDOW))
        .datagram_receive_buffer_size(None)
        .congestion_controller_factory(Arc::new(DeliveryRate::new(IN_FLIGHT)));
    if dialer {
        config.crypto_buffer_size(LARGEST_HANDSHAKE);
    }
    Arc::new(config)
}
