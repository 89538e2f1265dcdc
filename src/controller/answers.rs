//! The records of a controller as JSON, as operators' programs read them.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::core::{Explanation, Instance, Job, Progress, Time, unfit, unusable};
use super::driver::{Candidate, JobDriver, rfc3339};
use super::store::{Clock, JobDetail, JobRow, Kept, Overview, RecapPage};
use super::stream::HostStats;

/// All instances with their loads.
pub(super) fn instances(overview: &Overview, driver: &JobDriver) -> Vec<Value> {
    let registry = &overview.registry;
    let records = registry.instances.iter().zip(&overview.loads.instances);
    let own = registry.instances.iter().map(|record| &record.instance).find(|one| one.name == driver.node);
    let require_tls = driver.options().require_tls;
    let why = |instance: &Instance| match own {
        Some(own) if instance.node_type.executes() => unfit(own, instance, require_tls, overview.now),
        Some(_) | None => unusable(instance),
    };
    let one = |(record, load): (&super::store::InstanceRecord, &super::core::InstanceLoad)| {
        let instance: &Instance = &record.instance;
        let groups: Vec<String> = registry
            .groups
            .iter()
            .filter(|group| group.group.has_member(&instance.name))
            .map(|group| group.group.name.to_string())
            .collect();
        json!({
            "name": instance.name.to_string(),
            "node_type": instance.node_type.name(),
            "node_state": instance.node_state.name(),
            "enabled": instance.enabled,
            "managed_by_policy": instance.managed_by_policy,
            "draining": instance.draining,
            "reachable": instance.is_reachable_from(&driver.node, overview.now),
            "why": why(instance).map(|why| why.code()),
            "capacity": load.capacity,
            "cpu_capacity": instance.capacities.cpu,
            "mem_capacity": instance.capacities.mem,
            "cpu": f64::from(record.cpu) / 10.0,
            "memory": record.memory,
            "capacity_adjustment": f64::from(instance.adjustment.0) / 100.0,
            "consumed_capacity": load.consumed,
            "remaining_capacity": load.remaining(),
            "jobs_running": load.jobs,
            "groups": groups,
            "version": instance.version,
            "uuid": instance.uuid,
            "errors": instance.errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "last_seen": shown(instance.last_seen()),
            "last_health_check": shown(record.last_health_check),
        })
    };
    records.map(one).collect()
}

/// A node that could become an instance.
pub(super) fn candidate(found: &Candidate) -> Value {
    json!({
        "name": found.name.to_string(),
        "node_type": found.node_type.name(),
        "runner": found.offer.runner,
        "secure": found.offer.secure,
        "tls": found.offer.tls,
        "last_seen": rfc3339(found.seen),
    })
}

/// All groups with their loads.
pub(super) fn groups(overview: &Overview) -> Vec<Value> {
    let (instances, groups) = (overview.registry.plain_instances(), overview.registry.plain_groups());
    let reserved = super::core::Group::reserved();
    let one = |(at, record): (usize, &super::store::GroupRecord)| {
        let group = &record.group;
        let sum = overview.loads.group_capacity(&instances, &groups, at);
        let members: Vec<Value> = group
            .members()
            .iter()
            .map(|member| json!({"name": member.name.to_string(), "origin": member.origin.name()}))
            .collect();
        let list: Vec<String> = group.policy.list.iter().map(ToString::to_string).collect();
        json!({
            "name": group.name.to_string(),
            "reserved": reserved.iter().any(|one| one.name == group.name),
            "is_container_group": group.is_container_group(),
            "policy_instance_percentage": group.policy.percentage,
            "policy_instance_minimum": group.policy.minimum,
            "policy_instance_list": list,
            "members": members,
            "capacity": sum.capacity,
            "consumed_capacity": sum.consumed,
            "remaining_capacity": sum.remaining,
            "jobs_running": sum.jobs_running,
            "max_concurrent_jobs": group.max_concurrent_jobs,
            "max_forks": group.max_forks,
            "cluster": record.cluster,
            "namespace": record.namespace,
            "pod_spec_override": record.pod_spec_override,
            "registry": record.registry,
        })
    };
    overview.registry.groups.iter().enumerate().map(one).collect()
}

/// A job in a list.
pub(super) fn job(row: &JobRow) -> Value {
    let end = row.finished.unwrap_or_else(|| Time(jiff::Timestamp::now().as_millisecond()));
    json!({
        "id": row.id.0,
        "key": row.key,
        "kind": row.kind.name(),
        "name": row.name,
        "state": row.state.name(),
        "priority": row.priority,
        "controller_node": row.controller_node.as_ref().map(ToString::to_string),
        "execution_node": row.execution_node.as_ref().map(ToString::to_string),
        "instance_group": row.instance_group.as_ref().map(ToString::to_string),
        "attempt": row.attempt,
        "impact": row.impact,
        "hosts": row.hosts,
        "forks": row.forks,
        "created": rfc3339(row.created),
        "started": shown(row.started),
        "finished": shown(row.finished),
        "elapsed": row.started.map(|started| end.since(started).as_secs_f64()),
        "cancel_requested": row.cancel_requested,
        "explanation": row.explanation,
        "events": row.events,
        "rc": row.rc,
        "labels": row.labels,
        "launched_by": row.launched_by,
    })
}

/// All that is known of a job, with the first of its hosts. `work_types` are those of its attempts, in their order.
pub(super) fn job_detail(
    detail: &JobDetail,
    recap: &RecapPage,
    work_types: &[String],
    payload_retention: Duration,
) -> Value {
    let attempts: Vec<Value> = detail
        .attempts
        .iter()
        .zip(work_types)
        .map(|(attempt, work_type)| {
            json!({
                "n": attempt.n.0,
                "node": attempt.node.as_ref().map(ToString::to_string),
                "unit": attempt.unit.to_string(),
                "work_type": work_type,
                "placed": rfc3339(attempt.placed),
                "started": shown(attempt.started),
                "ended": shown(attempt.ended),
                "outcome": attempt.ending().map(|ending| ending.name()),
                "confirmed": match attempt.progress {
                    Progress::Over(_) => true,
                    Progress::Placed | Progress::Running | Progress::Lost => false,
                },
            })
        })
        .collect();
    let stats: Map<String, Value> =
        recap.hosts.iter().map(|(host, stats)| (host.clone(), json!(stats))).collect();
    let held = |wanted| detail.holders.iter().find(|(_, _, kept)| *kept == wanted);
    let unit = held(Kept::Payload).or(held(Kept::Output)).map(|(_, unit, _)| unit);
    let finished = detail.row.finished.filter(|_| held(Kept::Payload).is_some());
    let header: Value = serde_json::from_str(&detail.header).unwrap_or_default();
    let mut answer = job(&detail.row);
    if let Value::Object(fields) = &mut answer {
        fields.insert("header".into(), header);
        fields.insert("unit".into(), json!(unit));
        fields.insert("attempts".into(), Value::Array(attempts));
        fields.insert("host_stats".into(), Value::Object(stats));
        fields.insert("host_counts".into(), host_counts(recap));
        fields
            .insert("depends_on".into(), json!(detail.depends_on.iter().map(|id| id.0).collect::<Vec<_>>()));
        fields.insert("output_bytes".into(), json!(detail.output_bytes));
        fields.insert("payload_until".into(), json!(shown(finished.map(|end| end + payload_retention))));
        fields.insert("revision".into(), json!(detail.revision));
    }
    answer
}

/// One page of the hosts of a job, in their order, from the place `from` on.
pub(super) fn hosts(id: i64, from: u64, page: &RecapPage) -> Value {
    let one = |(host, stats): &(String, HostStats)| {
        let mut one = json!(stats);
        if let Value::Object(fields) = &mut one {
            fields.insert("host".into(), json!(host));
        }
        one
    };
    let end = from + page.hosts.len() as u64;
    let next = Some(end).filter(|end| *end < page.kept && !page.hosts.is_empty());
    let hosts: Vec<Value> = page.hosts.iter().map(one).collect();
    json!({"id": id, "hosts": hosts, "next": next, "host_counts": host_counts(page)})
}

/// How many hosts a job has; null before its recap.
fn host_counts(page: &RecapPage) -> Value {
    page.counts.map_or(Value::Null, |counts| {
        json!({
            "hosts": counts.hosts,
            "failed": counts.failed,
            "unreachable": counts.unreachable,
            "kept": page.kept,
        })
    })
}

/// The store's clock, and whether it is believed.
pub(super) fn clock(clock: &Clock) -> Value {
    json!({
        "now": rfc3339(clock.now),
        "latest": rfc3339(clock.record.latest),
        "doubted": clock.is_doubted(),
    })
}

/// Why a job does not run; `pod` is what its pod waits for.
pub(super) fn explanation(job: &Job, explained: Option<Explanation>, pod: Option<String>) -> Value {
    let mut summary = explained.as_ref().map_or_else(|| job.explanation.clone(), |one| one.summary.clone());
    if let Some(detail) = pod {
        summary = format!("{summary}: {detail}");
    }
    let checks = explained.iter().flat_map(|one| &one.checks);
    let checks: Vec<Value> = checks
        .map(|check| json!({"check": check.check, "ok": check.ok, "detail": check.detail}))
        .chain([json!({"check": "store", "ok": true, "detail": ""})])
        .collect();
    let groups = explained.iter().flat_map(|one| &one.groups);
    let groups: Vec<Value> = groups
        .map(|group| {
            let instances = group.instances.iter().map(|one| {
                json!({
                    "name": one.name.to_string(),
                    "ok": one.why.is_none(),
                    "why": one.why.map(|why| why.code()),
                    "needs": one.needs,
                    "remaining": one.remaining,
                })
            });
            json!({
                "name": group.name.to_string(),
                "level": group.level.name(),
                "ok": group.why.is_none(),
                "why": group.why.map(|why| why.code()),
                "instances": instances.collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({"id": job.id.0, "state": job.state.name(), "summary": summary, "checks": checks, "groups": groups})
}

fn shown(time: Option<Time>) -> Option<String> {
    time.map(rfc3339)
}
