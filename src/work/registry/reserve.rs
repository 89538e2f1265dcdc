//! Keeps the node's reserve of its disk: looks at the disk and at what units print, refuses submissions where too little is
//! left, and stops the units that [`Watch`] names. What is decided, and when, is decided there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::statvfs;

use super::Registry;
use crate::work::WorkError;
use crate::work::executor::Executor;
use crate::work::reserve::{Space, Watch};
use crate::work::status::UnitKind;
use crate::work::unit::{State, UnitId};
use crate::work::units::{Entry, Units};

/// Between looks of what waits for room.
const LOOK: Duration = Duration::from_secs(1);

/// The disk under the data directory.
pub(super) struct Reserve {
    units: Arc<Units>,
    executor: Arc<Executor>,
    /// What the configuration says of it. A plain lock, for reading and replacing alone, as the next one.
    set: Mutex<Option<u64>>,
    was_scarce: Mutex<bool>,
}

impl Reserve {
    /// Nothing is known of the disk yet.
    pub(super) fn new(units: &Arc<Units>, executor: &Arc<Executor>) -> Arc<Self> {
        let (units, executor) = (units.clone(), executor.clone());
        Arc::new(Self { units, executor, set: Mutex::default(), was_scarce: Mutex::default() })
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
        match (std::mem::replace(&mut *self.was_scarce.lock(), is_scarce), is_scarce) {
            (false, true) => tracing::warn!(
                path = %self.units.store().root().display(),
                free = space.free,
                reserve = space.reserve(self.set()),
                "the disk of the data directory has less free than the reserve (diskreserve): no submissions are taken"
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

    /// What each unit that runs has printed. Jobs of a controller print what their children do.
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
    let mut watch = Watch::default();
    let mut pause = Duration::ZERO;
    loop {
        tokio::time::sleep(pause).await;
        let Some(reserve) = reserve.upgrade() else { return };
        pause = LOOK;
        let Some(space) = reserve.look().await else { continue };
        let set = reserve.set();
        pause = space.pause(set);
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
        // It may take its grace; the next look does not wait for that.
        tokio::spawn(async move {
            if let Err(error) = reserve.stop(&stop.unit, why).await {
                tracing::warn!(%error, "a unit that fills the disk does not end");
            }
        });
    }
}

impl Registry {
    /// How many bytes of the disk are to be left free; `None` for a part of it.
    pub fn set_disk_reserve(&self, bytes: Option<u64>) {
        *self.reserve.set.lock() = bytes;
    }

    /// Free bytes of the disk, and those that are to stay free.
    pub(in crate::work) async fn disk(&self) -> Option<(u64, u64)> {
        let space = self.reserve.look().await?;
        Some((space.free, space.reserve(self.reserve.set())))
    }

    /// Returns once there is more free than the reserve.
    pub async fn has_room(&self) {
        while self.reserve.check().await.is_err() {
            tokio::time::sleep(LOOK).await;
        }
    }

    pub(super) fn keep_reserve(&self) {
        tokio::spawn(keep(Arc::downgrade(&self.reserve)));
    }
}
