//! Releasing finished units of types that keep theirs for a limited time. One task looks at all of them now and
//! then; when a unit ended is read from its status file, so that a restart changes nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use super::Local;
use crate::work::unit::UnitId;
use crate::work::units::{Entry, Leftovers, detached};

/// Between looks: a part of the shortest time, within these bounds.
const PART: u32 = 10;
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(60);

impl Local {
    /// Starts the task. It ends with the registry.
    pub(crate) fn start_retention(self: &Arc<Self>) {
        tokio::spawn(watch_over(Arc::downgrade(self)));
    }

    /// How long to wait between looks, by the types there are now.
    fn retention_pause(&self) -> Duration {
        let types = self.types.load();
        let shortest = types.values().filter_map(|kind| kind.limits.release_after).min();
        shortest.map_or(LONGEST, |shortest| (shortest / PART).clamp(SHORTEST, LONGEST))
    }

    /// The finished units that are kept for a limited time only, with that time.
    fn perishable(&self) -> Vec<(Arc<Entry>, Duration)> {
        let limited = |entry: Arc<Entry>| {
            let status = entry.status();
            let types = self.types.load();
            let kind = types.get(&status.work_type)?;
            let kept = kind.limits.release_after.filter(|_| status.life.state.is_final())?;
            Some((entry, kept))
        };
        self.units.all().into_iter().filter_map(limited).collect()
    }
}

async fn watch_over(local: Weak<Local>) {
    let mut ended: BTreeMap<UnitId, SystemTime> = BTreeMap::new();
    loop {
        let pause = local.upgrade().map(|local| local.retention_pause());
        let Some(pause) = pause else { return };
        tokio::time::sleep(pause).await;
        let Some(local) = local.upgrade() else { return };
        let perishable = local.perishable();
        ended.retain(|id, _| perishable.binary_search_by(|(entry, _)| entry.id.cmp(id)).is_ok());
        for (entry, kept) in perishable {
            let end = match ended.get(&entry.id) {
                Some(end) => Some(*end),
                None => {
                    let dir = entry.dir.clone();
                    local.units.store().blocking(move || dir.status_time()).await
                }
            };
            let Some(end) = end else { continue };
            ended.insert(entry.id.clone(), end);
            if end.elapsed().is_ok_and(|age| age >= kept) {
                release(&local, &entry).await;
            }
        }
    }
}

async fn release(local: &Arc<Local>, entry: &Arc<Entry>) {
    let (local, unit) = (local.clone(), entry.clone());
    match detached(async move { local.release(&unit, false, Leftovers::Stay).await }).await {
        Ok(_) => tracing::info!(unit = %entry.id, "released: it was kept for its time (releaseafter)"),
        Err(error) => tracing::warn!(unit = %entry.id, %error, "cannot be released yet (releaseafter)"),
    }
}
