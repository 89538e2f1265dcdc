//! The sessions of one listener whose peers have not introduced themselves, bounded in number.
//!
//! Decides which session is closed when there are too many: the oldest, because a neighbour introduces itself at once.
//! So silent strangers displace each other and keep nobody out. The protocol decides how long a single session may be
//! silent.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::session::SessionShared;

/// Most such sessions on one listener: enough for all neighbours of a large node to return at once.
const MOST_SESSIONS: usize = 2_048;

/// Oldest first. Sessions that became neighbours or ended are removed when room is needed.
#[derive(Debug)]
pub(super) struct PendingSessions {
    // A plain lock, because it is held only for short looks at the list.
    list: Mutex<VecDeque<Weak<SessionShared>>>,
    most: usize,
}

impl Default for PendingSessions {
    fn default() -> Self {
        Self { list: Mutex::default(), most: MOST_SESSIONS }
    }
}

impl PendingSessions {
    /// Adds a session. Returns the session to close, if there are too many.
    pub(super) fn admit(&self, shared: &Arc<SessionShared>) -> Option<Arc<SessionShared>> {
        let mut list = self.list.lock();
        if list.len() >= self.most {
            list.retain(|one| one.upgrade().is_some_and(|shared| shared.is_pending()));
        }
        let displaced = if list.len() >= self.most { list.pop_front() } else { None };
        list.push_back(Arc::downgrade(shared));
        displaced.and_then(|one| one.upgrade())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::*;
    use crate::backend::{Direction, SessionInfo};
    use crate::mesh::{SessionId, Tick};

    fn shared(number: u64) -> Arc<SessionShared> {
        let info = SessionInfo {
            transport: "tcp",
            peer: number.to_string(),
            direction: Direction::Inbound,
            certified_nodes: None,
            is_newcomer: false,
        };
        Arc::new(SessionShared::new(SessionId(number), &info, Arc::default(), None, Tick::at(Duration::ZERO)))
    }

    #[test]
    fn strangers_displace_strangers_and_neighbours_stay() {
        let pending = PendingSessions { most: 10, ..PendingSessions::default() };
        let neighbour = shared(0);
        assert!(pending.admit(&neighbour).is_none());
        neighbour.established.store(true, Ordering::Release);
        let strangers: Vec<_> = (1..=100).map(shared).collect();
        let displaced: Vec<_> = strangers.iter().filter_map(|one| pending.admit(one)).collect();
        let numbers: Vec<_> = displaced.iter().map(|one| one.id.0).collect();
        assert_eq!(numbers, (1..=90).collect::<Vec<_>>());
        assert_eq!(pending.list.lock().len(), 10);
    }

    #[test]
    fn who_has_gone_takes_no_room() {
        let pending = PendingSessions { most: 10, ..PendingSessions::default() };
        for number in 0..100 {
            let gone = shared(number);
            assert!(pending.admit(&gone).is_none());
            gone.done.cancel();
        }
        assert!(pending.list.lock().len() <= 10);
    }
}
