//! The operations on jobs: lists, details, explanations, cancels, reruns and deletions.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use tokio::sync::Semaphore;

use super::{answers, conflict, missing};
use crate::confine::Support;
use crate::controller::answers::AttemptUnit;
use crate::controller::core::{Attempt, AttemptNo, GroupName, InstanceName, JobId, Silence, Time};
use crate::controller::driver::{Candidate, rfc3339};
use crate::controller::peer::{PeerAnswer, PeerError, PeerStream, PeerVerb};
use crate::controller::saved::saved_label;
use crate::controller::service::Service;
use crate::controller::service::intake::permit;
use crate::controller::service::repeat::{Repeat, RepeatError};
use crate::controller::store::{self, Audit, JobRecord, Kept, PAGE_MAX};
use crate::controller::stream;
use crate::os::answers::PAGE as PAGE_BYTES;
use crate::rpc::operation::{
    ExportFrom, HostPage, JobFilter, LostAttempt, OperationCode, OperationRefusal, Rerun,
};
use crate::rpc::report::controller::{
    self as report, CheckReport, DeletedJob, EndedJobs, Explained, ExplainedGroup, ExportedJob, Hosts,
    JobCounts, JobReport, Jobs, OldestJob, SilentNode,
};
use crate::work::Leftovers;

/// Lists of jobs that are read at a time.
static LISTS: Semaphore = Semaphore::const_new(4);
/// Rows of a list unless the caller asks for another number.
const PAGE: u32 = 50;
/// Most nodes that are named as able to run a job.
const COULD_RUN: usize = 10;
/// Jobs of a page of the export.
const EXPORTED: u32 = 100;
/// Hosts of a recap that are shown with a job, and on a page unless the caller asks for another number.
const HOSTS: u32 = 100;

/// Names the nodes that could run a job, and the command that enables them.
fn could_run(found: &[Candidate]) -> Option<CheckReport> {
    // Plain names only: a node chooses its name itself, and operators paste this command into a shell.
    let is_plain = |name: &&str| {
        !name.starts_with('-') && name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c))
    };
    let runners = found.iter().filter(|one| one.offer.runner).map(|one| one.name.as_str());
    let names: Vec<&str> = runners.filter(is_plain).take(COULD_RUN).collect();
    let detail = format!("{} could run it: meshctl instance enable {}", names.join(", "), names.join(" "));
    let check = CheckReport::INSTANCES.to_owned();
    (!names.is_empty()).then_some(CheckReport { check, ok: false, detail })
}

fn selection(asked: JobFilter) -> store::JobSelection {
    let JobFilter {
        state,
        kind,
        name,
        group,
        node,
        mut label,
        saved,
        search,
        since,
        until,
        before,
        brief,
        limit: _,
    } = asked;
    label.extend(saved.as_deref().map(saved_label));
    let time = |time: jiff::Timestamp| Time(time.as_millisecond());
    store::JobSelection {
        states: state,
        kinds: kind,
        labels: label,
        search,
        name,
        group: group.map(|name| GroupName::from(name.as_str())),
        node: node.map(|name| InstanceName::from(name.as_str())),
        since: since.map(time),
        until: until.map(time),
        before: before.map(JobId),
        brief,
    }
}

impl Service {
    pub(super) async fn list_jobs(&self, asked: JobFilter) -> Result<Jobs, OperationRefusal> {
        let limit = asked.limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
        // The semaphore is never closed. Later callers wait here, before they hold a page in memory.
        let _turn = LISTS.acquire().await;
        let brief = asked.brief;
        let page = self.driver.store.list(selection(asked), limit).await?;
        let mut jobs: Vec<JobReport> = page.jobs.iter().map(JobReport::from).collect();
        if !brief {
            let sent = page.jobs.iter().filter(|row| !row.state.is_final() && row.execution_node.is_some());
            let mut silent = self.silences(sent.map(|row| row.id).collect()).await?;
            for job in &mut jobs {
                job.silent = silent.remove(&JobId(job.id)).map(SilentNode::from);
            }
        }
        Ok(Jobs { jobs, next: page.next.map(|id| id.0) })
    }

    /// Of these jobs those whose nodes do not answer.
    async fn silences(&self, ids: Vec<JobId>) -> Result<BTreeMap<JobId, Silence>, OperationRefusal> {
        Ok(self.driver.store.silences(ids, self.driver.placer.patience()).await?)
    }

    /// How many jobs of each state a list without pages would have.
    pub(super) async fn count_jobs(&self, asked: JobFilter) -> Result<JobCounts, OperationRefusal> {
        let _turn = LISTS.acquire().await;
        let counts = self.driver.store.count_jobs(selection(asked)).await?;
        let oldest = counts.oldest.map(|(id, created)| OldestJob { id: id.0, created: rfc3339(created) });
        let states = counts.states.into_iter().map(|(state, number)| (state.name().to_owned(), number));
        Ok(JobCounts { states: states.collect(), oldest })
    }

    pub(super) async fn job(&self, id: JobId) -> Result<report::JobDetail, OperationRefusal> {
        let retention = self.driver.options().bounds.payload_retention;
        let detail = self.driver.store.detail(id).await?;
        let mut names = BTreeMap::new();
        let mut units = Vec::new();
        for attempt in &detail.job.attempts {
            let (child, group) = (attempt.child, attempt.group.clone());
            let name = match names.entry((child, group)) {
                Entry::Occupied(name) => name.into_mut(),
                Entry::Vacant(new) => new.insert(self.driver.base.child_type(attempt).await?),
            };
            units.push(AttemptUnit { work_type: name.clone(), detail: self.driver.attempts.detail(attempt) });
        }
        let recap = self.driver.store.recap(id, 0, HOSTS).await?;
        let silence = match detail.job.attempts.iter().any(Attempt::is_open) {
            true => self.silences(vec![id]).await?.remove(&id),
            false => None,
        };
        Ok(answers::job_detail(&detail, recap, units, silence, retention))
    }

    /// One page of a job's hosts, with the job's results on them.
    pub(super) async fn list_hosts(&self, asked: HostPage) -> Result<Hosts, OperationRefusal> {
        let HostPage { id, from, limit } = asked;
        let limit = limit.unwrap_or(HOSTS).clamp(1, PAGE_MAX);
        Ok(answers::hosts(id, from, self.driver.store.recap(JobId(id), from, limit).await?))
    }

    /// Jobs that have ended, as [`Self::job`] shows them. A job that is deleted meanwhile is left out.
    pub(super) async fn export_jobs(&self, asked: ExportFrom) -> Result<EndedJobs, OperationRefusal> {
        let limit = asked.limit.unwrap_or(EXPORTED).clamp(1, EXPORTED);
        let _turn = LISTS.acquire().await;
        let (mut page, mut size) = (EndedJobs { jobs: Vec::new(), next: asked.since }, 0);
        for ended in self.driver.store.ended(asked.since, limit).await? {
            let job = match self.job(ended.row.id).await {
                Err(refused) if refused.code.known() == Some(OperationCode::NotFound) => None,
                job => Some(job?),
            };
            size += job.as_ref().map_or(0, |job| serde_json::to_vec(job).map_or(0, |text| text.len()));
            if size > PAGE_BYTES && !page.jobs.is_empty() {
                break;
            }
            page.jobs.extend(job.map(|job| ExportedJob { cursor: ended.number, job }));
            page.next = ended.number;
        }
        Ok(page)
    }

    pub(super) async fn explain_job(&self, id: JobId) -> Result<Explained, OperationRefusal> {
        let (require_tls, patience) = (self.driver.options().require_tls, self.driver.placer.patience());
        let explained = self.driver.store.explain(id, require_tls, patience).await?;
        let waits_for = self.driver.attempts.start_waits_for(&explained.job);
        let mut told = answers::explanation(explained, waits_for, self.driver.placer.no_turn());
        // Any enabled instance joins the default group.
        let is_empty = |group: &ExplainedGroup| !group.ok && group.instances.is_empty();
        let default = GroupName::default_group();
        if told.groups.iter().any(|group| group.name == default.as_str() && is_empty(group)) {
            told.checks.extend(could_run(&self.driver.placer.found()));
        }
        Ok(told)
    }

    pub(in crate::controller) async fn cancel_job(
        &self,
        id: JobId,
        audit: Audit,
    ) -> Result<report::JobDetail, OperationRefusal> {
        self.driver.store.cancel(Some(audit), id).await?;
        self.driver.publisher.show(id).await?;
        self.job(id).await
    }

    /// Confirms that a lost attempt does not run and will not; the job goes on as if its instance had said so.
    pub(super) async fn confirm_lost(
        &self,
        asked: LostAttempt,
        audit: Audit,
    ) -> Result<report::JobDetail, OperationRefusal> {
        let id = JobId(asked.id);
        self.driver.store.confirm_lost(audit, id, AttemptNo(asked.attempt)).await?;
        self.job(id).await
    }

    /// Makes a new job with the payload of a job that has ended. The new job has no key, and waits for no other job.
    pub(super) async fn rerun_job(
        &self,
        asked: Rerun,
        is_admin: bool,
        audit: Audit,
    ) -> Result<report::JobDetail, OperationRefusal> {
        let (id, failed_hosts) = (JobId(asked.id), asked.failed_hosts);
        let former = self.driver.store.detail(id).await?;
        if !former.row.state.is_final() {
            let state = former.row.state.name();
            return Err(conflict(format!("job {id} is {state}: it can run again once it has ended")));
        }
        let permitted =
            permit(&self.driver.options(), &former.parsed_header()?, is_admin, Support::detect()).await;
        permitted.map_err(|why| OperationRefusal::new(OperationCode::Refused, why))?;
        let limit = if failed_hosts { self.failed_hosts(id).await? } else { former.row.terms.limit.clone() };
        let again = |former| Repeat { former, limit, is_admin, audit };
        let new = match self.unit_with_payload(&former) {
            Some(unit) => again(former).enter(&self.driver, &self.registry, &unit).await?,
            None => {
                let (PeerAnswer { size, .. }, payload) = self.payload_elsewhere(&former).await?;
                again(former).enter_from(&self.driver, &self.registry, payload, size).await?
            }
        };
        self.job(new).await
    }

    /// All hosts on which a job failed or which it did not reach; an error if only some of them are known.
    async fn failed_hosts(&self, id: JobId) -> Result<Vec<String>, OperationRefusal> {
        let (counts, hosts) = self.driver.store.failed_hosts(id).await?;
        let no_recap = || format!("job {id} ended before its recap: run it again as a whole");
        let counts = counts.ok_or_else(|| conflict(no_recap()))?;
        if counts.left_out > 0 {
            let failed = hosts.len() as u64 + counts.left_out;
            return Err(conflict(format!(
                "job {id} failed on {failed} hosts, but only {} are kept: run it again as a whole",
                hosts.len()
            )));
        }
        if hosts.is_empty() {
            return Err(conflict(format!("no host failed in job {id}")));
        }
        match stream::limit(&hosts) {
            Ok(_) => Ok(hosts),
            Err(error) => {
                let count = hosts.len();
                let why = format!("job {id} failed on {count} hosts: {error}: run it again as a whole");
                Err(conflict(why))
            }
        }
    }

    /// The unit of this node that has a job's payload.
    fn unit_with_payload(&self, job: &JobRecord) -> Option<String> {
        let has_payload =
            |unit: &&String| self.registry.job_unit(unit).is_some_and(|unit| unit.has_payload());
        holders(job)
            .filter(|(node, _)| **node == self.driver.node)
            .map(|(_, unit)| unit)
            .find(has_payload)
            .cloned()
    }

    /// The payload of a job from another control node that has it.
    async fn payload_elsewhere(&self, job: &JobRecord) -> Result<(PeerAnswer, PeerStream), OperationRefusal> {
        let id = job.row.id;
        let mut why = None;
        for (node, _) in holders(job).filter(|(node, _)| **node != self.driver.node) {
            let Some(peers) = self.driver.base.peers.get() else { break };
            match peers.ask(node, PeerVerb::Payload { from: 0 }, id).await {
                Ok(found) => return Ok(found),
                Err(PeerError::Missing { .. }) => {}
                Err(error) => why = Some(error),
            }
        }
        Err(match why {
            Some(error) => OperationRefusal::new(
                OperationCode::OwnerAway,
                format!("the payload of job {id} is on another control node: {error}"),
            ),
            None => missing(format!(
                "the payload of job {id} is not kept any more (payloadretention, or rerun: false)"
            )),
        })
    }

    /// Deletes the row of a job that has ended, and its units on this node.
    pub(super) async fn delete_job(&self, id: JobId, audit: Audit) -> Result<DeletedJob, OperationRefusal> {
        let holders = self.driver.store.detail(id).await?.holders;
        self.driver.store.delete_job(audit, id).await?;
        for (_, unit, _) in holders.iter().filter(|(node, _, _)| *node == self.driver.node) {
            if let Err(error) = self.registry.release_child(unit, Leftovers::Stay).await {
                tracing::debug!(unit, %error, "cannot release the unit of a deleted job, leaving it to housekeeping");
            }
        }
        Ok(DeletedJob { id: id.0, deleted: true })
    }
}

impl From<RepeatError> for OperationRefusal {
    fn from(error: RepeatError) -> Self {
        match error {
            RepeatError::Here(error) => error.into(),
            RepeatError::Elsewhere { .. } => Self::new(OperationCode::OwnerAway, error.to_string()),
        }
    }
}

/// Control nodes that have the payload of a job, each with its unit.
fn holders(job: &JobRecord) -> impl Iterator<Item = (&InstanceName, &String)> {
    job.holders.iter().filter(|(_, _, kept)| *kept == Kept::Payload).map(|(node, unit, _)| (node, unit))
}
