//! Instance groups, and the order in which a job tries them.
//!
//! `policy` decides which instances become members, `pass` whether a job fits.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::names::{GroupName, InstanceName};
use crate::rpc::report::names::names;

/// What the jobs of a group run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Its member instances.
    Instances(Vec<Member>),
    /// A pod for each job.
    Containers,
}

names! {
    /// Why an instance is a member.
    enum MemberOrigin {
        /// An operator listed it.
        List = "list",
        /// `policy_instance_minimum`.
        Minimum = "minimum",
        /// `policy_instance_percentage`.
        Percentage = "percentage",
    }
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The instance.
    pub name: InstanceName,
    /// Why it is a member.
    pub origin: MemberOrigin,
}

/// The policy that selects a group's members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// `policy_instance_percentage`, 0 to 100.
    pub percentage: u32,
    /// `policy_instance_minimum`.
    pub minimum: usize,
    /// `policy_instance_list`, in the operator's order.
    pub list: Vec<InstanceName>,
}

/// A group of instances, or a container group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: GroupName,
    /// Selects its members.
    pub policy: Policy,
    /// What its jobs run on.
    pub backing: Backing,
    /// Jobs that may run at a time; 0 is no limit.
    pub max_concurrent_jobs: u32,
    /// Forks that may run at a time; 0 is no limit.
    pub max_forks: u32,
}

impl Group {
    /// A group of instances without members yet.
    pub fn new(name: GroupName, policy: Policy) -> Self {
        let backing = Backing::Instances(Vec::new());
        Self { name, policy, backing, max_concurrent_jobs: 0, max_forks: 0 }
    }

    /// A container group.
    pub fn containers(name: GroupName) -> Self {
        Self { backing: Backing::Containers, ..Self::new(name, Policy::default()) }
    }

    /// The two groups that always exist: without further settings every instance serves every job.
    pub fn reserved() -> [Self; 2] {
        [GroupName::controlplane(), GroupName::default_group()]
            .map(|name| Self::new(name, Policy { percentage: 100, ..Policy::default() }))
    }

    /// Its members; empty for a container group.
    pub fn members(&self) -> &[Member] {
        match &self.backing {
            Backing::Instances(members) => members,
            Backing::Containers => &[],
        }
    }

    /// Whether its jobs run in pods.
    pub fn is_container_group(&self) -> bool {
        match self.backing {
            Backing::Instances(_) => false,
            Backing::Containers => true,
        }
    }

    /// Whether an instance is in it.
    pub fn has_member(&self, name: &InstanceName) -> bool {
        self.members().iter().any(|member| member.name == *name)
    }
}

names! {
    /// The level at which a launch names groups.
    enum Level {
        /// Named at launch, which replaces the other levels.
        Launch = "launch",
        /// Of the job template.
        Template = "template",
        /// Of the inventory.
        Inventory = "inventory",
        /// Of the organization.
        Organization = "organization",
        /// No level names any group.
        Default = "default",
    }
}

/// The groups that a job's header names at each level.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object")]
pub struct LaunchGroups {
    /// Named at launch.
    pub launch: Vec<GroupName>,
    /// Of the template.
    pub template: Vec<GroupName>,
    /// Of the inventory.
    pub inventory: Vec<GroupName>,
    /// Of the organization.
    pub organization: Vec<GroupName>,
    /// Levels after which the walk ends.
    pub prevent_fallback: Vec<Level>,
}

impl LaunchGroups {
    /// All groups that are named, including those that are not tried.
    pub fn named(&self) -> BTreeSet<GroupName> {
        let levels = [&self.launch, &self.template, &self.inventory, &self.organization];
        levels.into_iter().flatten().cloned().collect()
    }

    /// The groups in the order in which the job tries them, without duplicates.
    pub fn walk(&self) -> Vec<(GroupName, Level)> {
        let levels = [
            (Level::Template, &self.template),
            (Level::Inventory, &self.inventory),
            (Level::Organization, &self.organization),
        ];
        let mut walk: Vec<(GroupName, Level)> = Vec::new();
        let mut visit = |level, groups: &[GroupName]| {
            for group in groups {
                if !walk.iter().any(|(known, _)| known == group) {
                    walk.push((group.clone(), level));
                }
            }
        };
        if self.launch.is_empty() {
            for (level, groups) in levels {
                visit(level, groups);
                if self.prevent_fallback.contains(&level) {
                    break;
                }
            }
        } else {
            visit(Level::Launch, &self.launch);
        }
        if walk.is_empty() {
            walk.push((GroupName::default_group(), Level::Default));
        }
        walk
    }
}
