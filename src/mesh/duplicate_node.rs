//! Two nodes with one ID: the one that started first stays.
//!
//! It floods a notice each time that it hears the other one (docs/protocol.md#duplicates). The other one, which is this
//! file's second half, stops only when such notices persist, since anybody in the mesh can make up a few: meanwhile it
//! floods its own update often, so that a node that is really there has something to answer.

use std::time::Duration;

use super::throttle::Throttle;
use super::{Event, Mesh, Now, Tick};
use crate::wire::RoutingUpdate;

/// Between two notices to a node that uses our ID.
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);
/// Between two warnings of the same kind.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Between own updates while this node is suspected, at most.
const SUSPECTED_ROUND: Duration = Duration::from_secs(10);
/// How long a notice keeps this node suspected.
const SUSPICION: Duration = Duration::from_secs(60);
/// Notices that end this node, if they are spread over at least [`PERSISTENT`].
const ENOUGH: u32 = 3;
const PERSISTENT: Duration = Duration::from_secs(25);

/// What is known of other nodes with our ID.
#[derive(Debug)]
pub(super) struct DuplicateNodes {
    notices: Throttle,
    /// The epoch of a node that started after us, if it has to be sent a notice.
    newer: Option<u64>,
    accuser: Option<Accuser>,
    warned_of_newer: Option<Tick>,
    warned_of_accuser: Option<Tick>,
}

/// A node that says it was here first.
#[derive(Debug)]
struct Accuser {
    epoch: u64,
    /// Sequence of its latest notice that counts.
    sequence: u64,
    /// Sequence of our latest update before that notice.
    answers: u64,
    notices: u32,
    first: Tick,
    latest: Tick,
}

impl DuplicateNodes {
    pub(super) fn new() -> Self {
        Self {
            notices: Throttle::new(NOTICE_INTERVAL),
            newer: None,
            accuser: None,
            warned_of_newer: None,
            warned_of_accuser: None,
        }
    }

    /// When the next notice is due.
    pub(super) fn due(&self) -> Option<Tick> {
        self.notices.due()
    }

    /// The longest time between own updates, if this node is suspected.
    pub(super) fn round(&self, now: Tick) -> Option<Duration> {
        let suspected = self.accuser.as_ref().is_some_and(|accuser| accuser.persists(now));
        suspected.then_some(SUSPECTED_ROUND)
    }

    /// A notice claims that this node is the newer one, whose latest update had the sequence `own`. True if such notices
    /// persist.
    fn accuse(&mut self, notice: &RoutingUpdate, own: u64, now: Tick) -> bool {
        let (epoch, sequence) = (notice.epoch, notice.sequence);
        match &mut self.accuser {
            Some(accuser) if accuser.persists(now) => {
                // One at a time: of several that are there, each one's notices are enough.
                if accuser.epoch == epoch && accuser.sequence < sequence && accuser.answers < own {
                    let notices = accuser.notices.saturating_add(1);
                    *accuser = Accuser { sequence, answers: own, notices, latest: now, ..*accuser };
                }
                accuser.notices >= ENOUGH && accuser.latest.since(accuser.first) >= PERSISTENT
            }
            Some(_) | None => {
                let (first, latest) = (now, now);
                self.accuser = Some(Accuser { epoch, sequence, answers: own, notices: 1, first, latest });
                false
            }
        }
    }
}

impl Accuser {
    fn persists(&self, now: Tick) -> bool {
        now.since(self.latest) < SUSPICION
    }
}

impl Mesh {
    /// An update in our name: an echo, our own past, or a node with the same ID.
    pub(super) fn handle_update_in_our_name(&mut self, update: &RoutingUpdate, now: Now) {
        if update.epoch > self.epoch {
            self.duplicates.newer = Some(update.epoch);
            self.duplicates.notices.request(now.tick);
        } else if update.epoch < self.epoch && update.suspected_duplicate == self.epoch {
            self.handle_accusation(update, now.tick);
        }
    }

    fn handle_accusation(&mut self, notice: &RoutingUpdate, now: Tick) {
        if self.duplicates.accuse(notice, self.own_update.sequence(), now) {
            return self.outbox.report(Event::WeAreDuplicate);
        }
        let round = self.update_round(now);
        self.own_update.bring_forward(now + round);
        if take_warning(&mut self.duplicates.warned_of_accuser, now) {
            self.outbox.report(Event::Suspected { epoch: notice.epoch });
        }
    }

    /// Floods a notice that another node uses our name, if that is due. The answer to a flood in our name must not be a
    /// flood of its own, so this is throttled; but each update of the other node is followed by a notice, since the
    /// nodes that have heard it believe it.
    pub(super) fn give_duplicate_notice(&mut self, now: Tick) {
        if !self.duplicates.notices.take(now) {
            return;
        }
        let Some(epoch) = self.duplicates.newer.take() else { return };
        if take_warning(&mut self.duplicates.warned_of_newer, now) {
            self.outbox.report(Event::DuplicateNode { epoch });
        }
        self.flood_own_update(epoch, now);
        // The notice only corrects who is believed; our links come with the next update.
        self.own_update.request(now);
    }
}

/// True once in each [`WARNING_INTERVAL`].
fn take_warning(warned: &mut Option<Tick>, now: Tick) -> bool {
    let due = warned.is_none_or(|warned| now.since(warned) >= WARNING_INTERVAL);
    if due {
        *warned = Some(now);
    }
    due
}
