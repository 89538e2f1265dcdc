//! Tables of required behaviour, then random histories checked by an independent implementation of the rules.

mod capacity;
mod clock;
mod explanations;
mod histories;
mod impact;
mod instances;
mod leases;
mod life;
mod measure;
mod oracle;
mod placement;
mod policy;
mod simulation;
mod world;

use std::time::Duration;

use super::*;

/// The time at which tests begin; every node has just been seen.
const START: Time = Time(1_000_000);

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn named(name: &str) -> InstanceName {
    name.into()
}

/// A ready instance with that capacity, seen by the control nodes `c1` and `c2`.
fn instance(name: &str, node_type: NodeType, capacity: u32) -> Instance {
    let mut instance = Instance::register(name.into(), node_type, true, START);
    instance.node_state = NodeState::Ready;
    instance.version = Some("ansible-runner-2.4.0".into());
    instance.health_due = None;
    instance.capacities = Capacities { cpu: capacity, mem: capacity };
    instance.offer = Offer { runner: node_type.executes(), secure: false, tls: false };
    for observer in ["c1", "c2"] {
        instance.seen.insert(observer.into(), Sighting { routed: true, arrived: START, beat: 0 });
    }
    instance
}

fn control(name: &str, capacity: u32) -> Instance {
    instance(name, NodeType::Control, capacity)
}

fn hybrid(name: &str, capacity: u32) -> Instance {
    instance(name, NodeType::Hybrid, capacity)
}

fn execution(name: &str, capacity: u32) -> Instance {
    instance(name, NodeType::Execution, capacity)
}

/// A group with these members.
fn group(name: &str, members: &[&str]) -> Group {
    let list: Vec<InstanceName> = members.iter().map(|name| named(name)).collect();
    let members = list.iter().map(|name| Member { name: name.clone(), origin: MemberOrigin::List }).collect();
    let mut group = Group::new(name.into(), Policy { list, ..Policy::default() });
    group.backing = Backing::Instances(members);
    group
}

/// A pending job with its payload on `c1`, whose template names `groups`.
fn pending(id: i64, impact: u32, groups: &[&str]) -> PendingJob {
    PendingJob {
        id: JobId(id),
        kind: JobKind::Job,
        impact,
        priority: 0,
        groups: groups.iter().map(|name| (GroupName::from(*name), Level::Template)).collect(),
        needs: Vec::new(),
        exclusive: Vec::new(),
        holders: vec![named("c1")],
        since: START,
        pending_timeout: None,
        hold: None,
    }
}

/// The claim of a running job.
fn claim(job: i64, owner: &str, node: &str, group: &str, impact: u32) -> Claim {
    Claim {
        job: JobId(job),
        owner: Some(owner.into()),
        execution_node: Some(node.into()),
        group: Some(group.into()),
        impact,
        words: Vec::new(),
    }
}

fn scene<'a>(instances: &'a [Instance], groups: &'a [Group], claims: &'a [Claim]) -> Scene<'a> {
    Scene { instances, groups, claims, require_tls: false, paused: false, now: START }
}

/// The sightings of instances, as rows.
fn rows(instances: &[Instance]) -> Vec<(SightingKey, Sighting)> {
    let of = |one: &Instance| {
        let key = |(observer, sighting): (&InstanceName, &Sighting)| {
            ((one.name.clone(), observer.clone()), *sighting)
        };
        one.seen.iter().map(key).collect::<Vec<_>>()
    };
    instances.iter().flat_map(of).collect()
}

/// A watch that began at START and has seen no change since.
fn watched(instances: &[Instance]) -> SightingWatch {
    let mut watch = SightingWatch::default();
    watch.note(rows(instances), START, Duration::MAX);
    watch
}

fn child_id(job: JobId, attempt: AttemptNo) -> ChildId {
    ChildId { install: 0x1234_abcd, job, attempt, random: 7 }
}

fn fence(owner: &str, epoch: i64) -> Fence {
    Fence { owner: owner.into(), epoch: Epoch(epoch) }
}

fn evidence(status: Option<FinalStatus>) -> Evidence {
    let child = if status == Some(FinalStatus::Successful) { ChildEnd::Succeeded } else { ChildEnd::Failed };
    Evidence { status, has_end: status.is_some(), ..Evidence::of_unit(child, "exit status 2".into()) }
}
