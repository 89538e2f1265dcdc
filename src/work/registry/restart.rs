//! Taking up the units that an earlier daemon left: all are known at once, those that were under way go on.
//! Reading is spread over threads, as there may be thousands.

use std::sync::Arc;

use super::entry::Entry;
use super::{Inner, OpenError};
use crate::work::status::{Extra, Status};
use crate::work::store::{ReadError, UnitDir};
use crate::work::unit::{Life, State, UnitId};

/// Threads that read status files.
const READERS: usize = 8;

impl Inner {
    /// Loads every unit on disk and resumes the unfinished ones.
    pub(super) async fn take_up_units(self: &Arc<Self>) -> Result<(), OpenError> {
        let this = self.clone();
        let loaded = self.store.blocking(move || this.load_all()).await?;
        let mut unfinished = Vec::new();
        {
            let mut units = self.units_mut();
            for entry in loaded {
                if needs_care(&entry.status()) {
                    unfinished.push(entry.clone());
                }
                units.insert(entry.id.clone(), entry);
            }
        }
        for entry in unfinished {
            self.resume(&entry).await;
        }
        Ok(())
    }

    async fn resume(self: &Arc<Self>, entry: &Arc<Entry>) {
        let status = entry.status();
        if status.remote().is_some() {
            self.resume_remote(entry).await;
        } else if self.types.load().contains_key(&status.work_type)
            || matches!(status.extra, Extra::Command(_))
        {
            self.resume_local(entry).await;
        }
    }

    fn load_all(&self) -> Result<Vec<Arc<Entry>>, OpenError> {
        let ids = self.store.scan()?;
        let share = ids.len().div_ceil(READERS).max(64);
        let load = |ids: &[UnitId]| ids.iter().filter_map(|id| self.load(id)).collect::<Vec<_>>();
        let loaded = std::thread::scope(|scope| {
            let readers: Vec<_> = ids.chunks(share).map(|ids| scope.spawn(move || load(ids))).collect();
            readers.into_iter().flat_map(|reader| reader.join().unwrap_or_default()).collect()
        });
        Ok(loaded)
    }

    fn load(&self, id: &UnitId) -> Option<Arc<Entry>> {
        let dir = self.store.unit(id);
        let status = match dir.read_status() {
            Ok(status) => corrected(status, &dir),
            // Nobody was ever told the ID of a unit without a status.
            Err(ReadError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::error!(unit = %id, %error, "the unit counts as failed");
                damaged(&error, &dir)
            }
        };
        Some(Entry::new(id.clone(), dir, status))
    }
}

/// Whether a unit is still under way, or its release or cancellation on another node is.
fn needs_care(status: &Status) -> bool {
    let life = &status.life;
    !life.state.is_final() || status.remote().is_some_and(|r| r.local_released || r.local_cancelled)
}

/// Go nodes leave an old size behind when they cancel.
fn corrected(mut status: Status, dir: &UnitDir) -> Status {
    if status.life.state == State::Canceled {
        status.life.stdout_size = status.life.stdout_size.max(dir.stdout_size());
    }
    status
}

fn damaged(error: &ReadError, dir: &UnitDir) -> Status {
    let life = Life {
        state: State::Failed,
        detail: format!("Failed to restart: {error}"),
        stdout_size: dir.stdout_size(),
    };
    Status { life, work_type: String::new(), extra: Extra::None }
}
