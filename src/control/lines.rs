//! How much memory the command lines of all sessions may take while they arrive. Owns the bound; a session has a little
//! of its own without asking. Trusted clients have a share for themselves, so that nobody else can use it up, and of each
//! share one neighbour leaves as much for others as it has.

use super::session::Neighbour;
use crate::os::places::{Places, Share};

/// Bytes of each of the two shares that one neighbour may have: half of the share.
const FOR_ONE: usize = 16 * 1024 * 1024;
/// Bytes that are taken at a time.
const STEP: usize = 64 * 1024;
/// Bytes of a line that need no room of a share.
pub(super) const FREE: usize = 4096;

/// The bound. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct LineBudget {
    trusted: Places<Neighbour>,
    others: Places<Neighbour>,
}

impl Default for LineBudget {
    fn default() -> Self {
        Self { trusted: Places::new(FOR_ONE), others: Places::new(FOR_ONE) }
    }
}

impl LineBudget {
    /// The room of one session.
    pub(super) fn room(&self, trusted: bool, neighbour: Neighbour) -> LineRoom {
        let share = if trusted { &self.trusted } else { &self.others };
        LineRoom(share.none_yet(neighbour))
    }
}

/// The room that one session's line takes.
#[derive(Debug)]
pub(super) struct LineRoom(Share<Neighbour>);

impl LineRoom {
    /// Waits until there is room for a line of `bytes` bytes.
    pub(super) async fn grow_to(&mut self, bytes: usize) {
        let has = FREE + self.0.count();
        if bytes > has {
            self.0.grow((bytes - has).next_multiple_of(STEP)).await;
        }
    }

    /// Gives the line's room back.
    pub(super) fn free(&mut self) {
        self.0.give_back();
    }
}
