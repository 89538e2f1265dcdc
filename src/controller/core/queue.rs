//! A pending job as a pass sees it, and the decision of a pass.
//!
//! Types and their wording only; `pass` makes the decisions.

use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use super::fit::Why;
use super::group::Level;
use super::impact::JobKind;
use super::names::{AttemptNo, GroupName, InstanceName, JobId, Word};
use super::state::JobState;
use super::time::Time;
use super::watch::Watch;
use crate::rpc::report::names::names;

/// A job that waits for placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingJob {
    /// Its number.
    pub id: JobId,
    /// What it does.
    pub kind: JobKind,
    /// Its impact.
    pub impact: u32,
    /// −100 to 100; higher goes first.
    pub priority: i8,
    /// The groups in the order in which it tries them.
    pub groups: Vec<(GroupName, Level)>,
    /// Jobs that must succeed first, and their states. They were created before this one.
    pub needs: Vec<Need>,
    /// Words of which only one running job may hold each.
    pub exclusive: Vec<Word>,
    /// The control nodes that hold its payload.
    pub holders: Vec<InstanceName>,
    /// Since when it has been pending.
    pub since: Time,
    /// How long it may be pending before it fails.
    pub pending_timeout: Option<Duration>,
    /// Why it cannot be placed regardless of capacity.
    pub hold: Option<Hold>,
}

impl PendingJob {
    /// Its turn in a pass: by priority, then by creation.
    pub(super) fn turn(&self) -> (Reverse<i8>, JobId) {
        (Reverse(self.priority), self.id)
    }
}

/// A point in time that a pending job waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// The end of its `pending_timeout`.
    Timeout,
    /// Another try after a quota refused its pod.
    Quota,
}

/// How long jobs have waited, as one control node has watched them. The value is when the wait began or is to end, by
/// the store's clock.
pub type WaitWatch = Watch<(JobId, Wait), Time>;

/// A job that another one depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Its number.
    pub job: JobId,
    /// Its state; `None` if it was deleted.
    pub state: Option<JobState>,
}

/// Why a pending job cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// Its previous attempt may still run, on an instance that does not answer.
    Attempt {
        /// The attempt.
        attempt: AttemptNo,
        /// Its instance; `None` in a container group.
        node: Option<InstanceName>,
    },
    /// A cluster's quota refused its pod.
    Quota {
        /// When it is tried again.
        until: Time,
        /// The message of the API server.
        words: String,
    },
}

/// What a pass decides about one pending job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Start it.
    Place(Placement),
    /// Fail it without running it.
    Fail(JobId, PendingEnd),
    /// Let it wait.
    Wait(JobId, Waiting),
}

/// A placement of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The job.
    pub job: JobId,
    /// The control node that will drive it.
    pub owner: InstanceName,
    /// The instance that will run it; `None` in a container group.
    pub execution_node: Option<InstanceName>,
    /// The group through which it was placed.
    pub group: GroupName,
    /// The work type of its child.
    pub child: ChildType,
}

names! {
    /// The work type of a child.
    enum ChildType {
        /// The owner's own runner, on the owner itself.
        Local = "local",
        /// `ansible-runner`, on another instance.
        Runner = "runner",
        /// One of the two Kubernetes types.
        Container = "container",
    }
}

/// Why a pending job fails without running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingEnd {
    /// A job that it depends on did not succeed, or was deleted.
    Dependency(JobId),
    /// It was pending for too long.
    TimedOut(Duration),
}

impl fmt::Display for PendingEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dependency(job) => {
                write!(f, "job {job}, which this one depends on, did not succeed, or was deleted")
            }
            Self::TimedOut(allowed) => {
                write!(f, "pending for longer than its pending_timeout of {} s", allowed.as_secs())
            }
        }
    }
}

/// Why a pending job waits. Its text is the job's explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// An operator paused the controller.
    Paused,
    /// Another job must succeed first.
    Dependency(JobId),
    /// Another job holds one of its `exclusive` words.
    Exclusive(Word, JobId),
    /// Its previous attempt or a quota holds it.
    Hold(Hold),
    /// No remaining control node holds its payload.
    Payload,
    /// No control node that holds its payload can own it now.
    Owner(Why),
    /// The control node that could own it failed its health check, with this error.
    Runner(InstanceName, String),
    /// No group takes it: the reasons, in the order in which the groups were tried.
    Groups(Vec<(GroupName, Why)>),
}

impl Waiting {
    /// Whether it waits for room, which jobs before it may take first.
    pub(super) fn is_for_room(&self) -> bool {
        match self {
            Self::Owner(why) => *why == Why::Capacity,
            Self::Groups(groups) => groups.iter().any(|(_, why)| why.is_room()),
            Self::Paused
            | Self::Dependency(_)
            | Self::Exclusive(_, _)
            | Self::Hold(_)
            | Self::Payload
            | Self::Runner(_, _) => false,
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("the controller is paused"),
            Self::Dependency(job) => write!(f, "waiting for job {job}"),
            Self::Exclusive(word, job) => write!(f, "waiting for job {job}, which holds \"{word}\""),
            Self::Hold(Hold::Attempt { attempt, node }) => {
                write!(f, "attempt {attempt}")?;
                if let Some(node) = node {
                    write!(f, " on {node}")?;
                }
                f.write_str(" is lost and may still run: waiting until it is known to have ended")
            }
            Self::Hold(Hold::Quota { until: _, words }) => write!(f, "waiting for a quota: {words}"),
            Self::Payload => f.write_str("waiting for a control node that holds its payload"),
            Self::Owner(Why::Capacity) => f.write_str("waiting for capacity of a control node"),
            Self::Owner(why) => {
                write!(f, "waiting for a control node that holds its payload and {}", owner_phrase(*why))
            }
            Self::Runner(node, error) => write!(f, "waiting for the runner of {node}: {error}"),
            Self::Groups(groups) => write_groups(f, groups),
        }
    }
}

/// What a control node that holds the payload lacks.
const fn owner_phrase(why: Why) -> &'static str {
    match why {
        Why::NotReady => "is ready",
        Why::Draining => "is not being removed",
        Why::Disabled => "is enabled",
        Why::WrongClass => "is in the group controlplane",
        Why::Capacity
        | Why::GroupJobs
        | Why::GroupForks
        | Why::Unreachable
        | Why::NeedsSignature
        | Why::NeedsTls
        | Why::NoType
        | Why::GroupEmpty => "can own it",
    }
}

/// `waiting for capacity in east, shared; a ready instance in west`, in the order of the groups.
fn write_groups(f: &mut fmt::Formatter<'_>, groups: &[(GroupName, Why)]) -> fmt::Result {
    f.write_str("waiting for ")?;
    for (at, (group, why)) in groups.iter().enumerate() {
        let separator = match at.checked_sub(1).map(|former| groups[former].1 == *why) {
            None => "",
            Some(true) => ", ",
            Some(false) => "; ",
        };
        f.write_str(separator)?;
        if separator != ", " {
            f.write_str(phrase(*why))?;
        }
        write!(f, "{group}")?;
    }
    Ok(())
}

/// The words of an explanation before the names of the groups.
const fn phrase(why: Why) -> &'static str {
    match why {
        Why::Capacity => "capacity in ",
        Why::GroupJobs => "fewer running jobs in ",
        Why::GroupForks => "fewer running forks in ",
        Why::Unreachable => "a reachable instance in ",
        Why::NotReady => "a ready instance in ",
        Why::Draining => "an instance that is not being removed in ",
        Why::Disabled => "an enabled instance in ",
        Why::NeedsSignature => "a signing key for ",
        Why::NeedsTls => "an instance with TLS in ",
        Why::NoType => "an instance that offers the runner in ",
        Why::WrongClass => "an execution node in ",
        Why::GroupEmpty => "an instance in ",
    }
}
