//! Loading the units that an earlier daemon left: all are listed at once, the unfinished ones go on. Several threads read,
//! as there may be thousands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{OpenError, Registry};
use crate::work::executor::is_unfinished;
use crate::work::runner::identity::Identity;
use crate::work::status::{Extra, Status, UnitKind};
use crate::work::store::{ReadError, UnitDir};
use crate::work::unit::{Event, Life, State, UnitId};
use crate::work::units::Entry;

/// Threads that read status files.
const READERS: usize = 8;
/// How long the start waits for unfinished units to find their places; the rest do so afterwards.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long half a status is read again while its runner lives, and between readings.
const HALF_WRITTEN: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(2);

/// Found on disk.
struct Loaded {
    units: Vec<Arc<Entry>>,
    /// Released by force, and not yet on the other node.
    abandoned: Vec<Arc<Entry>>,
}

impl Registry {
    /// Loads every unit on disk and resumes the unfinished ones, those that take long in the background.
    pub(super) async fn resume_all(&self) -> Result<(), OpenError> {
        let this = self.clone();
        let store = self.units.store();
        let Loaded { units: loaded, abandoned } = store.blocking(move || this.load_all()).await?;
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
            // After those that run have taken their slots.
            for entry in queued {
                this.executor.local.clone().start_queued(entry).await;
            }
        });
        let _in_time = tokio::time::timeout(PATIENCE, rest).await;
        for entry in abandoned {
            self.executor.finish_release(entry);
        }
        Ok(())
    }

    fn load_all(&self) -> Result<Loaded, OpenError> {
        let (ids, hidden) = self.units.store().scan()?;
        let share = ids.len().div_ceil(READERS).max(64);
        let load = |ids: &[UnitId]| ids.iter().filter_map(|id| self.load(id)).collect::<Vec<_>>();
        let units = std::thread::scope(|scope| {
            let readers: Vec<_> = ids.chunks(share).map(|ids| scope.spawn(move || load(ids))).collect();
            readers.into_iter().flat_map(|reader| reader.join().unwrap_or_default()).collect()
        });
        let abandoned = hidden.into_iter().filter_map(|id| self.load_abandoned(id)).collect();
        Ok(Loaded { units, abandoned })
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
            // Nothing in it says which node has the rest.
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
            // No client knows the ID of a unit without a status.
            Err(ReadError::Io(error))
                if error.kind() == std::io::ErrorKind::NotFound && !dir.has("status") =>
            {
                self.units.store().clear_half_made(&dir);
                return None;
            }
            // Nor that of one whose status was not durable yet.
            Err(ReadError::Damaged(_)) if self.units.store().clear_half_made(&dir) => return None,
            Err(error) => {
                tracing::error!(unit = %id, %error, "the unit counts as failed");
                damaged(&error, &dir)
            }
        };
        if status.life.state.is_final() && status.extra == Extra::None {
            // It may have come back with a power loss.
            dir.remove_payload();
        }
        Some(Entry::new(id.clone(), dir, status))
    }
}

/// Whether a unit had its payload and waited for others of its type to end. One that had got its slot is started if
/// nobody has claimed it, unless a power loss may have taken the claim, and the command with it.
fn is_queued(entry: &Arc<Entry>) -> bool {
    let dir = &entry.dir;
    entry.status().life.state == State::Pending
        && dir.is_marked_queued()
        && !dir.had_its_slot_before_a_reboot()
        && !is_claimed(dir)
}

/// Reads the status. A plugin writes its own in place, and there may be half of one for a moment.
fn read_whole(dir: &UnitDir) -> Result<Status, ReadError> {
    let deadline = Instant::now() + HALF_WRITTEN;
    loop {
        match dir.read_status() {
            Err(ReadError::Damaged(_)) if Instant::now() < deadline && has_living_runner(dir) => {
                std::thread::sleep(LOOK);
            }
            read => return read,
        }
    }
}

/// Whether one is known to have claimed the unit. A runner that finds a claim does nothing, so that a wrong no is
/// harmless.
fn is_claimed(dir: &UnitDir) -> bool {
    Identity::load(dir).is_ok_and(|runner| runner.is_some())
}

fn has_living_runner(dir: &UnitDir) -> bool {
    Identity::load(dir).is_ok_and(|runner| runner.is_some_and(|runner| runner.is_alive()))
}

/// A state that clients may have seen before it was in the status: a unit that a runner has claimed was running, and one
/// with output from another node had been started there.
fn adopted(mut status: Status, dir: &UnitDir) -> Status {
    if status.life.state == State::Pending && is_claimed(dir) {
        status.life.apply(&Event::Claimed);
    }
    let is_final = status.life.state.is_final();
    if let Some(remote) = status.remote_mut().filter(|_| !is_final && dir.has("stdout")) {
        // Else a cancel that comes now would end it here, with output that its readers have seen.
        remote.remote_started |= !remote.remote_unit_id.is_empty();
    }
    status
}

/// Go nodes leave an old size behind when they cancel, and a power loss may take output that a status counts.
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
        assert!(begun.elapsed() < HALF_WRITTEN);
        Identity::own().unwrap().claim(&dir).unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| read_whole(&dir));
            std::thread::sleep(LOOK);
            std::fs::write(dir.file("status"), whole).unwrap();
            assert_eq!(reader.join().unwrap().unwrap().life.detail, "Running");
        });
    }
}
