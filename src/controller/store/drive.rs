//! The transitions of jobs: reports of owners, fenced by their epoch, and requests of others.
//!
//! A transition loads the job, lets the core change it, and saves the difference, in one transaction. This file knows
//! no rule of the life cycle.

use super::Store;
use super::audit::Audit;
use super::error::Error;
use super::jobs::{self, OPEN};
use super::sql::{Sql, to_json, values};
use super::{JobRecord, Kept, holders, list, recaps};
use crate::controller::core::{
    AttemptNo, ChildId, Driven, Fence, InstanceName, Job, JobId, OutputEnd, Progress, Refused, Time,
};
use crate::controller::stream::{FailureReport, Recap};

/// What the owner has counted in the output of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// The attempt that was counted. Its figures become the job's unless another attempt has begun.
    pub attempt: AttemptNo,
    /// Events.
    pub events: u64,
    /// Bytes of output.
    pub output_bytes: u64,
    /// The playbook's exit code.
    pub rc: Option<i32>,
    /// The commit that was checked out.
    pub revision: Option<String>,
    /// What was done on each host, sent once it is final. It replaces what was saved before.
    pub recap: Option<Recap>,
    /// What went wrong in the playbook, sent once it is final.
    pub failure: Option<FailureReport>,
}

/// A complete output on the owner's disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldOutput {
    /// The unit that has it.
    pub unit: String,
    /// Its length and hash.
    pub end: OutputEnd,
}

/// An attempt that may be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sending {
    /// The ID under which its node may have the unit already, if it was sent before.
    pub sent_as: Option<String>,
    /// It was first sent under this very lease, so no other control node has had the job since.
    pub is_ours: bool,
}

impl Store {
    /// The owner reports on an attempt. Returns all that is known of the job now.
    /// `report` may be called more than once.
    ///
    /// # Errors
    /// The writer is fenced: it must stand down. Or there is no such job or attempt.
    pub async fn drive(
        &self,
        by: Fence,
        id: JobId,
        report: impl Fn(&mut Driven<'_>, Time) -> Result<(), Refused> + Send + 'static,
    ) -> Result<JobRecord, Error> {
        self.fenced_write(by, move |sql, by| {
            drive(sql, by, id, None, &report)?;
            list::detail(sql, id)
        })
        .await
    }

    /// As [`Self::drive`], for the report that an attempt has ended. Also saves its figures and, if output is kept,
    /// that the owner has all of it: from then on its unit may be released.
    pub async fn drive_to_end(
        &self,
        by: Fence,
        (id, n): (JobId, AttemptNo),
        figures: Option<Figures>,
        output: Option<HeldOutput>,
        report: impl Fn(&mut Driven<'_>, Time) -> Result<(), Refused> + Send + 'static,
    ) -> Result<JobRecord, Error> {
        self.fenced_write(by, move |sql, by| {
            let query = format!("SELECT output_bytes FROM job WHERE id = $1{}", sql.dialect().lock_row());
            let counted = match figures {
                Some(_) => 0,
                None => sql.query(&query, values![id])?.pop().ok_or(Error::NoJob(id))?.take()?,
            };
            // An owner with less output than was counted has all of it only if it sent the attempt itself. Otherwise
            // another control node counted output that the owner never got.
            let has_all = match &output {
                Some(output) => output.end.bytes >= counted || is_sender(sql, (id, n), &by.owner)?,
                None => false,
            };
            let end = output.as_ref().map(|output| match has_all {
                true => output.end,
                false => OutputEnd { bytes: counted, hash: None },
            });
            drive(sql, by, id, figures.as_ref(), &|job, now| {
                report(job, now)?;
                job.on_output(n, end)
            })?;
            if let Some(HeldOutput { unit, end }) = output.as_ref().filter(|_| has_all) {
                holders::complete(sql, (id, n), &by.owner, std::slice::from_ref(unit))?;
                if end.bytes != counted && figures.is_none() {
                    sql.execute("UPDATE job SET output_bytes = $1 WHERE id = $2", values![end.bytes, id])?;
                }
            }
            list::detail(sql, id)
        })
        .await
    }

    /// The unit of an attempt was released, and these units of the owner have no payload any more.
    pub async fn sweep(
        &self,
        by: Fence,
        id: JobId,
        n: AttemptNo,
        without_payload: Vec<String>,
    ) -> Result<JobRecord, Error> {
        self.fenced_write(by, move |sql, by| {
            drive(sql, by, id, None, &|job, _| job.on_swept(n))?;
            holders::note_gone(sql, id, &by.owner, Kept::Payload, &without_payload)?;
            list::detail(sql, id)
        })
        .await
    }

    /// Records that the owner is about to send an attempt's input. This write orders sending and takeover: after a
    /// takeover nothing is sent, and a takeover after this write knows that the input may have been sent. Returns
    /// `None` if nothing may be sent: the attempt is over or cancelled, or the store has lost its last commits and
    /// another job has that number.
    ///
    /// # Errors
    /// The writer is fenced: it must stand down. Or there is no such job.
    pub async fn before_sending(&self, by: Fence, child: ChildId) -> Result<Option<Sending>, Error> {
        self.fenced_write(by, move |sql, by| {
            let mut job = jobs::load_one(sql, child.job)?;
            job.driven_by(by).map_err(Refused::from)?;
            let is_wanted =
                job.attempt(child.attempt).filter(|attempt| attempt.unit == child).is_some_and(|attempt| {
                    !job.cancel_requested && matches!(attempt.progress, Progress::Placed | Progress::Running)
                });
            if !is_wanted {
                return Ok(None);
            }
            let is_sender = job.attempt(child.attempt).is_some_and(|attempt| attempt.sender == by.owner);
            let query = "UPDATE attempt SET sent = sent + 1, \
                         sent_epoch = CASE WHEN sent = 0 THEN $1 ELSE sent_epoch END \
                         WHERE job = $2 AND n = $3 RETURNING sent, far_unit, sent_epoch";
            let mut row = sql.query(query, values![by.epoch, child.job, child.attempt])?.remove(0);
            let (times, far): (i64, Option<String>) = (row.take()?, row.take()?);
            let first: Option<i64> = row.take()?;
            Ok(Some(Sending {
                sent_as: far.or_else(|| (times > 1).then(|| child.to_string())),
                is_ours: is_sender && first == Some(by.epoch.0),
            }))
        })
        .await
    }

    /// The node of an attempt has given its unit this ID.
    ///
    /// # Errors
    /// Fenced, or the store is away.
    pub async fn keep_far_unit(&self, by: Fence, child: ChildId, id: String) -> Result<(), Error> {
        self.fenced_write(by, move |sql, by| {
            jobs::load_one(sql, child.job)?.driven_by(by).map_err(Refused::from)?;
            let keep = "UPDATE attempt SET far_unit = $1 WHERE job = $2 AND n = $3 AND unit = $4";
            let changed =
                sql.execute(keep, values![id.as_str(), child.job, child.attempt, child.to_string()])?;
            if changed == 0 { Err(Error::NoJob(child.job)) } else { Ok(()) }
        })
        .await
    }

    /// The ID that an attempt's node has given its unit, if one was kept.
    ///
    /// # Errors
    /// The store is away.
    pub async fn far_unit(&self, child: ChildId) -> Result<Option<String>, Error> {
        self.read(move |sql| {
            let query = "SELECT far_unit FROM attempt WHERE job = $1 AND n = $2 AND unit = $3";
            let found = sql.query(query, values![child.job, child.attempt, child.to_string()])?;
            found.into_iter().next().map_or(Ok(None), |mut row| row.take())
        })
        .await
    }

    /// Whether an attempt's input may have been sent. If not, only its job's owner can still send it.
    ///
    /// # Errors
    /// There is no such attempt.
    pub async fn may_have_been_sent(&self, id: JobId, n: AttemptNo) -> Result<bool, Error> {
        self.read(move |sql| {
            let query = "SELECT sent FROM attempt WHERE job = $1 AND n = $2";
            let sent: i64 = sql.query(query, values![id, n])?.pop().ok_or(Error::NoJob(id))?.take()?;
            Ok(sent > 0)
        })
        .await
    }

    /// An operator says that a lost attempt does not run and will not. Returns the job as it is now.
    ///
    /// # Errors
    /// There is no such job or attempt, or it is not lost.
    pub async fn confirm_lost(&self, audit: Audit, id: JobId, n: AttemptNo) -> Result<Job, Error> {
        self.write(move |sql| {
            let before = jobs::load_one(sql, id)?;
            let mut job = before.clone();
            job.confirm_lost(n)?;
            Audit::save(Some(&audit), sql)?;
            if jobs::save(sql, &before, &job)? { Ok(job) } else { Err(Error::Raced) }
        })
        .await
    }

    /// The owner has counted more output of a job that has not ended. Nobody is woken.
    ///
    /// # Errors
    /// The writer is fenced, the job has ended, or another attempt has begun.
    pub async fn count(&self, by: Fence, id: JobId, figures: Figures) -> Result<(), Error> {
        self.fenced_write(
            by,
            move |sql, by| {
                if count(sql, by, id, &figures)? { Ok(()) } else { Err(Error::fenced(by)) }
            },
        )
        .await
    }

    /// Requests a cancel, which is saved when this returns. Returns the job as it is now.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn cancel(&self, audit: Option<Audit>, id: JobId) -> Result<Job, Error> {
        self.write(move |sql| {
            let now = sql.now();
            Audit::save(audit.as_ref(), sql)?;
            let before = jobs::load_one(sql, id)?;
            let mut job = before.clone();
            job.request_cancel(now);
            if jobs::save(sql, &before, &job)? { Ok(job) } else { Err(Error::Raced) }
        })
        .await
    }

    /// One job of the core, with all its attempts.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn job(&self, id: JobId) -> Result<Job, Error> {
        self.read(move |sql| {
            let found = jobs::load(sql, "job.id = $1", values![id], false)?;
            found.into_iter().next().map(|loaded| loaded.job).ok_or(Error::NoJob(id))
        })
        .await
    }

    /// The jobs that this owner has duties for: those that have not ended, or have units to release.
    pub async fn driven(&self, by: Fence) -> Result<Vec<Job>, Error> {
        self.read(move |sql| driven(sql, &by)).await
    }
}

pub(super) fn driven(sql: &mut dyn Sql, by: &Fence) -> Result<Vec<Job>, Error> {
    let condition = format!("{OPEN} AND job.controller_node = $1 AND job.epoch = $2");
    let found = jobs::load(sql, &condition, values![&by.owner, by.epoch], false)?;
    Ok(found.into_iter().map(|loaded| loaded.job).collect())
}

fn is_sender(sql: &mut dyn Sql, (id, n): (JobId, AttemptNo), node: &InstanceName) -> Result<bool, Error> {
    let query = "SELECT 1 FROM attempt WHERE job = $1 AND n = $2 AND sender = $3";
    Ok(!sql.query(query, values![id, n, node])?.is_empty())
}

fn drive(
    sql: &mut dyn Sql,
    by: &Fence,
    id: JobId,
    figures: Option<&Figures>,
    report: &dyn Fn(&mut Driven<'_>, Time) -> Result<(), Refused>,
) -> Result<Job, Error> {
    let now = sql.now();
    let before = jobs::load_one(sql, id)?;
    let mut job = before.clone();
    report(&mut job.driven_by(by).map_err(Refused::from)?, now)?;
    // Counters come first, because they are written only while the job is not final.
    if let Some(figures) = figures {
        count(sql, by, id, figures)?;
    }
    if jobs::save(sql, &before, &job)? { Ok(job) } else { Err(Error::fenced(by)) }
}

/// Saves figures. Returns false, and saves nothing, if the job has ended, has another owner, or has begun another
/// attempt.
fn count(sql: &mut dyn Sql, by: &Fence, id: JobId, figures: &Figures) -> Result<bool, Error> {
    let changed = sql.execute(
        "UPDATE job SET events = $1, output_bytes = $2, rc = coalesce($3, rc), \
         revision = coalesce($4, revision), recap = coalesce($5, recap), failure = $6 WHERE id = $7 \
         AND controller_node = $8 AND epoch = $9 AND attempt = $10 AND state IN ('pending', 'waiting', 'running')",
        values![
            figures.events,
            figures.output_bytes,
            figures.rc,
            figures.revision.clone(),
            figures.recap.as_ref().map(|recap| to_json(&recap.counts)),
            figures.failure.as_ref().map(to_json),
            id,
            &by.owner,
            by.epoch,
            figures.attempt.0,
        ],
    )?;
    if changed == 0 {
        return Ok(false);
    }
    if let Some(recap) = &figures.recap {
        recaps::replace(sql, id, &recap.hosts)?;
    }
    Ok(true)
}
