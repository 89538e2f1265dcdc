//! A pending job as a pass sees it, and what a pass decides about it.
//!
//! Shapes and their wording only; the decisions are made in `pass`.

use std::fmt;
use std::time::Duration;

use super::fit::Why;
use super::group::Level;
use super::impact::Kind;
use super::names::{AttemptNo, GroupName, InstanceName, JobId, Word};
use super::state::State;
use super::time::Time;

/// A job that waits to be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingJob {
    /// Its number.
    pub id: JobId,
    /// What it is.
    pub kind: Kind,
    /// Its impact.
    pub impact: u32,
    /// −100 to 100; higher goes first.
    pub priority: i8,
    /// The groups in the order in which it tries them.
    pub groups: Vec<(GroupName, Level)>,
    /// The jobs that must succeed first, and where they stand. They were created before this one.
    pub needs: Vec<Need>,
    /// Words that one running job holds at a time.
    pub exclusive: Vec<Word>,
    /// The control nodes that hold its payload.
    pub holders: Vec<InstanceName>,
    /// Since when it is pending.
    pub since: Time,
    /// It fails when it has been pending for longer.
    pub pending_timeout: Option<Duration>,
    /// What keeps it from being placed whatever room there is.
    pub hold: Option<Hold>,
}

/// A job that another one depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Its number.
    pub job: JobId,
    /// Where it stands; none if it was deleted.
    pub state: Option<State>,
}

/// What keeps a pending job from being placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// Its former attempt may still run, on an instance that does not answer.
    Attempt {
        /// Which attempt.
        attempt: AttemptNo,
        /// Where; none in a container group.
        node: Option<InstanceName>,
    },
    /// A cluster's quota refused its pod.
    Quota {
        /// When it is tried again.
        until: Time,
        /// The server's words.
        words: String,
    },
}

/// What a pass decides about one pending job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It starts.
    Place(Placement),
    /// It fails without having run.
    Fail(JobId, PendingEnd),
    /// It goes on waiting.
    Wait(JobId, Waiting),
}

/// Where a job starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Which job.
    pub job: JobId,
    /// The control node that drives it.
    pub owner: InstanceName,
    /// Where it runs; none in a container group.
    pub execution_node: Option<InstanceName>,
    /// The group that it was placed through.
    pub group: GroupName,
    /// What its child is.
    pub child: ChildType,
}

/// Which of the configured work types a child has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChildType {
    /// `localtype`, on the owner itself.
    Local,
    /// `runnertype`, on another instance.
    Runner,
    /// One of the two Kubernetes types.
    Container,
}

/// Why a pending job fails without having run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingEnd {
    /// A job that it depends on ended otherwise than successful, or is gone.
    Dependency(JobId),
    /// It was pending for longer than it allows.
    TimedOut(Duration),
}

impl fmt::Display for PendingEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dependency(job) => write!(f, "job {job}, which this one depends on, did not succeed"),
            Self::TimedOut(allowed) => {
                write!(f, "pending for longer than its pending_timeout of {} s", allowed.as_secs())
            }
        }
    }
}

/// What a pending job waits for. Its text is the job's explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// An operator paused the controller.
    Paused,
    /// Another job has to succeed first.
    Dependency(JobId),
    /// Another job holds a word of its `exclusive`.
    Exclusive(Word, JobId),
    /// Its former attempt, or a quota.
    Hold(Hold),
    /// No control node that is left holds its payload.
    Payload,
    /// No control node that holds its payload can own it now.
    Owner(Why),
    /// No group has room: why not, in the order in which they were tried.
    Groups(Vec<(GroupName, Why)>),
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
            Self::Owner(why) => write!(f, "waiting for a control node: {}", why.code()),
            Self::Groups(groups) => write_groups(f, groups),
        }
    }
}

/// `waiting for capacity in east, shared; a ready instance in west`: the order is that of the groups.
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

/// How an explanation goes on before the names of the groups.
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
