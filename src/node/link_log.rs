//! The log lines about links that come and go.
//!
//! Owns their levels and their rate: others may connect as often as they like. Links that this node dials are paced by
//! their back-off, and always logged.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::session::SessionShared;
use crate::backend::{AcceptError, Direction};
use crate::mesh::{CloseReason, SessionId};
use crate::os::log_limiter::{FirstOfEach, LogLimiter};
use crate::wire::{Cost, NodeId};

/// Lines in a minute: the neighbours of a large mesh may all leave and come back within one.
const LINES: u32 = 500;
const MINUTE: Duration = Duration::from_secs(60);

/// At most one refused client in this time is logged as a warning.
const REFUSALS: Duration = Duration::from_millis(200);

/// The host of `host:port`.
pub(super) fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _port)| host)
}

/// The lines about clients of one listener that did not become sessions. Anybody can cause these, at any rate.
#[derive(Debug)]
pub(super) struct RefusalLog {
    lines: LogLimiter,
    upgrades: FirstOfEach,
}

impl Default for RefusalLog {
    fn default() -> Self {
        Self { lines: LogLimiter::new(1, REFUSALS), upgrades: FirstOfEach::default() }
    }
}

impl RefusalLog {
    pub(super) fn log(&mut self, error: &AcceptError) {
        let is_news = match error {
            // The client reads the answer too, and goes on dialling.
            AcceptError::Upgrade { peer, .. } => self.upgrades.note(host_of(peer)),
            AcceptError::Tls { .. } | AcceptError::Transient { .. } | AcceptError::Fatal { .. } => true,
        };
        if is_news && self.lines.take(Instant::now()).is_some() {
            warn!(%error, "neighbour refused");
        } else {
            debug!(%error, "neighbour refused");
        }
    }
}

/// Writes the lines, within the rate.
#[derive(Debug)]
pub(super) struct LinkLog(LogLimiter);

impl Default for LinkLog {
    fn default() -> Self {
        Self(LogLimiter::new(LINES, MINUTE))
    }
}

impl LinkLog {
    /// A neighbour has introduced itself.
    pub(super) fn connected(
        &mut self,
        session: SessionId,
        peer: &NodeId,
        cost: Cost,
        on: Option<&SessionShared>,
    ) {
        if let Some(unsaid) = self.take(on) {
            info!(%session, %peer, cost = cost.get(), unsaid, "connected");
        }
    }

    /// A session has ended.
    pub(super) fn ended(
        &mut self,
        session: SessionId,
        peer: Option<&NodeId>,
        on: Option<&SessionShared>,
        reason: &CloseReason,
    ) {
        let peer = peer.map_or("unknown", NodeId::as_str);
        let address = on.map_or("", |shared| &shared.address);
        match reason {
            CloseReason::LinkClosed => self.link_closed(session, peer, on),
            CloseReason::NoIntroduction => debug!(%session, peer, address, %reason, "disconnected"),
            CloseReason::Idle(_) | CloseReason::Silent(_) | CloseReason::Superseded => {
                if let Some(unsaid) = self.take(on) {
                    warn!(%session, peer, address, %reason, unsaid, "disconnected");
                }
            }
            CloseReason::OwnId
            | CloseReason::NotAllowed(_)
            | CloseReason::NotCertified { .. }
            | CloseReason::AlreadyConnected(_)
            | CloseReason::PeerChanged { .. }
            | CloseReason::CostDisagreement { .. }
            | CloseReason::TooManyLinks { .. }
            | CloseReason::Crowded { .. }
            | CloseReason::NoLongerListsUs
            | CloseReason::RejectedByPeer => {
                if let Some(unsaid) = self.take(on) {
                    warn!(%session, peer, address, %reason, unsaid, "connection refused");
                }
            }
        }
    }

    /// Anybody can connect to a listener and leave, which is no news. A dialled neighbour that leaves before it has
    /// introduced itself has a reason.
    fn link_closed(&mut self, session: SessionId, peer: &str, on: Option<&SessionShared>) {
        let Some(shared) = on else { return };
        let address = &shared.address;
        let cause = shared.cause.get().map_or("", String::as_str);
        match (shared.established.load(Ordering::Acquire), shared.direction) {
            (true, _) => {
                if let Some(unsaid) = self.take(on) {
                    info!(%session, peer, address, cause, unsaid, "disconnected");
                }
            }
            (false, Direction::Inbound) => debug!(%session, peer, address, cause, "disconnected"),
            (false, Direction::Outbound) => {
                warn!(%session, peer, address, cause, "disconnected before the neighbour introduced itself");
            }
        }
    }

    /// If a line may be written: how many were left out since the last one, unless none was.
    fn take(&mut self, on: Option<&SessionShared>) -> Option<Option<u64>> {
        if on.is_some_and(|shared| shared.direction == Direction::Outbound) {
            return Some(None);
        }
        let unsaid = self.0.take(Instant::now())?;
        Some((unsaid > 0).then_some(unsaid))
    }
}
