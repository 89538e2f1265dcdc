//! The log lines about links that come up and end.
//!
//! Decides their levels, and logs a reason that recurs at each attempt only once. Each log statement may write a
//! limited number of lines, and others may connect as often as they like. So links that this node dials, which its
//! back-off paces, have statements of their own.

use std::collections::BTreeSet;

use tracing::{debug, info, warn};

use super::dial::{Dial, LinkEnd};
use super::session::SessionShared;
use crate::backend::{AcceptError, Direction};
use crate::mesh::CloseReason;
use crate::wire::{Cost, NodeId};

/// Most reasons that are remembered for links that others dial.
const MOST_REASONS: usize = 256;

/// The host of `host:port`.
pub(super) fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _port)| host)
}

/// Logs links, and remembers which reasons were logged for which host. Dialled links remember their own, in [`Dial`].
#[derive(Debug, Default)]
pub(super) struct LinkLog(BTreeSet<(String, String)>);

/// A dial gave no session. Logged at debug level if the failure is known already.
pub(super) fn cannot_reach(dial: &Dial, failure: String) {
    if dial.note_end(&LinkEnd::Failed(failure.clone())) {
        warn!(failure, "cannot reach peer, trying again");
    } else {
        debug!(failure, "still cannot reach peer");
    }
}

/// The end of a session.
#[derive(Debug)]
pub(super) struct Ended<'a> {
    /// The neighbour, if it had introduced itself.
    pub(super) peer: Option<&'a NodeId>,
    pub(super) on: &'a SessionShared,
    pub(super) reason: &'a CloseReason,
    /// Whether the peer had let this node in.
    pub(super) was_up: bool,
    /// The direction of another session with the same node, if there is one.
    pub(super) other: Option<Direction>,
}

/// Logs a line about a link: links that this node dials and links that others dial have separate statements.
macro_rules! by_direction {
    ($level:ident, $on:expr, $($line:tt)+) => {
        match $on.direction {
            Direction::Outbound => $level!($($line)+),
            Direction::Inbound => $level!($($line)+),
        }
    };
}

impl LinkLog {
    /// True if this reason was not logged for the host before, or has been forgotten since to make room.
    fn is_news(&mut self, address: &str, reason: String) -> bool {
        let told = (host_of(address).to_owned(), reason);
        if !self.0.contains(&told) && self.0.len() >= MOST_REASONS {
            self.0.clear();
        }
        self.0.insert(told)
    }

    /// A link with this host is up: any reason is news from now on.
    pub(super) fn forget(&mut self, address: &str) {
        self.0.retain(|(known, _)| known != host_of(address));
    }

    /// A client of a listener did not get a session.
    pub(super) fn refused(&mut self, error: &AcceptError) {
        let is_news = match error {
            // Such neighbours keep dialling until they are upgraded: logged once, whatever they ask for.
            AcceptError::Upgrade { peer, .. } => self.is_news(peer, String::new()),
            AcceptError::Tls { peer, source, .. } => self.is_news(peer, source.to_string()),
            AcceptError::Transient { .. } | AcceptError::Fatal { .. } => true,
        };
        if is_news {
            warn!(%error, "neighbour refused");
        } else {
            debug!(%error, "neighbour refused");
        }
    }

    /// A neighbour has introduced itself, and has let this node in.
    pub(super) fn connected(&mut self, peer: &NodeId, cost: Cost, on: &SessionShared) {
        match &on.dial {
            Some(dial) => dial.note_up(),
            None => self.forget(&on.address),
        }
        let session = on.id;
        by_direction!(info, on, %session, %peer, cost = cost.get(), "connected");
    }

    /// A session has ended. This is always news if it was up, and never if it merely failed on a listener, where
    /// anybody can connect and leave.
    pub(super) fn ended(&mut self, ended: &Ended<'_>) {
        let Ended { on, reason, .. } = ended;
        let (session, address, why) = (on.id, &on.address, ended.why());
        let peer = ended.peer.map_or("unknown", NodeId::as_str);
        let end = ended.end();
        let is_news = match (&on.dial, &end) {
            (Some(dial), LinkEnd::Failed(_)) => {
                return cannot_reach(dial, format!("cannot connect to {address}: {why}"));
            }
            (Some(dial), _) => dial.note_end(&end),
            (None, LinkEnd::Refused(_) | LinkEnd::RefusedByPeer) => self.is_news(address, reason.to_string()),
            (None, LinkEnd::Failed(_) | LinkEnd::InReserve(_)) => false,
            (None, LinkEnd::Lost(_)) => true,
        };
        let is_refusal = reason.rejects() || **reason == CloseReason::RejectedByPeer;
        match end {
            _ if !is_news => debug!(%session, peer, address, why, "disconnected"),
            LinkEnd::InReserve(other) => {
                let by =
                    if other == Direction::Inbound { "its own dial" } else { "another dial of this node" };
                info!(peer, address, by, "neighbour is linked already: keeping this dial in reserve");
            }
            LinkEnd::Lost(_) if **reason == CloseReason::LinkClosed => {
                by_direction!(info, on, %session, peer, address, cause = why, "disconnected");
            }
            LinkEnd::Lost(_) if !is_refusal => {
                by_direction!(warn, on, %session, peer, address, %reason, "disconnected");
            }
            LinkEnd::Lost(_) | LinkEnd::Refused(_) | LinkEnd::RefusedByPeer | LinkEnd::Failed(_) => {
                by_direction!(warn, on, %session, peer, address, %reason, "connection refused");
            }
        }
    }
}

impl Ended<'_> {
    /// The transport's cause, or else the protocol's reason.
    pub(super) fn why(&self) -> String {
        let cause = self.on.cause.get().filter(|_| *self.reason == CloseReason::LinkClosed);
        cause.cloned().unwrap_or_else(|| self.reason.to_string())
    }

    fn end(&self) -> LinkEnd {
        // If neither session was dialled by us, they may be two nodes under one name, so this one is no reserve.
        let is_ours = |other: &Direction| [self.on.direction, *other].contains(&Direction::Outbound);
        match self.other.filter(is_ours) {
            _ if self.was_up => LinkEnd::Lost(self.why()),
            Some(other) => LinkEnd::InReserve(other),
            None if *self.reason == CloseReason::RejectedByPeer => LinkEnd::RefusedByPeer,
            None if self.reason.rejects() => LinkEnd::Refused(self.why()),
            None => LinkEnd::Failed(self.why()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::backend::{DialSpec, SessionInfo, UdpDialOptions};
    use crate::mesh::{SessionId, Tick};
    use crate::node::dial::Dials;

    #[test]
    fn what_was_told_of_a_host_is_told_once_and_its_number_is_bounded() {
        let mut told = LinkLog::default();
        let mut is_news = |host: &str, reason: &str| told.is_news(host, reason.to_owned());
        assert!(is_news("a", "x") && !is_news("a", "x") && is_news("b", "x") && is_news("a", "y"));
        (0..10_000).for_each(|number| assert!(is_news(&number.to_string(), "")));
        assert!(told.0.len() <= MOST_REASONS && !told.is_news("9999", String::new()));
        told.forget("9999");
        assert!(told.is_news("9999", String::new()) && !told.is_news("9998", String::new()));
    }

    fn session(direction: Direction, dial: Option<&Arc<Dial>>) -> SessionShared {
        let info = SessionInfo {
            transport: "tcp",
            peer: "host:1".to_owned(),
            direction,
            certified_nodes: None,
            is_newcomer: false,
        };
        SessionShared::new(SessionId(1), &info, Arc::default(), dial.cloned(), Tick::at(Duration::ZERO))
    }

    #[test]
    fn a_dial_that_ends_for_the_same_reason_is_told_once_until_it_is_up() {
        let dials = Dials::default();
        let dial = dials.add(&DialSpec::Udp(UdpDialOptions { address: "host:1".to_owned() }));
        let (on, mut log, peer) =
            (session(Direction::Outbound, Some(&dial)), LinkLog::default(), NodeId::new("b").unwrap());
        let known = || dials.all()[0].ended.clone();
        let end = |reason: CloseReason, other: Option<Direction>| {
            let ended = Ended { peer: Some(&peer), on: &on, reason: &reason, was_up: false, other };
            let end = ended.end();
            dial.note_end(&end).then_some(end)
        };
        let rejected = || CloseReason::RejectedByPeer;
        let living = || CloseReason::AlreadyConnected(peer.clone());
        let failed = end(CloseReason::NoIntroduction, None);
        assert!(matches!(failed, Some(LinkEnd::Failed(_))), "{failed:?}");
        assert_eq!(end(CloseReason::NoIntroduction, None), None);
        assert_eq!(end(rejected(), None), Some(LinkEnd::RefusedByPeer));
        let own = end(CloseReason::OwnId, None);
        assert!(matches!(own, Some(LinkEnd::Refused(_))), "{own:?}");
        assert_eq!(end(CloseReason::OwnId, None), None);
        assert_eq!(end(rejected(), None), None, "that was told before");
        let reserve = Some(LinkEnd::InReserve(Direction::Inbound));
        assert_eq!(end(living(), Some(Direction::Inbound)), reserve);
        assert_eq!(end(rejected(), Some(Direction::Inbound)), None);
        log.connected(&peer, Cost::new(1.0).unwrap(), &on);
        assert_eq!(known(), None);
        log.ended(&Ended { peer: None, on: &on, reason: &rejected(), was_up: false, other: None });
        assert_eq!(known(), Some(LinkEnd::RefusedByPeer), "told again");
    }

    #[test]
    fn two_nodes_of_one_name_are_told_from_a_neighbour_that_both_ends_dial() {
        let (on, reason) = (session(Direction::Inbound, None), CloseReason::RejectedByPeer);
        let end = |other| Ended { peer: None, on: &on, reason: &reason, was_up: false, other }.end();
        assert_eq!(end(Some(Direction::Outbound)), LinkEnd::InReserve(Direction::Outbound));
        assert_eq!(end(Some(Direction::Inbound)), LinkEnd::RefusedByPeer);
    }
}
