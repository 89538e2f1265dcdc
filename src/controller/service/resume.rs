//! Units of an earlier process follow their jobs again, also where the store has lost what it knew of them. It decides
//! which job a unit's is; what the unit then shows is `driver`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::door::Door;
use super::intake::Intake;
use super::{STORE_RETRY, attach, follow};
use crate::controller::core::{ChildId, InstanceName, JobId};
use crate::controller::driver::{JobDriver, rfc3339, sent};
use crate::controller::header::Header;
use crate::controller::store::{Audit, Error, JobDetail, Kept, Submitted};
use crate::controller::stream;
use crate::work::jobs::{JobExtra, JobIntake, JobUnit};

const CHUNK: usize = 256 << 10;
/// What the audit says of a job that the store does not know any more.
const LOST: &str = "job.lost";

/// What units know of the jobs that the store has lost.
#[derive(Default)]
pub(super) struct Lost {
    /// Jobs that had been placed: what one unit knows counts for all.
    placed: BTreeSet<i64>,
    /// The jobs that were made of lost ones again, by the number and the time that those had.
    again: BTreeMap<(i64, Option<String>), JobId>,
}

impl Door {
    /// Has units follow their jobs before the driver runs. Those whose jobs the store has lost become jobs again, or end.
    pub(super) async fn follow_all(&self, driver: &Arc<JobDriver>, mut units: Vec<JobUnit>) {
        // One without a payload follows the job that is made of another one's.
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

    /// The driver does not run yet, and without its unit a job would lose its output.
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

    /// A unit of an earlier process follows its job again. One whose job the store does not know, because the store lost
    /// its last commits or is an older copy, becomes a job again, unless it had been placed.
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
                // One that was lost, and whose number was given again and deleted, looks the same.
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
        // Its status may not say yet that it was placed, but says which child it has before that is sent. Where the job was
        // created at the same moment it may be the unit's own, and may have run.
        let mut children = sent(&extra);
        children.retain(|sent| !other.as_ref().is_some_and(|detail| detail.job.has_child(&sent.child)));
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
            // Its row alone knew what it was to do of the first one's stream.
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
        || ChildId::parse(&extra.child_unit_id).is_some_and(|child| detail.job.has_child(&child))
        || has_none_of_its_own()
}

/// Whether a job was created when a unit says that its own was.
fn was_created_as(detail: &JobDetail, extra: &JobExtra) -> bool {
    extra.created.as_ref() == Some(&rfc3339(detail.row.created))
}
