//! Turns the records of a controller into the reports that clients read.

use std::collections::BTreeSet;
use std::time::Duration;

use super::core::{
    Group, Instance, InstanceLoad, InstanceName, JobKind, JobState, NodeState, Progress, Silence, Size, Time,
    readable, unfit, unusable,
};
use super::driver::{Candidate, JobDriver, rfc3339};
use super::options::ControllerOptions;
use super::store::{
    Clock, ExplainedJob, GroupRecord, InstanceRecord, JobRecord, JobRow, Kept, Overview, RecapPage,
};
use crate::rpc::report::controller::{
    AttemptReport, CandidateReport, CheckReport, ClockReport, ControllerReport, Explained, GroupReport,
    HostCounts, HostReport, Hosts, InstanceReport, JobReport, MemberReport, SilentNode, StoreReport,
};
use crate::rpc::report::{self, Lenient};

/// Bytes of a limit that are shown.
const LONGEST_LIMIT: usize = 500;

/// All instances with their loads.
pub(super) fn instances(overview: &Overview, driver: &JobDriver) -> Vec<InstanceReport> {
    let registry = &overview.registry;
    let own = registry.instances.iter().map(|record| &record.instance).find(|one| one.name == driver.node);
    let require_tls = driver.options().require_tls;
    let why = |instance: &Instance| match own {
        Some(own) if instance.node_type.executes() => unfit(own, instance, require_tls),
        Some(_) | None => unusable(instance),
    };
    let one = |(record, load): (&InstanceRecord, &InstanceLoad)| {
        let instance = &record.instance;
        let groups = registry.groups.iter().filter(|group| group.group.has_member(&instance.name));
        InstanceReport {
            name: instance.name.to_string(),
            node_type: instance.node_type.name().to_owned(),
            node_state: instance.node_state.name().to_owned(),
            enabled: instance.enabled,
            managed_by_policy: instance.managed_by_policy,
            draining: instance.draining,
            reachable: instance.is_reachable_from(&driver.node),
            why: why(instance).map(|why| why.code().to_owned()),
            capacity: load.capacity,
            usual_jobs: load.capacity / Size::default().impact(JobKind::Job),
            cpu_capacity: instance.capacities.cpu,
            mem_capacity: instance.capacities.mem,
            cpu: f64::from(record.cpu) / 10.0,
            memory: record.memory,
            capacity_adjustment: f64::from(instance.adjustment.0) / 100.0,
            consumed_capacity: load.consumed,
            remaining_capacity: load.remaining(),
            jobs_running: load.jobs,
            groups: texts(groups.map(|group| &group.group.name)),
            version: instance.version.clone(),
            uuid: instance.uuid.clone(),
            errors: texts(&instance.errors),
            last_seen: shown(instance.last_seen()),
            last_health_check: shown(record.last_health_check),
        }
    };
    let mut all: Vec<_> = registry.instances.iter().zip(&overview.loads.instances).map(one).collect();
    if let Some(why) = driver.lease.halted()
        && let Some(own) = all.iter_mut().find(|one| one.name == driver.node.as_str())
    {
        // Its record may describe another process by now.
        own.node_state = NodeState::Unavailable.name().to_owned();
        (own.capacity, own.remaining_capacity) = (0, 0);
        own.errors.push(why);
    }
    all
}

impl From<&Candidate> for CandidateReport {
    fn from(found: &Candidate) -> Self {
        Self {
            name: found.name.to_string(),
            node_type: found.node_type.name().to_owned(),
            runner: found.offer.runner,
            secure: found.offer.secure,
            tls: found.offer.tls,
            last_seen: rfc3339(found.seen),
        }
    }
}

/// All groups with their loads.
pub(super) fn groups(overview: &Overview) -> Vec<GroupReport> {
    let (instances, groups) = (overview.registry.plain_instances(), overview.registry.plain_groups());
    let reserved = Group::reserved();
    let one = |(at, record): (usize, &GroupRecord)| {
        let group = &record.group;
        let sum = overview.loads.group_capacity(&instances, &groups, at);
        let members = group.members().iter().map(|member| MemberReport {
            name: member.name.to_string(),
            origin: member.origin.name().to_owned(),
        });
        GroupReport {
            name: group.name.to_string(),
            reserved: reserved.iter().any(|one| one.name == group.name),
            is_container_group: group.is_container_group(),
            policy_instance_percentage: group.policy.percentage,
            policy_instance_minimum: group.policy.minimum,
            policy_instance_list: texts(&group.policy.list),
            members: members.collect(),
            capacity: sum.capacity,
            consumed_capacity: sum.consumed,
            remaining_capacity: sum.remaining,
            jobs_running: sum.jobs_running,
            max_concurrent_jobs: group.max_concurrent_jobs,
            max_forks: group.max_forks,
            cluster: record.cluster.clone(),
            namespace: record.namespace.clone(),
            pod_spec_override: record.pod_spec_override.clone(),
            registry: record.registry.clone(),
        }
    };
    overview.registry.groups.iter().enumerate().map(one).collect()
}

impl From<&JobRow> for JobReport {
    fn from(row: &JobRow) -> Self {
        let end = row.finished.unwrap_or_else(|| Time(jiff::Timestamp::now().as_millisecond()));
        let run = &row.terms.run;
        let hosts = Some(row.terms.limit.join(",")).filter(|hosts| !hosts.is_empty());
        let limit = hosts.map(|hosts| readable(&hosts, LONGEST_LIMIT)).or_else(|| run.limit.clone());
        Self {
            id: row.id.0,
            key: row.key.clone(),
            kind: Lenient::Known(row.kind),
            name: row.name.clone(),
            state: Lenient::Known(row.state),
            priority: row.priority,
            controller_node: row.controller_node.as_ref().map(ToString::to_string),
            execution_node: row.execution_node.as_ref().map(ToString::to_string),
            instance_group: row.instance_group.as_ref().map(ToString::to_string),
            attempt: row.attempt,
            impact: row.impact,
            hosts: row.hosts,
            forks: row.forks,
            created: rfc3339(row.created),
            started: shown(row.started),
            finished: shown(row.finished),
            elapsed: row.started.map(|started| end.since(started).as_secs_f64()),
            cancel_requested: row.cancel_requested,
            explanation: row.explanation.clone(),
            events: row.events,
            rc: row.rc,
            labels: row.labels.clone(),
            launched_by: row.launched_by.clone(),
            playbook: run.playbook.clone(),
            module: run.module.clone(),
            limit,
            tags: run.tags.clone(),
            skip_tags: run.skip_tags.clone(),
            check: run.check,
            rerun_of: row.terms.rerun_of,
            silent: None,
        }
    }
}

/// What is known of an attempt outside the store.
pub(super) struct AttemptUnit {
    /// The work type of its unit.
    pub work_type: String,
    /// What its unit does now.
    pub detail: Option<String>,
}

/// All that is known of a job, with its first hosts. `units` belong to its attempts, in the same order.
pub(super) fn job_detail(
    detail: &JobRecord,
    recap: RecapPage,
    units: Vec<AttemptUnit>,
    silence: Option<Silence>,
    payload_retention: Duration,
) -> report::controller::JobDetail {
    let attempts = detail.job.attempts.iter().zip(units).map(|(attempt, unit)| AttemptReport {
        n: attempt.n.0,
        node: attempt.node.as_ref().map(ToString::to_string),
        unit: attempt.unit.to_string(),
        work_type: unit.work_type,
        detail: unit.detail,
        placed: rfc3339(attempt.placed),
        started: shown(attempt.started),
        ended: shown(attempt.ended),
        outcome: attempt.ending().map(|ending| ending.name().to_owned()),
        confirmed: match attempt.progress {
            Progress::Over(_) => true,
            Progress::Placed | Progress::Running | Progress::Lost => false,
        },
    });
    let end = detail.output_end();
    let complete: BTreeSet<&InstanceName> = detail.complete.iter().map(|(node, _)| node).collect();
    let held = |wanted| detail.holders.iter().find(|(_, _, kept)| *kept == wanted);
    let finished = detail.row.finished.filter(|_| held(Kept::Payload).is_some());
    report::controller::JobDetail {
        job: JobReport { silent: silence.map(SilentNode::from), ..JobReport::from(&detail.row) },
        header: serde_json::from_str(&detail.header).unwrap_or_default(),
        unit: held(Kept::Payload).or(held(Kept::Output)).map(|(_, unit, _)| unit.clone()),
        attempts: attempts.collect(),
        host_counts: host_counts(&recap),
        host_stats: recap.hosts,
        depends_on: detail.depends_on.iter().map(|id| id.0).collect(),
        output_bytes: end.map_or(detail.output_bytes, |end| end.bytes),
        output_hash: end.and_then(|end| end.hash).map(|hash| format!("{hash:016x}")),
        output_on: texts(complete),
        output_lost: detail.output_lost.as_ref().map(ToString::to_string),
        payload_until: shown(finished.map(|end| end + payload_retention)),
        revision: detail.revision.clone(),
        failure: detail.failure.clone(),
    }
}

/// One page of a job's hosts in order, beginning with host number `from`.
pub(super) fn hosts(id: i64, from: u64, page: RecapPage) -> Hosts {
    let end = from + page.hosts.len() as u64;
    let next = Some(end).filter(|end| *end < page.kept && !page.hosts.is_empty());
    let host_counts = host_counts(&page);
    let hosts = page.hosts.into_iter().map(|(host, stats)| HostReport { stats, host });
    Hosts { id, hosts: hosts.collect(), next, host_counts }
}

/// How many hosts a job has; none before its recap.
fn host_counts(page: &RecapPage) -> Option<HostCounts> {
    page.counts.map(|counts| HostCounts {
        hosts: counts.hosts,
        failed: counts.failed,
        unreachable: counts.unreachable,
        kept: page.kept,
    })
}

impl From<&Clock> for ClockReport {
    fn from(clock: &Clock) -> Self {
        Self { now: rfc3339(clock.now), latest: rfc3339(clock.record.latest), doubted: clock.is_doubted() }
    }
}

/// Why a job does not run; `waits_for` is what its unit waits for, and `no_turn` says why no control node places it.
pub(super) fn explanation(
    explained: ExplainedJob,
    waits_for: Option<String>,
    no_turn: Option<String>,
) -> Explained {
    let ExplainedJob { job, waits, silence } = explained;
    let mut told = waits.unwrap_or_else(|| Explained {
        id: job.id.0,
        state: Lenient::Known(job.state),
        summary: job.explanation,
        ..Explained::default()
    });
    if let Some(detail) = waits_for {
        told.summary = format!("{}: {detail}", told.summary);
    }
    if let Some(why) = no_turn.filter(|_| job.state == JobState::Pending) {
        told.summary = format!("{why}; {}", told.summary);
    }
    told.checks.push(CheckReport { check: "store".to_owned(), ok: true, detail: String::new() });
    told.silent = silence.map(SilentNode::from);
    told
}

impl From<Silence> for SilentNode {
    fn from(silence: Silence) -> Self {
        Self {
            node: silence.node.to_string(),
            attempt: silence.attempt.0,
            since: shown(silence.since),
            lost_at: rfc3339(silence.lost_at),
            lost: silence.is_lost,
        }
    }
}

/// The report on a controller whose store was never opened.
pub(super) fn unopened(node: &InstanceName) -> ControllerReport {
    ControllerReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: node.to_string(),
        active_node: node.to_string(),
        ..ControllerReport::default()
    }
}

/// The state of the store, for a ping.
pub(super) fn store_report(options: &ControllerOptions, error: Option<String>) -> StoreReport {
    let kind = match options.store.split(':').next() {
        Some("sqlite") | None => "sqlite",
        Some(_) => "postgresql",
    };
    StoreReport { kind: kind.to_owned(), up: error.is_none(), error, times_away: 0 }
}

fn shown(time: Option<Time>) -> Option<String> {
    time.map(rfc3339)
}

fn texts<T: ToString>(list: impl IntoIterator<Item = T>) -> Vec<String> {
    list.into_iter().map(|one| one.to_string()).collect()
}
