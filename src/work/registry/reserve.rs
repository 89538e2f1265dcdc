//! Keeps the node's reserve of its disk: looks at the disk and at what units print. If too little is left, it removes
//! pieces of payloads, refuses submissions, and stops the units that [`DiskWatch`] names. [`DiskWatch`] alone decides
//! which units that are, and when.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::statvfs;

use super::Registry;
use crate::work::WorkError;
use crate::work::executor::Executor;
use crate::work::pieces::PieceStore;
use crate::work::reserve::{DiskWatch, Space};
use crate::work::status::UnitKind;
use crate::work::unit::{State, UnitId};
use crate::work::units::{Entry, Units};

/// The pause between checks while something waits for room.
const ROOM_EVERY: Duration = Duration::from_secs(1);

/// The disk under the data directory.
pub(super) struct Reserve {
    units: Arc<Units>,
    executor: Arc<Executor>,
    pieces: Arc<PieceStore>,
    /// The configured reserve. A plain lock, only for reading and replacing, like the next one.
    set: Mutex<Option<u64>>,
    was_scarce: Mutex<bool>,
}

impl Reserve {
    /// Nothing is known of the disk yet.
    pub(super) fn new(units: &Arc<Units>, executor: &Arc<Executor>, pieces: &Arc<PieceStore>) -> Arc<Self> {
        let (units, executor, pieces) = (units.clone(), executor.clone(), pieces.clone());
        Arc::new(Self { units, executor, pieces, set: Mutex::default(), was_scarce: Mutex::default() })
    }

    fn set(&self) -> Option<u64> {
        *self.set.lock()
    }

    /// Looks at the disk; `None` if the system does not say what it has.
    async fn look(&self) -> Option<Space> {
        let root = self.units.store().root().to_owned();
        let found = self.units.store().blocking(move || statvfs(&root)).await;
        let space = found.ok().map(|found| Space {
            free: found.f_bavail.saturating_mul(found.f_frsize),
            size: found.f_blocks.saturating_mul(found.f_frsize),
        })?;
        let is_scarce = space.is_scarce(self.set());
        self.pieces.set_scarce(is_scarce);
        match (std::mem::replace(&mut *self.was_scarce.lock(), is_scarce), is_scarce) {
            (false, true) => tracing::warn!(
                path = %self.units.store().root().display(),
                free = space.free,
                reserve = space.reserve(self.set()),
                "the disk of the data directory has less free space than the reserve (diskreserve): submissions are refused"
            ),
            (true, false) => {
                tracing::info!(free = space.free, "the disk of the data directory has its reserve again")
            }
            (true, true) | (false, false) => {}
        }
        Some(space)
    }

    /// Whether another unit may be submitted.
    ///
    /// # Errors
    /// [`WorkError::Reserve`].
    pub(super) async fn check(&self) -> Result<(), WorkError> {
        let set = self.set();
        let space = self.look().await;
        match space.filter(|space| space.is_scarce(set)) {
            None => Ok(()),
            Some(space) => Err(WorkError::Reserve {
                path: self.units.store().root().to_owned(),
                free: space.free,
                reserve: space.reserve(set),
            }),
        }
    }

    /// What each unit that runs has printed. Jobs of a controller are left out, because they print what their children
    /// print.
    async fn printed(&self) -> BTreeMap<UnitId, u64> {
        let runs = |entry: &Arc<Entry>| {
            let status = entry.status();
            status.life.state == State::Running && status.kind() != UnitKind::Job
        };
        let running: Vec<_> = self.units.all_with_attempts().into_iter().filter(runs).collect();
        if running.is_empty() {
            return BTreeMap::new();
        }
        let sizes = move || running.iter().map(|entry| (entry.id.clone(), entry.printed())).collect();
        self.units.store().blocking(sizes).await
    }

    async fn stop(&self, unit: &UnitId, why: String) -> Result<(), WorkError> {
        let Ok(entry) = self.units.child(unit.as_str()) else { return Ok(()) };
        self.executor.stop(entry, why).await
    }
}

/// Looks until the registry is gone.
async fn keep(reserve: std::sync::Weak<Reserve>) {
    let mut watch = DiskWatch::default();
    let mut pause = Duration::ZERO;
    loop {
        tokio::time::sleep(pause).await;
        let Some(reserve) = reserve.upgrade() else { return };
        pause = ROOM_EVERY;
        let Some(space) = reserve.look().await else { continue };
        let set = reserve.set();
        pause = space.pause(set);
        if space.is_scarce(set) {
            let pieces = reserve.pieces.clone();
            reserve.units.store().blocking(move || pieces.give_way()).await;
        }
        let Some(stop) = watch.handle_look(Instant::now(), space, set, reserve.printed().await) else {
            continue;
        };
        let path = reserve.units.store().root().display();
        let why = format!(
            "the disk of {path} on node {} had {} bytes free, less than its reserve (diskreserve), and this unit printed {} \
             bytes within a minute",
            reserve.units.node_id(),
            space.free,
            stop.printed
        );
        tracing::warn!(unit = %stop.unit, printed = stop.printed, free = space.free, "stopping a unit that fills the disk");
        // The unit may take its grace to end; the next look does not wait for that.
        tokio::spawn(async move {
            if let Err(error) = reserve.stop(&stop.unit, why).await {
                tracing::warn!(%error, "cannot stop a unit that fills the disk");
            }
        });
    }
}

impl Registry {
    /// Sets how many bytes of the disk are to stay free; `None` for a part of the disk.
    pub fn set_disk_reserve(&self, bytes: Option<u64>) {
        *self.reserve.set.lock() = bytes;
    }

    /// The free bytes of the disk, and how many are to stay free.
    pub(super) async fn disk(&self) -> Option<(u64, u64)> {
        let space = self.reserve.look().await?;
        Some((space.free, space.reserve(self.reserve.set())))
    }

    /// Returns once more than the reserve is free.
    pub async fn has_room(&self) {
        while self.reserve.check().await.is_err() {
            tokio::time::sleep(ROOM_EVERY).await;
        }
    }

    pub(super) fn keep_reserve(&self) {
        tokio::spawn(keep(Arc::downgrade(&self.reserve)));
    }
}
