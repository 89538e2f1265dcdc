//! How much memory the command lines of all sessions may take while they arrive, and the doors of their answers. Owns the
//! bounds; a session has a little of its own without asking. This machine's users and other trusted clients have shares for
//! themselves, which nobody else can use up, and of each share one neighbour leaves as much for others as it has.

use super::session::{Neighbour, Shares};
use crate::os::answers::{AnswerDoor, AnswerRoom};
use crate::os::places::{Places, Share};

/// Bytes of each of the two shares that one neighbour may have: half of the share.
const FOR_ONE: usize = 16 * 1024 * 1024;
/// Bytes that are taken at a time.
const STEP: usize = 64 * 1024;
/// Bytes of a line that need no room of a share.
pub(super) const FREE: usize = 4096;

/// The bounds. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct LineBudget {
    lines: Shares<Places<Neighbour>>,
    answers: Shares<AnswerDoor<Neighbour>>,
}

impl Default for LineBudget {
    fn default() -> Self {
        Self { lines: Shares::new(|| Places::new(FOR_ONE)), answers: Shares::new(AnswerDoor::new) }
    }
}

impl LineBudget {
    /// The room of one session.
    pub(super) fn room(&self, trusted: bool, neighbour: Neighbour) -> LineRoom {
        let line = self.lines.of(neighbour, trusted).none_yet(neighbour);
        LineRoom { line, answer: self.answers.of(neighbour, trusted).room(neighbour) }
    }
}

/// The room that one session's line takes, and its answer.
#[derive(Debug)]
pub(super) struct LineRoom {
    line: Share<Neighbour>,
    pub(super) answer: AnswerRoom<Neighbour>,
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
