//! Jobs' units and the units of their children: which requests go to the controller, and what only the controller may
//! do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::submit::UnitSubmission;
use super::{Registry, detached};
use crate::rpc::request::SubmitRequest;
use crate::wire::{NodeId, WorkCommand};
use crate::work::jobs::{CONTROLLER, JobController, JobExtra, JobIntake, JobRequest, JobUnit};
use crate::work::signing::{SignatureError, Subject, Verb};
use crate::work::status::{Extra, Status, UnitKind};
use crate::work::store::Durability;
use crate::work::unit::{State, UnitEvent, UnitId};
use crate::work::units::{DriverHandle, Entry, Follower, Leftovers, Outcome, Started};
use crate::work::{Caller, Origin, Rights, Submitter, WorkError};

/// The status of a job's child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildStatus {
    /// Its state.
    pub state: State,
    /// Phase and cause.
    pub detail: String,
    /// Whether the node that runs it has it.
    pub is_accepted: bool,
    /// How often, since this process began, the other node that runs it was found to have it; `None` if it runs here.
    pub contacts: Option<u64>,
    /// Whether the node that should run it does not know it (any more) and will not run it.
    pub is_gone: bool,
    /// Whether it never was on that node, and never will be.
    pub was_refused: bool,
    /// Whether that node does not know it but may yet run it, because another control node may yet send it. The node is
    /// asked again.
    pub is_missing: bool,
    /// Whether it was given up before anything of it was sent.
    pub was_unsent: bool,
    /// Whether that node remembers that it was released there.
    pub was_released: bool,
    /// Bytes sent of a payload of which that node had pieces, and bytes that need not be sent.
    pub carried: Option<(u64, u64)>,
}

/// The request that a token between control nodes is bound to.
fn peer_subject<'a>(job: &'a str, asked: &'a BTreeMap<String, String>) -> Subject<'a> {
    Subject { verb: Verb::Peer, unit: Some(job), params: Some(asked), ..Subject::default() }
}

/// The child of a job, as far as this node knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildUnit<I> {
    /// Its ID, as the controller parsed it.
    pub id: I,
    /// Whether it runs on another node or as a pod.
    pub is_elsewhere: bool,
}

/// Follows the status of a job's child.
#[derive(Debug)]
pub struct ChildWatch {
    status: Follower,
    /// For a unit that runs on another node: its driver, and that node's contacts.
    link: Option<(DriverHandle, watch::Receiver<u64>)>,
}

impl ChildWatch {
    /// The child's status now.
    pub fn now(&mut self) -> ChildStatus {
        let contacts = self.link.as_mut().map(|(_, contacts)| *contacts.borrow_and_update());
        let is_found_gone = self.link.as_ref().is_some_and(|(link, _)| link.is_gone());
        let is_missing = self.link.as_ref().is_some_and(|(link, _)| link.is_missing());
        let status = self.status.borrow_and_update();
        // Whether an adopted unit is there is unknown until its node has reported something.
        let is_there = status.remote().is_some_and(|remote| remote.remote_started && !remote.adopted);
        let state = status.life.state;
        let is_gone = is_found_gone || status.remote().is_some_and(|remote| remote.gone);
        ChildStatus {
            state,
            detail: status.life.detail.clone(),
            is_accepted: is_there || state != State::Pending,
            contacts,
            is_gone,
            was_refused: status.remote().is_some_and(|remote| remote.gone && !remote.remote_started),
            is_missing,
            was_unsent: status.remote().is_some_and(|remote| remote.unsent),
            was_released: status.remote().is_some_and(|remote| remote.was_released),
            carried: status
                .remote()
                .filter(|remote| remote.payload_saved > 0)
                .map(|remote| (remote.payload_sent, remote.payload_saved)),
        }
    }

    /// Returns when the status may have changed.
    pub async fn changed(&mut self) {
        // The follower keeps both senders, so these cannot fail.
        let contacts = async {
            match &mut self.link {
                Some((_, contacts)) => _ = contacts.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _never = self.status.changed() => {}
            () = contacts => {}
        }
    }
}

impl Registry {
    /// Gives the node a controller, and gives the controller the units that an earlier daemon left.
    pub async fn serve_jobs(&self, jobs: Box<dyn JobController>) {
        self.executor.jobs.set(Some(jobs));
        for entry in self.units.all() {
            let status = entry.status();
            let Extra::Job(extra) = &status.extra else { continue };
            let is_unfinished = status.life.awaits_payload || extra.rerun_of.is_some();
            if is_unfinished && extra.job_id.is_none() {
                if let Err(error) = self.units.remove(&entry, |_| ()).await {
                    tracing::warn!(unit = %entry.id, %error, "cannot remove what is left of a submission");
                }
                continue;
            }
            if !status.life.state.is_final() {
                self.executor.jobs.resume(&self.units, &entry).await;
            }
            if extra.release_requested {
                self.executor.jobs.release_at_end(&self.units, &entry);
            }
        }
    }

    /// Removes the controller. Jobs' units stay as they are.
    pub fn end_jobs(&self) {
        self.executor.jobs.set(None);
    }

    /// Allows or holds back starting, cancelling and releasing jobs' children on other nodes.
    pub fn let_children_act(&self, may_act: bool) {
        self.executor.remotes.gate().set_open(may_act);
    }

    /// The children of jobs here: the units whose IDs `parse` accepts.
    pub fn children<I>(&self, parse: impl Fn(&UnitId) -> Option<I>) -> Vec<ChildUnit<I>> {
        let child = |entry: Arc<Entry>| {
            let id = parse(&entry.id)?;
            let status = entry.status();
            let is_elsewhere = matches!(status.kind(), UnitKind::Remote | UnitKind::Pod);
            Some(ChildUnit { id, is_elsewhere })
        };
        self.units.all_with_attempts().into_iter().filter_map(child).collect()
    }

    /// The nodes that are asked about unfinished units here and have not answered for at least `limit`.
    pub fn unanswering(&self, limit: Duration) -> BTreeSet<String> {
        let unanswering = |entry: Arc<Entry>| {
            let status = entry.status();
            let remote = status.remote().filter(|_| !status.life.state.is_final())?;
            let silent = entry.link().unanswered_for()?;
            (silent >= limit).then(|| remote.remote_node.to_string())
        };
        self.units.all_with_attempts().into_iter().filter_map(unanswering).collect()
    }

    /// The units here whose IDs begin with `start`, including those that clients are not shown.
    pub fn units_from(&self, start: &str) -> Vec<UnitId> {
        start.parse().map(|start| self.units.ids_from(&start)).unwrap_or_default()
    }

    /// Deletes a child only here, because another control node drives it, or its node is given up. The child's node is
    /// not asked to end it, and its pod stays.
    ///
    /// # Errors
    /// The child's files cannot be removed.
    pub async fn forget_child(&self, unit: &str) -> Result<(), WorkError> {
        let Ok(entry) = self.units.child(unit) else { return Ok(()) };
        self.executor.forget(entry).await
    }

    /// Makes a unit for a job that was submitted elsewhere. It has no payload, and gets the job's output.
    pub async fn adopt_job(&self, job: i64) -> Result<JobUnit, WorkError> {
        let extra = JobExtra { job_id: Some(job), ..JobExtra::default() };
        let mut status = self.job_status(extra);
        // The unit waits for no payload, so that it does not count as half submitted if the daemon ends now.
        status.life.apply(&UnitEvent::PayloadComplete);
        status.submitter = Some(Submitter::Operator);
        let this = self.clone();
        let entry = detached(async move { this.create(None, status, Instant::now()).await }).await?;
        Ok(JobUnit::new(entry, self.units.store().clone()))
    }

    /// The unit of a job, even if it has ended.
    pub fn job_unit(&self, unit: &str) -> Option<JobUnit> {
        let entry = self.units.find(unit).ok()?;
        let is_job = entry.status().kind() == UnitKind::Job;
        is_job.then(|| JobUnit::new(entry, self.units.store().clone()))
    }

    /// The IDs of all units and attempts, each with whether it is a job's unit.
    pub fn unit_ids(&self) -> Vec<(UnitId, bool)> {
        let is_job = |entry: &Entry| entry.status().kind() == UnitKind::Job;
        self.units.all_with_attempts().into_iter().map(|entry| (entry.id.clone(), is_job(&entry))).collect()
    }

    /// Makes a unit for a job that repeats another job, and gives it the payload of that job's unit (`of`).
    ///
    /// # Errors
    /// There is no such unit, or a file operation failed.
    pub async fn repeat_job(&self, of: &str, extra: JobExtra) -> Result<JobUnit, WorkError> {
        let (this, former) = (self.clone(), self.units.find(of)?);
        detached(async move {
            let entry = this.unit_for_repeat(extra).await?;
            let store = this.units.store();
            if let Err(error) = store.link_payload(former.dir.file("stdin"), &entry.dir).await {
                this.units.remove(&entry, |_| ()).await?;
                return Err(error);
            }
            entry.writer(store).await.apply(UnitEvent::PayloadComplete, Durability::Durable).await;
            Ok(JobUnit::new(entry, store.clone()))
        })
        .await
    }

    /// As [`Self::repeat_job`], but the caller writes the payload to the submission that this returns.
    pub async fn repeat_job_from_elsewhere(
        &self,
        extra: JobExtra,
        intake: Box<dyn JobIntake>,
    ) -> Result<UnitSubmission, WorkError> {
        let this = self.clone();
        let entry = detached(async move { this.unit_for_repeat(extra).await }).await?;
        Ok(UnitSubmission::new(self.clone(), entry, false, None, Some(intake)))
    }

    async fn unit_for_repeat(&self, extra: JobExtra) -> Result<Arc<Entry>, WorkError> {
        self.reserve.check().await?;
        let mut status = self.job_status(extra);
        status.submitter = Some(Submitter::Operator);
        status.life.apply(&UnitEvent::PayloadAwaited);
        self.create(None, status, Instant::now()).await
    }

    /// A token for a request of this control node to another.
    ///
    /// # Errors
    /// There is no key in `work-signing`.
    pub fn sign_for_peer(
        &self,
        node: &NodeId,
        job: &str,
        asked: &BTreeMap<String, String>,
    ) -> Result<String, WorkError> {
        self.executor.remotes.far().sign_for(node, &peer_subject(job, asked))
    }

    /// Checks the token of another control node's request, and uses up the token.
    ///
    /// # Errors
    /// The token is not accepted, or there is no key in `work-verification`.
    pub fn verify_peer(
        &self,
        token: &str,
        job: &str,
        asked: &BTreeMap<String, String>,
    ) -> Result<(), WorkError> {
        let verifier = self.verifier.load_full().ok_or(SignatureError::NoKey)?;
        Ok(verifier.verify_bound(token, &peer_subject(job, asked))?)
    }

    /// Whether a unit never got its payload, so that nothing of it was started.
    ///
    /// # Errors
    /// There is no such unit.
    pub fn lacks_payload(&self, unit: &str) -> Result<bool, WorkError> {
        Ok(self.units.child(unit)?.status().life.lacks_payload())
    }

    /// Follows the status of a unit.
    ///
    /// # Errors
    /// There is no such unit.
    pub fn watch_child(&self, unit: &str) -> Result<ChildWatch, WorkError> {
        let entry = self.units.child(unit)?;
        let is_remote = entry.status().remote().is_some();
        let link = is_remote.then(|| (entry.link(), entry.link().contacts()));
        Ok(ChildWatch { status: entry.subscribe(), link })
    }

    /// Cancels a unit for the controller, also one that clients may not cancel.
    pub async fn cancel_child(&self, unit: &str) -> Result<Outcome, WorkError> {
        self.executor.cancel(&self.units.child(unit)?).await
    }

    /// Notes for the controller, before [`Self::let_children_act`] allows sending, that a unit is to be cancelled. The
    /// node that may run it is asked afterwards.
    pub async fn withhold_child(&self, unit: &str) -> Result<(), WorkError> {
        let Ok(entry) = self.units.child(unit) else { return Ok(()) };
        self.executor.withhold(&entry).await
    }

    /// Releases a unit for the controller, also one that clients may not release.
    pub async fn release_child(&self, unit: &str, leftovers: Leftovers) -> Result<Outcome, WorkError> {
        self.executor.release(self.units.child(unit)?, false, leftovers).await
    }

    /// Releases the units whose IDs begin with `prefix`: an earlier process made them, and nobody waits for them any
    /// more.
    pub fn release_leftovers(&self, prefix: &str) {
        for entry in self.units.all().into_iter().filter(|entry| entry.id.as_str().starts_with(prefix)) {
            let this = self.clone();
            tokio::spawn(async move {
                let id = entry.id.clone();
                if let Err(error) = this.executor.release(entry, false, Leftovers::Stay).await {
                    tracing::warn!(unit = %id, %error, "cannot release a unit that an earlier process left");
                }
            });
        }
    }

    pub(super) fn controller_command(&self) -> Option<WorkCommand> {
        let jobs = self.executor.jobs.get()?;
        Some(WorkCommand { work_type: CONTROLLER.to_owned(), secure: jobs.verifies_signatures() })
    }

    pub(super) fn controller_verifies(&self) -> bool {
        self.executor.jobs.get().is_some_and(|jobs| jobs.verifies_signatures())
    }

    /// The intake that checks the payload of a submission, if that is a job.
    pub(super) async fn intake(
        &self,
        request: &SubmitRequest,
        caller: &Caller,
        is_own: bool,
    ) -> Result<Option<(JobExtra, Box<dyn JobIntake>)>, WorkError> {
        let Some(controller) = self.controller_for(request) else { return Ok(None) };
        if request.ttl.as_ref().is_some_and(|ttl| !ttl.is_empty()) {
            return Err(WorkError::TtlIsForRemoteWork);
        }
        let launched_by = match caller.origin {
            Origin::Unix => caller.credentials.to_string(),
            Origin::Tcp if caller.may(Rights::Operator) => caller.credentials.to_string(),
            Origin::Tcp => "tcp".to_owned(),
            // Anybody can claim any number of such names, so all of them count as one caller.
            Origin::Mesh { certified: false, .. } => "mesh".to_owned(),
            Origin::Mesh { node, certified: true } => {
                let name = self.executor.remotes.far().name_of(node).await;
                format!("mesh:{}", name.map_or_else(|| node.to_string(), |name| name.to_string()))
            }
        };
        let is_admin = caller.may(Rights::Admin);
        let request = JobRequest { params: request.params.clone(), is_admin, is_own, launched_by };
        controller.begin(request).map(Some).map_err(WorkError::Job)
    }

    /// The first status of a job's unit.
    pub(super) fn job_status(&self, extra: JobExtra) -> Status {
        let status = Status::new(CONTROLLER, Extra::Job(Box::new(extra)));
        Status { verify_signature: self.controller_verifies(), ..status }
    }

    fn controller_for(&self, request: &SubmitRequest) -> Option<Arc<Box<dyn JobController>>> {
        self.executor.jobs.get().filter(|_| self.is_here(request) && request.work_type == CONTROLLER)
    }

    /// Starts a job whose payload is durable. If the job is refused, its unit is removed.
    pub(super) async fn start_job(
        &self,
        entry: &Arc<Entry>,
        intake: Box<dyn JobIntake>,
    ) -> Result<Started, WorkError> {
        let store = self.units.store();
        let mut writer = entry.writer(store).await;
        if writer.status().life.state != State::Pending {
            return Err(WorkError::EndedEarly(entry.id.to_string()));
        }
        writer.apply(UnitEvent::PayloadComplete, Durability::Durable).await;
        drop(writer);
        match intake.finish(JobUnit::new(entry.clone(), store.clone())).await {
            Ok(true) => Ok(Started::Started),
            Ok(false) => Ok(Started::Submitted),
            Err(cause) => {
                entry.apply(store, UnitEvent::StartFailed(cause.clone())).await;
                let (units, refused) = (self.units.clone(), entry.clone());
                detached(async move { units.remove(&refused, |_| ()).await }).await?;
                Err(WorkError::Job(cause))
            }
        }
    }
}
