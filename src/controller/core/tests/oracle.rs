//! A second, slow implementation of the placement rules, to judge a pass by. It shares no code with the pass.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::*;

/// Claimed capacity, by name.
struct Taken<'a> {
    scene: &'a Scene<'a>,
    consumed: BTreeMap<InstanceName, u32>,
    jobs: BTreeMap<InstanceName, u32>,
    groups: BTreeMap<GroupName, (u32, u32)>,
    words: BTreeMap<Word, JobId>,
}

/// A possible placement: the instance, its owner, and the capacity that would be left.
type Spot = (Option<InstanceName>, InstanceName, u32);

impl<'a> Taken<'a> {
    fn by_claims(scene: &'a Scene<'a>) -> Self {
        let empty = BTreeMap::new;
        let mut taken = Self {
            scene,
            consumed: empty(),
            jobs: BTreeMap::new(),
            groups: BTreeMap::new(),
            words: BTreeMap::new(),
        };
        for claim in scene.claims {
            taken.add(claim);
        }
        taken
    }

    fn instance(&self, name: &InstanceName) -> Option<&'a Instance> {
        self.scene.instances.iter().find(|instance| instance.name == *name)
    }

    fn add(&mut self, claim: &Claim) {
        if let Some(node) = claim.execution_node.as_ref().and_then(|name| self.instance(name)) {
            *self.jobs.entry(node.name.clone()).or_default() += 1;
            if node.node_type != NodeType::Control {
                *self.consumed.entry(node.name.clone()).or_default() += claim.impact;
            }
        }
        if let Some(owner) = &claim.owner {
            *self.consumed.entry(owner.clone()).or_default() += 1;
        }
        if let Some(group) = &claim.group {
            let entry = self.groups.entry(group.clone()).or_default();
            *entry = (entry.0 + 1, entry.1 + claim.impact);
        }
        for word in &claim.words {
            self.words.insert(word.clone(), claim.job);
        }
    }

    fn consumed(&self, name: &InstanceName) -> u32 {
        self.consumed.get(name).copied().unwrap_or(0)
    }

    fn remaining(&self, instance: &Instance) -> u32 {
        instance.capacity().saturating_sub(self.consumed(&instance.name))
    }

    fn is_blocked(&self, job: &PendingJob) -> bool {
        let held = match &job.hold {
            Some(Hold::Quota { until, words: _ }) => self.scene.now < *until,
            Some(Hold::Attempt { .. }) => true,
            None => false,
        };
        let word =
            job.exclusive.iter().any(|word| self.words.get(word).is_some_and(|holder| *holder != job.id));
        self.scene.paused
            || held
            || word
            || job.needs.iter().any(|need| need.state != Some(JobState::Successful))
    }

    fn owners(&self, job: &PendingJob) -> Vec<&'a Instance> {
        let plane = self.scene.groups.iter().find(|group| group.name.as_str() == "controlplane");
        let can_own = |instance: &&Instance| {
            plane.is_some_and(|plane| plane.has_member(&instance.name))
                && [NodeType::Control, NodeType::Hybrid].contains(&instance.node_type)
                && instance.enabled
                && !instance.draining
                && instance.node_state == NodeState::Ready
                && self.remaining(instance) >= 1
        };
        job.holders.iter().filter_map(|name| self.instance(name)).filter(can_own).collect()
    }

    /// All places in a group: those with room, or if there are none, the idle ones.
    fn places(&self, job: &PendingJob, group: &Group) -> Vec<Spot> {
        let owners = self.owners(job);
        let (running, forks) = self.groups.get(&group.name).copied().unwrap_or_default();
        let full = group.max_concurrent_jobs > 0 && running + 1 > group.max_concurrent_jobs
            || group.max_forks > 0 && forks + job.impact > group.max_forks;
        if owners.is_empty() || full {
            return Vec::new();
        }
        if matches!(group.backing, Backing::Containers) {
            return owners.iter().map(|owner| (None, owner.name.clone(), 0)).collect();
        }
        let (mut by_room, mut idle) = (Vec::new(), Vec::new());
        for node in self.scene.instances.iter().filter(|node| group.has_member(&node.name)) {
            let runs = [NodeType::Execution, NodeType::Hybrid].contains(&node.node_type);
            if !runs || !node.enabled || node.draining || node.node_state != NodeState::Ready {
                continue;
            }
            let local = node.node_type == NodeType::Hybrid && job.holders.contains(&node.name);
            let remote = |owner: &&&Instance| {
                node.seen.get(&owner.name).is_some_and(|s| s.routed)
                    && node.offer.runner
                    && (node.offer.tls || !self.scene.require_tls)
                    && (owner.signs || !node.offer.secure)
            };
            let owners: Vec<_> =
                if local { vec![node] } else { owners.iter().filter(remote).copied().collect() };
            let need = job.impact + u32::from(local);
            let is_idle = node.capacity() > 0
                && (self.jobs.get(&node.name).copied().unwrap_or(0) == 0 || self.consumed(&node.name) == 0);
            for owner in owners {
                let place = |weight| (Some(node.name.clone()), owner.name.clone(), weight);
                match self.remaining(node).checked_sub(need) {
                    Some(left) => by_room.push(place(left)),
                    None if is_idle => idle.push(place(node.capacity())),
                    None => {}
                }
            }
        }
        if by_room.is_empty() { idle } else { by_room }
    }

    fn control_places(&self, job: &PendingJob) -> Vec<Spot> {
        let fits = |owner: &&Instance| self.remaining(owner) > job.impact;
        let owners = self.owners(job).into_iter().filter(fits);
        owners.map(|owner| (Some(owner.name.clone()), owner.name.clone(), self.remaining(owner))).collect()
    }

    fn first_places(&self, job: &PendingJob) -> Option<(GroupName, Vec<Spot>)> {
        let all = if job.kind.class() == Class::Control {
            vec![(GroupName::controlplane(), self.control_places(job))]
        } else {
            let known = |name: &GroupName| self.scene.groups.iter().find(|group| group.name == *name);
            let groups = job.groups.iter().filter_map(|(name, _)| known(name));
            groups.map(|group| (group.name.clone(), self.places(job, group))).collect()
        };
        all.into_iter().find(|(_, places)| !places.is_empty())
    }
}

/// Panics unless the decisions are correct: in order, each placement allowed and the best one, and no waiting
/// job fits.
pub(super) fn check(scene: &Scene<'_>, pending: &[PendingJob], decisions: &[Decision]) {
    let by_id: BTreeMap<JobId, &PendingJob> = pending.iter().map(|job| (job.id, job)).collect();
    let mut taken = Taken::by_claims(scene);
    let mut passed_over: Vec<&PendingJob> = Vec::new();
    let mut last = None;
    assert_eq!(decisions.len(), pending.len(), "every pending job is looked at");
    for decision in decisions {
        let id = match decision {
            Decision::Place(place) => place.job,
            Decision::Fail(id, _) | Decision::Wait(id, _) => *id,
        };
        let job = by_id[&id];
        let rank = Some((Reverse(job.priority), id));
        assert!(last < rank, "{id} is out of order or was decided twice");
        last = rank;
        match decision {
            Decision::Fail(_, _) => {}
            Decision::Wait(_, _) => {
                assert!(taken.is_blocked(job) || taken.first_places(job).is_none(), "{job:?} fits");
                passed_over.push(job);
            }
            Decision::Place(place) => {
                for higher in &passed_over {
                    let fits = !taken.is_blocked(higher) && taken.first_places(higher).is_some();
                    assert!(!fits, "{id} was placed where {} fitted", higher.id);
                }
                assert!(!taken.is_blocked(job), "{id} is blocked");
                let (group, places) = taken.first_places(job).expect("it fits somewhere");
                assert_eq!(place.group, group);
                let best = places.iter().map(|(_, _, weight)| *weight).max();
                let here = places
                    .iter()
                    .find(|(node, owner, _)| *node == place.execution_node && *owner == place.owner);
                let reaches_best = here.map(|(_, _, weight)| Some(*weight) == best);
                let single_owner = taken.owners(job).len() == 1;
                assert!(reaches_best.is_some(), "{place:?} is not among {places:?}");
                assert!(
                    !single_owner || reaches_best == Some(true),
                    "{place:?} is not the best of {places:?}"
                );
                taken.add(&Claim {
                    job: id,
                    owner: Some(place.owner.clone()),
                    execution_node: place.execution_node.clone(),
                    group: Some(place.group.clone()),
                    impact: job.impact,
                    words: job.exclusive.clone(),
                });
            }
        }
    }
    for job in passed_over {
        assert!(taken.is_blocked(job) || taken.first_places(job).is_none(), "after the pass {} fits", job.id);
    }
}
