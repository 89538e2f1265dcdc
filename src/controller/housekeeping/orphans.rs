//! Units without a job, and the store's rows about units that are gone. A unit counts as an orphan only after it has
//! had no job for a while, because it may be in the middle of being made, asked or released.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::core::{ChildId, JobId};
use super::super::health::CHECK_LIMIT;
use super::super::service::Service;
use super::super::store::{Error, Kept};
use crate::work::Leftovers;
use crate::work::unit::UnitId;

/// Units that are read from the store in one transaction.
const AT_ONCE: u32 = 1000;
/// How long a unit without a job is left alone, and how long a unit of a health check.
const LEFT_ALONE: Duration = Duration::from_secs(1);
const CHECK_LEFT_ALONE: Duration = CHECK_LIMIT.saturating_mul(2);

/// How long the unit of a job that the store has lost stays after that: nobody else has its output, and its client may be
/// about to read that.
const READ_WITHIN: Duration = Duration::from_secs(3600);

/// Units that seem to have no job, and since when.
pub(super) type Suspects = BTreeMap<String, Instant>;

/// The time until the next suspect becomes an orphan; `None` if there is none that is not one already.
pub(super) fn next_due(suspects: &Suspects) -> Option<Duration> {
    let left = suspects.iter().map(|(unit, since)| left_until_due(unit, *since));
    left.filter(|left| !left.is_zero()).min()
}

fn left_until_due(unit: &str, since: Instant) -> Duration {
    let is_check = ChildId::parse(unit).is_none() && unit.starts_with('c');
    let left_alone = if is_check { CHECK_LEFT_ALONE } else { LEFT_ALONE };
    left_alone.saturating_sub(since.elapsed())
}

impl Service {
    pub(super) async fn clear_orphans(&self, suspects: &mut Suspects) -> Result<(), Error> {
        // The units are listed before the store is read, so that a row that is entered meanwhile is not missing.
        let units = self.registry.unit_ids();
        let mut rowless: BTreeSet<&str> = units
            .iter()
            .filter(|(unit, is_job)| *is_job && self.has_ended(unit))
            .map(|(unit, _)| unit.as_str())
            .collect();
        let mut unheld = self.driver.publisher.shown_units();
        self.compare_with_store(&mut rowless, &mut unheld).await?;
        for (unit, job) in unheld {
            self.hold_again(job, unit).await?;
        }
        let unswept = self.driver.store.unswept_units().await?;
        let is_orphan = |unit: &UnitId, is_job: bool| match is_job {
            true => rowless.contains(unit.as_str()),
            false => self.is_own_child(unit) && !unswept.contains(unit.as_str()),
        };
        let now = Instant::now();
        let since = |unit: &UnitId| suspects.get(unit.as_str()).copied().unwrap_or(now);
        let found: Suspects = units
            .iter()
            .filter(|(unit, is_job)| is_orphan(unit, *is_job))
            .map(|(unit, _)| (unit.to_string(), since(unit)))
            .collect();
        // All releases run at once, so that several nodes that do not answer cost no more time than one.
        let mut releases = JoinSet::new();
        for (unit, since) in found.iter().filter(|(unit, since)| left_until_due(unit, **since).is_zero()) {
            let (service, unit, since) = (self.clone(), unit.clone(), *since);
            releases.spawn(async move {
                // If the store has lost the job, only this unit knows what the job left on another node.
                if let Some(unit) = service.registry.job_unit(&unit) {
                    let has_ended = service.driver.attempts.forgotten.end_lost(&unit, since).await;
                    if !has_ended.unwrap_or(false) || since.elapsed() < READ_WITHIN {
                        return;
                    }
                }
                tracing::info!(unit, "releasing a unit that no job has");
                if let Err(error) = service.registry.release_child(&unit, Leftovers::End).await {
                    tracing::debug!(unit, %error, "cannot release an orphan yet");
                }
            });
        }
        while releases.join_next().await.is_some() {}
        self.driver.base.figures.orphans.store(found.len() as u64, Ordering::Relaxed);
        *suspects = found;
        Ok(())
    }

    /// Records again that a unit shows a job, because the store lost that with its last commits: the unit would never
    /// show an end.
    async fn hold_again(&self, job: JobId, unit: String) -> Result<(), Error> {
        tracing::warn!(%job, unit, "the store has lost the record that this unit shows this job");
        match self.driver.store.hold(job, self.driver.node.clone(), unit, Kept::Output).await {
            Ok(()) => self.driver.publisher.show(job).await,
            // That the job itself is lost is noticed elsewhere.
            Err(Error::NoJob(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes the units that the store knows from `rowless` and `unheld`, and units that are gone from the store.
    async fn compare_with_store(
        &self,
        rowless: &mut BTreeSet<&str>,
        unheld: &mut BTreeMap<String, JobId>,
    ) -> Result<(), Error> {
        let (store, node) = (&self.driver.store, &self.driver.node);
        let mut after = String::new();
        loop {
            let page = store.holding_units(node.clone(), after.clone(), AT_ONCE).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after.clone_from(last);
            for (unit, job) in page {
                rowless.remove(unit.as_str());
                unheld.remove(&unit);
                if self.registry.job_unit(&unit).is_none() {
                    tracing::warn!(%job, unit, "a job's unit is gone, with the files that it held");
                    store.let_go_unit(node.clone(), unit, &Kept::ALL).await?;
                }
            }
        }
    }

    /// Whether a unit shows a job that has ended. Before that, its row may still be on its way to the store.
    fn has_ended(&self, unit: &UnitId) -> bool {
        let unit = self.registry.job_unit(unit.as_str());
        unit.is_some_and(|unit| unit.is_final() && unit.extra().job_id.is_some())
    }

    /// Whether this install made the child: for an attempt, a health check, or a clean-up that does not run any more.
    fn is_own_child(&self, unit: &UnitId) -> bool {
        let unit = unit.as_str();
        let of_attempt = ChildId::parse(unit).is_some_and(|child| child.install == self.driver.install);
        let checks = ["h", "k"].map(|kind| format!("c{:08x}{kind}", self.driver.install));
        let of_check = checks.iter().any(|start| unit.starts_with(start.as_str()));
        of_attempt || (of_check && !self.cleaning.lock().contains(unit))
    }
}
