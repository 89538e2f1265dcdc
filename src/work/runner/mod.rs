//! Runs commands outside the daemon, so that they outlive it. Three processes take part. The daemon asks one small
//! single-threaded *spawner* (this binary in a hidden mode). The spawner forks a *runner* per unit, detached from
//! everything. The runner starts the command, waits, and writes the unit's final status. A unit's files belong to the
//! daemon until it asks the spawner, to the runner while the runner lives, and then to the daemon again.

mod client;
pub(crate) mod containers;
mod fork;
pub(crate) mod identity;
mod job;
mod kill;
mod leftovers;
mod output;
mod payload;
mod processes;
mod rights;
mod spawner;
mod start;

pub(crate) use client::{SpawnerHandle, Started};
pub(crate) use leftovers::{Killed, kill_leftovers, kill_survivors};

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::command::PythonPlugin;
use super::limits::Limits;

/// First argument that turns the binary into a spawner.
const SPAWNER_ARGUMENT: &str = "__work-spawner";
/// Longest message between daemon, spawner and runners, in bytes.
const MAX_MESSAGE: usize = 64 * 1024;

/// Turns this process into a spawner, and never returns, if it was started to be one. Call it first in `main`,
/// before any thread exists.
pub fn main_if_asked() {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == SPAWNER_ARGUMENT) {
        spawner::run();
    }
}

/// Kills whatever runs for the units of a node directory: for the end of tests.
#[cfg(test)]
pub(crate) fn kill_all_units(units: &std::path::Path) {
    for entry in std::fs::read_dir(units).into_iter().flatten().flatten() {
        let dir = crate::work::store::UnitDir::at(&entry.path());
        // A unit that was ended before its start is claimed by this very process.
        let other = |runner: &identity::Identity| runner.pid != std::process::id();
        if let Some(runner) = identity::Identity::load(&dir).ok().flatten().filter(other) {
            let _ = runner.signal(rustix::process::Signal::KILL);
            kill_leftovers(&dir, None);
        }
    }
}

/// The daemon's request to start a command. The arguments are in the unit's status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunnerJob {
    /// The unit's directory.
    pub(crate) dir: PathBuf,
    /// The program.
    pub(crate) command: String,
    /// The plugin whose function the program calls, in place of arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) plugin: Option<PythonPlugin>,
    /// Milliseconds between SIGINT and SIGTERM.
    pub(crate) grace_ms: u64,
    /// The limits that concern one unit.
    #[serde(default)]
    pub(crate) limits: Limits,
    /// The private directory that the unit shall have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) run_dir: Option<PathBuf>,
    /// The control group that the unit shall have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cgroup: Option<PathBuf>,
    /// Where processors are short, the command and all it starts give way to the node.
    #[serde(default)]
    pub(crate) gives_way: bool,
}

/// The answer of a runner, or of the spawner for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Reply {
    dir: PathBuf,
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Outcome {
    /// The command runs under this process ID.
    Started(u32),
    /// Another runner has the unit already: the request was repeated after a spawner died.
    AlreadyTaken,
    /// The command does not start; the unit's status says so too.
    Failed(String),
}

/// Sends an answer. If the daemon is gone, it finds the same in the unit's directory when it comes back.
fn reply(daemon: &OwnedFd, reply: Reply) {
    if let Ok(bytes) = serde_json::to_vec(&reply) {
        let _ = rustix::net::send(daemon, &bytes, rustix::net::SendFlags::NOSIGNAL);
    }
}
