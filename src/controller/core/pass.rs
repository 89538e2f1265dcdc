//! One pass over the queue: which pending jobs start now, and where.
//!
//! Jobs are considered by priority, then by creation. A job that does not fit never delays a smaller one, and every
//! pending job is considered, so after a pass no waiting job would fit anywhere. During a pass capacity only shrinks: a
//! group that was full for one job stays full for all jobs that are as large. A pass neither saves nor starts anything.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::fit::{Candidate, Why, largest_idle, roomiest, unfit, unusable};
use super::group::{Group, Member};
use super::impact::{CONTROL_IMPACT, Class};
use super::instance::{Instance, NodeState};
use super::load::{Claim, Loads};
use super::names::{GroupName, InstanceName, JobId, Word};
use super::queue::{ChildType, Decision, Hold, PendingEnd, PendingJob, Placement, Waiting};
use super::time::Time;

/// The state that a pass works on, apart from the queue.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// In order of registration.
    pub instances: &'a [Instance],
    /// In stored order, with their members.
    pub groups: &'a [Group],
    /// What runs now.
    pub claims: &'a [Claim],
    /// Jobs may only be sent over TLS.
    pub require_tls: bool,
    /// An operator paused the controller: nothing is placed.
    pub paused: bool,
    /// The time of the pass.
    pub now: Time,
}

/// Decides about each pending job, in the order in which it considers them.
pub fn pass(scene: &Scene<'_>, pending: &[PendingJob]) -> Vec<Decision> {
    let ends = pending_ends(pending, scene.now);
    let mut order: Vec<&PendingJob> = pending.iter().collect();
    order.sort_by_key(|job| job.turn());
    let mut room = Room::new(scene);
    order
        .into_iter()
        .map(|job| match ends.get(&job.id) {
            Some(end) => Decision::Fail(job.id, *end),
            None => room.decide(job),
        })
        .collect()
}

/// The jobs that fail without having run. A job is created after its dependencies, so one walk by number
/// covers whole chains.
fn pending_ends(pending: &[PendingJob], now: Time) -> HashMap<JobId, PendingEnd> {
    let mut by_id: Vec<&PendingJob> = pending.iter().collect();
    by_id.sort_by_key(|job| job.id);
    let mut ends = HashMap::new();
    for job in by_id {
        let broken = job.needs.iter().find(|need| {
            ends.contains_key(&need.job)
                || need.state.is_none_or(|state| state.is_final() && !state.is_success())
        });
        let overdue = job.pending_timeout.filter(|allowed| now > job.since + *allowed);
        if let Some(need) = broken {
            ends.insert(job.id, PendingEnd::Dependency(need.job));
        } else if let Some(allowed) = overdue {
            ends.insert(job.id, PendingEnd::TimedOut(allowed));
        }
    }
    ends
}

/// Control nodes that hold the same payload; each of them may own the job.
struct Holders {
    /// Indexes of the holders that can own a job now, capacity aside.
    owners: Vec<usize>,
    /// Indexes of all holders.
    all: Vec<usize>,
    /// Why no holder can own a job, if none can.
    none: Waiting,
}

/// The fit members of one group, for one set of holders.
struct FitMembers {
    /// The candidates for each owner of the set, in order.
    candidates: Vec<Vec<Candidate>>,
    /// Why no member is fit, if none is.
    none: Option<Why>,
    /// The smallest impact that did not fit in this pass.
    full_from: u32,
}

/// The capacity that is left during a pass.
pub(super) struct Room<'a> {
    scene: Scene<'a>,
    pub(super) loads: Loads,
    instance_at: HashMap<&'a InstanceName, usize>,
    group_at: HashMap<&'a GroupName, usize>,
    in_controlplane: Vec<bool>,
    words: HashMap<Word, JobId>,
    holder_ids: HashMap<Vec<InstanceName>, usize>,
    holders: Vec<Holders>,
    members: HashMap<(usize, usize), FitMembers>,
}

impl<'a> Room<'a> {
    pub(super) fn new(scene: &Scene<'a>) -> Self {
        let controlplane = GroupName::controlplane();
        let group_at: HashMap<_, _> = scene.groups.iter().enumerate().map(|(at, g)| (&g.name, at)).collect();
        let controlplane = group_at.get(&controlplane).map(|&at| &scene.groups[at]);
        let is_owner =
            |i: &Instance| i.node_type.controls() && controlplane.is_some_and(|g| g.has_member(&i.name));
        let words = scene.claims.iter().flat_map(|c| c.words.iter().map(|word| (word.clone(), c.job)));
        Self {
            scene: *scene,
            loads: Loads::sum(scene.instances, scene.groups, scene.claims),
            instance_at: scene.instances.iter().enumerate().map(|(at, i)| (&i.name, at)).collect(),
            in_controlplane: scene.instances.iter().map(is_owner).collect(),
            group_at,
            words: words.collect(),
            holder_ids: HashMap::new(),
            holders: Vec::new(),
            members: HashMap::new(),
        }
    }

    /// Places a job and claims its capacity, or returns what it waits for.
    pub(super) fn decide(&mut self, job: &PendingJob) -> Decision {
        match self.blocked(job).map_or_else(|| self.place(job), Err) {
            Ok(placement) => Decision::Place(placement),
            Err(waiting) => Decision::Wait(job.id, waiting),
        }
    }

    /// Why a job cannot be placed regardless of capacity.
    pub(super) fn blocked(&self, job: &PendingJob) -> Option<Waiting> {
        if self.scene.paused {
            return Some(Waiting::Paused);
        }
        self.unmet_dependency(job).or_else(|| self.held_word(job)).or_else(|| self.hold(job))
    }

    pub(super) fn unmet_dependency(&self, job: &PendingJob) -> Option<Waiting> {
        let unmet = job.needs.iter().find(|need| need.state.is_none_or(|state| !state.is_success()));
        unmet.map(|need| Waiting::Dependency(need.job))
    }

    pub(super) fn held_word(&self, job: &PendingJob) -> Option<Waiting> {
        job.exclusive.iter().find_map(|word| {
            let holder = self.words.get(word).filter(|holder| **holder != job.id)?;
            Some(Waiting::Exclusive(word.clone(), *holder))
        })
    }

    pub(super) fn hold(&self, job: &PendingJob) -> Option<Waiting> {
        match &job.hold {
            Some(Hold::Quota { until, words: _ }) if self.scene.now >= *until => None,
            hold => hold.clone().map(Waiting::Hold),
        }
    }

    fn place(&mut self, job: &PendingJob) -> Result<Placement, Waiting> {
        let holders = self.holders_of(&job.holders);
        let placed = match job.kind.class() {
            Class::Control => self.place_on_owner(holders, job.impact)?,
            Class::Execution => self.place_in_groups(holders, job)?,
        };
        for word in &job.exclusive {
            self.words.insert(word.clone(), job.id);
        }
        let Placed { owner, node, group } = placed;
        self.loads.charge(self.scene.instances, Some(owner), node, group, job.impact);
        let name = |at: usize| self.scene.instances[at].name.clone();
        Ok(Placement {
            job: job.id,
            owner: name(owner),
            execution_node: node.map(name),
            group: group.map_or_else(GroupName::controlplane, |at| self.scene.groups[at].name.clone()),
            child: match node {
                None => ChildType::Container,
                Some(node) if node == owner => ChildType::Local,
                Some(_) => ChildType::Runner,
            },
        })
    }

    /// The index of a set of holders. There are few sets, and many jobs for each.
    fn holders_of(&mut self, names: &[InstanceName]) -> usize {
        if let Some(id) = self.holder_ids.get(names) {
            return *id;
        }
        let all: Vec<usize> = names.iter().filter_map(|name| self.instance_at.get(name).copied()).collect();
        let instance = |at: &usize| &self.scene.instances[*at];
        let illness = |at: &usize| Some((instance(at).name.clone(), instance(at).illness()?.to_owned()));
        let is_lost = |at: &usize| instance(at).node_state == NodeState::Unavailable && illness(at).is_none();
        let owners: Vec<usize> = all
            .iter()
            .copied()
            .filter(|at| self.in_controlplane[*at] && unusable(instance(at)).is_none())
            .collect();
        let none = if all.iter().all(is_lost) {
            Waiting::Payload
        } else {
            let why = all.iter().filter_map(|at| unusable(instance(at))).min();
            match all.iter().find_map(illness).filter(|_| why == Some(Why::NotReady)) {
                Some((node, error)) => Waiting::Runner(node, error),
                None => Waiting::Owner(why.unwrap_or(Why::WrongClass)),
            }
        };
        let id = self.holders.len();
        self.holders.push(Holders { owners, all, none });
        self.holder_ids.insert(names.to_vec(), id);
        id
    }

    /// The owners with that much capacity left, roomiest first, as indexes into the set's list.
    fn owners_with(&self, holders: usize, need: u32) -> Result<Vec<usize>, Waiting> {
        let holders = &self.holders[holders];
        if holders.owners.is_empty() {
            return Err(holders.none.clone());
        }
        let remaining = |at: &usize| self.loads.instances[holders.owners[*at]].remaining();
        let mut owners: Vec<usize> = (0..holders.owners.len()).filter(|at| remaining(at) >= need).collect();
        owners.sort_by_key(|at| Reverse(remaining(at)));
        if owners.is_empty() { Err(Waiting::Owner(Why::Capacity)) } else { Ok(owners) }
    }

    /// A job of class control runs on its owner, which needs capacity for both impacts.
    fn place_on_owner(&self, holders: usize, impact: u32) -> Result<Placed, Waiting> {
        let owners = self.owners_with(holders, impact.saturating_add(CONTROL_IMPACT))?;
        let owner = self.holders[holders].owners[owners[0]];
        let group = self.group_at.get(&GroupName::controlplane()).copied();
        Ok(Placed { owner, node: Some(owner), group })
    }

    fn place_in_groups(&mut self, holders: usize, job: &PendingJob) -> Result<Placed, Waiting> {
        let owners = self.owners_with(holders, CONTROL_IMPACT)?;
        let mut reasons = Vec::with_capacity(job.groups.len());
        for (name, _) in &job.groups {
            match self.place_in_group(holders, &owners, name, job.impact) {
                Ok(placed) => return Ok(placed),
                Err(why) => reasons.push((name.clone(), why)),
            }
        }
        Err(Waiting::Groups(reasons))
    }

    fn place_in_group(
        &mut self,
        holders: usize,
        owners: &[usize],
        name: &GroupName,
        impact: u32,
    ) -> Result<Placed, Why> {
        let at = *self.group_at.get(name).ok_or(Why::GroupEmpty)?;
        let group = &self.scene.groups[at];
        if let Some(why) = self.over_limit(at, impact) {
            return Err(why);
        }
        if group.is_container_group() {
            let owner = self.holders[holders].owners[owners[0]];
            return Ok(Placed { owner, node: None, group: Some(at) });
        }
        let key = (holders, at);
        if !self.members.contains_key(&key) {
            let members = self.fit_members(&self.holders[holders], group);
            self.members.insert(key, members);
        }
        let Some(members) = self.members.get_mut(&key) else { return Err(Why::GroupEmpty) };
        if let Some(why) = members.none {
            return Err(why);
        }
        if impact >= members.full_from {
            return Err(Why::Capacity);
        }
        let loads = &self.loads;
        let chosen = owners
            .iter()
            .find_map(|owner| Some((*owner, roomiest(&members.candidates[*owner], loads, impact)?)))
            .or_else(|| {
                owners.iter().find_map(|o| Some((*o, largest_idle(&members.candidates[*o], loads)?)))
            });
        let Some((owner, Candidate { node, owns })) = chosen else {
            members.full_from = impact;
            return Err(Why::Capacity);
        };
        let owner = if owns { node } else { self.holders[holders].owners[owner] };
        Ok(Placed { owner, node: Some(node), group: Some(at) })
    }

    /// Which of the group's own limits one more job of that impact would exceed.
    pub(super) fn over_limit(&self, group: usize, impact: u32) -> Option<Why> {
        let (limits, load) = (&self.scene.groups[group], &self.loads.groups[group]);
        if limits.max_concurrent_jobs > 0 && load.jobs >= limits.max_concurrent_jobs {
            return Some(Why::GroupJobs);
        }
        let exceeds = limits.max_forks > 0 && load.forks.saturating_add(impact) > limits.max_forks;
        exceeds.then_some(Why::GroupForks)
    }

    fn fit_members(&self, holders: &Holders, group: &Group) -> FitMembers {
        let mut none = group.members().is_empty().then_some(Why::GroupEmpty);
        let member_at = |member: &Member| self.instance_at.get(&member.name).copied();
        let mut members: Vec<usize> = group.members().iter().filter_map(member_at).collect();
        members.sort_unstable();
        let mut candidates = Vec::with_capacity(holders.owners.len());
        for &owner in &holders.owners {
            let mut fit = Vec::new();
            for &node in &members {
                let instance = &self.scene.instances[node];
                let owns = instance.node_type.controls() && holders.all.contains(&node);
                let owner = if owns { instance } else { &self.scene.instances[owner] };
                match unfit(owner, instance, self.scene.require_tls) {
                    None => fit.push(Candidate { node, owns }),
                    Some(why) => none = Some(none.map_or(why, |known: Why| known.min(why))),
                }
            }
            candidates.push(fit);
        }
        if candidates.iter().any(|fit| !fit.is_empty()) {
            none = None;
        }
        FitMembers { candidates, none, full_from: u32::MAX }
    }

    /// The roomiest control node among those that could own a job with these holders.
    pub(super) fn likely_owner(&mut self, holders: &[InstanceName], need: u32) -> Result<usize, Waiting> {
        let id = self.holders_of(holders);
        let owners = self.owners_with(id, need)?;
        Ok(self.holders[id].owners[owners[0]])
    }

    /// Why a group does not take a job; `None` if it does. If no node can own the job, no group takes it, for the same
    /// reason.
    pub(super) fn group_refusal(
        &mut self,
        holders: &[InstanceName],
        name: &GroupName,
        impact: u32,
    ) -> Option<Why> {
        let id = self.holders_of(holders);
        match self.owners_with(id, CONTROL_IMPACT) {
            Ok(owners) => self.place_in_group(id, &owners, name, impact).err(),
            Err(Waiting::Owner(why)) => Some(why),
            // The holders of the payload are lost, or their runner fails.
            Err(
                Waiting::Payload
                | Waiting::Runner(_, _)
                | Waiting::Paused
                | Waiting::Dependency(_)
                | Waiting::Exclusive(_, _)
                | Waiting::Hold(_)
                | Waiting::Groups(_),
            ) => Some(Why::NotReady),
        }
    }
}

/// A placement, by indexes.
struct Placed {
    owner: usize,
    node: Option<usize>,
    group: Option<usize>,
}
