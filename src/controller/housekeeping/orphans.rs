//! Units without a job, and notes of units that are gone. A unit is an orphan only once it has been one for a while: what
//! is being made, asked or released meanwhile is none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::core::{ChildId, JobId};
use super::super::health::BUDGET;
use super::super::service::Service;
use super::super::store::{Error, Kept};
use crate::work::Leftovers;
use crate::work::unit::UnitId;

/// Units that are read from the store in one transaction.
const AT_ONCE: u32 = 1000;
/// How long a unit without a job is left alone, and one of a health check.
const PATIENCE: Duration = Duration::from_secs(1);
const CHECK_PATIENCE: Duration = BUDGET.saturating_mul(2);

/// Units that seem to have no job, and since when.
pub(super) type Suspects = BTreeMap<String, Instant>;

impl Service {
    pub(super) async fn clear_orphans(&self, suspects: &mut Suspects) -> Result<(), Error> {
        // The units first: what is entered after that is not missed.
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
        let is_due = |unit: &str, since: Instant| {
            let is_check = ChildId::parse(unit).is_none() && unit.starts_with('c');
            since.elapsed() >= if is_check { CHECK_PATIENCE } else { PATIENCE }
        };
        // A node that does not answer keeps the others waiting for as long as one alone does.
        let mut releases = JoinSet::new();
        for (unit, _) in found.iter().filter(|(unit, since)| is_due(unit, **since)) {
            tracing::info!(unit, "released: no job has it");
            let (registry, unit) = (self.registry.clone(), unit.clone());
            releases.spawn(async move {
                if let Err(error) = registry.release_child(&unit, Leftovers::End).await {
                    tracing::debug!(unit, %error, "an orphan is not released yet");
                }
            });
        }
        while releases.join_next().await.is_some() {}
        self.driver.base.figures.orphans.store(found.len() as u64, Ordering::Relaxed);
        *suspects = found;
        Ok(())
    }

    /// The store has lost with its last commits that a unit shows a job: the unit would show no end.
    async fn hold_again(&self, job: JobId, unit: String) -> Result<(), Error> {
        tracing::warn!(%job, unit, "the store has lost that this unit shows its job");
        match self.driver.store.hold(job, self.driver.node.clone(), unit, Kept::Output).await {
            Ok(()) => self.driver.publisher.show(job).await,
            // That is noticed elsewhere.
            Err(Error::NoJob(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Leaves the units of which the store knows nothing, and takes from the store what it notes of units that are gone.
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
                    tracing::warn!(%job, unit, "a job's unit is gone, with what it held");
                    store.let_go_unit(node.clone(), unit, &Kept::ALL).await?;
                }
            }
        }
    }

    /// A unit whose job has ended; one whose job has not may be on its way to its row.
    fn has_ended(&self, unit: &UnitId) -> bool {
        let unit = self.registry.job_unit(unit.as_str());
        unit.is_some_and(|unit| unit.is_final() && unit.extra().job_id.is_some())
    }

    /// A child that this install made: of an attempt, of a health check or of a clean-up.
    fn is_own_child(&self, unit: &UnitId) -> bool {
        let unit = unit.as_str();
        let of_attempt = ChildId::parse(unit).is_some_and(|child| child.install == self.driver.install);
        let checks = ["h", "k"].map(|kind| format!("c{:08x}{kind}", self.driver.install));
        let of_check = checks.iter().any(|start| unit.starts_with(start.as_str()));
        of_attempt || (of_check && !self.cleaning.lock().contains(unit))
    }
}
