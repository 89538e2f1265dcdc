//! The state that a pass, an explanation and an overview are computed from, loaded at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::error::Error;
use super::jobs::{self, StoredJob};
use super::registry::{self, InstanceRegistry};
use super::sql::Sql;
use super::{Store, leases};
use crate::controller::core::{
    Attempt, Claim, Fence, Group, Hold, Instance, InstanceName, Job, JobId, JobState, Loads, Need, Patience,
    PendingJob, Scene, Silence, Time, Wait, WaitWatch, explain, silence,
};
use crate::controller::store::sql::values;
use crate::rpc::report::controller::Explained;

/// Everything that placement depends on.
#[derive(Debug)]
pub(super) struct Loadout {
    pub(super) instances: Vec<Instance>,
    pub(super) groups: Vec<Group>,
    /// Jobs that are not final, or have attempts that may still run.
    pub(super) jobs: Vec<StoredJob>,
    pub(super) claims: Vec<Claim>,
    pub(super) pending: Vec<PendingJob>,
    /// Owners that hold their lease and are seen alive.
    pub(super) live: Vec<Fence>,
    pub(super) paused: bool,
    pub(super) now: Time,
}

/// How long jobs have waited, as this process has seen it. Clones share the record.
#[derive(Debug, Clone, Default)]
pub struct Waits {
    /// Locked while a pass loads its state.
    pub watch: Arc<Mutex<WaitWatch>>,
    /// The time of the process's own clock.
    pub now: Time,
    /// The control nodes that this process has seen alive: no other one gets a job. `None` before it has looked: all
    /// that hold a lease count.
    pub alive: Option<BTreeSet<InstanceName>>,
}

impl Loadout {
    pub(super) fn load(sql: &mut dyn Sql, waits: &Waits) -> Result<Self, Error> {
        let InstanceRegistry { instances, groups } = InstanceRegistry::load(sql)?;
        let mut jobs = jobs::load(sql, jobs::OPEN, &[], false)?;
        jobs::load_words(sql, &mut jobs)?;
        let mut live = leases::live(sql)?;
        live.retain(|fence| waits.alive.as_ref().is_none_or(|alive| alive.contains(&fence.owner)));
        let pending = pending(sql, &jobs, &live, waits)?;
        Ok(Self {
            instances: instances.into_iter().map(|record| record.instance).collect(),
            groups: groups.into_iter().map(|record| record.group).collect(),
            claims: jobs.iter().flat_map(|loaded| loaded.job.claims()).collect(),
            jobs,
            pending,
            live,
            paused: registry::paused(sql)?,
            now: sql.now(),
        })
    }

    pub(super) fn scene(&self, require_tls: bool) -> Scene<'_> {
        Scene {
            instances: &self.instances,
            groups: &self.groups,
            claims: &self.claims,
            require_tls,
            paused: self.paused,
            now: self.now,
        }
    }
}

/// Pending jobs as a pass sees them. A holder of a payload counts only while it is live, because no other one can own a
/// job.
fn pending(
    sql: &mut dyn Sql,
    jobs: &[StoredJob],
    live: &[Fence],
    waits: &Waits,
) -> Result<Vec<PendingJob>, Error> {
    let now = sql.now();
    let live: BTreeSet<&InstanceName> = live.iter().map(|fence| &fence.owner).collect();
    let mut needs: BTreeMap<JobId, Vec<Need>> = BTreeMap::new();
    // A job that has succeeded holds nobody up.
    let rows = sql.query(
        "SELECT dep.job, dep.needs, needed.state FROM dep JOIN job ON job.id = dep.job \
         LEFT JOIN job needed ON needed.id = dep.needs WHERE job.state = 'pending' \
         AND (needed.state IS NULL OR needed.state <> 'successful') ORDER BY dep.job, dep.needs",
        &[],
    )?;
    for mut row in rows {
        needs.entry(row.take()?).or_default().push(Need { job: row.take()?, state: row.take()? });
    }
    let mut holders: BTreeMap<JobId, Vec<InstanceName>> = BTreeMap::new();
    let rows = sql.query(
        "SELECT DISTINCT holder.job, holder.node FROM holder JOIN job ON job.id = holder.job \
         WHERE job.state = 'pending' AND holder.has = 'payload' ORDER BY holder.job, holder.node",
        &[],
    )?;
    for mut row in rows {
        let (job, node) = (row.take()?, row.take()?);
        if live.contains(&node) {
            holders.entry(job).or_default().push(node);
        }
    }
    let waiting = jobs.iter().filter(|loaded| loaded.job.state == JobState::Pending);
    let mut watch = waits.watch.lock();
    watch.note(waiting.clone().flat_map(StoredJob::waits), waits.now, Duration::MAX);
    let waited = |key, row: Time| watch.unchanged_for(&key, &row, waits.now);
    Ok(waiting
        .map(|StoredJob { job, terms, priority }| PendingJob {
            id: job.id,
            kind: job.kind,
            impact: job.impact,
            priority: *priority,
            groups: terms.groups.clone(),
            needs: needs.remove(&job.id).unwrap_or_default(),
            exclusive: job.exclusive.clone(),
            holders: holders.remove(&job.id).unwrap_or_default(),
            since: now - waited((job.id, Wait::Timeout), job.pending_since),
            pending_timeout: terms.pending_timeout,
            hold: match (job.hold(), &job.quota) {
                (Some(Hold::Quota { words, until }), Some(quota)) => {
                    Some(Hold::Quota { words, until: now + quota.left(waited((job.id, Wait::Quota), until)) })
                }
                (hold, _) => hold,
            },
        })
        .collect())
}

/// Instances and groups with their loads.
#[derive(Debug, Clone, PartialEq)]
pub struct Overview {
    /// The records.
    pub registry: InstanceRegistry,
    /// Their loads, in the same order.
    pub loads: Loads,
    /// The store's clock.
    pub now: Time,
}

/// A job, and why it is in its state.
#[derive(Debug, Clone, PartialEq)]
pub struct ExplainedJob {
    /// The job.
    pub job: Job,
    /// Why it is pending, if it is.
    pub waits: Option<Explained>,
    /// The silence of the instance on which it runs or may still run, if that does not answer.
    pub silence: Option<Silence>,
}

impl Store {
    /// Instances and groups with their loads.
    pub async fn overview(&self) -> Result<Overview, Error> {
        self.read(|sql| {
            let registry = InstanceRegistry::load(sql)?;
            let jobs = jobs::load(sql, jobs::SENT, &[], false)?;
            let claims: Vec<_> = jobs.iter().flat_map(|loaded| loaded.job.claims()).collect();
            let loads = Loads::sum(&registry.plain_instances(), &registry.plain_groups(), &claims);
            Ok(Overview { registry, loads, now: sql.now() })
        })
        .await
    }

    /// Why a job is in its state.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn explain(
        &self,
        id: JobId,
        require_tls: bool,
        patience: Patience,
    ) -> Result<ExplainedJob, Error> {
        self.read(move |sql| {
            let job = one(sql, id)?;
            let mut waits = None;
            if job.state == JobState::Pending {
                let loadout = Loadout::load(sql, &Waits::default())?;
                let pending = loadout.pending.iter().find(|job| job.id == id);
                let scene = loadout.scene(require_tls);
                waits = pending.map(|job| explain(&scene, &loadout.pending, job));
            }
            let silence = silence_of(sql, &job, &patience)?;
            Ok(ExplainedJob { job, waits, silence })
        })
        .await
    }

    /// Of these jobs those that run or may still run on an instance that does not answer.
    pub async fn silences(
        &self,
        ids: Vec<JobId>,
        patience: Patience,
    ) -> Result<BTreeMap<JobId, Silence>, Error> {
        self.read(move |sql| {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            if ids.is_empty() {
                return Ok(BTreeMap::new());
            }
            let jobs = jobs::load(sql, &format!("job.id IN ({})", ids.join(",")), &[], false)?;
            let (instances, now) = (InstanceRegistry::load(sql)?.plain_instances(), sql.now());
            let silent = |job: &Job| Some((job.id, silence(job, &instances, &patience, now)?));
            Ok(jobs.iter().filter_map(|loaded| silent(&loaded.job)).collect())
        })
        .await
    }
}

fn one(sql: &mut dyn Sql, id: JobId) -> Result<Job, Error> {
    let loaded = jobs::load(sql, "job.id = $1", values![id], false)?.pop();
    Ok(loaded.ok_or(Error::NoJob(id))?.job)
}

fn silence_of(sql: &mut dyn Sql, job: &Job, patience: &Patience) -> Result<Option<Silence>, Error> {
    // Without open attempts there is no need to read all instances.
    if !job.attempts.iter().any(Attempt::is_open) {
        return Ok(None);
    }
    Ok(silence(job, &InstanceRegistry::load(sql)?.plain_instances(), patience, sql.now()))
}
