//! Loads the units that an earlier daemon left: all are listed at once, and the unfinished ones are resumed. Several
//! threads read their files, because there may be thousands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{OpenError, Registry};
use crate::work::executor::is_unfinished;
use crate::work::runner::identity::Identity;
use crate::work::status::{Extra, Status, UnitKind};
use crate::work::store::{ReadError, UnitDir};
use crate::work::unit::{Life, State, UnitEvent, UnitId};
use crate::work::units::Entry;

/// The number of threads that read status files.
const READERS: usize = 8;
/// How long the start waits for unfinished units to be resumed. The rest are resumed afterwards.
const PLACED_WITHIN: Duration = Duration::from_millis(50);
/// How long to read a damaged status again while its runner lives, and the time between attempts.
const STATUS_WITHIN: Duration = Duration::from_millis(500);
const STATUS_EVERY: Duration = Duration::from_millis(2);

/// The units found on disk.
struct LoadedUnits {
    units: Vec<Arc<Entry>>,
    /// Hidden units: released here, but not yet on the other node or in their cluster.
    abandoned: Vec<Arc<Entry>>,
}

impl Registry {
    /// Loads all units on disk and resumes the unfinished ones. Units that take long are resumed in the background.
    pub(super) async fn resume_all(&self) -> Result<(), OpenError> {
        let this = self.clone();
        let store = self.units.store();
        let LoadedUnits { units: loaded, abandoned } = store.blocking(move || this.load_all()).await?;
        let unfinished: Vec<_> =
            loaded.iter().filter(|entry| is_unfinished(&entry.status())).cloned().collect();
        self.units.load(loaded);
        let in_order = move || {
            let (mut queued, unfinished): (Vec<_>, Vec<_>) = unfinished.into_iter().partition(is_queued);
            queued.sort_by_key(|entry| entry.dir.queued_at());
            (queued, unfinished)
        };
        let (queued, unfinished) = store.blocking(in_order).await;
        let this = self.clone();
        let rest = tokio::spawn(async move {
            let mut resumed = JoinSet::new();
            for entry in unfinished {
                let this = this.clone();
                resumed.spawn(async move { this.executor.resume(&entry).await });
            }
            resumed.join_all().await;
            // Queued units come last, so that those that run already have their slots.
            for entry in queued {
                this.executor.local.clone().start_queued(entry).await;
            }
        });
        let _in_time = tokio::time::timeout(PLACED_WITHIN, rest).await;
        for entry in abandoned {
            self.executor.finish_release(entry);
        }
        Ok(())
    }

    fn load_all(&self) -> Result<LoadedUnits, OpenError> {
        let (ids, hidden) = self.units.store().scan()?;
        let share = ids.len().div_ceil(READERS).max(64);
        let load = |ids: &[UnitId]| ids.iter().filter_map(|id| self.load(id)).collect::<Vec<_>>();
        let units = std::thread::scope(|scope| {
            let readers: Vec<_> = ids.chunks(share).map(|ids| scope.spawn(move || load(ids))).collect();
            readers.into_iter().flat_map(|reader| reader.join().unwrap_or_default()).collect()
        });
        let abandoned = hidden.into_iter().filter_map(|id| self.load_abandoned(id)).collect();
        Ok(LoadedUnits { units, abandoned })
    }

    fn load_abandoned(&self, id: UnitId) -> Option<Arc<Entry>> {
        let dir = self.units.store().hidden(&id);
        let status = dir.read_status().ok().and_then(|mut status| {
            if let Some(remote) = status.remote_mut() {
                (remote.local_cancelled, remote.local_released) = (true, true);
            }
            matches!(status.kind(), UnitKind::Remote | UnitKind::Pod).then_some(status)
        });
        if status.is_none() {
            // The unit is discarded, because nothing says which node or cluster has the rest of it.
            self.units.store().discard(&dir);
        }
        Some(Entry::new(id, dir, status?))
    }

    fn load(&self, id: &UnitId) -> Option<Arc<Entry>> {
        let dir = self.units.store().unit(id);
        if let Err(error) = dir.check_owner() {
            tracing::error!(unit = %id, %error, "cannot load the unit");
            return None;
        }
        let status = match read_whole(&dir) {
            Ok(status) => adopted(corrected(status, &dir), &dir),
            // A unit without a status is unknown to clients.
            Err(ReadError::Io(error))
                if error.kind() == std::io::ErrorKind::NotFound && !dir.has("status") =>
            {
                self.units.store().clear_half_made(&dir);
                return None;
            }
            // So is a unit whose status was not durable yet.
            Err(ReadError::Damaged(_)) if self.units.store().clear_half_made(&dir) => return None,
            Err(error) => {
                tracing::error!(unit = %id, %error, "cannot read the unit's status, the unit counts as failed");
                damaged(&error, &dir)
            }
        };
        if status.life.state.is_final() && status.extra == Extra::None {
            // A power loss may have brought the payload back.
            dir.remove_payload();
        }
        Some(Entry::new(id.clone(), dir, status))
    }
}

/// Whether a unit had its payload and waits in the queue. This includes a unit that had its slot but was not claimed by
/// a runner, except after a reboot: a power loss may have taken a claim, so that its command may have run.
fn is_queued(entry: &Arc<Entry>) -> bool {
    let dir = &entry.dir;
    entry.status().life.state == State::Pending
        && dir.is_marked_queued()
        && !dir.had_its_slot_before_a_reboot()
        && !is_claimed(dir)
}

/// Reads the status. A plugin writes its status in place, so that half of one may be there for a moment.
fn read_whole(dir: &UnitDir) -> Result<Status, ReadError> {
    let deadline = Instant::now() + STATUS_WITHIN;
    loop {
        match dir.read_status() {
            Err(ReadError::Damaged(_)) if Instant::now() < deadline && has_living_runner(dir) => {
                std::thread::sleep(STATUS_EVERY);
            }
            read => return read,
        }
    }
}

/// Whether a runner is known to have claimed the unit. A wrong no is harmless, because a runner that finds a claim does
/// nothing.
fn is_claimed(dir: &UnitDir) -> bool {
    Identity::load(dir).is_ok_and(|runner| runner.is_some())
}

fn has_living_runner(dir: &UnitDir) -> bool {
    Identity::load(dir).is_ok_and(|runner| runner.is_some_and(|runner| runner.is_alive()))
}

/// Restores what clients may have seen before it was in the status file: a unit that a runner has claimed counts as
/// running, and a unit with output from another node counts as started there.
fn adopted(mut status: Status, dir: &UnitDir) -> Status {
    if status.life.state == State::Pending && is_claimed(dir) {
        status.life.apply(&UnitEvent::Claimed);
    }
    let is_final = status.life.state.is_final();
    if let Some(remote) = status.remote_mut().filter(|_| !is_final && dir.has("stdout")) {
        // Otherwise a cancel that comes now would end the unit as never started, although readers have seen its output.
        remote.remote_started |= !remote.remote_unit_id.is_empty();
    }
    status
}

/// Corrects the size of the output: Go nodes leave an old size when they cancel, and a power loss may take output that
/// a status counts.
fn corrected(mut status: Status, dir: &UnitDir) -> Status {
    let counted = status.life.stdout_size;
    let canceled = status.life.state == State::Canceled;
    if !canceled && (counted == 0 || !status.life.state.is_final()) {
        return status;
    }
    match dir.stdout_size() {
        more if more > counted && canceled => status.life.stdout_size = more,
        less if less < counted => status.life.lose_output(less),
        _ => {}
    }
    status
}

fn damaged(error: &ReadError, dir: &UnitDir) -> Status {
    let detail = format!("Failed to restart: {error}; release the unit and submit the job again");
    let life = Life::read(State::Failed, detail, dir.stdout_size());
    Status { life, ..Status::new("", Extra::None) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::status::{CommandExtra, REMOTE, RemoteExtra};
    use crate::work::store::Durability;

    fn unit(temp: &std::path::Path, status: &str) -> UnitDir {
        std::fs::write(temp.join("status"), status).unwrap();
        UnitDir::at(temp)
    }

    #[test]
    fn what_a_runner_has_claimed_is_running_whatever_its_status_says_yet() {
        let temp = tempfile::tempdir().unwrap();
        let waiting = Status::new("t", Extra::Command(CommandExtra::default()));
        let dir = unit(temp.path(), &String::from_utf8(waiting.to_line()).unwrap());
        let load = || adopted(read_whole(&dir).unwrap(), &dir).life;
        assert_eq!(load().state, State::Pending);
        Identity::own().unwrap().claim(&dir).unwrap();
        assert_eq!((load().state, load().detail.as_str()), (State::Running, "Running"));
    }

    #[test]
    fn a_unit_with_output_here_was_started_there_whatever_its_status_says_yet() {
        let temp = tempfile::tempdir().unwrap();
        let remote = RemoteExtra { remote_unit_id: "abcd1234".into(), ..RemoteExtra::default() };
        let sent = Status::new(REMOTE, Extra::Remote(Box::new(remote)));
        let dir = unit(temp.path(), &String::from_utf8(sent.to_line()).unwrap());
        let started = || adopted(read_whole(&dir).unwrap(), &dir).remote().unwrap().remote_started;
        assert!(!started());
        dir.append_stdout().unwrap();
        assert!(started());
        let unsent = Status::new(REMOTE, Extra::Remote(Box::default()));
        dir.write_status(&unsent, Durability::Deferred).unwrap();
        assert!(!started(), "the other node knows nothing of it");
    }

    #[test]
    fn half_a_status_is_read_again_for_as_long_as_somebody_may_be_writing_it() {
        let temp = tempfile::tempdir().unwrap();
        let whole = r#"{"State": 1, "Detail": "Running", "StdoutSize": 0, "WorkType": "py"}"#;
        let dir = unit(temp.path(), &whole[..20]);
        let begun = Instant::now();
        assert!(matches!(read_whole(&dir), Err(ReadError::Damaged(_))), "nobody writes it any more");
        assert!(begun.elapsed() < STATUS_WITHIN);
        Identity::own().unwrap().claim(&dir).unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| read_whole(&dir));
            std::thread::sleep(STATUS_EVERY);
            std::fs::write(dir.file("status"), whole).unwrap();
            assert_eq!(reader.join().unwrap().unwrap().life.detail, "Running");
        });
    }
}
