//! Two nodes with one ID: the one that started first stays.
//!
//! It tells the mesh of the other one each time that it hears it (docs/protocol.md#duplicates). The other
//! one, which is this file's second half, ends only when such notices persist, since anybody in the mesh can
//! make up a few: meanwhile it tells its own update often, so that a node that is really there has something
//! to answer.

use std::time::Duration;

use super::core::{Event, Mesh};
use super::throttle::Pace;
use super::{Now, Tick};
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
pub(super) struct Duplicates {
    notice_pace: Pace,
    /// The epoch of a node that started after us, if it has to be told so.
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

impl Duplicates {
    pub(super) fn new() -> Self {
        Self {
            notice_pace: Pace::new(NOTICE_INTERVAL),
            newer: None,
            accuser: None,
            warned_of_newer: None,
            warned_of_accuser: None,
        }
    }

    /// When the next notice is due.
    pub(super) fn due(&self) -> Option<Tick> {
        self.notice_pace.due()
    }

    /// The longest time between own updates, if this node is suspected.
    pub(super) fn round(&self, now: Tick) -> Option<Duration> {
        let suspected = self.accuser.as_ref().is_some_and(|accuser| accuser.persists(now));
        suspected.then_some(SUSPECTED_ROUND)
    }

    /// A notice says that this node is the newer one, whose latest update had the sequence `own`. True if that has been
    /// said often and long enough.
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
    /// Somebody speaks in our name: an echo, our own past, or a node with the same ID.
    pub(super) fn take_update_in_our_name(&mut self, update: &RoutingUpdate, now: Now) {
        if update.epoch > self.epoch {
            self.duplicates.newer = Some(update.epoch);
            self.duplicates.notice_pace.request(now.tick);
        } else if update.epoch < self.epoch && update.suspected_duplicate == self.epoch {
            self.take_accusation(update, now.tick);
        }
    }

    fn take_accusation(&mut self, notice: &RoutingUpdate, now: Tick) {
        if self.duplicates.accuse(notice, self.told_sequence, now) {
            return self.events.push_back(Event::WeAreDuplicate);
        }
        let round = self.update_round(now);
        self.next_update = self.next_update.min(now + round);
        if take_warning(&mut self.duplicates.warned_of_accuser, now) {
            self.events.push_back(Event::Suspected { epoch: notice.epoch });
        }
    }

    /// Tells the mesh that another node uses our name, if that is due. The answer to a flood in our name must not be a
    /// flood of its own, so this is paced; but each time that the other one was heard is followed by a notice, since
    /// whoever has heard it believes it.
    pub(super) fn give_duplicate_notice(&mut self, now: Tick) {
        if !self.duplicates.notice_pace.take(now) {
            return;
        }
        let Some(epoch) = self.duplicates.newer.take() else { return };
        if take_warning(&mut self.duplicates.warned_of_newer, now) {
            self.events.push_back(Event::DuplicateNode { epoch });
        }
        self.flood_own_update(epoch, now);
        // The notice only sets the others right about who speaks; what is said comes with the next update.
        self.update_pace.request(now);
    }
}

/// True once in each [`WARNING_INTERVAL`]; the warning then counts as given.
fn take_warning(warned: &mut Option<Tick>, now: Tick) -> bool {
    let due = warned.is_none_or(|warned| now.since(warned) >= WARNING_INTERVAL);
    if due {
        *warned = Some(now);
    }
    due
}
