//! The groups that jobs are placed through.

use serde_json::json;

use super::world::{CREDENTIAL, World};

/// The group that a job is placed through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// The default group, with every node and without limits.
    Default,
    /// A group of all nodes, with limits of jobs and of their forks.
    Narrow,
    /// A container group, with a limit of jobs.
    Pods,
}

pub(super) const NARROW_JOBS: usize = 3;
pub(super) const NARROW_FORKS: u64 = 13;
pub(super) const PODS_JOBS: usize = 3;

impl Group {
    pub(super) fn choose(world: &World) -> Self {
        match world.choose(&[Self::Narrow, Self::Pods, Self::Default, Self::Default, Self::Default]) {
            Some(Self::Pods) if world.cluster.is_none() => Self::Default,
            chosen => chosen.unwrap(),
        }
    }
}

/// Makes the groups, at a controller that is not busy yet.
pub(super) async fn make(world: &World, control: usize) {
    let narrow = json!({
        "command": "controller", "op": "group.create", "name": "narrow", "policy_instance_percentage": 100,
        "max_concurrent_jobs": NARROW_JOBS, "max_forks": NARROW_FORKS
    });
    let pods = json!({
        "command": "controller", "op": "group.create", "name": "pods", "is_container_group": true,
        "cluster": CREDENTIAL, "max_concurrent_jobs": PODS_JOBS
    });
    let wanted = if world.cluster.is_some() { vec![narrow, pods] } else { vec![narrow] };
    for group in wanted {
        let made = world.ask(control, &group.to_string()).await.unwrap();
        assert_eq!(made["ok"], true, "{made}");
    }
}
