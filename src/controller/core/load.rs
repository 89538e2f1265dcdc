//! What runs now, and how much of instances and groups it occupies.
//!
//! A claim is the capacity that one open attempt holds. Everything here is a sum over claims, computed each
//! time, so no counter can drift.

use std::collections::HashMap;

use super::group::Group;
use super::impact::CONTROL_IMPACT;
use super::instance::{Instance, NodeType};

use super::names::{GroupName, InstanceName, JobId, Word};

/// The capacity that one open attempt holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The job of the attempt.
    pub job: JobId,
    /// The control node that drives it; `None` if no node does any more.
    pub owner: Option<InstanceName>,
    /// The instance that runs it; `None` in a container group.
    pub execution_node: Option<InstanceName>,
    /// The group through which it was placed; `None` if the job has ended or moved on, and only the attempt is left.
    pub group: Option<GroupName>,
    /// Its impact.
    pub impact: u32,
    /// The words of `exclusive` that its job holds.
    pub words: Vec<Word>,
}

/// The load of one instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InstanceLoad {
    /// The capacity of the instance.
    pub capacity: u32,
    /// The claimed capacity. It exceeds the capacity after an idle instance took a job that is too large for
    /// it.
    pub consumed: u32,
    /// Attempts that run on it.
    pub jobs: u32,
}

impl InstanceLoad {
    /// The unclaimed capacity, never below 0.
    pub fn remaining(&self) -> u32 {
        self.capacity.saturating_sub(self.consumed)
    }

    /// Whether it may take a job that is larger than its capacity: only attempts without impact, if any, run there.
    pub fn is_idle(&self) -> bool {
        self.capacity > 0 && (self.jobs == 0 || self.consumed == 0)
    }
}

/// The load of one group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupLoad {
    /// Jobs placed through it.
    pub jobs: u32,
    /// The sum of their impacts.
    pub forks: u32,
}

/// A group's capacity for operators: sums over its members.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupCapacity {
    /// Sum over members; the limit of forks for a container group.
    pub capacity: u32,
    /// Sum over members. A job in one group also reduces every other group with the same instance.
    pub consumed: u32,
    /// Sum over members.
    pub remaining: u32,
    /// Jobs placed through the group.
    pub jobs_running: u32,
}

/// The loads of instances and groups, by index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loads {
    /// One for each instance.
    pub instances: Vec<InstanceLoad>,
    /// One for each group.
    pub groups: Vec<GroupLoad>,
}

impl Loads {
    /// Sums up the claims.
    pub fn sum(instances: &[Instance], groups: &[Group], claims: &[Claim]) -> Self {
        let start =
            |instance: &Instance| InstanceLoad { capacity: instance.capacity(), ..Default::default() };
        let mut loads = Self {
            instances: instances.iter().map(start).collect(),
            groups: vec![GroupLoad::default(); groups.len()],
        };
        let instance_at: HashMap<_, _> = instances.iter().enumerate().map(|(at, i)| (&i.name, at)).collect();
        let group_at: HashMap<_, _> = groups.iter().enumerate().map(|(at, g)| (&g.name, at)).collect();
        for claim in claims {
            let node = claim.execution_node.as_ref().and_then(|name| instance_at.get(name).copied());
            let owner = claim.owner.as_ref().and_then(|name| instance_at.get(name).copied());
            let group = claim.group.as_ref().and_then(|name| group_at.get(name).copied());
            loads.charge(instances, owner, node, group, claim.impact);
        }
        loads
    }

    /// Adds one claim, by indexes. The instance that runs the job is charged its impact, the owner the control impact.
    /// A node of type control that runs a job itself is charged the control impact only.
    pub(super) fn charge(
        &mut self,
        instances: &[Instance],
        owner: Option<usize>,
        node: Option<usize>,
        group: Option<usize>,
        impact: u32,
    ) {
        if let Some(at) = node {
            let load = &mut self.instances[at];
            load.jobs += 1;
            match instances[at].node_type {
                NodeType::Hybrid | NodeType::Execution => {
                    load.consumed = load.consumed.saturating_add(impact)
                }
                NodeType::Control | NodeType::Hop => {}
            }
        }
        if let Some(at) = owner {
            match instances[at].node_type {
                NodeType::Control | NodeType::Hybrid => {
                    let load = &mut self.instances[at];
                    load.consumed = load.consumed.saturating_add(CONTROL_IMPACT);
                }
                NodeType::Execution | NodeType::Hop => {}
            }
        }
        if let Some(at) = group {
            self.groups[at].jobs += 1;
            self.groups[at].forks = self.groups[at].forks.saturating_add(impact);
        }
    }

    /// The capacity of a group, as shown to operators.
    pub fn group_capacity(&self, instances: &[Instance], groups: &[Group], at: usize) -> GroupCapacity {
        let group = &groups[at];
        let own = self.groups[at];
        if group.is_container_group() {
            let remaining = group.max_forks.saturating_sub(own.forks);
            return GroupCapacity {
                capacity: group.max_forks,
                consumed: own.forks,
                remaining,
                jobs_running: own.jobs,
            };
        }
        let mut sum = GroupCapacity { jobs_running: own.jobs, ..GroupCapacity::default() };
        for (instance, load) in instances.iter().zip(&self.instances) {
            if group.has_member(&instance.name) {
                sum.capacity = sum.capacity.saturating_add(load.capacity);
                sum.consumed = sum.consumed.saturating_add(load.consumed);
                sum.remaining = sum.remaining.saturating_add(load.remaining());
            }
        }
        sum
    }
}
