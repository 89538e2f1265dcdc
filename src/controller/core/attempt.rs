//! One try to run a job: one child unit, whose ID is chosen before it is sent.
//!
//! An attempt knows its progress and what its owner has to do next. The job decides which attempt counts.

use std::fmt;

use super::names::{AttemptNo, GroupName, InstanceName, JobId};
use super::queue::ChildType;
use super::time::Time;
use super::verdict::Ending;

/// The ID of a child unit. It contains install, job and attempt: anyone who finds the unit can tell where it
/// belongs, and sending it twice cannot run it twice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChildId {
    /// The first 8 hex digits of the install ID.
    pub install: u32,
    /// The job that it belongs to.
    pub job: JobId,
    /// The attempt that it belongs to.
    pub attempt: AttemptNo,
    /// Keeps a store that was restored from a backup from using an ID again.
    pub random: u32,
}

impl fmt::Display for ChildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { install, job, attempt, random } = self;
        write!(f, "c{install:08x}n{job}a{attempt}r{random:08x}")
    }
}

impl ChildId {
    /// The beginning of the IDs of all children of its job.
    pub fn job_prefix(&self) -> String {
        format!("c{:08x}n{}a", self.install, self.job)
    }

    /// Parses a unit ID; `None` if it is not a controller's child.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = |text: &str| {
            let plain = text.len() == 8 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            if plain { u32::from_str_radix(text, 16).ok() } else { None }
        };
        let (install, rest) = text.strip_prefix('c')?.split_at_checked(8)?;
        let (job, rest) = rest.strip_prefix('n')?.split_once('a')?;
        let (attempt, random) = rest.split_once('r')?;
        let id = Self {
            install: hex(install)?,
            job: JobId(job.parse().ok()?),
            attempt: AttemptNo(attempt.parse().ok()?),
            random: hex(random)?,
        };
        (id.to_string() == text).then_some(id)
    }
}

/// The progress of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Progress {
    /// Stored. Its instance may have it or not.
    Placed,
    /// Its instance accepted it.
    Running,
    /// Its instance does not answer, or does not know it; it may still run.
    Lost,
    /// It has ended, as reported by the instance itself or by an operator.
    Over(Ending),
}

/// What the owner has to do about an attempt. It follows from stored state alone, so it is the same after a
/// restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Duty {
    /// Send it, or find out whether it has been sent.
    Send,
    /// Follow its output until it ends.
    Follow,
    /// Cancel it as soon as its instance answers.
    Cancel,
    /// Ask its instance for the result, as soon as it answers.
    Ask,
    /// Release its unit.
    Release,
    /// Nothing: all of it is cleaned up.
    Nothing,
}

/// The end of an output. A copy is complete once it has this length and this hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutputEnd {
    /// Its length in bytes.
    pub bytes: u64,
    /// The hash of all its bytes. `None` if an older version ended it: then the length alone decides.
    pub hash: Option<u64>,
}

/// One try to run a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Its number within the job.
    pub n: AttemptNo,
    /// Its child unit.
    pub unit: ChildId,
    /// The work type of the child.
    pub child: ChildType,
    /// The control node that placed it and sends it.
    pub sender: InstanceName,
    /// The instance that runs it; `None` in a container group.
    pub node: Option<InstanceName>,
    /// The group that it was placed through.
    pub group: GroupName,
    /// How far it has come.
    pub progress: Progress,
    /// Its unit is released.
    pub swept: bool,
    /// When it was placed.
    pub placed: Time,
    /// When its instance accepted it.
    pub started: Option<Time>,
    /// When it ended or was lost.
    pub ended: Option<Time>,
    /// Where the job's output, of all attempts so far, ended after this one; `None` if no output is kept, or the end is
    /// not known yet.
    pub output: Option<OutputEnd>,
    /// The control node that allowed the release of its unit, because that node has the output.
    pub released_by: Option<InstanceName>,
}

impl Attempt {
    /// Whether it may still run or start. If so, it holds capacity, and no retry starts unless the job's `retry` allows
    /// unconfirmed ones.
    pub fn is_open(&self) -> bool {
        match self.progress {
            Progress::Placed | Progress::Running | Progress::Lost => true,
            Progress::Over(_) => false,
        }
    }

    /// Whether that node runs it, or is the only one that may know of it.
    pub fn depends_on_node(&self, node: &InstanceName) -> bool {
        self.node.as_ref() == Some(node)
    }

    /// Whether the rest of its output is still to be read from its unit, because its end was reported first. Nothing is
    /// expected of a lost attempt.
    pub fn has_unread_output(&self) -> bool {
        match self.progress {
            Progress::Placed | Progress::Running | Progress::Lost | Progress::Over(Ending::Lost) => false,
            Progress::Over(_) => !self.swept && self.released_by.is_none(),
        }
    }

    /// Its end, as far as known.
    pub fn ending(&self) -> Option<Ending> {
        match self.progress {
            Progress::Placed | Progress::Running => None,
            Progress::Lost => Some(Ending::Lost),
            Progress::Over(ending) => Some(ending),
        }
    }
}
