//! A job that repeats one that has ended: a unit of its own with the same payload, which is on disk once.

use std::sync::Arc;

use super::{enter, follow, submission};
use crate::controller::core::JobId;
use crate::controller::driver::{JobDriver, parsed};
use crate::controller::store::{Error, JobDetail};
use crate::rpc::UnitState;
use crate::work::Registry;
use crate::work::jobs::{JobExtra, JobReport};

/// What is to be repeated.
#[derive(Debug)]
pub(in crate::controller) struct Repeat {
    pub(in crate::controller) former: JobDetail,
    /// The only hosts to run on; all if it is empty.
    pub(in crate::controller) limit: Vec<String>,
    pub(in crate::controller) launched_by: String,
}

impl Repeat {
    /// Makes the unit and the job. An error, or a crash before the job is stored, leaves neither.
    ///
    /// # Errors
    /// Those of the store, and of the disk as [`Error::Conflict`].
    pub(in crate::controller) async fn enter(
        self,
        driver: &Arc<JobDriver>,
        registry: &Registry,
        payload: &str,
    ) -> Result<JobId, Error> {
        let Self { former, limit, launched_by } = self;
        let mut header = parsed(&former)?;
        (header.key, header.depends_on) = (None, Vec::new());
        if !limit.is_empty() {
            header.hosts = Some(u32::try_from(limit.len()).unwrap_or(u32::MAX));
        }
        let extra = JobExtra {
            launched_by: launched_by.clone(),
            is_admin: true,
            rerun_of: Some(former.row.id.0),
            ..JobExtra::default()
        };
        let unit = registry.repeat_job(payload, extra.clone()).await;
        let unit = unit.map_err(|error| Error::Conflict(error.to_string()))?;
        let id = unit.id().to_string();
        let _entering = driver.entering.read().await;
        let submission = submission(driver, &unit, &header, Some(former.row.forks), &launched_by);
        let entered = async {
            let mut submission = submission.map_err(Error::Conflict)?;
            submission.terms.limit = limit;
            enter(driver, &submission).await
        };
        let job = match entered.await {
            Ok(job) => job,
            Err(error) => {
                let (state, detail) = (UnitState::Failed, error.to_string());
                unit.report(JobReport { state, detail, extra }).await;
                if let Err(error) = registry.release_child(&id).await {
                    tracing::warn!(unit = id, %error, "the unit of a job that was not stored stays");
                }
                return Err(error);
            }
        };
        let extra = JobExtra { job_id: Some(job.id().0), ..extra };
        let state = UnitState::Pending;
        unit.report(JobReport { state, detail: "pending".to_owned(), extra }).await;
        follow(driver, job.id(), unit).await?;
        Ok(job.id())
    }
}
