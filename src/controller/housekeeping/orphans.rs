//! Units without a job, and notes of units that are gone. A unit is an orphan only once it has been one for a while: what
//! is being made, asked or released meanwhile is none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::super::core::ChildId;
use super::super::health::BUDGET;
use super::super::service::Service;
use super::super::store::{Error, Kept};
use crate::work::unit::UnitId;

/// How long a unit without a job is left alone, and one of a health check.
const PATIENCE: Duration = Duration::from_secs(1);
const CHECK_PATIENCE: Duration = BUDGET.saturating_mul(2);

/// Units that seem to have no job, and since when.
pub(super) type Suspects = BTreeMap<String, Instant>;

impl Service {
    pub(super) async fn clear_orphans(&self, suspects: &mut Suspects) -> Result<(), Error> {
        // The units first: what is entered after that is not missed.
        let units = self.registry.unit_ids();
        let holding = self.driver.store.holding_units(self.driver.node.clone()).await?;
        let unswept = self.driver.store.unswept_units().await?;
        let is_orphan = |unit: &UnitId, is_job: bool| match is_job {
            true => self.ended_without_row(unit) && !holding.contains_key(unit.as_str()),
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
        for (unit, _) in found.iter().filter(|(unit, since)| is_due(unit, **since)) {
            tracing::info!(unit, "released: no job has it");
            if let Err(error) = self.registry.release_child(unit).await {
                tracing::debug!(unit, %error, "an orphan is not released yet");
            }
        }
        let known: BTreeSet<&str> = units.iter().map(|(unit, _)| unit.as_str()).collect();
        for (unit, job) in holding.iter().filter(|(unit, _)| !known.contains(unit.as_str())) {
            // It may have been made since the units were looked at.
            if self.registry.job_unit(unit).is_some() {
                continue;
            }
            tracing::warn!(%job, unit, "a job's unit is gone, with what it held");
            self.driver.store.let_go_unit(self.driver.node.clone(), unit.clone(), &Kept::ALL).await?;
        }
        *suspects = found;
        Ok(())
    }

    /// A unit of a job that has ended; one that has not is still on its way to its row.
    fn ended_without_row(&self, unit: &UnitId) -> bool {
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
