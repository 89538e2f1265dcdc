//! Makes units of an earlier process follow their jobs again, even if the store has lost those jobs. It decides which
//! job belongs to a unit; `driver` decides what the unit then shows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::door::Door;
use super::intake::Intake;
use super::{STORE_RETRY, attach, follow};
use crate::controller::core::{ChildId, InstanceName, JobId};
use crate::controller::driver::{JobDriver, rfc3339, sent, unknown_of};
use crate::controller::header::Header;
use crate::controller::store::{Audit, Error, JobRecord, Kept, Submitted};
use crate::controller::stream;
use crate::work::jobs::{JobExtra, JobIntake, JobUnit};

const CHUNK: usize = 256 << 10;
/// The audit's entry for a job that the store does not know any more.
const LOST: &str = "job.lost";

/// What units know of jobs that the store has lost.
#[derive(Default)]
pub(super) struct Lost {
    /// Jobs that one of their units knows to have been placed; this counts for all their units.
    placed: BTreeSet<i64>,
    /// The new jobs that replace lost ones, by number and creation time of the lost job.
    again: BTreeMap<(i64, Option<String>), JobId>,
}

impl Door {
    /// Makes units follow their jobs before the driver runs. A unit whose job the store has lost becomes a job again,
    /// or ends.
    pub(super) async fn follow_all(&self, driver: &Arc<JobDriver>, mut units: Vec<JobUnit>) {
        // Units with a payload come first: a unit without one follows the job made from another unit's payload.
        units.sort_by_key(|unit| !unit.has_payload());
        let mut lost = Lost { placed: units.iter().filter_map(placed_job).collect(), ..Lost::default() };
        let following = async {
            for unit in units {
                self.follow_again(driver, unit, &mut lost).await;
            }
        };
        tokio::select! {
            () = following => {}
            // Thousands of units may take longer than a lease lasts.
            () = driver.lease.keep_lease() => {}
        }
    }

    /// Tries until the store answers, because a job without its unit would lose its output.
    pub(super) async fn follow_again(&self, driver: &Arc<JobDriver>, unit: JobUnit, lost: &mut Lost) {
        let resumed = loop {
            match self.resume(driver, unit.clone(), lost).await {
                Err(Error::Away(_) | Error::Refused(_)) => tokio::time::sleep(STORE_RETRY).await,
                resumed => break resumed,
            }
        };
        if let Err(error) = resumed {
            tracing::warn!(unit = %unit.id(), %error, "cannot attach unit to its job");
        }
    }

    /// Makes a unit of an earlier process follow its job again. If the store does not know the job, because it lost its
    /// last commits or is an older copy, the unit becomes a job again, unless the lost job had been placed.
    async fn resume(&self, driver: &Arc<JobDriver>, unit: JobUnit, lost: &mut Lost) -> Result<(), Error> {
        let extra = unit.extra();
        let Some(number) = extra.job_id else {
            if let Err(why) = self.enter_again(unit.clone()).await {
                unit.fail(&why).await;
            }
            return Ok(());
        };
        let job = JobId(number);
        let other = match driver.store.detail(job).await {
            Ok(detail) if is_unit_of(&detail, &driver.node, &unit, &extra) => {
                // The earlier process may have ended before it noted this unit as a holder.
                let (node, id) = (driver.node.clone(), unit.id().to_string());
                if !detail.holders.contains(&(node.clone(), id.clone(), Kept::Output)) {
                    driver.store.hold(job, node, id, Kept::Output).await?;
                }
                return attach(driver, job, unit).await;
            }
            // In an older copy of the store, another job may have got the same number.
            Ok(detail) => Some(detail),
            Err(Error::NoJob(_)) if driver.store.lost(vec![job]).await?.is_empty() => {
                // The job may also be a lost one whose number was given to another job that was deleted, so the
                // children that this unit knows end first.
                driver
                    .attempts
                    .forgotten
                    .fail_after(unit, format!("job {job} was deleted"), sent(&extra))
                    .await;
                return Ok(());
            }
            Err(Error::NoJob(_)) => None,
            Err(error) => return Err(error),
        };
        // The unit's status may not show yet that the job was placed, but it names each child before that child is
        // sent. A job created at the same moment may be the unit's own, so it may have run.
        let children = unknown_of(&extra, other.as_ref().map(|detail| &detail.job));
        let is_placed = placed_job(&unit).is_some()
            || lost.placed.contains(&number)
            || !children.is_empty()
            || other.as_ref().is_some_and(|detail| was_created_as(detail, &extra));
        tracing::warn!(unit = %unit.id(), %job, "the store has lost this job, or is an older copy");
        let audit =
            Audit { who: format!("mesh:{}", driver.node), op: LOST.to_owned(), target: job.to_string() };
        driver.store.record(audit).await?;
        let lost_as = (number, extra.created.clone());
        let why = match extra.rerun_of {
            _ if is_placed => format!("the store has lost job {job}, which had been placed: it may have run"),
            // Only the lost row knew which part of the first job's stream was to run.
            Some(of) => {
                format!("the store has lost job {job}, which repeated job {of}: run job {of} again")
            }
            None if let Some(next) = lost.again.get(&lost_as).filter(|_| !unit.has_payload()) => {
                return follow(driver, Submitted::Known(*next), unit).await;
            }
            None => match self.enter_again(unit.clone()).await {
                Ok(()) => {
                    lost.again.extend(unit.extra().job_id.map(|next| (lost_as, JobId(next))));
                    return Ok(());
                }
                Err(why) => why,
            },
        };
        driver.attempts.forgotten.fail_after(unit, why, children).await;
        Ok(())
    }

    /// Makes a job of a unit that has its payload but no row: an earlier process ended before it stored the row, or the
    /// store was away.
    async fn enter_again(&self, unit: JobUnit) -> Result<(), String> {
        let extra = unit.extra();
        let parsed = extra.header.as_ref().map(|text| Header::parse(text.as_bytes())).transpose();
        let parsed = parsed.map_err(|error| error.to_string())?;
        let mut stream = stream::Submission::new(self.options().bounds.max_payload, parsed);
        let path = unit.payload();
        let checked = tokio::task::spawn_blocking(move || -> Result<stream::Submission, String> {
            use std::io::Read as _;
            let mut file = std::fs::File::open(path).map_err(|error| error.to_string())?;
            let mut buffer = vec![0; CHUNK];
            loop {
                let count = file.read(&mut buffer).map_err(|error| error.to_string())?;
                if count == 0 {
                    return Ok(stream);
                }
                stream.push(&buffer[..count]).map_err(|error| error.to_string())?;
            }
        });
        let stream = checked.await.map_err(|error| error.to_string())??;
        Box::new(Intake::new(self.clone(), stream, extra.is_admin, true)).finish(unit).await.map(drop)
    }
}

/// The number of a unit's job, if the unit knows that it was placed.
fn placed_job(unit: &JobUnit) -> Option<i64> {
    let extra = unit.extra();
    extra.job_id.filter(|_| extra.attempt > 0)
}

/// Whether the stored job with the number that a unit shows is that unit's job.
fn is_unit_of(detail: &JobRecord, node: &InstanceName, unit: &JobUnit, extra: &JobExtra) -> bool {
    // A unit without a payload was made for a job that this node took over or that another unit had submitted. The
    // earlier process may have ended before it noted the unit.
    let has_none_of_its_own =
        || !unit.has_payload() && (extra.created.is_none() || was_created_as(detail, extra));
    detail.is_shown_by(node, unit.id().as_str())
        || ChildId::parse(&extra.child_unit_id).is_some_and(|child| detail.job.has_child(&child))
        || has_none_of_its_own()
}

/// Whether a job was created at the time that a unit knows for its own job.
fn was_created_as(detail: &JobRecord, extra: &JobExtra) -> bool {
    extra.created.as_ref() == Some(&rfc3339(detail.row.created))
}
