//! Ends what is left of a unit whose runner was killed before it could end its command, and processes that outlived a
//! command that ended by itself. Every process that a unit starts has the unit's directory in its environment; these
//! processes lead to their sessions and descendants. Nothing else is signalled, because an unrelated process that got a
//! number later carries no such mark.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use rustix::process::Signal;

use super::containers::Containers;
use super::identity::Stat;
use super::kill::signal_one;
use super::processes::{self, Process};
use crate::os::ending::kill_all;
use crate::work::cgroup::Cgroup;
use crate::work::limits::Limits;
use crate::work::store::UnitDir;

/// The variable that names the unit's directory to whatever the unit starts.
pub(super) const MARK_VARIABLE: &str = "MESHD_UNIT_DIR";

/// How the processes of a unit ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Killed {
    /// How many were killed.
    pub(crate) count: usize,
    /// The text about those that are still there.
    pub(crate) left: Option<String>,
}

/// Kills every process of the unit, removes its containers as its user would, and waits until none is left. Blocks.
/// Without the limits of its type, containers stay, because only the limits name its user.
pub(crate) fn kill_leftovers(dir: &UnitDir, limits: Option<&Limits>) -> Killed {
    let mut killed = BTreeSet::new();
    let containers = limits.map(|limits| Containers::of(&leftovers(dir), limits));
    if let Some(group) = Cgroup::of(dir) {
        let members = group.members().into_iter();
        killed.extend(members.filter_map(|pid| Some((pid, Stat::read(pid).ok()?.start))));
        group.end();
    }
    let kill = |&process: &Process| {
        signal_one(process, Signal::KILL);
        killed.insert(process);
    };
    let left = processes::told(&kill_all(|| leftovers(dir), kill));
    if let Some((containers, limits)) = containers.zip(limits) {
        containers.remove(limits);
    }
    Killed { count: killed.len(), left }
}

/// Kills the processes that outlived the command in its process group and carry the unit's mark, and waits until none
/// is left. Blocks. Does nothing if none outlived the command.
pub(crate) fn kill_survivors(dir: &UnitDir) {
    let Some(group) = dir.noted_group() else { return };
    let mark = mark(dir);
    let survivors = || {
        let all = processes::all();
        let found = all
            .iter()
            .filter(|(pid, stat)| stat.group == group && is_marked(**pid, &mark))
            .map(|(&pid, _)| pid);
        processes::living(&all, &found.collect())
    };
    kill_all(survivors, |&process| signal_one(process, Signal::KILL));
}

/// The living processes of a unit.
fn leftovers(dir: &UnitDir) -> Vec<Process> {
    let all = processes::all();
    let mark = mark(dir);
    let mut ours: BTreeSet<u32> = all.keys().copied().filter(|&pid| is_marked(pid, &mark)).collect();
    // No process can join a session that exists, so all members of such a session descend from the unit.
    let sessions: BTreeSet<u32> =
        ours.iter().filter_map(|pid| all.get(pid)).map(|stat| stat.session).collect();
    ours.extend(all.iter().filter(|(_, stat)| sessions.contains(&stat.session)).map(|(&pid, _)| pid));
    processes::add_descendants(&all, &mut ours);
    processes::living(&all, &ours)
}

/// The variable that a unit's processes carry, as it stands in their environment.
fn mark(dir: &UnitDir) -> Vec<u8> {
    [MARK_VARIABLE.as_bytes(), b"=", dir.path().as_os_str().as_bytes()].concat()
}

fn is_marked(pid: u32, mark: &[u8]) -> bool {
    // Cannot be read for processes of other users, which are not the unit's.
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environment| environment.split(|&byte| byte == 0).any(|variable| variable == mark))
}
