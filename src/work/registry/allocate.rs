//! Which unit a submission gets: a new one, under a generated or chosen ID, or the unit that it repeats. Owns what
//! counts as a repetition. Knows neither payloads nor what the unit will do.

use std::fs::File;
use std::sync::Arc;

use tokio::time::Instant;

use super::{Outcome, Registry};
use crate::rpc::OutputBound;
use crate::rpc::request::SubmitRequest;
use crate::work::asked::AskedHash;
use crate::work::jobs::JobExtra;
use crate::work::status::Status;
use crate::work::store::Durability;
use crate::work::unit::{UnitEvent, UnitId};
use crate::work::units::{CreateError, Entry, Leftovers};
use crate::work::{Submitter, WorkError};

impl Registry {
    /// Returns the unit of a submission, and whether the unit has its payload already. If the request is `at_once`, a
    /// new unit is not durable yet, and comes with its status file for
    /// [`UnitDir::finish`](crate::work::store::UnitDir::finish).
    pub(super) async fn unit_for(
        self,
        request: SubmitRequest,
        submitter: Submitter,
        chosen: Option<UnitId>,
        job: Option<JobExtra>,
        max_stdout: Option<Box<OutputBound>>,
        received: Instant,
    ) -> Result<(Arc<Entry>, bool, Option<File>), WorkError> {
        let here = self.is_here(&request);
        let durability = if request.at_once { Durability::Deferred } else { Durability::Durable };
        let asked = AskedHash::of(if here { "" } else { &request.node }, &request.work_type, &request.params);
        let _lock = match &chosen {
            Some(id) => Some(self.units.lock_id(id).await),
            None => None,
        };
        if let Some(id) = &chosen {
            // The unit is looked up only once: if it goes away meanwhile, it is not made again.
            match self.units.get(id)? {
                None => {
                    self.units.check_disclaimed(id, submitter)?;
                    if request.at_once {
                        self.units.check_late(id, submitter)?;
                    }
                }
                Some(entry) => {
                    if let Some(whole) = self.earlier(entry, submitter, asked).await? {
                        return Ok((whole, true, None));
                    }
                }
            }
        }
        // The controller's own units (those with `max_stdout`) have waited for free space already.
        if max_stdout.is_none() {
            self.reserve.check().await?;
        }
        let mut status = match job {
            Some(extra) => self.job_status(extra),
            None if !here => self.remote_status(request)?,
            None => match self.pod_status(&request).await? {
                Some(status) => status,
                None => self.local_status(&request)?,
            },
        };
        (status.submitter, status.asked, status.max_stdout) = (Some(submitter), Some(asked), max_stdout);
        status.life.apply(&UnitEvent::PayloadAwaited);
        let (entry, made) = self.create_as(chosen, status, received, durability).await?;
        Ok((entry, false, made))
    }

    /// The unit that a submission repeats, if it has its payload. A repeated unit without payload is deleted, so that
    /// it can be made again. If the submission is no repetition, the ID is in use, which is an error.
    async fn earlier(
        &self,
        entry: Arc<Entry>,
        submitter: Submitter,
        asked: AskedHash,
    ) -> Result<Option<Arc<Entry>>, WorkError> {
        let status = entry.status();
        let is_repeated = match submitter {
            Submitter::Node { .. } => {
                status.asked == Some(asked)
                    && status.submitter.is_some_and(|who| who.is_same_caller(submitter))
            }
            // Only nodes repeat submissions. A client that chooses the same ID again makes a mistake.
            Submitter::Operator | Submitter::Stranger => false,
        };
        if !is_repeated {
            return Err(WorkError::InUse(entry.id.to_string()));
        }
        // While this holds the write lock, the unit is not being started.
        let mut writer = entry.writer(self.units.store()).await;
        if !writer.status().life.lacks_payload() {
            drop(writer);
            return Ok(Some(entry));
        }
        entry.note_repeated();
        writer.apply(UnitEvent::PayloadCut("it was submitted again".into()), Durability::Volatile).await;
        drop(writer);
        // What is on the unit's other node is deleted first.
        match self.executor.release(entry.clone(), false, Leftovers::Stay).await? {
            Outcome::Done => Ok(None),
            Outcome::Pending => Err(WorkError::SubmittedAgain(entry.id.to_string())),
        }
    }

    /// Durably makes a unit, under the chosen ID or a new one. `received` is when the request came.
    pub(super) async fn create(
        &self,
        chosen: Option<UnitId>,
        status: Status,
        received: Instant,
    ) -> Result<Arc<Entry>, WorkError> {
        self.create_as(chosen, status, received, Durability::Durable).await.map(|(entry, _)| entry)
    }

    async fn create_as(
        &self,
        chosen: Option<UnitId>,
        status: Status,
        received: Instant,
        durability: Durability,
    ) -> Result<(Arc<Entry>, Option<File>), WorkError> {
        let submitter = status.submitter;
        match self.units.create(chosen, status, received, durability).await {
            Ok(created) => Ok(created),
            Err(CreateError::Failed(error)) => Err(error),
            Err(CreateError::Exceeded(exceeded)) => Err(self.exceeded(exceeded, submitter).await),
        }
    }
}
