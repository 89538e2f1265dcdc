//! Why a pending job does not run: the checks that come before capacity, then each group with each of its members and
//! with what runs there, and the job's place in the queue.
//!
//! It makes the same decisions as a pass, for one job and with all details.

use super::fit::{Candidate, Why, unfit};
use super::group::{Group, Level};
use super::impact::{CONTROL_IMPACT, Class};
use super::load::Claim;
use super::names::{GroupName, InstanceName};
use super::pass::{Room, Scene};
use super::queue::{Decision, Hold, PendingJob, Waiting};
use super::state::JobState;
use crate::rpc::report::Lenient;
use crate::rpc::report::controller::{
    CheckReport, Explained, ExplainedGroup, ExplainedInstance, PlaceHolder, QueuePlace,
};

/// The most jobs that are named as holders of a group's room.
const HOLDERS: usize = 20;

/// Explains a pending job; `pending` holds all pending jobs. The caller adds `silent`.
pub fn explain(scene: &Scene<'_>, pending: &[PendingJob], job: &PendingJob) -> Explained {
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
    let (id, state) = (job.id.0, Lenient::Known(JobState::Pending));
    Explained { id, state, summary, checks, groups, queue, silent: None }
}

/// Its place among the jobs that compete with it for room, and that nothing else holds up.
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

fn checks(room: &mut Room<'_>, scene: &Scene<'_>, job: &PendingJob) -> Vec<CheckReport> {
    let check = |check: &str, failed: Option<Waiting>| CheckReport {
        check: check.to_owned(),
        ok: failed.is_none(),
        detail: failed.map(|waiting| waiting.to_string()).unwrap_or_default(),
    };
    let needs = match job.kind.class() {
        Class::Execution => CONTROL_IMPACT,
        // Such a job runs on its owner.
        Class::Control => job.impact.saturating_add(CONTROL_IMPACT),
    };
    let owner = room.likely_owner(&job.holders, needs).err();
    let (payload, owner) = match owner {
        Some(Waiting::Payload) => (Some(Waiting::Payload), None),
        other => (None, other),
    };
    let held = room.hold(job);
    let way_out = match &held {
        Some(Waiting::Hold(Hold::Attempt { attempt, node: _ })) => {
            format!("; if it does not run: meshctl job confirm-lost {} --attempt {attempt}", job.id)
        }
        Some(_) | None => String::new(),
    };
    let mut former = check("attempt", held);
    former.detail.push_str(&way_out);
    vec![
        check("dependencies", room.unmet_dependency(job)),
        check("exclusive", room.held_word(job)),
        former,
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
) -> ExplainedGroup {
    let mut answer = ExplainedGroup {
        name: name.to_string(),
        level: level.name().to_owned(),
        why: code(Some(Why::GroupEmpty)),
        ..ExplainedGroup::default()
    };
    let Some(at) = scene.groups.iter().position(|group| group.name == *name) else { return answer };
    let (limits, load) = (&scene.groups[at], room.loads.groups[at]);
    (answer.jobs_running, answer.max_concurrent_jobs) = (load.jobs, limits.max_concurrent_jobs);
    (answer.forks_running, answer.max_forks) = (load.forks, limits.max_forks);
    if let Ok(owner) = room.likely_owner(&job.holders, 0) {
        answer.instances = members(room, scene, job, at, owner);
    }
    let why = room.group_refusal(&job.holders, name, job.impact);
    if let Some(why) = why.filter(|why| why.is_room()) {
        answer.held_by = held_by(scene, limits, why);
    }
    (answer.ok, answer.why) = (why.is_none(), code(why));
    answer
}

fn code(why: Option<Why>) -> Option<String> {
    why.map(|why| why.code().to_owned())
}

/// The jobs that hold the room that this job lacks in a group: at most [`HOLDERS`], the oldest first.
fn held_by(scene: &Scene<'_>, group: &Group, why: Why) -> Vec<PlaceHolder> {
    let is_there = |claim: &&Claim| {
        if why == Why::Capacity {
            claim.execution_node.as_ref().is_some_and(|node| group.has_member(node))
        } else {
            claim.group.as_ref() == Some(&group.name)
        }
    };
    let held = |claim: &Claim| PlaceHolder {
        job: claim.job.0,
        node: claim.execution_node.as_ref().map(ToString::to_string),
        impact: claim.impact,
    };
    scene.claims.iter().filter(is_there).take(HOLDERS).map(held).collect()
}

fn members(
    room: &Room<'_>,
    scene: &Scene<'_>,
    job: &PendingJob,
    group: usize,
    owner: usize,
) -> Vec<ExplainedInstance> {
    let is_member = |name: &InstanceName| scene.groups[group].has_member(name);
    let members = scene.instances.iter().enumerate().filter(|(_, instance)| is_member(&instance.name));
    members
        .map(|(node, instance)| {
            let owns = instance.node_type.controls() && job.holders.contains(&instance.name);
            let owner = if owns { instance } else { &scene.instances[owner] };
            let needs = Candidate { node, owns }.need(job.impact);
            let load = &room.loads.instances[node];
            let full = (load.remaining() < needs && !load.is_idle()).then_some(Why::Capacity);
            let why = unfit(owner, instance, scene.require_tls).or(full);
            ExplainedInstance {
                name: instance.name.to_string(),
                ok: why.is_none(),
                why: code(why),
                needs,
                remaining: load.remaining(),
                capacity: load.capacity,
                jobs_running: load.jobs,
            }
        })
        .collect()
}
