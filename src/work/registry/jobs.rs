//! Units that are jobs, and the units that a job has: which requests go to the controller, and what it alone may do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::submit::Submission;
use super::{Registry, detached};
use crate::rpc::request::SubmitRequest;
use crate::wire::{NodeId, WorkCommand};
use crate::work::jobs::{CONTROLLER, JobExtra, JobIntake, JobRequest, JobUnit, Jobs};
use crate::work::signing::{SignatureError, Subject, Verb};
use crate::work::status::{Extra, Status, UnitKind};
use crate::work::store::Durability;
use crate::work::unit::{Event, State, UnitId};
use crate::work::units::{Entry, Follower, Leftovers, LinkHandle, Outcome, Started};
use crate::work::{Caller, Origin, Rights, Submitter, WorkError};

/// How the child of a job stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildStatus {
    /// Its state.
    pub state: State,
    /// Phase and cause.
    pub detail: String,
    /// The node that runs it has it.
    pub is_accepted: bool,
    /// How often another node that runs it was found to have it, since this process began; `None` if it runs here.
    pub contacts: Option<u64>,
    /// The node that runs it does not know it, or no longer, and will not run it.
    pub is_gone: bool,
    /// It was never there, and will not be.
    pub was_refused: bool,
    /// It does not know it, and may yet run it, since another control node may yet send it. It is asked again.
    pub is_missing: bool,
    /// It was given up before anything of it was sent.
    pub was_unsent: bool,
    /// That node remembers that it was released there.
    pub was_released: bool,
}

/// What a token between control nodes is bound to.
fn peer_subject<'a>(job: &'a str, asked: &'a BTreeMap<String, String>) -> Subject<'a> {
    Subject { verb: Verb::Peer, unit: Some(job), params: Some(asked), ..Subject::default() }
}

/// The child of a job, by what is known here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildUnit<I> {
    /// Its ID, as the controller reads it.
    pub id: I,
    /// It runs on another node, or as a pod.
    pub is_elsewhere: bool,
}

/// Follows how the child of a job stands.
#[derive(Debug)]
pub struct ChildWatch {
    status: Follower,
    /// Of a unit that runs on another node.
    link: Option<(LinkHandle, watch::Receiver<u64>)>,
}

impl ChildWatch {
    /// How it stands.
    pub fn now(&mut self) -> ChildStatus {
        let contacts = self.link.as_mut().map(|(_, contacts)| *contacts.borrow_and_update());
        let is_found_gone = self.link.as_ref().is_some_and(|(link, _)| link.is_gone());
        let is_missing = self.link.as_ref().is_some_and(|(link, _)| link.is_missing());
        let status = self.status.borrow_and_update();
        // Of one that was adopted nothing is known before its node has said something.
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
        }
    }

    /// Returns when that may have changed.
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
    /// Gives the node a controller, and to it the units that an earlier daemon left.
    pub async fn serve_jobs(&self, jobs: Box<dyn Jobs>) {
        self.executor.jobs.set(Some(jobs));
        for entry in self.units.all() {
            let status = entry.status();
            let Extra::Job(extra) = &status.extra else { continue };
            let is_unfinished = status.life.awaits_payload || extra.rerun_of.is_some();
            if is_unfinished && extra.job_id.is_none() {
                if let Err(error) = self.units.remove(&entry, |_| ()).await {
                    tracing::warn!(unit = %entry.id, %error, "what is left of a submission stays");
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

    /// Takes the controller away. Jobs' units stay as they are.
    pub fn end_jobs(&self) {
        self.executor.jobs.set(None);
    }

    /// Lets the children of jobs be started, cancelled and released on other nodes, or holds that back.
    pub fn let_children_act(&self, may_act: bool) {
        self.executor.remotes.gate().set_open(may_act);
    }

    /// The children of jobs here: the units whose IDs can be read as such.
    pub fn children<I>(&self, parse: impl Fn(&UnitId) -> Option<I>) -> Vec<ChildUnit<I>> {
        let child = |entry: Arc<Entry>| {
            let id = parse(&entry.id)?;
            let status = entry.status();
            let is_elsewhere = matches!(status.kind(), UnitKind::Remote | UnitKind::Pod);
            Some(ChildUnit { id, is_elsewhere })
        };
        self.units.all_with_attempts().into_iter().filter_map(child).collect()
    }

    /// The nodes that were asked about a unit here, again and again, and have answered nothing for so long.
    pub fn unanswering(&self, limit: Duration) -> BTreeSet<String> {
        let unanswering = |entry: Arc<Entry>| {
            let status = entry.status();
            let remote = status.remote().filter(|_| !status.life.state.is_final())?;
            let silent = entry.link().unanswered_for()?;
            (silent >= limit).then(|| remote.remote_node.to_string())
        };
        self.units.all_with_attempts().into_iter().filter_map(unanswering).collect()
    }

    /// The units here whose IDs begin like this, also those that nobody is shown.
    pub fn units_from(&self, start: &str) -> Vec<UnitId> {
        start.parse().map(|start| self.units.ids_from(&start)).unwrap_or_default()
    }

    /// Drops a child here, and asks its node for nothing: another control node drives it, or its node is given up. Its pod
    /// stays.
    ///
    /// # Errors
    /// Its files cannot be removed.
    pub async fn forget_child(&self, unit: &str) -> Result<(), WorkError> {
        let Ok(entry) = self.units.child(unit) else { return Ok(()) };
        self.executor.forget(entry).await
    }

    /// Makes a unit for a job that was submitted elsewhere: it has no payload, and gets the job's output.
    ///
    /// # Errors
    /// The disk refuses.
    pub async fn adopt_job(&self, job: i64) -> Result<JobUnit, WorkError> {
        let extra = JobExtra { job_id: Some(job), ..JobExtra::default() };
        let mut status = self.job_status(extra);
        // It waits for none, so an end of the daemon does not leave it half submitted.
        status.life.apply(&Event::PayloadComplete);
        status.submitter = Some(Submitter::Operator);
        let this = self.clone();
        let entry = detached(async move { this.create(None, status, Instant::now()).await }).await?;
        Ok(JobUnit::new(entry, self.units.store().clone()))
    }

    /// The unit of a job, also of one that has ended.
    pub fn job_unit(&self, unit: &str) -> Option<JobUnit> {
        let entry = self.units.find(unit).ok()?;
        let is_job = entry.status().kind() == UnitKind::Job;
        is_job.then(|| JobUnit::new(entry, self.units.store().clone()))
    }

    /// All units and attempts, by ID, and whether each is a job's.
    pub fn unit_ids(&self) -> Vec<(UnitId, bool)> {
        let is_job = |entry: &Entry| entry.status().kind() == UnitKind::Job;
        self.units.all_with_attempts().into_iter().map(|entry| (entry.id.clone(), is_job(&entry))).collect()
    }

    /// Makes a unit for a job that repeats another one, with the payload of that one's unit.
    ///
    /// # Errors
    /// There is no such unit, or the disk refuses.
    pub async fn repeat_job(&self, of: &str, extra: JobExtra) -> Result<JobUnit, WorkError> {
        let (this, former) = (self.clone(), self.units.find(of)?);
        detached(async move {
            let entry = this.unit_for_repeat(extra).await?;
            let store = this.units.store();
            if let Err(error) = store.link_payload(former.dir.file("stdin"), &entry.dir).await {
                this.units.remove(&entry, |_| ()).await?;
                return Err(error);
            }
            entry.writer(store).await.apply(Event::PayloadComplete, Durability::Durable).await;
            Ok(JobUnit::new(entry, store.clone()))
        })
        .await
    }

    /// The same, with a payload that comes from elsewhere.
    ///
    /// # Errors
    /// The disk refuses.
    pub async fn repeat_job_from_elsewhere(
        &self,
        extra: JobExtra,
        intake: Box<dyn JobIntake>,
    ) -> Result<Submission, WorkError> {
        let this = self.clone();
        let entry = detached(async move { this.unit_for_repeat(extra).await }).await?;
        Ok(Submission::new(self.clone(), entry, false, None, Some(intake)))
    }

    async fn unit_for_repeat(&self, extra: JobExtra) -> Result<Arc<Entry>, WorkError> {
        self.reserve.check().await?;
        let mut status = self.job_status(extra);
        status.submitter = Some(Submitter::Operator);
        status.life.apply(&Event::PayloadAwaited);
        self.create(None, status, Instant::now()).await
    }

    /// A token for a request of this control node to another one.
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

    /// Checks the token of another control node's request, and uses it up.
    ///
    /// # Errors
    /// It is not good for this, or there is no key in `work-verification`.
    pub fn verify_peer(
        &self,
        token: &str,
        job: &str,
        asked: &BTreeMap<String, String>,
    ) -> Result<(), WorkError> {
        let verifier = self.verifier.load_full().ok_or(SignatureError::NoKey)?;
        Ok(verifier.verify_bound(token, &peer_subject(job, asked))?)
    }

    /// Whether a unit exists that never got its payload: nothing of it was started.
    ///
    /// # Errors
    /// There is no such unit.
    pub fn lacks_payload(&self, unit: &str) -> Result<bool, WorkError> {
        Ok(self.units.child(unit)?.status().life.lacks_payload())
    }

    /// Follows how a unit stands.
    ///
    /// # Errors
    /// There is no such unit.
    pub fn watch_child(&self, unit: &str) -> Result<ChildWatch, WorkError> {
        let entry = self.units.child(unit)?;
        let is_remote = entry.status().remote().is_some();
        let link = is_remote.then(|| (entry.link(), entry.link().contacts()));
        Ok(ChildWatch { status: entry.subscribe(), link })
    }

    /// Cancels a unit for the controller, which clients may not do.
    ///
    /// # Errors
    /// As [`Self::cancel`].
    pub async fn cancel_child(&self, unit: &str) -> Result<Outcome, WorkError> {
        self.executor.cancel(&self.units.child(unit)?).await
    }

    /// Notes for the controller that a unit is to be cancelled, before [`Self::let_children_act`] lets it be sent. The node
    /// that may run it is asked afterwards.
    ///
    /// # Errors
    /// The disk refuses.
    pub async fn withhold_child(&self, unit: &str) -> Result<(), WorkError> {
        let Ok(entry) = self.units.child(unit) else { return Ok(()) };
        self.executor.withhold(&entry).await
    }

    /// Releases a unit for the controller, which clients may not do.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub async fn release_child(&self, unit: &str, leftovers: Leftovers) -> Result<Outcome, WorkError> {
        self.executor.release(self.units.child(unit)?, false, leftovers).await
    }

    /// Releases the units whose ID begins so: those of an earlier process for which nobody waits any more.
    pub fn release_leftovers(&self, prefix: &str) {
        for entry in self.units.all().into_iter().filter(|entry| entry.id.as_str().starts_with(prefix)) {
            let this = self.clone();
            tokio::spawn(async move {
                let id = entry.id.clone();
                if let Err(error) = this.executor.release(entry, false, Leftovers::Stay).await {
                    tracing::warn!(unit = %id, %error, "what an earlier process left is not released");
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

    /// What checks the payload of a submission, if it is a job.
    pub(super) async fn intake(
        &self,
        request: &SubmitRequest,
        caller: &Caller,
    ) -> Result<Option<(JobExtra, Box<dyn JobIntake>)>, WorkError> {
        let Some(controller) = self.controller_for(request) else { return Ok(None) };
        if request.ttl.as_ref().is_some_and(|ttl| !ttl.is_empty()) {
            return Err(WorkError::TtlIsForRemoteWork);
        }
        let launched_by = match caller.origin {
            Origin::Unix => caller.credentials.to_string(),
            Origin::Tcp if caller.may(Rights::Operator) => caller.credentials.to_string(),
            Origin::Tcp => "tcp".to_owned(),
            // Such a name is anybody's, and as many as anybody likes: all of them are one caller.
            Origin::Mesh { certified: false, .. } => "mesh".to_owned(),
            Origin::Mesh { node, certified: true } => {
                let name = self.executor.remotes.far().name_of(node).await;
                format!("mesh:{}", name.map_or_else(|| node.to_string(), |name| name.to_string()))
            }
        };
        let is_admin = caller.may(Rights::Admin);
        let request = JobRequest { params: request.params.clone(), is_admin, launched_by };
        controller.begin(request).map(Some).map_err(WorkError::Job)
    }

    /// The first status of a job's unit.
    pub(super) fn job_status(&self, extra: JobExtra) -> Status {
        let status = Status::new(CONTROLLER, Extra::Job(Box::new(extra)));
        Status { verify_signature: self.controller_verifies(), ..status }
    }

    fn controller_for(&self, request: &SubmitRequest) -> Option<Arc<Box<dyn Jobs>>> {
        self.executor.jobs.get().filter(|_| self.is_here(request) && request.work_type == CONTROLLER)
    }

    /// Starts a job whose payload is durable. One that is refused leaves nothing.
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
        writer.apply(Event::PayloadComplete, Durability::Durable).await;
        drop(writer);
        match intake.finish(JobUnit::new(entry.clone(), store.clone())).await {
            Ok(true) => Ok(Started::Started),
            Ok(false) => Ok(Started::Submitted),
            Err(cause) => {
                entry.apply(store, Event::StartFailed(cause.clone())).await;
                let (units, refused) = (self.units.clone(), entry.clone());
                detached(async move { units.remove(&refused, |_| ()).await }).await?;
                Err(WorkError::Job(cause))
            }
        }
    }
}
