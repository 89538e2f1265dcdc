//! Which instances and attempts count as lost, and who inherits the jobs of a lost owner.
//!
//! Judged by arrival times of one clock, never by what a node says its own time is, so a wrong clock
//! elsewhere loses nothing. Knows silence, not its cause.

use std::cmp::Reverse;
use std::time::Duration;

use super::attempt::Progress;
use super::fit::unusable;
use super::instance::{Instance, NodeState};
use super::job::Job;
use super::lease::Fence;
use super::load::Loads;
use super::names::{AttemptNo, InstanceName};
use super::time::Time;

/// How long silence may last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// When the judging process began to look; with PostgreSQL, whose rows outlive processes, any earlier
    /// time. Nothing is lost sooner than that plus `lost_after`.
    pub started: Time,
    /// After this long without any control node seeing an instance it is lost.
    pub lost_after: Duration,
}

impl Patience {
    /// Whether an instance last seen then is lost now, for a job that may bring its own patience.
    pub fn is_over(&self, last_seen: Option<Time>, own: Option<Duration>, now: Time) -> bool {
        let known_until = last_seen.map_or(self.started, |seen| seen.max(self.started));
        now > known_until + own.unwrap_or(self.lost_after)
    }
}

/// Whether an instance has just been lost: it was ready, and no control node sees it any more. A control
/// node sees itself with each heartbeat.
pub fn is_newly_lost(instance: &Instance, patience: &Patience, now: Time) -> bool {
    match instance.node_state {
        NodeState::Ready => patience.is_over(instance.last_seen(), None, now),
        NodeState::Installed | NodeState::Unavailable | NodeState::Deprovisioning => false,
    }
}

/// The attempts of a job that are lost now. One whose instance is not registered any more is lost at once;
/// one that runs on the job's owner itself is lost with the owner, whose lease tells that.
pub fn lost_attempts(job: &Job, instances: &[Instance], patience: &Patience, now: Time) -> Vec<AttemptNo> {
    let owner = job.fence.as_ref().map(|fence| &fence.owner);
    let is_lost = |node: &InstanceName| match instances.iter().find(|instance| instance.name == *node) {
        Some(instance) => patience.is_over(instance.last_seen(), job.lost_after, now),
        None => true,
    };
    job.attempts
        .iter()
        .filter(|attempt| match attempt.progress {
            Progress::Placed | Progress::Running => {
                attempt.node.as_ref().is_some_and(|node| owner != Some(node) && is_lost(node))
            }
            Progress::Lost | Progress::Over(_) => false,
        })
        .map(|attempt| attempt.n)
        .collect()
}

/// Which live control node inherits a job of a lost one: one that reaches the instance where the job runs,
/// before one that holds its payload, before any; of equals the one with most room. None while there is
/// no live control node.
pub fn heir(
    job: &Job,
    holders: &[InstanceName],
    instances: &[Instance],
    loads: &Loads,
    live: &[Fence],
    now: Time,
) -> Option<Fence> {
    let node = job.current().filter(|attempt| attempt.is_open()).and_then(|attempt| attempt.node.as_ref());
    let node = node.and_then(|name| instances.iter().find(|instance| instance.name == *name));
    let rank = |fence: &&Fence| {
        let at = instances.iter().position(|instance| instance.name == fence.owner)?;
        if !instances[at].node_type.controls() || unusable(&instances[at]).is_some() {
            return None;
        }
        let reaches = node.is_some_and(|node| node.is_reachable_from(&fence.owner, now));
        let holds = holders.contains(&fence.owner);
        Some((Reverse(reaches), Reverse(holds), Reverse(loads.instances[at].remaining()), at))
    };
    live.iter().filter_map(|fence| Some((rank(&fence)?, fence))).min().map(|(_, fence)| fence.clone())
}

/// What a job's new owner does first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Recovery {
    /// Its child was accepted: adopt it by its ID, and read its output again from the first byte.
    Adopt,
    /// Its child may have been sent: ask the instance, and adopt it if it is there, else see [`Unsent`].
    Ask(Unsent),
    /// Nothing of it runs.
    Nothing,
}

/// What follows when a child turns out never to have been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unsent {
    /// The payload is here: send the same attempt.
    Send,
    /// It is not: the job is pending again.
    Requeue,
}

/// What a job's new owner does first.
pub fn recovery(job: &Job, holds_payload: bool) -> Recovery {
    match job.current().map(|attempt| attempt.progress) {
        Some(Progress::Running) => Recovery::Adopt,
        Some(Progress::Placed) => Recovery::Ask(if holds_payload { Unsent::Send } else { Unsent::Requeue }),
        Some(Progress::Lost | Progress::Over(_)) | None => Recovery::Nothing,
    }
}
