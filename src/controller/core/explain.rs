//! Why a pending job does not run: the checks that come before capacity, then each group with each of its members and
//! with what runs there, and the job's place in the queue.
//!
//! It makes the same decisions as a pass, for one job and with all details.

use super::fit::{Candidate, Why, unfit};
use super::group::{Group, Level};
use super::impact::{CONTROL_IMPACT, Class};
use super::load::{Claim, GroupLoad};
use super::names::{GroupName, InstanceName, JobId};
use super::pass::{Room, Scene};
use super::queue::{Decision, PendingJob, Waiting};

/// Jobs that are named of those that hold the places of a group.
const HOLDERS: usize = 20;

/// Why a job does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// A summary in one line.
    pub summary: String,
    /// The checks that come before capacity. The caller adds those that only it can make, such as the
    /// store's.
    pub checks: Vec<Check>,
    /// The groups, in the order in which they are tried.
    pub groups: Vec<GroupAnswer>,
    /// Its place among the jobs that wait for room where it does; `None` if it waits for something else.
    pub queue: Option<QueuePlace>,
}

/// A place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePlace {
    /// From 1 on.
    pub place: usize,
    /// Of that many jobs.
    pub of: usize,
}

/// One condition that does not depend on capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// `dependencies`, `exclusive`, `attempt`, `owner`, `payload` or `paused`.
    pub check: &'static str,
    /// Whether the condition holds.
    pub ok: bool,
    /// Why it does not hold.
    pub detail: String,
}

/// Whether a group takes the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupAnswer {
    /// Its name.
    pub name: GroupName,
    /// The level at which it was named in the launch.
    pub level: Level,
    /// Why the group does not take the job; `None` if it does.
    pub why: Option<Why>,
    /// What was placed through it, and the most that may be; 0 is no limit.
    pub load: GroupLoad,
    /// The most jobs.
    pub max_concurrent_jobs: u32,
    /// The most forks.
    pub max_forks: u32,
    /// If the job lacks room there: who has it, the oldest [`HOLDERS`] of them.
    pub held_by: Vec<HeldBy>,
    /// Its members.
    pub instances: Vec<InstanceAnswer>,
}

/// A job that has a place for which another one waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBy {
    /// Its number.
    pub job: JobId,
    /// The instance that runs it; `None` in a container group.
    pub node: Option<InstanceName>,
    /// What it takes.
    pub impact: u32,
}

/// Whether a member takes the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceAnswer {
    /// Its name.
    pub name: InstanceName,
    /// Why it does not take the job; `None` if it does.
    pub why: Option<Why>,
    /// The capacity that the job would need on it.
    pub needs: u32,
    /// The capacity that it has left.
    pub remaining: u32,
    /// Its capacity.
    pub capacity: u32,
    /// Attempts that run on it.
    pub jobs: u32,
}

/// Explains a pending job; `pending` are all of them.
pub fn explain(scene: &Scene<'_>, pending: &[PendingJob], job: &PendingJob) -> Explanation {
    let mut room = Room::new(scene);
    let checks = checks(&mut room, scene, job);
    let groups = match job.kind.class() {
        Class::Execution => {
            job.groups.iter().map(|(name, level)| group(&mut room, scene, job, name, *level)).collect()
        }
        Class::Control => Vec::new(),
    };
    let mut queue = None;
    let summary = match room.decide(job) {
        Decision::Place(place) => {
            let site = place.execution_node.map_or_else(|| place.group.to_string(), |node| node.to_string());
            format!("starts in the next pass on {site}, unless another job comes first")
        }
        Decision::Fail(_, end) => end.to_string(),
        Decision::Wait(_, waiting) => {
            queue = waiting.is_for_room().then(|| place(&room, pending, job));
            waiting.to_string()
        }
    };
    Explanation { summary, checks, groups, queue }
}

/// Its place among the jobs that nothing but room keeps from where it could run.
fn place(room: &Room<'_>, pending: &[PendingJob], job: &PendingJob) -> QueuePlace {
    let group = |name: &GroupName| job.groups.iter().any(|(wanted, _)| wanted == name);
    let competes = |other: &&PendingJob| {
        let is_class = other.kind.class() == job.kind.class();
        let is_control = job.kind.class() == Class::Control;
        let is_near = is_control || other.groups.iter().any(|(name, _)| group(name));
        other.id != job.id && is_class && is_near && room.blocked(other).is_none()
    };
    let others: Vec<&PendingJob> = pending.iter().filter(competes).collect();
    let before = others.iter().filter(|other| other.turn() < job.turn()).count();
    QueuePlace { place: before + 1, of: others.len() + 1 }
}

fn checks(room: &mut Room<'_>, scene: &Scene<'_>, job: &PendingJob) -> Vec<Check> {
    let check = |check, failed: Option<Waiting>| Check {
        check,
        ok: failed.is_none(),
        detail: failed.map(|waiting| waiting.to_string()).unwrap_or_default(),
    };
    let needs = match job.kind.class() {
        Class::Execution => CONTROL_IMPACT,
        // It runs there as well.
        Class::Control => job.impact.saturating_add(CONTROL_IMPACT),
    };
    let owner = room.likely_owner(&job.holders, needs).err();
    let (payload, owner) = match owner {
        Some(Waiting::Payload) => (Some(Waiting::Payload), None),
        other => (None, other),
    };
    vec![
        check("dependencies", room.unmet_dependency(job)),
        check("exclusive", room.held_word(job)),
        check("attempt", room.hold(job)),
        check("payload", payload),
        check("owner", owner),
        check("paused", scene.paused.then_some(Waiting::Paused)),
    ]
}

fn group(
    room: &mut Room<'_>,
    scene: &Scene<'_>,
    job: &PendingJob,
    name: &GroupName,
    level: Level,
) -> GroupAnswer {
    let mut answer = GroupAnswer {
        name: name.clone(),
        level,
        why: Some(Why::GroupEmpty),
        load: GroupLoad::default(),
        max_concurrent_jobs: 0,
        max_forks: 0,
        held_by: Vec::new(),
        instances: Vec::new(),
    };
    let Some(at) = scene.groups.iter().position(|group| group.name == *name) else { return answer };
    let limits = &scene.groups[at];
    (answer.max_concurrent_jobs, answer.max_forks) = (limits.max_concurrent_jobs, limits.max_forks);
    answer.load = room.loads.groups[at];
    if let Ok(owner) = room.likely_owner(&job.holders, 0) {
        answer.instances = members(room, scene, job, at, owner);
    }
    answer.why = room.group_refusal(&job.holders, name, job.impact);
    if let Some(why) = answer.why.filter(|why| why.is_room()) {
        answer.held_by = held_by(scene, limits, why);
    }
    answer
}

/// Who has the room that a job lacks in a group.
fn held_by(scene: &Scene<'_>, group: &Group, why: Why) -> Vec<HeldBy> {
    let is_there = |claim: &&Claim| {
        if why == Why::Capacity {
            claim.execution_node.as_ref().is_some_and(|node| group.has_member(node))
        } else {
            claim.group.as_ref() == Some(&group.name)
        }
    };
    let held =
        |claim: &Claim| HeldBy { job: claim.job, node: claim.execution_node.clone(), impact: claim.impact };
    scene.claims.iter().filter(is_there).take(HOLDERS).map(held).collect()
}

fn members(
    room: &Room<'_>,
    scene: &Scene<'_>,
    job: &PendingJob,
    group: usize,
    owner: usize,
) -> Vec<InstanceAnswer> {
    let is_member = |name: &InstanceName| scene.groups[group].has_member(name);
    let members = scene.instances.iter().enumerate().filter(|(_, instance)| is_member(&instance.name));
    members
        .map(|(node, instance)| {
            let owns = instance.node_type.controls() && job.holders.contains(&instance.name);
            let owner = if owns { instance } else { &scene.instances[owner] };
            let needs = Candidate { node, owns }.need(job.impact);
            let load = &room.loads.instances[node];
            let full = (load.remaining() < needs && !load.is_idle()).then_some(Why::Capacity);
            InstanceAnswer {
                name: instance.name.clone(),
                why: unfit(owner, instance, scene.require_tls, scene.now).or(full),
                needs,
                remaining: load.remaining(),
                capacity: load.capacity,
                jobs: load.jobs,
            }
        })
        .collect()
}
