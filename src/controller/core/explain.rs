//! Why a pending job does not run: the checks that come before capacity, then each group and each of its
//! members.
//!
//! It makes the same decisions as a pass, for one job and with all details.

use super::fit::{Candidate, Why, unfit};
use super::group::Level;
use super::impact::{CONTROL_IMPACT, Class};
use super::names::{GroupName, InstanceName};
use super::pass::{Room, Scene};
use super::queue::{Decision, PendingJob, Waiting};

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
    /// Its members.
    pub instances: Vec<InstanceAnswer>,
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
}

/// Explains a pending job.
pub fn explain(scene: &Scene<'_>, job: &PendingJob) -> Explanation {
    let mut room = Room::new(scene);
    let checks = checks(&mut room, scene, job);
    let groups = match job.kind.class() {
        Class::Execution => {
            job.groups.iter().map(|(name, level)| group(&mut room, scene, job, name, *level)).collect()
        }
        Class::Control => Vec::new(),
    };
    let summary = match room.decide(job) {
        Decision::Place(place) => {
            let site = place.execution_node.map_or_else(|| place.group.to_string(), |node| node.to_string());
            format!("starts in the next pass on {site}, unless another job comes first")
        }
        Decision::Fail(_, end) => end.to_string(),
        Decision::Wait(_, waiting) => waiting.to_string(),
    };
    Explanation { summary, checks, groups }
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
    let answer = |why, instances| GroupAnswer { name: name.clone(), level, why, instances };
    let Some(at) = scene.groups.iter().position(|group| group.name == *name) else {
        return answer(Some(Why::GroupEmpty), Vec::new());
    };
    let instances = match room.likely_owner(&job.holders, 0) {
        Ok(owner) => members(room, scene, job, at, owner),
        Err(_) => Vec::new(),
    };
    answer(room.group_refusal(&job.holders, name, job.impact), instances)
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
            }
        })
        .collect()
}
