//! The log lines about links that come and go.
//!
//! Owns their levels, and that they stay few: who connects to this node may do so as often as it likes. Links that this
//! node dials are paced by their back-off, and always told of.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::session::Channel;
use crate::backend::Direction;
use crate::mesh::{CloseReason, SessionId};
use crate::os::log_limiter::LogLimiter;
use crate::wire::{Cost, NodeId};

/// Lines in a minute: the neighbours of a large mesh may all leave and come back within one.
const LINES: u32 = 500;
const MINUTE: Duration = Duration::from_secs(60);

/// What was said of late.
#[derive(Debug)]
pub(super) struct Comings(LogLimiter);

impl Default for Comings {
    fn default() -> Self {
        Self(LogLimiter::new(LINES, MINUTE))
    }
}

impl Comings {
    /// A neighbour has introduced itself.
    pub(super) fn connected(&mut self, session: SessionId, peer: &NodeId, cost: Cost, on: Option<&Channel>) {
        if let Some(unsaid) = self.take(on) {
            info!(%session, %peer, cost = cost.get(), unsaid, "connected");
        }
    }

    /// A session has ended.
    pub(super) fn ended(
        &mut self,
        session: SessionId,
        peer: Option<&NodeId>,
        on: Option<&Channel>,
        reason: &CloseReason,
    ) {
        let peer = peer.map_or("unknown", NodeId::as_str);
        let address = on.map_or("", |channel| &channel.address);
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

    /// A link's end, as loud as it matters: anybody can connect to a listener and leave, but a neighbour that was
    /// dialled and leaves before it has said who it is has a reason.
    fn link_closed(&mut self, session: SessionId, peer: &str, on: Option<&Channel>) {
        let Some(channel) = on else { return };
        let address = &channel.address;
        let cause = channel.cause.get().map_or("", String::as_str);
        match (channel.established.load(Ordering::Acquire), channel.direction) {
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
    fn take(&mut self, on: Option<&Channel>) -> Option<Option<u64>> {
        if on.is_some_and(|channel| channel.direction == Direction::Outbound) {
            return Some(None);
        }
        let unsaid = self.0.take(Instant::now())?;
        Some((unsaid > 0).then_some(unsaid))
    }
}
