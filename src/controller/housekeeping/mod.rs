//! What a control node clears away by itself: payloads, outputs and rows whose time is over, units without a job and
//! notes of units that are gone, and what the runner left on instances. It decides nothing about jobs, and looks at
//! this node's units only.

mod cleanup;
mod orphans;
mod retention;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use self::orphans::{Suspects, next_due};
use super::service::Service;

/// The time between two updates of the statistics by which the store plans lists.
const ANALYZE_EVERY: Duration = Duration::from_secs(6 * 3600);
/// The longest pause between two rounds. It is shorter if something is kept for a short time only.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const SHORTEST: Duration = Duration::from_millis(100);
/// The pause is at most this fraction of the shortest time for which something is kept.
const PART: u32 = 10;

impl Service {
    /// Keeps house until the controller stops.
    pub(super) async fn keep_house(self) {
        let mut suspects = Suspects::new();
        let mut cleaned = Instant::now();
        let mut analyzed = None;
        let mut is_first = true;
        let mut is_doubted = false;
        loop {
            self.measure_payloads().await;
            let bounds = self.driver.options().bounds;
            let kept = [bounds.payload_retention, bounds.output_retention, bounds.job_retention];
            let pause = kept.into_iter().fold(LONGEST_PAUSE, |least, kept| least.min(kept / PART));
            let pause = next_due(&suspects).map_or(pause, |due| due.min(pause)).max(SHORTEST);
            tokio::select! {
                () = sleep(pause) => {}
                () = self.stop.cancelled() => return,
            }
            // The options may have changed during the pause.
            let bounds = self.driver.options().bounds;
            // A node that may have lost its jobs releases nothing of them.
            if !self.driver.lease.may_act() {
                continue;
            }
            let round = async {
                if is_first {
                    self.drop_unwanted_payloads().await?;
                    is_first = false;
                }
                if analyzed.is_none_or(|at: Instant| at.elapsed() >= ANALYZE_EVERY) {
                    self.driver.store.analyze().await?;
                    analyzed = Some(Instant::now());
                }
                self.drop_what_is_over(&bounds, &mut is_doubted).await?;
                self.clear_orphans(&mut suspects).await
            };
            let kept = tokio::select! {
                kept = round => kept,
                () = self.stop.cancelled() => return,
            };
            if let Err(error) = kept {
                tracing::warn!(%error, "housekeeping failed, trying again later");
            }
            if !bounds.cleanup_every.is_zero() && cleaned.elapsed() >= bounds.cleanup_every {
                cleaned = Instant::now();
                if let Err(error) = self.clean_up().await {
                    tracing::warn!(%error, "the runner's clean-up failed, trying again later");
                }
            }
        }
    }

    /// Counts the bytes of payloads on the disk: once a round only, because each is a file to look at. A payload that
    /// units share counts once.
    async fn measure_payloads(&self) {
        let jobs = self.registry.unit_ids().into_iter().filter(|(_, is_job)| *is_job);
        let units = jobs.filter_map(|(unit, _)| self.registry.job_unit(unit.as_str()));
        let payloads: Vec<_> = units.map(|unit| unit.payload()).collect();
        let sum = move || {
            let files = payloads.iter().filter_map(|payload| std::fs::metadata(payload).ok());
            files.map(|file| (file.ino(), file.len())).collect::<BTreeMap<_, _>>().values().sum()
        };
        if let Ok(bytes) = tokio::task::spawn_blocking(sum).await {
            self.driver.base.figures.payload_bytes.store(bytes, Ordering::Relaxed);
        }
    }
}
