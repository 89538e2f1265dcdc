//! Units of an earlier process follow their jobs again, also where the store has lost what it knew of them. It decides
//! which job a unit's is; what the unit then shows is `driver`'s.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::door::Door;
use super::intake::Intake;
use super::{STORE_RETRY, attach};
use crate::controller::core::{InstanceName, JobId};
use crate::controller::driver::{JobDriver, rfc3339, sent};
use crate::controller::header::Header;
use crate::controller::store::{Audit, Error, JobDetail, Kept};
use crate::controller::stream;
use crate::rpc::UnitState;
use crate::work::jobs::{JobExtra, JobIntake, JobReport, JobUnit};

const CHUNK: usize = 256 << 10;
/// What the audit says of a job that the store does not know any more.
const LOST: &str = "job.lost";

impl Door {
    /// Has units follow their jobs before the driver runs. Those whose jobs the store has lost become jobs again, or end.
    pub(super) async fn follow_all(&self, driver: &Arc<JobDriver>, units: Vec<JobUnit>) {
        // Units of one job decide alike: what one of them knows of it counts for all.
        let placed: BTreeSet<i64> = units.iter().filter_map(placed_job).collect();
        let following = async {
            for unit in units {
                self.follow_again(driver, unit, &placed).await;
            }
        };
        tokio::select! {
            () = following => {}
            // Thousands of units may take longer than a lease lasts.
            () = driver.keep_lease() => {}
        }
    }

    /// The driver does not run yet, and without its unit a job would lose its output. Other units know that these jobs were
    /// placed.
    pub(super) async fn follow_again(&self, driver: &Arc<JobDriver>, unit: JobUnit, placed: &BTreeSet<i64>) {
        let resumed = loop {
            match self.resume(driver, unit.clone(), placed).await {
                Err(Error::Away(_) | Error::Refused(_)) => tokio::time::sleep(STORE_RETRY).await,
                resumed => break resumed,
            }
        };
        if let Err(error) = resumed {
            tracing::warn!(unit = %unit.id(), %error, "cannot attach unit to its job");
        }
    }

    /// A unit of an earlier process follows its job again. One whose job the store does not know, because the store lost
    /// its last commits or is an older copy, becomes a job again, unless it had been placed.
    async fn resume(
        &self,
        driver: &Arc<JobDriver>,
        unit: JobUnit,
        placed: &BTreeSet<i64>,
    ) -> Result<(), Error> {
        let extra = unit.extra();
        let mut is_placed =
            placed_job(&unit).is_some() || extra.job_id.is_some_and(|job| placed.contains(&job));
        let mut forgotten = Vec::new();
        if let Some(job) = extra.job_id.map(JobId) {
            let other = match driver.store.detail(job).await {
                Ok(detail) if is_unit_of(&detail, &driver.node, &unit, &extra) => {
                    // The process before may have ended before it noted that.
                    let (node, id) = (driver.node.clone(), unit.id().to_string());
                    if !detail.holders.contains(&(node.clone(), id.clone(), Kept::Output)) {
                        driver.store.hold(job, node, id, Kept::Output).await?;
                    }
                    return attach(driver, job, unit).await;
                }
                // In an older copy of the store the number may have become another job's.
                Ok(detail) => Some(detail),
                Err(Error::NoJob(_)) if driver.store.lost(vec![job]).await?.is_empty() => {
                    let detail = format!("job {job} was deleted");
                    unit.report(JobReport { state: UnitState::Failed, detail, extra }).await;
                    return Ok(());
                }
                Err(Error::NoJob(_)) => None,
                Err(error) => return Err(error),
            };
            // Its status may not say yet that it was placed, but says which child it has before that is sent. Where the job was
            // created at the same moment it may be the unit's own, and may have run.
            forgotten = sent(&extra);
            forgotten
                .retain(|(child, _)| !other.as_ref().is_some_and(|it| has_child(it, &child.to_string())));
            is_placed |= !forgotten.is_empty();
            is_placed |= other.as_ref().is_some_and(|detail| was_created_as(detail, &extra));
            tracing::warn!(unit = %unit.id(), %job, "the store has lost this job, or is an older copy");
            let audit =
                Audit { who: format!("mesh:{}", driver.node), op: LOST.to_owned(), target: job.to_string() };
            driver.store.record(audit).await?;
        }
        let entered = match (extra.job_id, extra.rerun_of) {
            (Some(job), _) if is_placed => {
                Err(format!("the store has lost job {job}, which had been placed: it may have run"))
            }
            // Its row alone knew what it was to do of the first one's stream.
            (Some(job), Some(of)) => {
                Err(format!("the store has lost job {job}, which repeated job {of}: run job {of} again"))
            }
            (Some(_) | None, _) => self.enter_again(unit.clone()).await,
        };
        if let Err(detail) = entered {
            unit.report(JobReport { state: UnitState::Failed, detail, extra }).await;
            driver.see_forgotten_end(forgotten);
        }
        Ok(())
    }

    /// A unit whose payload is here and whose row is not: an earlier process ended between the two, or there was no store.
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
        Box::new(Intake::new(self.clone(), stream, extra.is_admin)).finish(unit).await.map(drop)
    }
}

/// The number of a unit's job, if the unit knows that it was placed.
fn placed_job(unit: &JobUnit) -> Option<i64> {
    let extra = unit.extra();
    extra.job_id.filter(|_| extra.attempt > 0)
}

/// Whether a job that the store has under the number that a unit shows is that unit's.
fn is_unit_of(detail: &JobDetail, node: &InstanceName, unit: &JobUnit, extra: &JobExtra) -> bool {
    // One that was made for a job that this node took over, or that another unit had submitted, before that was noted.
    let has_none_of_its_own =
        || !unit.has_payload() && (extra.created.is_none() || was_created_as(detail, extra));
    detail.is_shown_by(node, unit.id().as_str())
        || has_child(detail, &extra.child_unit_id)
        || has_none_of_its_own()
}

fn has_child(detail: &JobDetail, child: &str) -> bool {
    detail.job.attempts.iter().any(|attempt| attempt.unit.to_string() == child)
}

/// Whether a job was created when a unit says that its own was.
fn was_created_as(detail: &JobDetail, extra: &JobExtra) -> bool {
    extra.created.as_ref() == Some(&rfc3339(detail.row.created))
}
