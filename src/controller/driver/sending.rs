//! Whether an attempt's unit is there, and that it is sent if it is not: by the owner of its job alone, as long as somebody
//! wants it. Owns what is done about units that another control node may have sent, or may yet send.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::JobDriver;
use super::attempt::UNIT_RETRY;
use super::end::words_before;
use super::input::Prepared;
use super::output;
use super::world::{ChildRequest, Known};
use crate::controller::core::{Attempt, ChildId, Duty, InstanceName, Job, JobId, Progress};
use crate::controller::health::output_bound;
use crate::controller::options::RUNNER_TYPE;
use crate::controller::store::{Error, JobDetail, Sending};
use crate::rpc::UnitState;
use crate::work::jobs::{JobExtra, JobReport, JobUnit};
use crate::work::{FarUnit, Leftovers};

/// How long a node that is no instance has to be away before it counts as taken away: what a restart learns of a mesh comes
/// within minutes.
const TAKEN_AWAY: Duration = Duration::from_secs(1800);

impl JobDriver {
    /// Sees to it that the unit exists. Returns false if there is none and never will be.
    pub(super) async fn ensure_sent(
        self: &Arc<Self>,
        detail: &JobDetail,
        attempt: &Attempt,
        mut request: ChildRequest,
        duty: &mut watch::Receiver<Duty>,
    ) -> Result<bool, Error> {
        let (id, n) = (detail.row.id, attempt.n);
        let known = self.children.known(&request.unit);
        match (known, attempt.progress) {
            (Known::Here, _) => return Ok(true),
            (Known::Unknown, Progress::Running | Progress::Lost | Progress::Placed)
                if (request.node != self.node || request.is_inherited())
                    && (attempt.progress != Progress::Placed || attempt.sender != self.node) =>
            {
                // Another control node or an earlier process sent it, or was about to: the instance is asked.
                request.far = self.far_unit(&attempt.unit).await?;
                return match self.children.adopt(request).await {
                    Ok(true) => Ok(true),
                    Ok(false) => self.unknown(id, n).await,
                    Err(cause) => Err(Error::Unready(format!("its unit cannot be followed here: {cause}"))),
                };
            }
            (Known::Unknown | Known::Unsent, Progress::Running | Progress::Lost | Progress::Over(_)) => {
                if attempt.sender != self.node && request.pod.is_none() {
                    self.disclaim_here(&request.unit, known).await?;
                }
                return self.unknown(id, n).await;
            }
            (Known::Unknown, Progress::Placed) => {}
            (Known::Unsent, Progress::Placed) => {
                self.children.release(request.unit.clone(), Leftovers::Stay).await;
            }
        }
        // They were sent before the store lost its last commits: they end first, and their nodes have to say so.
        self.end_forgotten_of(&detail.job, attempt).await?;
        if let Err(cause) = self.prepare_pod(&request, duty).await {
            return self.refuse(id, n, cause).await;
        }
        self.await_room(duty).await;
        let (input, _project) = match self.input(detail, attempt, duty).await? {
            Prepared::Ready(input, project) => (input, project),
            // An earlier process may have sent it, and its end and the payload have gone since: the store lost its last commits.
            Prepared::Impossible(ending, why) => {
                return match self.may_be_there(request, id, attempt).await? {
                    true => Ok(true),
                    false => self.not_prepared(id, n, ending, why).await,
                };
            }
            Prepared::Unwanted => return self.unwanted(request, id, attempt).await,
        };
        // As late as possible: a cancel that is saved starts nothing, nor does who is no owner any more. And only a unit that
        // says durably which child it has finds it again, should the store lose its last commits.
        let words = words_before(&detail.job, n);
        let begun = output::begin(&self.store, self.first_unit(id), &detail.job, n, &words);
        let (may_send, begun) = tokio::join!(self.may_send(attempt.unit.clone()), begun);
        let Some(sending) = may_send?.filter(|_| *duty.borrow_and_update() != Duty::Cancel) else {
            return self.unwanted(request, id, attempt).await;
        };
        begun?;
        let may_be_released = self.store.is_shared() && !sending.is_ours;
        request.far = sending.sent_as.map(|id| FarUnit { id, may_be_released });
        let unit = request.unit.clone();
        // Its node may not answer for long, and must not start it when it does.
        match self.obeying(duty, &unit, self.children.send(request, input)).await {
            Ok(true) => Ok(true),
            Ok(false) => self.unknown(id, n).await,
            Err(cause) => self.refuse(id, n, cause).await,
        }
    }

    /// Ends the children of a job of which this node knows, and the store nothing, and that have the number of this attempt, or
    /// a later one.
    ///
    /// # Errors
    /// Those of the store, or one has not ended yet.
    async fn end_forgotten_of(&self, job: &Job, attempt: &Attempt) -> Result<(), Error> {
        let unit = self.first_unit(job.id);
        let extra = unit.as_ref().map(JobUnit::extra).unwrap_or_default();
        let here = self.children.of_job(&attempt.unit).into_iter();
        let here = here.map(|child| SentChild { child, node: None, far: None });
        let mut forgotten: Vec<_> = here.chain(sent(&extra)).collect();
        forgotten.retain(|SentChild { child, .. }| {
            child.attempt >= attempt.n || extra.forgotten.contains_key(&child.to_string())
        });
        forgotten.retain(|sent| !job.has_child(&sent.child));
        if forgotten.is_empty() {
            return Ok(());
        }
        // That row may be older than an attempt that has begun since.
        let job = self.store.job(job.id).await?;
        for sent in forgotten.into_iter().filter(|sent| !job.has_child(&sent.child)) {
            if !self.end_forgotten(&sent).await? {
                let child = sent.child;
                return Err(Error::Unready(format!(
                    "the store has lost all it knew of {child}, which may run"
                )));
            }
            if let Some(unit) = &unit {
                unit.note_ended(&sent.child.to_string()).await;
            }
        }
        Ok(())
    }

    /// Ends a child of which the store has lost all it knew, on the node to which it was sent. Returns whether it has ended.
    ///
    /// # Errors
    /// Those of the store, and why it cannot be asked about.
    pub(in crate::controller) async fn end_forgotten(&self, sent: &SentChild) -> Result<bool, Error> {
        let unit = sent.child.to_string();
        let is_elsewhere =
            |node: &&InstanceName| **node != self.node && self.children.known(&unit) == Known::Unknown;
        if let Some(node) = sent.node.as_ref().filter(is_elsewhere) {
            let offer = self.store.offer_of(node.clone()).await?.unwrap_or_default();
            let request = ChildRequest {
                unit: unit.clone(),
                node: node.clone(),
                work_type: RUNNER_TYPE.to_owned(),
                params: String::new(),
                run_dir: None,
                signed: offer.secure,
                tls: self.options().tls_client.clone().filter(|_| offer.tls),
                ttl: None,
                max_stdout: output_bound("forgotten attempt"),
                far: sent.far.clone().map(|id| FarUnit { id, may_be_released: true }),
                pod: None,
            };
            self.children.adopt(request).await.map_err(Error::Unready)?;
        }
        Ok(self.children.release(unit, Leftovers::End).await)
    }

    /// Whether a node is no instance, and there is no way to it.
    async fn is_away(&self, name: &InstanceName) -> bool {
        let is_routed = self.mesh.nodes().await.iter().any(|node| node.name == *name && node.routed);
        !is_routed && matches!(self.store.offer_of(name.clone()).await, Ok(None))
    }

    /// Has the unit of a job that the store has lost fail once its children have ended, however often that has to be asked. Only
    /// the unit knows of them, so until then it has no end, and a later process asks on, unless it is released by force. A node
    /// that is away for long, and no instance any more, was taken away with what ran there: nothing else runs for this job.
    pub(in crate::controller) async fn fail_after(
        self: &Arc<Self>,
        unit: JobUnit,
        detail: String,
        children: Vec<SentChild>,
    ) {
        let failed =
            |unit: &JobUnit, detail| JobReport { state: UnitState::Failed, detail, extra: unit.extra() };
        if children.is_empty() {
            return unit.report(failed(&unit, detail)).await;
        }
        let this = Arc::downgrade(self);
        tokio::spawn(async move {
            for sent in children {
                let (mut pauses, mut away_since) = (UNIT_RETRY, None);
                loop {
                    let Some(driver) = this.upgrade().filter(|_| !unit.is_final()) else { return };
                    if matches!(driver.end_forgotten(&sent).await, Ok(true)) {
                        break;
                    }
                    match &sent.node {
                        Some(node) if driver.is_away(node).await => {
                            let since = *away_since.get_or_insert_with(Instant::now);
                            if since.elapsed() > TAKEN_AWAY {
                                tracing::warn!(child = %sent.child, %node, "a child of a lost job is gone with its node");
                                driver.children.forget(sent.child.to_string()).await;
                                break;
                            }
                        }
                        Some(_) | None => away_since = None,
                    }
                    let (child, place) = (&sent.child, sent.node.as_ref().unwrap_or(&driver.node));
                    let detail = format!("{detail}; waiting for {child} to end on {place}");
                    let extra = unit.extra();
                    unit.report(JobReport { state: UnitState::Running, detail, extra }).await;
                    drop(driver);
                    sleep(pauses.next()).await;
                }
            }
            unit.report(failed(&unit, detail)).await;
        });
    }

    /// Another control node was to send a unit to this one, and may be about to: it is refused from now on.
    async fn disclaim_here(&self, unit: &str, known: Known) -> Result<(), Error> {
        if known == Known::Unsent {
            self.children.release(unit.to_owned(), Leftovers::Stay).await;
        }
        match self.children.disclaim(unit.to_owned()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Unready("the unit has just come".into())),
            Err(cause) => Err(Error::Unready(cause)),
        }
    }

    /// Nobody wants a unit any more that is not to be sent now. It may have been sent before another control node had the job
    /// for a while, and have been forgotten here since.
    async fn unwanted(
        self: &Arc<Self>,
        request: ChildRequest,
        id: JobId,
        attempt: &Attempt,
    ) -> Result<bool, Error> {
        match self.may_be_there(request, id, attempt).await? {
            true => Ok(true),
            false => self.unknown(id, attempt.n).await,
        }
    }

    /// Whether a unit that is not to be sent now may have been sent before. It is followed then: its node knows.
    async fn may_be_there(
        &self,
        mut request: ChildRequest,
        id: JobId,
        attempt: &Attempt,
    ) -> Result<bool, Error> {
        let is_here = request.node == self.node && request.pod.is_none();
        if is_here || !self.store.may_have_been_sent(id, attempt.n).await? {
            return Ok(false);
        }
        request.far = self.far_unit(&attempt.unit).await?;
        self.children.adopt(request).await.map_err(Error::Unready)
    }

    /// Whether an attempt may be sent, as the store says: this node drives its job, and it is wanted.
    ///
    /// # Errors
    /// The lease was taken, or could not be renewed, or the store is away.
    pub(in crate::controller) async fn may_send(&self, child: ChildId) -> Result<Option<Sending>, Error> {
        let sent = self.store.before_sending(self.fence(), child).await?;
        if !self.may_act() {
            return Err(Error::Unready("the lease of this control node could not be renewed".into()));
        }
        Ok(sent)
    }

    /// What the node of an attempt that was sent before has of it under another ID.
    pub(super) async fn far_unit(&self, child: &ChildId) -> Result<Option<FarUnit>, Error> {
        let id = self.store.far_unit(child.clone()).await?;
        if let Some(id) = &id {
            self.note_far_unit(child, id).await;
        }
        Ok(id.map(|id| FarUnit { id, may_be_released: true }))
    }

    /// The node of an attempt has given its unit this ID.
    ///
    /// # Errors
    /// Those of the store.
    pub(in crate::controller) async fn keep_far_unit(&self, child: ChildId, id: String) -> Result<(), Error> {
        self.store.keep_far_unit(self.fence(), child.clone(), id.clone()).await?;
        self.note_far_unit(&child, &id).await;
        Ok(())
    }

    /// The job's unit knows it too: the store may lose it with its last commits.
    async fn note_far_unit(&self, child: &ChildId, id: &str) {
        if let Some(unit) = self.first_unit(child.job) {
            unit.note_far_unit(&child.to_string(), id).await;
        }
    }

    /// Waits until this node's disk has room for another job, or the attempt is not wanted any more.
    async fn await_room(&self, duty: &mut watch::Receiver<Duty>) {
        let unwanted = duty.wait_for(|duty| matches!(duty, Duty::Cancel | Duty::Release | Duty::Nothing));
        tokio::select! {
            () = self.children.room() => {}
            _ = unwanted => {}
        }
    }
}

/// A child of a job, as the job's unit knows it.
#[derive(Debug)]
pub(in crate::controller) struct SentChild {
    pub child: ChildId,
    /// The node that it was sent to; `None` if that is this one, a cluster, or not known.
    pub node: Option<InstanceName>,
    /// The ID that the node has given it.
    pub far: Option<String>,
}

/// The children that a job's unit knows of.
pub(in crate::controller) fn sent(extra: &JobExtra) -> Vec<SentChild> {
    let node = |n: &u32| extra.output_nodes.get(n);
    let latest = extra.output_children.iter().map(|(n, child)| (child, node(n)));
    let forgotten = extra.forgotten.iter().map(|(child, node)| (child, Some(node)));
    let sent = |(text, node): (&String, Option<&String>)| {
        let (child, node) = (ChildId::parse(text)?, node.map(|node| node.as_str().into()));
        Some(SentChild { child, node, far: extra.far_units.get(text).cloned() })
    };
    latest.chain(forgotten).filter_map(sent).collect()
}
