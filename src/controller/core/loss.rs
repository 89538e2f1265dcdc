//! Which instances do not answer, which of them and which attempts count as lost, and which node inherits the jobs of a
//! lost owner.
//!
//! The judging node counts by its own clock how long the sightings of an instance have not changed, so a clock that is
//! set wrong makes no instance lost. This module sees silence, not its cause.

use std::cmp::Reverse;
use std::time::Duration;

use super::attempt::Progress;
use super::fit::unusable;
use super::instance::{Instance, NodeState, SightingWatch};
use super::job::Job;
use super::lease::Fence;
use super::load::Loads;
use super::names::{AttemptNo, InstanceName};
use super::time::Time;

/// How long an instance may stay silent, and how long each has been silent.
#[derive(Debug, Clone, Default)]
pub struct Patience {
    /// The sightings that the judging node has watched.
    pub sightings: SightingWatch,
    /// The time by that node's clock.
    pub now: Time,
    /// An instance that no control node has seen for this long is lost.
    pub lost_after: Duration,
}

impl Patience {
    /// How long no control node has seen an instance, counted only while the judging node has watched.
    fn silence_of(&self, instance: &Instance) -> Duration {
        let unchanged = instance.seen.iter().map(|(observer, sighting)| {
            let key = (instance.name.clone(), observer.clone());
            self.sightings.unchanged_for(&key, sighting, self.now)
        });
        unchanged.min().unwrap_or_else(|| self.sightings.watched_for(self.now))
    }

    /// Whether an instance is lost now, for a job that may override the limit.
    pub fn is_over(&self, instance: &Instance, own: Option<Duration>) -> bool {
        self.silence_of(instance) > own.unwrap_or(self.lost_after)
    }

    /// How long an instance may stay silent until it is lost.
    fn left(&self, instance: Option<&Instance>, own: Option<Duration>) -> Duration {
        let silent = instance.map_or(Duration::MAX, |instance| self.silence_of(instance));
        own.unwrap_or(self.lost_after).saturating_sub(silent)
    }
}

/// An instance that its control node cannot reach, and an attempt that may still run there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Silence {
    /// The instance.
    pub node: InstanceName,
    /// The attempt.
    pub attempt: AttemptNo,
    /// When it was last seen, if it ever was.
    pub since: Option<Time>,
    /// When it will be lost, or was lost.
    pub lost_at: Time,
    /// Whether it is lost already.
    pub is_lost: bool,
}

/// The silence of the instance on which a job runs, or on which a lost attempt of it may still run. `now` is the time
/// that people see.
pub fn silence(job: &Job, instances: &[Instance], patience: &Patience, now: Time) -> Option<Silence> {
    let owner = &job.fence.as_ref()?.owner;
    let attempt = job.attempts.iter().find(|attempt| attempt.is_open()).filter(|_| !job.state.is_final())?;
    let node = attempt.node.clone()?;
    let instance = instances.iter().find(|instance| instance.name == node);
    if instance.is_some_and(|instance| instance.is_reachable_from(owner)) {
        return None;
    }
    let since = instance.and_then(Instance::last_seen);
    let (lost_at, is_lost) = match attempt.progress {
        Progress::Lost | Progress::Over(_) => (attempt.ended.unwrap_or(now), true),
        Progress::Placed | Progress::Running => (now + patience.left(instance, job.lost_after), false),
    };
    Some(Silence { node, attempt: attempt.n, since, lost_at, is_lost })
}

/// Whether an instance has just been lost: it was ready, and no control node sees it any more. A control node
/// sees itself with each heartbeat.
pub fn is_newly_lost(instance: &Instance, patience: &Patience) -> bool {
    match instance.node_state {
        NodeState::Ready => patience.is_over(instance, None),
        NodeState::Installed | NodeState::Unavailable | NodeState::Deprovisioning => false,
    }
}

/// The attempts of a job that are lost now. An attempt is lost at once if its instance is no longer registered. An
/// attempt on the job's owner is left out: it is lost with the owner, as the lease shows.
pub fn lost_attempts(job: &Job, instances: &[Instance], patience: &Patience) -> Vec<AttemptNo> {
    let owner = job.fence.as_ref().map(|fence| &fence.owner);
    let is_lost = |node: &InstanceName| match instances.iter().find(|instance| instance.name == *node) {
        Some(instance) => patience.is_over(instance, job.lost_after),
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

/// The live control node that inherits a job of a lost one. It prefers a node that reaches the job's
/// instance, then one that holds its payload, then any; on a tie the one with most room. `None` if no control
/// node is alive.
pub fn heir(
    job: &Job,
    holders: &[InstanceName],
    instances: &[Instance],
    loads: &Loads,
    live: &[Fence],
) -> Option<Fence> {
    let node = job.current().filter(|attempt| attempt.is_open()).and_then(|attempt| attempt.node.as_ref());
    let node = node.and_then(|name| instances.iter().find(|instance| instance.name == *name));
    let rank = |fence: &&Fence| {
        let at = instances.iter().position(|instance| instance.name == fence.owner)?;
        if !instances[at].node_type.controls() || unusable(&instances[at]).is_some() {
            return None;
        }
        let reaches = node.is_some_and(|node| node.is_reachable_from(&fence.owner));
        let holds = holders.contains(&fence.owner);
        Some((Reverse(reaches), Reverse(holds), Reverse(loads.instances[at].remaining()), at))
    };
    live.iter().filter_map(|fence| Some((rank(&fence)?, fence))).min().map(|(_, fence)| fence.clone())
}
