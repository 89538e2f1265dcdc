//! Units here of jobs that another control node drives: they show the job's row, and get its output from the control node
//! that has it. A follower ends with its job, or when this node owns the job again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::JobDriver;
use crate::controller::core::{Attempt, InstanceName, JobId};
use crate::controller::output::OutputPart;
use crate::controller::peer::{PeerError, PeerStream, PeerVerb};
use crate::controller::store::{Error, JobDetail};
use crate::controller::stream::lost_line;
use crate::rpc::UnitState;
use crate::work::jobs::{JobOutput, JobReport, JobUnit};

/// Between two looks at a job.
const LOOK: Duration = Duration::from_millis(500);
/// How long the next piece of the output of a job that has ended is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// The output of a job on its way here, attempt by attempt.
#[derive(Default)]
struct Copying {
    stream: Option<PeerStream>,
    /// The unit's own output, of the attempt that was copied last.
    to: Option<JobOutput>,
    /// Who sends it.
    from: Option<InstanceName>,
    /// A piece has come from the stream.
    is_fruitful: bool,
    /// It has come to its end: the job may have ended, and there may be more behind it.
    has_ended: bool,
    is_complete: bool,
    /// When the latest piece was written.
    came: Option<Instant>,
}

impl JobDriver {
    /// Has the units of a job here follow its owner.
    pub(super) fn follow_elsewhere(self: &Arc<Self>, job: JobId) {
        let mut followers = self.followers.lock();
        if followers.contains_key(&job) {
            return;
        }
        let this = self.clone();
        let task = tokio::spawn(async move {
            let is_read = this.follow_owner(job).await;
            this.followers.lock().remove(&job);
            let shown = if is_read { this.show_end(job).await } else { this.show(job).await };
            if let Err(error) = shown {
                tracing::warn!(%job, %error, "a unit does not show the end of its job");
            }
        });
        followers.insert(job, task.abort_handle());
    }

    /// This node owns the job.
    pub(super) fn stop_following(&self, job: JobId) {
        if let Some(task) = self.followers.lock().remove(&job) {
            task.abort();
        }
    }

    /// Whether a follower shows the end of the job once its output is here.
    pub(super) fn is_followed(&self, job: JobId) -> bool {
        self.followers.lock().contains_key(&job)
    }

    /// The units of a job that was deleted before they had shown its end.
    async fn end_deleted(&self, job: JobId) {
        let units = self.units.lock().remove(&job).unwrap_or_default();
        for unit in units {
            let (detail, extra) = (format!("job {job} was deleted"), unit.extra());
            unit.report(JobReport { state: UnitState::Failed, detail, extra }).await;
        }
    }

    /// Follows a job to its end. Returns whether all of its output was read, or cannot be.
    async fn follow_owner(self: &Arc<Self>, job: JobId) -> bool {
        let mut changes = self.store.changes();
        changes.mark_changed();
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut known: Option<JobDetail> = None;
        let mut looked = Instant::now();
        let mut copying = Copying::default();
        let mut ended = None;
        loop {
            let Some(unit) = self.first_unit(job) else { return false };
            let is_due = looked.elapsed() > self.options().timers.poll || copying.has_ended;
            if is_due || changes.has_changed().unwrap_or(false) {
                changes.mark_unchanged();
                looked = Instant::now();
                match self.store.detail(job).await {
                    Ok(detail) => {
                        if detail.row.controller_node.as_ref() == Some(&self.node) {
                            return false;
                        }
                        if !detail.row.state.is_final() {
                            let _shown_later = self.show(job).await;
                        }
                        known = Some(detail);
                    }
                    Err(Error::NoJob(_)) => {
                        self.end_deleted(job).await;
                        return false;
                    }
                    Err(_) => changes.mark_changed(),
                }
            }
            // The owner may still have to read the end of the output.
            let is_final = known.as_ref().is_some_and(|detail| {
                detail.row.state.is_final() && !detail.attempts.last().is_some_and(Attempt::has_unread_output)
            });
            if is_final {
                let ended = *ended.get_or_insert_with(Instant::now);
                let waited = copying.came.map_or(ended, |came| came.max(ended)).elapsed();
                if copying.is_complete || waited > PATIENCE {
                    return true;
                }
            }
            let owner = known.as_ref().and_then(|detail| detail.row.controller_node.clone());
            copying.is_complete |= is_final && owner.is_none();
            self.copy_some(&unit, (job, is_final), owner, &mut copying, &mut ticks).await;
        }
    }

    /// Takes the next piece of output, or returns at the next tick.
    async fn copy_some(
        &self,
        unit: &JobUnit,
        (job, is_final): (JobId, bool),
        owner: Option<InstanceName>,
        copying: &mut Copying,
        ticks: &mut tokio::time::Interval,
    ) {
        if copying.from != owner {
            *copying = Copying { from: owner.clone(), ..Copying::default() };
        }
        if copying.stream.is_none() && !copying.is_complete {
            if !(std::mem::take(&mut copying.has_ended) && copying.is_fruitful) {
                ticks.tick().await;
            }
            if let Some(owner) = &owner {
                copying.is_complete = self.connect((job, is_final), unit, owner, copying).await && is_final;
            }
        }
        let Some(stream) = &mut copying.stream else {
            ticks.tick().await;
            return;
        };
        tokio::select! {
            piece = stream.next() => match piece {
                Ok(Some(bytes)) => {
                    if let Some(output) = &copying.to {
                        output.append(bytes).await;
                        (copying.came, copying.is_fruitful) = (Some(Instant::now()), true);
                    }
                }
                // Its attempt or its job has ended, or it was broken off.
                Ok(None) => (copying.stream, copying.has_ended) = (None, true),
                Err(error) => {
                    tracing::debug!(%job, %error, "the output of a job is fetched again from where it stopped");
                    copying.stream = None;
                }
            },
            _tick = ticks.tick() => {}
        }
    }

    /// Opens the stream of a job's output from its owner, where the unit's own ends. Returns whether there is no more so
    /// far.
    async fn connect(
        &self,
        (job, is_final): (JobId, bool),
        unit: &JobUnit,
        owner: &InstanceName,
        copying: &mut Copying,
    ) -> bool {
        match self.open_next((job, is_final), unit, owner, copying).await {
            Ok(stream) => {
                (copying.stream, copying.is_fruitful) = (stream, false);
                copying.stream.is_none()
            }
            Err(PeerError::Missing { .. }) => true,
            Err(error) => {
                tracing::debug!(%job, %owner, %error, "the output of a job is not fetched yet");
                false
            }
        }
    }

    /// The rest of the attempt that was copied last, or the next one of which the owner has output; `None` if all that
    /// the owner has is here.
    async fn open_next(
        &self,
        (job, is_final): (JobId, bool),
        unit: &JobUnit,
        owner: &InstanceName,
        copying: &mut Copying,
    ) -> Result<Option<PeerStream>, PeerError> {
        let Some(peers) = self.peers.get() else { return Err(PeerError::NoHolder) };
        let part = |from, attempt: Option<u32>| {
            PeerVerb::Output(OutputPart { from, follow: attempt.is_some(), attempt })
        };
        let latest = peers.ask(owner, part(u64::MAX, None), job).await?.0.attempt;
        let early = || PeerError::Refused {
            node: owner.clone(),
            why: "it has an earlier attempt's alone".to_owned(),
        };
        let (own, begins) = (unit.extra().output_attempt, unit.extra().output_from);
        if own > latest {
            // One that has ended the job without it gets no more either.
            return Ok(None);
        }
        if own > 0 && copying.to.is_none() {
            // From here on nobody else writes, and what a former follower was about to write is there.
            copying.to = Some(unit.write_output(own).await.ok_or_else(early)?);
        }
        let mut is_whole = unit.output_size() == 0;
        for attempt in own.max(1)..=latest {
            let here = if attempt == own { unit.output_size().saturating_sub(begins) } else { 0 };
            let (answer, stream) = match peers.ask(owner, part(here, Some(attempt)), job).await {
                Err(PeerError::Missing { .. }) if attempt < latest => continue,
                asked => asked?,
            };
            let has_all = attempt == own && answer.size <= here;
            if has_all && attempt < latest {
                is_whole = true;
                continue;
            }
            if has_all && is_final {
                return Ok(None);
            }
            if attempt != own {
                let output = unit.write_output(attempt).await.ok_or_else(early)?;
                if !is_whole {
                    output.append(lost_line("the attempt before did not come to its end").into()).await;
                }
                output.begin().await;
                copying.to = Some(output);
            }
            return Ok(Some(stream));
        }
        Ok(None)
    }
}
