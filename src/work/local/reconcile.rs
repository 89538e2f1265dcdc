//! The end of a unit whose runner is gone, or never came: its own last word if it left one, and otherwise what can be
//! found out. What cannot be known for a moment, for want of descriptors perhaps, is asked again: nothing that may be
//! healthy is ended for that.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::work::registry::Inner;
use crate::work::runner::identity::Identity;
use crate::work::runner::kill_leftovers;
use crate::work::status::{Extra, Status};
use crate::work::store::{Durability, ReadError, UnitDir};
use crate::work::unit::{Event, State};
use crate::work::units::entry::Entry;

/// Between looks at a status that cannot be read.
const LOOK: Duration = Duration::from_secs(1);

impl Inner {
    /// Shows the final status that a runner left, or gives the unit one, once nothing of it runs any more. Says no if a
    /// runner has the unit after all.
    pub(crate) async fn settle(&self, entry: &Arc<Entry>, runner: Option<Identity>) -> bool {
        let mut writer = entry.writer(&self.store).await;
        if writer.status().life.state.is_final() {
            return true;
        }
        let had_runner = runner.is_some();
        let Remains { cancelled, killed, stdout_size } = match self.left(entry, runner).await {
            Left::End(end) => {
                let _ = writer.adopt_exit_record(end).await;
                return true;
            }
            Left::Status(status) => {
                // A plugin writes what it knows.
                let verify_signature = writer.status().verify_signature;
                let status = Status { verify_signature, ..status };
                let _ = writer.put(status, Durability::Durable).await;
                return true;
            }
            Left::Remains(remains) => remains,
        };
        let mut status = writer.status().as_ref().clone();
        let event = match status.life.state {
            State::Pending if !had_runner && !self.claim(entry).await => return false,
            State::Pending if !had_runner && cancelled => Event::CancelledEarly,
            State::Pending if !had_runner => Event::Restarted,
            State::Pending | State::Running | State::Succeeded | State::Failed | State::Canceled => {
                Event::RunnerVanished { cancelled, killed, stdout_size }
            }
        };
        if !status.life.apply(&event) {
            return true;
        }
        status.extra = match status.extra {
            Extra::Command(_) | Extra::None => Extra::None,
            kept @ (Extra::Remote(_) | Extra::Other(_)) => kept,
        };
        let _ = writer.put(status, Durability::Durable).await;
        true
    }

    /// Takes a unit that has not started for this daemon: the spawner of an earlier one may still have a request for it,
    /// and its runner asks for the unit first. Says no if one has it.
    async fn claim(&self, entry: &Entry) -> bool {
        let dir = entry.dir.clone();
        // A claim that a power loss has damaged keeps runners off, too.
        let claim = move || Ok(Identity::own()?.claim(&dir)? || Identity::load(&dir)?.is_none());
        let claimed: io::Result<bool> = self.store.blocking(claim).await;
        claimed.unwrap_or_else(|error| {
            // A runner could not do so either.
            tracing::warn!(unit = %entry.id, %error, "cannot claim a unit that is to end");
            true
        })
    }

    async fn left(&self, entry: &Entry, runner: Option<Identity>) -> Left {
        loop {
            let (dir, runner) = (entry.dir.clone(), runner.clone());
            match self.store.blocking(move || Left::find(&dir, runner.as_ref())).await {
                Ok(found) => return found,
                Err(error) => {
                    tracing::warn!(unit = %entry.id, %error, "cannot tell how the unit ended, looking again");
                    tokio::time::sleep(LOOK).await;
                }
            }
        }
    }
}

/// What a runner that is gone left.
enum Left {
    /// Its last word.
    End(Status),
    /// A final status, as runners do that have nobody to leave a word to.
    Status(Status),
    /// Neither.
    Remains(Remains),
}

struct Remains {
    cancelled: bool,
    killed: usize,
    stdout_size: u64,
}

impl Left {
    /// Finds out; where there is no last word, the unit's processes are ended. Blocks.
    ///
    /// # Errors
    /// When the system does not tell.
    fn find(dir: &UnitDir, runner: Option<&Identity>) -> io::Result<Self> {
        if let Some(end) = end_of(dir, runner)? {
            return Ok(Self::End(end));
        }
        match dir.read_status() {
            Ok(left) if left.life.state.is_final() => return Ok(Self::Status(left)),
            Err(ReadError::Io(error)) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => {}
        }
        let cancelled = dir.is_marked_cancelled();
        let killed = match runner {
            Some(runner) if runner.is_of_this_boot() => kill_leftovers(dir),
            Some(_) | None => 0,
        };
        Ok(Self::Remains(Remains { cancelled, killed, stdout_size: dir.stdout_size() }))
    }
}

/// The last word of a runner. A power loss may have left it, and not the output that it tells of.
fn end_of(dir: &UnitDir, runner: Option<&Identity>) -> io::Result<Option<Status>> {
    let is_of_this_boot = runner.is_some_and(Identity::is_of_this_boot);
    Ok(dir.exit_record()?.filter(|left| is_of_this_boot || left.life.stdout_size <= dir.stdout_size()))
}
