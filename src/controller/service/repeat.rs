//! Repeats a job that has ended, as a new job with a unit of its own and the same payload. A payload on this node is
//! shared on disk; a payload of another control node comes over the mesh.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{STORE_RETRY, follow_in_any_case, most_pending, submission};
use crate::controller::core::JobId;
use crate::controller::driver::JobDriver;
use crate::controller::peer::PeerStream;
use crate::controller::store::{Audit, Error, JobRecord};
use crate::controller::stream::Asked;
use crate::rpc::UnitState;
use crate::work::jobs::{Act, JobExtra, JobIntake, JobUnit, ShownJob};
use crate::work::{Leftovers, Registry, UnitSubmission};

/// How long another control node may send nothing.
const SILENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(in crate::controller) struct Repeat {
    pub(in crate::controller) former: JobRecord,
    /// The only hosts to run on; all if it is empty.
    pub(in crate::controller) limit: Vec<String>,
    /// Whether the caller has all rights.
    pub(in crate::controller) is_admin: bool,
    /// Who asked for it, and what it repeats.
    pub(in crate::controller) audit: Audit,
}

/// Why there is no new job.
#[derive(Debug, thiserror::Error)]
pub(in crate::controller) enum RepeatError {
    /// The store or this node's disk refuses.
    #[error(transparent)]
    Here(#[from] Error),
    /// The other control node did not send the whole payload.
    #[error("the payload of job {job} did not arrive intact: {why}; try again")]
    Elsewhere {
        /// The job to be repeated.
        job: JobId,
        /// The cause.
        why: String,
    },
}

impl Repeat {
    fn extra(&self) -> JobExtra {
        JobExtra {
            launched_by: self.audit.who.clone(),
            is_admin: self.is_admin,
            rerun_of: Some(self.former.row.id.0),
            ..JobExtra::default()
        }
    }

    /// Makes the unit and the job, with the payload of a unit on this node. An error, or a crash before the job is
    /// stored, leaves neither.
    ///
    /// # Errors
    /// Those of the store, and of the disk as [`Error::Conflict`].
    pub(in crate::controller) async fn enter(
        self,
        driver: &Arc<JobDriver>,
        registry: &Registry,
        payload: &str,
    ) -> Result<JobId, Error> {
        let (driver, registry, payload) = (driver.clone(), registry.clone(), payload.to_owned());
        // In a task of its own, so that a client that goes away leaves nothing half done.
        let entered = tokio::spawn(async move {
            let extra = self.extra();
            let unit = registry.repeat_job(&payload, extra.clone()).await;
            let unit = unit.map_err(|error| Error::Conflict(error.to_string()))?;
            let stored = self.store(&driver, &unit).await;
            if let Err(error) = &stored {
                unit.fail(&error.to_string()).await;
                if let Err(error) = registry.release_child(unit.id().as_str(), Leftovers::Stay).await {
                    tracing::warn!(unit = %unit.id(), %error, "cannot remove the unit of a job that was not stored");
                }
            }
            stored
        });
        entered.await.map_err(|error| Error::Conflict(error.to_string()))?
    }

    /// As [`Self::enter`], with a payload of this size that another control node sends.
    ///
    /// # Errors
    /// As [`Self::enter`], or the payload does not arrive completely.
    pub(in crate::controller) async fn enter_from(
        self,
        driver: &Arc<JobDriver>,
        registry: &Registry,
        payload: PeerStream,
        size: u64,
    ) -> Result<JobId, RepeatError> {
        let (driver, registry) = (driver.clone(), registry.clone());
        // As in `enter`: a client that goes away leaves nothing half done.
        let entered = tokio::spawn(async move {
            let (extra, former) = (self.extra(), self.former.row.id);
            let (answer, stored) = oneshot::channel();
            let intake = Box::new(Intake { driver, repeat: self, answer });
            let begun = registry.repeat_job_from_elsewhere(extra, intake).await;
            let mut submission = begun.map_err(|error| here(&error))?;
            if let Err(why) = copy(payload, (former, size), &mut submission).await {
                submission.discard(why.to_string()).await;
                return Err(why);
            }
            let finished = submission.finish().await;
            // The store's own error comes first, because `finished` has only its text.
            match (stored.await, finished) {
                (Ok(stored), _) => Ok(stored?),
                (Err(_), Err(error)) => Err(here(&error)),
                (Err(never), Ok(_)) => Err(here(&never)),
            }
        });
        entered.await.map_err(|error| here(&error))?
    }

    /// Makes the job of a unit that has its payload.
    async fn store(self, driver: &Arc<JobDriver>, unit: &JobUnit) -> Result<JobId, Error> {
        let extra = self.extra();
        let Self { former, limit, is_admin, audit } = self;
        let mut header = former.parsed_header()?;
        (header.key, header.depends_on) = (None, Vec::new());
        if !limit.is_empty() {
            header.hosts = Some(u32::try_from(limit.len()).unwrap_or(u32::MAX));
        }
        let asked = Asked { forks: Some(former.row.forks), run: former.row.terms.run.clone() };
        let mut submission = submission(driver, unit, &header, &asked, &audit.who);
        (submission.terms.limit, submission.is_admin) = (limit, is_admin);
        // The job may be stored although the answer was lost, so this asks until it knows. The store finds the job by
        // its unit.
        let (entering, job) = loop {
            let entering = driver.entering.clone().read_owned().await;
            let stored =
                driver.store.submit_for(audit.clone(), submission.clone(), most_pending(driver)).await;
            match stored {
                Err(Error::Away(_)) => drop(entering),
                stored => break (entering, stored?),
            }
            tokio::time::sleep(STORE_RETRY).await;
        };
        let extra = JobExtra { job_id: Some(job.id().0), ..extra };
        let state = UnitState::Pending;
        // Durably, because a restart removes the unit of a repeat that does not know its job's number.
        unit.report_durably(ShownJob { state, detail: "pending".to_owned(), extra }).await;
        follow_in_any_case(driver, entering, job, unit.clone()).await?;
        Ok(job.id())
    }
}

/// Makes the job once a payload from elsewhere has arrived.
#[derive(Debug)]
struct Intake {
    driver: Arc<JobDriver>,
    repeat: Repeat,
    answer: oneshot::Sender<Result<JobId, Error>>,
}

impl JobIntake for Intake {
    fn push(&mut self, _bytes: &[u8]) -> Result<(), String> {
        // The payload was checked when it was first submitted.
        Ok(())
    }

    fn finish(self: Box<Self>, unit: JobUnit) -> Act<'static, Result<bool, String>> {
        Box::pin(async move {
            let stored = self.repeat.store(&self.driver, &unit).await;
            let is_stored = stored.as_ref().map(|_| true).map_err(ToString::to_string);
            let _heard = self.answer.send(stored);
            is_stored
        })
    }
}

fn here(error: &dyn std::fmt::Display) -> RepeatError {
    RepeatError::Here(Error::Conflict(error.to_string()))
}

/// Copies the payload of a job, and checks that it has this size.
async fn copy(
    mut payload: PeerStream,
    (job, size): (JobId, u64),
    submission: &mut UnitSubmission,
) -> Result<(), RepeatError> {
    let cut = |why: String| RepeatError::Elsewhere { job, why };
    let mut count = 0;
    loop {
        let piece = timeout(SILENCE, payload.next()).await;
        let piece = piece.map_err(|_| cut("its control node stopped sending".to_owned()))?;
        let Some(bytes) = piece.map_err(|error| cut(error.to_string()))? else { break };
        count += bytes.len() as u64;
        if count > size {
            return Err(cut(format!("more than its {size} bytes arrived")));
        }
        submission.write(&bytes).await.map_err(|error| here(&error))?;
    }
    if count == size { Ok(()) } else { Err(cut(format!("only {count} of its {size} bytes arrived"))) }
}
