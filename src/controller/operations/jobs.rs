//! What operators read of jobs, and how they run one again or delete it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use tokio::sync::Semaphore;

use super::{answers, conflict, missing};
use crate::confine::Support;
use crate::controller::answers::AttemptUnit;
use crate::controller::core::{Attempt, AttemptNo, GroupName, InstanceName, JobId, Time};
use crate::controller::driver::{Candidate, parsed};
use crate::controller::peer::{PeerAnswer, PeerError, PeerStream, PeerVerb};
use crate::controller::service::Service;
use crate::controller::service::intake::permit;
use crate::controller::service::repeat::{Repeat, RepeatError};
use crate::controller::store::{self, Audit, JobDetail, Kept, PAGE_MAX};
use crate::controller::stream;
use crate::rpc::operation::{HostPage, JobFilter, LostAttempt, OperationCode, OperationRefusal, Rerun};
use crate::rpc::report::controller::{
    self as report, CheckReport, DeletedJob, Explained, ExplainedGroup, Hosts, JobReport, Jobs,
};
use crate::work::Leftovers;

/// Lists of jobs that are read at a time.
static LISTS: Semaphore = Semaphore::const_new(4);
/// Rows of a list, unless asked otherwise.
const PAGE: u32 = 50;
/// Nodes that are named of those that could run a job.
const COULD_RUN: usize = 10;
/// Hosts of a recap that are shown with a job, and of a page unless asked otherwise.
const HOSTS: u32 = 100;

/// Names the nodes that could run a job, and how they come to.
fn could_run(found: &[Candidate]) -> Option<CheckReport> {
    // Who may join the mesh chooses its name, and this is pasted into a shell.
    let is_plain = |name: &&str| {
        !name.starts_with('-') && name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c))
    };
    let runners = found.iter().filter(|one| one.offer.runner).map(|one| one.name.as_str());
    let names: Vec<&str> = runners.filter(is_plain).take(COULD_RUN).collect();
    let detail = format!("{} could run it: meshctl instance enable {}", names.join(", "), names.join(" "));
    let check = CheckReport::INSTANCES.to_owned();
    (!names.is_empty()).then_some(CheckReport { check, ok: false, detail })
}

impl Service {
    pub(super) async fn list_jobs(&self, asked: JobFilter) -> Result<Jobs, OperationRefusal> {
        let JobFilter { state, kind, name, group, node, label, since, until, before, limit, brief } = asked;
        let time = |time: jiff::Timestamp| Time(time.as_millisecond());
        let filter = store::JobFilter {
            states: state,
            kinds: kind,
            labels: label,
            name,
            group: group.map(|name| GroupName::from(name.as_str())),
            node: node.map(|name| InstanceName::from(name.as_str())),
            since: since.map(time),
            until: until.map(time),
            before: before.map(JobId),
            brief,
        };
        // It is never closed. Who comes later waits here, and not with a page in its hands.
        let _turn = LISTS.acquire().await;
        let page = self.driver.store.list(filter, limit.unwrap_or(PAGE).clamp(1, PAGE_MAX)).await?;
        Ok(Jobs { jobs: page.jobs.iter().map(JobReport::from).collect(), next: page.next.map(|id| id.0) })
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
            true => self.driver.store.silence(id, self.driver.placer.patience()).await?,
            false => None,
        };
        Ok(answers::job_detail(&detail, recap, units, silence, retention))
    }

    /// What a job did on its hosts, one page of them.
    pub(super) async fn list_hosts(&self, asked: HostPage) -> Result<Hosts, OperationRefusal> {
        let HostPage { id, from, limit } = asked;
        let limit = limit.unwrap_or(HOSTS).clamp(1, PAGE_MAX);
        Ok(answers::hosts(id, from, self.driver.store.recap(JobId(id), from, limit).await?))
    }

    pub(super) async fn explain_job(&self, id: JobId) -> Result<Explained, OperationRefusal> {
        let (require_tls, patience) = (self.driver.options().require_tls, self.driver.placer.patience());
        let explained = self.driver.store.explain(id, require_tls, patience).await?;
        let waits_for = self.driver.attempts.start_waits_for(&explained.job);
        let mut told = answers::explanation(explained, waits_for, self.driver.placer.no_turn());
        // The default group takes each instance that is enabled.
        let is_empty = |group: &ExplainedGroup| !group.ok && group.instances.is_empty();
        let default = GroupName::default_group();
        if told.groups.iter().any(|group| group.name == default.as_str() && is_empty(group)) {
            told.checks.extend(could_run(&self.driver.placer.found()));
        }
        Ok(told)
    }

    pub(super) async fn cancel_job(
        &self,
        id: JobId,
        audit: Audit,
    ) -> Result<report::JobDetail, OperationRefusal> {
        self.driver.store.cancel(Some(audit), id).await?;
        self.driver.publisher.show(id).await?;
        self.job(id).await
    }

    /// A lost attempt does not run and will not: the job goes on as if its instance had said so.
    pub(super) async fn confirm_lost(
        &self,
        asked: LostAttempt,
        audit: Audit,
    ) -> Result<report::JobDetail, OperationRefusal> {
        let id = JobId(asked.id);
        self.driver.store.confirm_lost(audit, id, AttemptNo(asked.attempt)).await?;
        self.job(id).await
    }

    /// A new job with the payload of one that has ended. It has no key, and waits for no other job.
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
        let permitted = permit(&self.driver.options(), &parsed(&former)?, is_admin, Support::detect()).await;
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

    /// The hosts on which a job failed, or which it did not reach: all of them, or none.
    async fn failed_hosts(&self, id: JobId) -> Result<Vec<String>, OperationRefusal> {
        let (counts, hosts) = self.driver.store.failed_hosts(id).await?;
        let no_recap = || format!("job {id} did not come to its recap: run it again as a whole");
        let counts = counts.ok_or_else(|| conflict(no_recap()))?;
        if counts.left_out > 0 {
            let failed = hosts.len() as u64 + counts.left_out;
            return Err(conflict(format!(
                "job {id} failed on {failed} hosts, and no more than {} are kept: run it again as a whole",
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

    /// The unit here that has a job's payload.
    fn unit_with_payload(&self, job: &JobDetail) -> Option<String> {
        let has_payload =
            |unit: &&String| self.registry.job_unit(unit).is_some_and(|unit| unit.has_payload());
        holders(job)
            .filter(|(node, _)| **node == self.driver.node)
            .map(|(_, unit)| unit)
            .find(has_payload)
            .cloned()
    }

    /// The payload of a job from another control node that has it.
    async fn payload_elsewhere(&self, job: &JobDetail) -> Result<(PeerAnswer, PeerStream), OperationRefusal> {
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

    /// Deletes the row of a job that has ended, and its units here.
    pub(super) async fn delete_job(&self, id: JobId, audit: Audit) -> Result<DeletedJob, OperationRefusal> {
        let holders = self.driver.store.detail(id).await?.holders;
        self.driver.store.delete_job(audit, id).await?;
        for (_, unit, _) in holders.iter().filter(|(node, _, _)| *node == self.driver.node) {
            if let Err(error) = self.registry.release_child(unit, Leftovers::Stay).await {
                tracing::debug!(unit, %error, "housekeeping will release a unit without a job");
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
fn holders(job: &JobDetail) -> impl Iterator<Item = (&InstanceName, &String)> {
    job.holders.iter().filter(|(_, _, kept)| *kept == Kept::Payload).map(|(node, unit, _)| (node, unit))
}
