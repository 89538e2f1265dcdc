//! The end of a unit whose runner is gone, or never came: its own last word if it left one, and otherwise what can be
//! found out. What cannot be known for a moment, for want of descriptors perhaps, is asked again: nothing that may be
//! healthy is ended for that.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use super::entry::Entry;
use super::writer::Durability;
use crate::work::runner::identity::Identity;
use crate::work::runner::kill_leftovers;
use crate::work::status::{Extra, Status};
use crate::work::store::{ReadError, UnitDir};
use crate::work::unit::{Event, State};

/// Between looks at a status that cannot be read.
const LOOK: Duration = Duration::from_secs(1);

impl Inner {
    /// Shows the final status that a runner left, or gives the unit one, once nothing of it runs any more. Says no if a
    /// runner has the unit after all.
    pub(super) async fn settle(&self, entry: &Arc<Entry>, runner: Option<Identity>) -> bool {
        let mut writer = entry.writer(&self.store).await;
        if let Some(left) = entry.dir.final_status() {
            writer.show(left);
            return true;
        }
        let had_runner = runner.is_some();
        let Remains { cancelled, killed, stdout_size } = match self.remains(entry, runner).await {
            Ok(left) => {
                writer.show(left);
                return true;
            }
            Err(remains) => remains,
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
        if let Err(error) = writer.put(status, Durability::Durable).await {
            tracing::error!(unit = %entry.id, %error, "the end of a unit is known in memory only");
        }
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

    async fn remains(&self, entry: &Entry, runner: Option<Identity>) -> Result<Status, Remains> {
        loop {
            let (dir, runner) = (entry.dir.clone(), runner.clone());
            match self.store.blocking(move || Remains::of(&dir, runner.as_ref())).await {
                Ok(found) => return found,
                Err(error) => {
                    tracing::warn!(unit = %entry.id, %error, "cannot tell how the unit ended, looking again");
                    tokio::time::sleep(LOOK).await;
                }
            }
        }
    }
}

/// What a runner that is gone left in place of a final status.
struct Remains {
    cancelled: bool,
    killed: usize,
    stdout_size: u64,
}

impl Remains {
    /// The final status, or else the remains, with the unit's processes ended. Blocks.
    ///
    /// # Errors
    /// When the system does not tell whether there is a final status.
    fn of(dir: &UnitDir, runner: Option<&Identity>) -> io::Result<Result<Status, Self>> {
        match dir.read_status() {
            Ok(left) if left.life.state.is_final() => return Ok(Ok(left)),
            Err(ReadError::Io(error)) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => {}
        }
        let cancelled = dir.is_marked_cancelled();
        let killed = match runner {
            Some(runner) if runner.is_of_this_boot() => kill_leftovers(dir),
            Some(_) | None => 0,
        };
        Ok(Err(Self { cancelled, killed, stdout_size: dir.stdout_size() }))
    }
}
