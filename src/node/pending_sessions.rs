//! The sessions of one listener whose peers have not introduced themselves, bounded in number.
//!
//! Owns who has to go when there are too many: the oldest, since a neighbour introduces itself at once, so that
//! silent strangers displace each other and keep nobody out. When a single one has been silent for too long is
//! the protocol's decision.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::session::Channel;

/// Such sessions at once on one listener: as many as a large mesh's neighbours that come back together.
const MOST: usize = 2_048;

/// Newcomers, oldest first. Those that have become neighbours, or have gone, are let go when room is needed.
#[derive(Debug)]
pub(super) struct Newcomers {
    // A lock and no task: each use is a short look at the list.
    list: Mutex<VecDeque<Weak<Channel>>>,
    most: usize,
}

impl Default for Newcomers {
    fn default() -> Self {
        Self { list: Mutex::default(), most: MOST }
    }
}

impl Newcomers {
    /// Notes one more; gives the one that has to go, if there are too many.
    pub(super) fn admit(&self, channel: &Arc<Channel>) -> Option<Arc<Channel>> {
        let mut list = self.list.lock();
        if list.len() >= self.most {
            list.retain(|one| one.upgrade().is_some_and(|channel| channel.is_newcomer()));
        }
        let displaced = if list.len() >= self.most { list.pop_front() } else { None };
        list.push_back(Arc::downgrade(channel));
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

    fn channel(number: u64) -> Arc<Channel> {
        let info = SessionInfo {
            transport: "tcp",
            peer: number.to_string(),
            direction: Direction::Inbound,
            certified_nodes: None,
        };
        Arc::new(Channel::new(SessionId(number), &info, Arc::default(), Tick::at(Duration::ZERO)))
    }

    #[test]
    fn strangers_displace_strangers_and_neighbours_stay() {
        let newcomers = Newcomers { most: 10, ..Newcomers::default() };
        let neighbour = channel(0);
        assert!(newcomers.admit(&neighbour).is_none());
        neighbour.established.store(true, Ordering::Release);
        let strangers: Vec<_> = (1..=100).map(channel).collect();
        let displaced: Vec<_> = strangers.iter().filter_map(|one| newcomers.admit(one)).collect();
        let numbers: Vec<_> = displaced.iter().map(|one| one.id.0).collect();
        assert_eq!(numbers, (1..=90).collect::<Vec<_>>());
        assert_eq!(newcomers.list.lock().len(), 10);
    }

    #[test]
    fn who_has_gone_takes_no_room() {
        let newcomers = Newcomers { most: 10, ..Newcomers::default() };
        for number in 0..100 {
            let gone = channel(number);
            assert!(newcomers.admit(&gone).is_none());
            gone.done.cancel();
        }
        assert!(newcomers.list.lock().len() <= 10);
    }
}
