//! The log lines about links that come and go.
//!
//! Owns their levels. Others may connect as often as they like, which uses up the lines that a statement may write. So
//! links that this node dials, which are paced by their back-off, have statements of their own.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use tracing::{debug, info, warn};

use super::session::SessionShared;
use crate::backend::{AcceptError, Direction};
use crate::mesh::{CloseReason, SessionId};
use crate::wire::{Cost, NodeId};

/// Old neighbours that are remembered.
const MOST_HOSTS: usize = 256;

/// The host of `host:port`.
pub(super) fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _port)| host)
}

/// The lines about clients of one listener that did not become sessions.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    /// Hosts of neighbours that have to be upgraded and go on dialling, which is told once.
    upgrades: BTreeSet<String>,
}

impl RefusalLog {
    pub(super) fn log(&mut self, error: &AcceptError) {
        let is_news = match error {
            AcceptError::Upgrade { peer, .. } => self.note_upgrade(host_of(peer)),
            AcceptError::Tls { .. } | AcceptError::Transient { .. } | AcceptError::Fatal { .. } => true,
        };
        if is_news {
            warn!(%error, "neighbour refused");
        } else {
            debug!(%error, "neighbour refused");
        }
    }

    /// True if the host was not noted before, or was forgotten for others.
    fn note_upgrade(&mut self, host: &str) -> bool {
        if !self.upgrades.contains(host) && self.upgrades.len() >= MOST_HOSTS {
            self.upgrades.clear();
        }
        self.upgrades.insert(host.to_owned())
    }
}

/// A line about a link, by a statement for those that this node dials or by one for those that others dial.
macro_rules! by_direction {
    ($level:ident, $on:expr, $($line:tt)+) => {
        match $on.is_some_and(|shared| shared.direction == Direction::Outbound) {
            true => $level!($($line)+),
            false => $level!($($line)+),
        }
    };
}

/// A neighbour has introduced itself.
pub(super) fn connected(session: SessionId, peer: &NodeId, cost: Cost, on: Option<&SessionShared>) {
    by_direction!(info, on, %session, %peer, cost = cost.get(), "connected");
}

/// A session has ended.
pub(super) fn ended(
    session: SessionId,
    peer: Option<&NodeId>,
    on: Option<&SessionShared>,
    reason: &CloseReason,
) {
    let peer = peer.map_or("unknown", NodeId::as_str);
    let address = on.map_or("", |shared| &shared.address);
    match reason {
        CloseReason::LinkClosed => link_closed(session, peer, on),
        CloseReason::NoIntroduction => debug!(%session, peer, address, %reason, "disconnected"),
        CloseReason::Idle(_) | CloseReason::Silent(_) | CloseReason::Superseded => {
            by_direction!(warn, on, %session, peer, address, %reason, "disconnected");
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
            by_direction!(warn, on, %session, peer, address, %reason, "connection refused");
        }
    }
}

/// Anybody can connect to a listener and leave, which is no news. A dialled neighbour that leaves before it has
/// introduced itself has a reason.
fn link_closed(session: SessionId, peer: &str, on: Option<&SessionShared>) {
    let Some(shared) = on else { return };
    let address = &shared.address;
    let cause = shared.cause.get().map_or("", String::as_str);
    match (shared.established.load(Ordering::Acquire), shared.direction) {
        (true, _) => by_direction!(info, on, %session, peer, address, cause, "disconnected"),
        (false, Direction::Inbound) => debug!(%session, peer, address, cause, "disconnected"),
        (false, Direction::Outbound) => {
            warn!(%session, peer, address, cause, "disconnected before the neighbour introduced itself");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_neighbour_is_told_from_new_ones_and_their_number_is_bounded() {
        let mut log = RefusalLog::default();
        assert!(log.note_upgrade("a") && !log.note_upgrade("a") && log.note_upgrade("b"));
        (0..10_000).for_each(|number| assert!(log.note_upgrade(&number.to_string())));
        assert!(log.upgrades.len() <= MOST_HOSTS && !log.note_upgrade("9999"));
    }
}
