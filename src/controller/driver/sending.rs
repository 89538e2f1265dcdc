//! Whether an attempt's unit is there, and that it is sent if it is not: by the owner of its job alone, as long as somebody
//! wants it. Owns what is done about units that another control node may have sent, or may yet send.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::sleep;

use super::JobDriver;
use super::attempt::UNIT_RETRY;
use super::end::words_before;
use super::input::Prepared;
use super::output;
use super::world::{ChildRequest, Known};
use crate::controller::core::{Attempt, ChildId, Duty, InstanceName, Job, JobId, Progress};
use crate::controller::health::output_bound;
use crate::controller::options::RUNNER_TYPE;
use crate::controller::store::{Error, JobDetail};
use crate::rpc::UnitState;
use crate::work::Leftovers;
use crate::work::jobs::{JobExtra, JobReport, JobUnit};

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
                request.far = self.store.far_unit(attempt.unit.clone()).await?;
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
            Prepared::Impossible(ending, why) => return self.not_prepared(id, n, ending, why).await,
            Prepared::Unwanted => return self.unwanted(request, id, attempt).await,
        };
        // As late as possible: a cancel that is saved starts nothing, nor does who is no owner any more. And only a unit that
        // says durably which child it has finds it again, should the store lose its last commits.
        let words = words_before(&detail.job, n);
        let begun = output::begin(&self.store, self.first_unit(id), &detail.job, n, &words);
        let (may_send, begun) = tokio::join!(self.may_send(attempt.unit.clone()), begun);
        let may_send = may_send?;
        if may_send.is_none() || *duty.borrow_and_update() == Duty::Cancel {
            return self.unwanted(request, id, attempt).await;
        }
        begun?;
        request.far = may_send.flatten();
        request.may_be_released = request.far.is_some() && self.store.is_shared();
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
        let here = self.children.of_job(&attempt.unit).into_iter().map(|child| (child, None));
        let mut forgotten: Vec<_> = here.chain(sent(&extra)).collect();
        forgotten.retain(|(child, _)| {
            child.attempt >= attempt.n || extra.forgotten.contains_key(&child.to_string())
        });
        forgotten.retain(|(child, _)| !has(job, child));
        if forgotten.is_empty() {
            return Ok(());
        }
        // That row may be older than an attempt that has begun since.
        let job = self.store.job(job.id).await?;
        for (child, node) in forgotten.into_iter().filter(|(child, _)| !has(&job, child)) {
            if !self.end_forgotten(&child, node).await? {
                return Err(Error::Unready(format!(
                    "the store has lost all it knew of {child}, which may run"
                )));
            }
            if let Some(unit) = &unit {
                unit.note_ended(&child.to_string()).await;
            }
        }
        Ok(())
    }

    /// Ends a child of which the store has lost all it knew, on the node to which it was sent. Returns whether it has ended.
    ///
    /// # Errors
    /// Those of the store, and why it cannot be asked about.
    pub(in crate::controller) async fn end_forgotten(
        &self,
        child: &ChildId,
        node: Option<InstanceName>,
    ) -> Result<bool, Error> {
        let unit = child.to_string();
        let node = node.filter(|node| *node != self.node && self.children.known(&unit) == Known::Unknown);
        if let Some(node) = node {
            let offer = self.store.offer_of(node.clone()).await?;
            let request = ChildRequest {
                unit: unit.clone(),
                node,
                work_type: RUNNER_TYPE.to_owned(),
                params: String::new(),
                run_dir: None,
                signed: offer.secure,
                tls: self.options().tls_client.clone().filter(|_| offer.tls),
                ttl: None,
                max_stdout: output_bound("forgotten attempt"),
                far: None,
                may_be_released: false,
                pod: None,
            };
            self.children.adopt(request).await.map_err(Error::Unready)?;
        }
        Ok(self.children.release(unit, Leftovers::End).await)
    }

    /// Has the unit of a job that the store has lost fail once its children have ended, however often that has to be asked. Only
    /// the unit knows of them, so until then it has no end, and a later process asks on.
    pub(in crate::controller) async fn fail_after(
        self: &Arc<Self>,
        unit: JobUnit,
        detail: String,
        children: Vec<(ChildId, Option<InstanceName>)>,
    ) {
        let failed =
            |unit: &JobUnit, detail| JobReport { state: UnitState::Failed, detail, extra: unit.extra() };
        if children.is_empty() {
            return unit.report(failed(&unit, detail)).await;
        }
        let this = self.clone();
        tokio::spawn(async move {
            for (child, node) in children {
                let mut pauses = UNIT_RETRY;
                while !matches!(this.end_forgotten(&child, node.clone()).await, Ok(true)) {
                    let place = node.as_ref().unwrap_or(&this.node);
                    let detail = format!("{detail}; waiting for {child} to end on {place}");
                    let extra = unit.extra();
                    unit.report(JobReport { state: UnitState::Running, detail, extra }).await;
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
        mut request: ChildRequest,
        id: JobId,
        attempt: &Attempt,
    ) -> Result<bool, Error> {
        let n = attempt.n;
        let is_here = request.node == self.node && request.pod.is_none();
        let may_be_there = !is_here && self.store.may_have_been_sent(id, n).await?;
        request.far = self.store.far_unit(attempt.unit.clone()).await?;
        if may_be_there && self.children.adopt(request).await.map_err(Error::Unready)? {
            return Ok(true);
        }
        self.unknown(id, n).await
    }

    /// Whether an attempt may be sent, as the store says: this node drives its job, and it is wanted. Then the ID that it may
    /// have on its node, if it was sent before.
    ///
    /// # Errors
    /// The lease was taken, or could not be renewed, or the store is away.
    pub(in crate::controller) async fn may_send(
        &self,
        child: ChildId,
    ) -> Result<Option<Option<String>>, Error> {
        let sent = self.store.before_sending(self.fence(), child).await?;
        if !self.may_act() {
            return Err(Error::Unready("the lease of this control node could not be renewed".into()));
        }
        Ok(sent)
    }

    /// The node of an attempt has given its unit this ID.
    ///
    /// # Errors
    /// Those of the store.
    pub(in crate::controller) async fn keep_far_unit(&self, child: ChildId, id: String) -> Result<(), Error> {
        self.store.keep_far_unit(self.fence(), child, id).await
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

fn has(job: &Job, child: &ChildId) -> bool {
    job.attempts.iter().any(|attempt| attempt.unit == *child)
}

/// The children that a job's unit knows of, and the nodes that they were sent to.
pub(in crate::controller) fn sent(extra: &JobExtra) -> Vec<(ChildId, Option<InstanceName>)> {
    let node = |n: &u32| extra.output_nodes.get(n).map(|node| node.as_str().into());
    let latest = extra.output_children.iter().map(|(n, child)| (child, node(n)));
    let forgotten = extra.forgotten.iter().map(|(child, node)| (child, Some(node.as_str().into())));
    latest.chain(forgotten).filter_map(|(child, node)| Some((ChildId::parse(child)?, node))).collect()
}
