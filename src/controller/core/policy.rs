//! Which instances are members of which groups, by AWX's rules: lists, then minimums, then percentages.
//!
//! Policies ignore an instance that has never been ready, because anybody may invent a name. Percentages and minimums
//! count enabled instances only. The result depends on instances and groups only, not on the current members, so a
//! second run changes nothing. State and load of an instance do not matter: a lost one stays a member.

use std::collections::{BTreeMap, BTreeSet};

use super::group::{Group, Member, MemberOrigin};
use super::instance::{Instance, NodeType};
use super::names::{GroupName, InstanceName};

/// A change of a group's members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberChange {
    /// The group.
    pub group: GroupName,
    /// All its members after the change.
    pub members: Vec<Member>,
    /// Members that are new, or that have a new origin.
    pub added: Vec<Member>,
    /// Former members.
    pub removed: Vec<InstanceName>,
}

/// The groups whose members change, given all instances in order of registration and all groups in stored
/// order.
pub fn member_changes(instances: &[Instance], groups: &[Group]) -> Vec<MemberChange> {
    let computed = compute_members(instances, groups);
    let mut changes = Vec::new();
    for (group, members) in groups.iter().zip(computed) {
        let former = group.members();
        let added: Vec<_> = members.iter().filter(|member| !former.contains(member)).cloned().collect();
        let is_gone = |old: &&Member| !members.iter().any(|member| member.name == old.name);
        let removed: Vec<_> = former.iter().filter(is_gone).map(|old| old.name.clone()).collect();
        if !added.is_empty() || !removed.is_empty() {
            changes.push(MemberChange { group: group.name.clone(), members, added, removed });
        }
    }
    changes
}

/// The members of each group, in the order of the groups, and there in order of registration. A container group has none.
fn compute_members(instances: &[Instance], groups: &[Group]) -> Vec<Vec<Member>> {
    let mut draft = Draft::from_lists(instances, groups);
    draft.fill(MemberOrigin::Minimum, |group, size, _pool| size >= group.policy.minimum);
    draft.fill(MemberOrigin::Percentage, |group, size, pool| {
        100 * size as u64 >= u64::from(group.policy.percentage) * pool as u64
    });
    draft.add_disabled();
    let place: BTreeMap<&InstanceName, usize> =
        instances.iter().enumerate().map(|(at, instance)| (&instance.name, at)).collect();
    for members in &mut draft.members {
        members.sort_by_key(|member| place.get(&member.name));
    }
    draft.members
}

/// An instance that policies may place, and the number of groups in which they placed it.
struct Candidate<'a> {
    instance: &'a Instance,
    uses: usize,
}

struct Draft<'a> {
    groups: &'a [Group],
    members: Vec<Vec<Member>>,
    /// The instances that percentages and minimums count.
    counted: BTreeSet<&'a InstanceName>,
    candidates: Vec<Candidate<'a>>,
}

impl<'a> Draft<'a> {
    /// The members that operators listed. They do not count as placed by policy, and the instance's type does
    /// not matter.
    fn from_lists(instances: &'a [Instance], groups: &'a [Group]) -> Self {
        let eligible = || instances.iter().filter(|instance| instance.node_type != NodeType::Hop);
        let known: BTreeMap<&InstanceName, &Instance> = eligible().map(|i| (&i.name, i)).collect();
        let members = groups
            .iter()
            .map(|group| {
                let mut members: Vec<Member> = Vec::new();
                for name in listed(group).iter().filter(|name| known.contains_key(name)) {
                    if !members.iter().any(|member| member.name == *name) {
                        members.push(Member { name: name.clone(), origin: MemberOrigin::List });
                    }
                }
                members
            })
            .collect();
        let candidates = eligible()
            .filter(|instance| instance.managed_by_policy && instance.has_been_ready())
            .map(|instance| Candidate { instance, uses: 0 })
            .collect();
        let counted = eligible().filter(|instance| instance.enabled && instance.has_been_ready());
        let counted = counted.map(|instance| &instance.name).collect();
        Self { groups, members, counted, candidates }
    }

    /// Adds candidates to each group until it is full. Smaller groups come first, by their size before this
    /// step; within a group, candidates in the fewest groups come first.
    fn fill(&mut self, origin: MemberOrigin, is_full: impl Fn(&Group, usize, usize) -> bool) {
        let mut order: Vec<usize> = (0..self.groups.len()).collect();
        order.sort_by_key(|&at| self.members[at].len());
        for at in order {
            let group = &self.groups[at];
            if group.is_container_group() {
                continue;
            }
            let excluded = excluded_type(&group.name);
            let mut fitting: Vec<usize> = (0..self.candidates.len())
                .filter(|&at| self.candidates[at].instance.node_type != excluded)
                .filter(|&at| self.candidates[at].instance.enabled)
                .collect();
            let pool = fitting.len();
            fitting.sort_by_key(|&at| self.candidates[at].uses);
            let mut size =
                self.members[at].iter().filter(|member| self.counted.contains(&member.name)).count();
            for candidate in fitting {
                let members = &mut self.members[at];
                if is_full(group, size, pool) {
                    break;
                }
                let candidate = &mut self.candidates[candidate];
                let name = &candidate.instance.name;
                if !members.iter().any(|member| member.name == *name) {
                    members.push(Member { name: name.clone(), origin });
                    candidate.uses += 1;
                    size += 1;
                }
            }
        }
    }

    /// A group that takes every instance also gets the disabled ones, so that it shows why nothing runs on them.
    fn add_disabled(&mut self) {
        let whole = self.groups.iter().zip(&mut self.members).filter(|(group, _)| is_whole(group));
        for (group, members) in whole {
            let excluded = excluded_type(&group.name);
            let disabled = self.candidates.iter().map(|candidate| candidate.instance).filter(|instance| {
                !instance.enabled
                    && instance.node_type != excluded
                    && !members.iter().any(|member| member.name == instance.name)
            });
            let disabled: Vec<Member> = disabled
                .map(|instance| Member { name: instance.name.clone(), origin: MemberOrigin::Percentage })
                .collect();
            members.extend(disabled);
        }
    }
}

fn is_whole(group: &Group) -> bool {
    group.policy.percentage >= 100 && !group.is_container_group()
}

fn listed(group: &Group) -> &[InstanceName] {
    if group.is_container_group() { &[] } else { &group.policy.list }
}

/// By policy, execution nodes never join the control plane, and control nodes never join any other group.
fn excluded_type(group: &GroupName) -> NodeType {
    if *group == GroupName::controlplane() { NodeType::Execution } else { NodeType::Control }
}
