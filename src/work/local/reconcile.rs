//! The end of a unit whose runner is gone or never started: the runner's exit record, if there is one, otherwise what
//! else can be found out. If the search fails for the moment, perhaps for lack of descriptors, it is repeated, so that
//! no unit that may be healthy is ended.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::Local;
use crate::work::limits::Limits;
use crate::work::runner::identity::Identity;
use crate::work::runner::{Killed, kill_leftovers};
use crate::work::status::{Extra, Status};
use crate::work::store::{Durability, ReadError, UnitDir};
use crate::work::unit::{State, UnitEvent};
use crate::work::units::Entry;

/// Time between attempts to find out how a unit ended.
const STATUS_EVERY: Duration = Duration::from_secs(1);

impl Local {
    /// Shows the final status that a runner left, or ends what still runs of the unit and gives it a final status.
    /// Returns false if a runner has the unit after all.
    pub(crate) async fn reconcile(&self, entry: &Arc<Entry>, runner: Option<Identity>) -> bool {
        let is_over = self.show_end(entry, runner).await;
        if is_over {
            let (run_dirs, unit) = (self.run_dirs.clone(), entry.clone());
            let clear = move || {
                run_dirs.unit_ended(unit.id.as_str());
                // The payload is still there if the runner was killed, or if a power loss has brought it back.
                unit.dir.remove_payload();
            };
            self.units.store().blocking(clear).await;
        }
        is_over
    }

    async fn show_end(&self, entry: &Arc<Entry>, runner: Option<Identity>) -> bool {
        let mut writer = entry.writer(self.units.store()).await;
        if writer.status().life.state.is_final() {
            return true;
        }
        let had_runner = runner.is_some();
        let Found { cancelled, killed, stdout_size } = match self.remains(entry, runner).await {
            Remains::ExitRecord(end) => {
                let _ = writer.adopt_exit_record(end).await;
                return true;
            }
            Remains::Status(status) => {
                // A plugin writes the status itself, but does not know this field.
                let verify_signature = writer.status().verify_signature;
                let status = Status { verify_signature, ..status };
                let _ = writer.put(status, Durability::Durable).await;
                return true;
            }
            Remains::None(found) => found,
        };
        let mut status = writer.status().as_ref().clone();
        let event = match status.life.state {
            State::Pending if !had_runner && !self.claim(entry).await => return false,
            State::Pending if !had_runner && cancelled => UnitEvent::CancelledEarly,
            State::Pending if !had_runner => UnitEvent::Restarted,
            State::Pending | State::Running | State::Succeeded | State::Failed | State::Canceled => {
                let Killed { count, left } = killed;
                UnitEvent::RunnerVanished { cancelled, killed: count, left, stdout_size }
            }
        };
        if !status.life.apply(&event) {
            return true;
        }
        if let Extra::Command(_) = status.extra {
            status.extra = Extra::None;
        }
        let _ = writer.put(status, Durability::Durable).await;
        true
    }

    /// Claims a unit that has not started, so that no runner can: the spawner of an earlier daemon may still be about
    /// to start one, which would claim the unit first of all. Returns false if a runner has the unit.
    async fn claim(&self, entry: &Entry) -> bool {
        let dir = entry.dir.clone();
        // A claim that a power loss has damaged keeps runners away too.
        let claim = move || Ok(Identity::own()?.claim(&dir)? || Identity::load(&dir)?.is_none());
        let claimed: io::Result<bool> = self.units.store().blocking(claim).await;
        claimed.unwrap_or_else(|error| {
            // If this fails, a runner could not claim the unit either.
            tracing::warn!(unit = %entry.id, %error, "cannot claim a unit in order to end it");
            true
        })
    }

    async fn remains(&self, entry: &Entry, runner: Option<Identity>) -> Remains {
        loop {
            let (dir, runner) = (entry.dir.clone(), runner.clone());
            let limits = self.limits_of(&entry.status().work_type);
            let find = move || Remains::find(&dir, runner.as_ref(), limits.as_ref());
            match self.units.store().blocking(find).await {
                Ok(found) => return found,
                Err(error) => {
                    tracing::warn!(unit = %entry.id, %error, "cannot tell how the unit ended, looking again");
                    tokio::time::sleep(STATUS_EVERY).await;
                }
            }
        }
    }
}

/// What is left of a unit whose runner is gone.
enum Remains {
    ExitRecord(Status),
    /// A final status, which the runner wrote itself because no daemon was there to take an exit record.
    Status(Status),
    /// No final status.
    None(Found),
}

/// What can be found out about the end of a unit without a final status.
struct Found {
    cancelled: bool,
    killed: Killed,
    stdout_size: u64,
}

impl Remains {
    /// Finds what is left. If there is no final status, ends the unit's processes. Blocks.
    ///
    /// # Errors
    /// If that cannot be found out for now.
    fn find(dir: &UnitDir, runner: Option<&Identity>, limits: Option<&Limits>) -> io::Result<Self> {
        if let Some(end) = exit_record_of(dir, runner)? {
            return Ok(Self::ExitRecord(end));
        }
        match dir.read_status() {
            Ok(left) if left.life.state.is_final() => return Ok(Self::Status(left)),
            Err(ReadError::Io(error)) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => {}
        }
        let cancelled = dir.is_marked_cancelled();
        let killed = match runner {
            Some(runner) if runner.is_of_this_boot()? => kill_leftovers(dir, limits),
            Some(_) | None => Killed::default(),
        };
        Ok(Self::None(Found { cancelled, killed, stdout_size: dir.stdout_size() }))
    }
}

/// The exit record of a runner. Ignored if it is from before a reboot and counts more output than is there, because a
/// power loss may have taken the output.
fn exit_record_of(dir: &UnitDir, runner: Option<&Identity>) -> io::Result<Option<Status>> {
    let is_of_this_boot = runner.map(Identity::is_of_this_boot).transpose()? == Some(true);
    Ok(dir.exit_record()?.filter(|left| is_of_this_boot || left.life.stdout_size <= dir.stdout_size()))
}
