//! Which instances may run a job, and why the others may not.
//!
//! There are two questions. Whether an instance is fit at all does not change during a pass. Whether a fit instance has
//! room does. This module looks at one job at a time; `pass` decides the order of jobs.

use super::impact::CONTROL_IMPACT;
use super::instance::{Instance, NodeState};
use super::load::Loads;

/// Why an instance or a group does not take a job, nearest miss first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// Its remaining capacity is less than the job needs.
    Capacity,
    /// The group's limit of jobs is reached.
    GroupJobs,
    /// The job would exceed the group's limit of forks.
    GroupForks,
    /// The owner has no route to it, or no recent advertisement.
    Unreachable,
    /// Lost, not checked yet, or its last health check failed.
    NotReady,
    /// It is being removed.
    Draining,
    /// An operator disabled it.
    Disabled,
    /// It only takes signed work, and the owner has no signing key.
    NeedsSignature,
    /// Its control service has no TLS, and jobs may only be sent over TLS.
    NeedsTls,
    /// It does not advertise the runner's work type.
    NoType,
    /// Its node type runs no jobs of this class.
    WrongClass,
    /// The group has no member, or does not exist any more.
    GroupEmpty,
}

impl Why {
    /// The code in answers to clients.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::GroupJobs => "group_jobs",
            Self::GroupForks => "group_forks",
            Self::Unreachable => "unreachable",
            Self::NotReady => "not_ready",
            Self::Draining => "draining",
            Self::Disabled => "disabled",
            Self::NeedsSignature => "needs_signature",
            Self::NeedsTls => "needs_tls",
            Self::NoType => "no_type",
            Self::WrongClass => "wrong_class",
            Self::GroupEmpty => "group_empty",
        }
    }

    /// Whether room is missing, which the end of another job makes.
    pub(super) const fn is_room(self) -> bool {
        match self {
            Self::Capacity | Self::GroupJobs | Self::GroupForks => true,
            Self::Unreachable
            | Self::NotReady
            | Self::Draining
            | Self::Disabled
            | Self::NeedsSignature
            | Self::NeedsTls
            | Self::NoType
            | Self::WrongClass
            | Self::GroupEmpty => false,
        }
    }
}

/// Why an instance can run no job of any class, for an operator's list.
pub fn unusable(instance: &Instance) -> Option<Why> {
    if instance.draining {
        return Some(Why::Draining);
    }
    if !instance.enabled {
        return Some(Why::Disabled);
    }
    match instance.node_state {
        NodeState::Ready => None,
        NodeState::Installed | NodeState::Unavailable => Some(Why::NotReady),
        NodeState::Deprovisioning => Some(Why::Draining),
    }
}

/// Why an instance cannot run a job of class execution that this control node owns.
pub fn unfit(owner: &Instance, node: &Instance, require_tls: bool) -> Option<Why> {
    if !node.node_type.executes() {
        return Some(Why::WrongClass);
    }
    if let Some(why) = unusable(node) {
        return Some(why);
    }
    if owner.name == node.name {
        return None;
    }
    if !node.is_reachable_from(&owner.name) {
        return Some(Why::Unreachable);
    }
    if !node.offer.runner {
        return Some(Why::NoType);
    }
    if require_tls && !node.offer.tls {
        return Some(Why::NeedsTls);
    }
    (node.offer.secure && !owner.signs).then_some(Why::NeedsSignature)
}

/// A fit instance, by index, and the control node that would own the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) node: usize,
    /// The owner, if it is this instance itself: a hybrid node that holds the payload.
    pub(super) owns: bool,
}

impl Candidate {
    /// The capacity that a job of that impact needs on it.
    pub(super) fn need(&self, impact: u32) -> u32 {
        if self.owns { impact.saturating_add(CONTROL_IMPACT) } else { impact }
    }
}

/// The candidate that would have the most room left after the job; the first one on a tie.
pub(super) fn roomiest(candidates: &[Candidate], loads: &Loads, impact: u32) -> Option<Candidate> {
    let mut best: Option<(Candidate, u32)> = None;
    for &candidate in candidates {
        let left = loads.instances[candidate.node].remaining().checked_sub(candidate.need(impact));
        if let Some(left) = left
            && best.is_none_or(|(_, most)| left > most)
        {
            best = Some((candidate, left));
        }
    }
    best.map(|(candidate, _)| candidate)
}

/// The idle candidate with the largest capacity, the first one on a tie. It takes a job that fits nowhere.
pub(super) fn largest_idle(candidates: &[Candidate], loads: &Loads) -> Option<Candidate> {
    let mut best: Option<(Candidate, u32)> = None;
    for &candidate in candidates {
        let load = &loads.instances[candidate.node];
        if load.is_idle() && best.is_none_or(|(_, largest)| load.capacity > largest) {
            best = Some((candidate, load.capacity));
        }
    }
    best.map(|(candidate, _)| candidate)
}
