//! How much memory the command lines of all sessions may take while they arrive. Owns the bound; a session has a little
//! of its own without asking. Trusted clients have a share for themselves, so that nobody else can use it up.

use std::io;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of each of the two shares.
const SHARE: usize = 32 * 1024 * 1024;
/// Bytes that are taken at a time.
const STEP: usize = 64 * 1024;
/// Bytes of a line that need no room of a share.
pub(super) const FREE: usize = 4096;

/// The bound. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct LineBudget {
    trusted: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

impl Default for LineBudget {
    fn default() -> Self {
        let share = || Arc::new(Semaphore::new(SHARE));
        Self { trusted: share(), others: share() }
    }
}

impl LineBudget {
    /// The room of one session.
    pub(super) fn room(&self, trusted: bool) -> LineRoom {
        let share = if trusted { &self.trusted } else { &self.others };
        LineRoom { share: share.clone(), held: None }
    }
}

/// The room that one session's line takes.
#[derive(Debug)]
pub(super) struct LineRoom {
    share: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

impl LineRoom {
    /// Waits until there is room for a line of `bytes` bytes.
    pub(super) async fn grow_to(&mut self, bytes: usize) -> io::Result<()> {
        let has = FREE + self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if bytes <= has {
            return Ok(());
        }
        let more = (bytes - has).next_multiple_of(STEP) as u32;
        let more = self.share.clone().acquire_many_owned(more).await.map_err(io::Error::other)?;
        match &mut self.held {
            Some(held) => held.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }

    /// Gives the line's room back.
    pub(super) fn free(&mut self) {
        self.held = None;
    }
}
