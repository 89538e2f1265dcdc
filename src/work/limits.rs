//! The bounds of a work type's units. None applies unless configured. Owns only the types: a runner enforces what
//! concerns a single unit, the daemon what concerns several.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rpc::OutputBound;

/// Bounds and surroundings of a work type's units.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// The most bytes of output kept, and what happens to further output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_stdout: Option<MaxStdout>,
    /// Whether what the command writes to stderr is kept apart from its output, under the same bound.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stderr_apart: bool,
    /// The longest run, from the command's start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// The most units running at once. Others wait, in the order in which their payloads were complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_units: Option<u32>,
    /// How long a finished unit is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_after: Option<Duration>,
    /// Time between SIGINT and SIGTERM, in place of the node's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_grace: Option<Duration>,
    /// Variables added to the command's environment, or replaced in it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// What the command inherits of the daemon's environment besides. Unless set: all of it, or a clean one if the
    /// command runs as another user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<Inherited>,
    /// The command's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// The user whose rights the command has. Only a node that runs as root can run it as another user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Thousandths of a processor that the command and all it starts may use together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u32>,
    /// Bytes of memory that they may use together; more ends the unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Processes and threads that they may have together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
}

impl Limits {
    /// The bound on a unit's output: the lower of the type's and the unit's own, if there are any.
    pub(crate) fn output(&self, own: Option<&OutputBound>) -> Option<(OutputBound, WhenFull)> {
        let of_type = self.max_stdout.map(|MaxStdout { bytes, when_full }| {
            (OutputBound { bytes, setting: MAX_STDOUT.into() }, when_full)
        });
        let own = own.map(|own| (own.clone(), WhenFull::Fail));
        of_type.into_iter().chain(own).min_by_key(|(bound, _)| bound.bytes)
    }

    /// The bounds that only a control group can keep, by name.
    pub fn of_group(&self) -> Vec<&'static str> {
        let given = [
            ("cpu", self.cpu_millis.is_some()),
            ("memory", self.memory.is_some()),
            ("pids", self.pids.is_some()),
        ];
        given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }
}

/// What a command inherits of the daemon's environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inherited {
    /// All of it.
    Whole,
    /// Only what any program needs, and nothing that may be a secret.
    Clean,
}

/// The name of the setting of [`Limits::max_stdout`].
const MAX_STDOUT: &str = "maxstdout";

/// A bound on the output of a type's units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaxStdout {
    /// Bytes.
    pub bytes: u64,
    /// What happens to further output.
    pub when_full: WhenFull,
}

/// What happens when a unit writes more than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum WhenFull {
    /// The unit ends as failed.
    #[default]
    Fail,
    /// The unit goes on, and its further output is discarded.
    Stop,
    /// The unit goes on and its last bytes are kept. They appear when it has ended, because only then is it known which
    /// they are.
    TruncateHead,
}
