//! How much memory the command lines of all sessions may take while they arrive, and the rooms for their answers. Owns
//! the bounds; each session also has [`FREE`] bytes that are not counted. This machine's users, other trusted clients
//! and everybody else have a share each, and one neighbour may have at most half of a share. Refuses to know what lines
//! say.

use super::peer::{PeerAccount, Shares};
use crate::os::answers::{AnswerDoor, AnswerRoom};
use crate::os::places::{Places, Share};

/// Bytes that one neighbour may have of a share: half of it.
const FOR_ONE: usize = 16 * 1024 * 1024;
/// Bytes that are taken at a time.
const STEP: usize = 64 * 1024;
/// Bytes of a line that are not taken from a share.
pub(super) const FREE: usize = 4096;

/// The bounds for all sessions. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct LineBudget {
    lines: Shares<Places<PeerAccount>>,
    answers: Shares<AnswerDoor<PeerAccount>>,
}

impl Default for LineBudget {
    fn default() -> Self {
        Self { lines: Shares::new(|| Places::new(FOR_ONE)), answers: Shares::new(AnswerDoor::new) }
    }
}

impl LineBudget {
    /// The room of one session, from the share of its client.
    pub(super) fn room(&self, trusted: bool, neighbour: PeerAccount) -> LineRoom {
        let line = self.lines.of(neighbour, trusted).none_yet(neighbour);
        LineRoom { line, answer: self.answers.of(neighbour, trusted).room(neighbour) }
    }
}

/// The room that one session's line and answer take.
#[derive(Debug)]
pub(super) struct LineRoom {
    line: Share<PeerAccount>,
    pub(super) answer: AnswerRoom<PeerAccount>,
}

impl LineRoom {
    /// Waits until there is room for a line of `bytes` bytes.
    pub(super) async fn grow_to(&mut self, bytes: usize) {
        let has = FREE + self.line.count();
        if bytes > has {
            self.line.grow((bytes - has).next_multiple_of(STEP)).await;
        }
    }

    /// Gives the line's room back.
    pub(super) fn free(&mut self) {
        self.line.give_back();
    }
}
