//! Which unit a submission gets: a new one, under an ID that is made or was chosen, or the one that it repeats. Owns what
//! counts as a repetition. It refuses to know payloads, and what the unit will do.

use std::fs::File;
use std::sync::Arc;

use tokio::time::Instant;

use super::{Outcome, Registry};
use crate::rpc::OutputBound;
use crate::rpc::request::SubmitRequest;
use crate::work::asked::Asked;
use crate::work::jobs::JobExtra;
use crate::work::status::Status;
use crate::work::store::Durability;
use crate::work::unit::{Event, UnitId};
use crate::work::units::{CreateError, Entry, Leftovers};
use crate::work::{Submitter, WorkError};

impl Registry {
    /// The unit of a submission, and whether that had its payload before. One that is answered with its payload is not
    /// durable yet, and comes with the file that makes it so.
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
        let asked = Asked::of(if here { "" } else { &request.node }, &request.work_type, &request.params);
        let _lock = match &chosen {
            Some(id) => Some(self.units.lock_id(id).await),
            None => None,
        };
        if let Some(id) = &chosen {
            // One look: a unit that goes away meanwhile was there, and is not made again.
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
        // What the controller itself starts has waited for room.
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
        status.life.apply(&Event::PayloadAwaited);
        let (entry, made) = self.create_as(chosen, status, received, durability).await?;
        Ok((entry, false, made))
    }

    /// The unit that a submission repeats, if its payload is there. One without is deleted to be made again; a unit that
    /// is another one's keeps its ID.
    async fn earlier(
        &self,
        entry: Arc<Entry>,
        submitter: Submitter,
        asked: Asked,
    ) -> Result<Option<Arc<Entry>>, WorkError> {
        let status = entry.status();
        let is_repeated = match submitter {
            Submitter::Node { .. } => {
                status.asked == Some(asked)
                    && status.submitter.is_some_and(|who| who.is_same_caller(submitter))
            }
            // Clients do not repeat a submission, they make a mistake.
            Submitter::Operator | Submitter::Stranger => false,
        };
        if !is_repeated {
            return Err(WorkError::InUse(entry.id.to_string()));
        }
        // With the write lock no start is under way.
        let mut writer = entry.writer(self.units.store()).await;
        if !writer.status().life.lacks_payload() {
            drop(writer);
            return Ok(Some(entry));
        }
        entry.note_repeated();
        writer.apply(Event::PayloadCut("it was submitted again".into()), Durability::Volatile).await;
        drop(writer);
        // What of it is on its node goes first.
        match self.executor.release(entry.clone(), false, Leftovers::Stay).await? {
            Outcome::Done => Ok(None),
            Outcome::Pending => Err(WorkError::SubmittedAgain(entry.id.to_string())),
        }
    }

    /// Makes a unit, which was asked for at that time, durably, under an ID that was chosen for it or a new one.
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
