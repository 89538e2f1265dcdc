//! Ending what is left of a unit whose runner was killed before it could end its command, and what outlived a command
//! that ended by itself. Whatever a unit starts carries the unit's directory in its environment; from there its
//! session and its descendants are found. Nothing else is ever signalled: a number that has changed hands carries no
//! such mark.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::identity::Stat;
use super::kill::signal_one;
use crate::work::cgroup::Cgroup;
use crate::work::store::UnitDir;

/// The variable that names the unit's directory to whatever the unit starts.
pub(super) const MARK: &str = "MESHD_UNIT_DIR";
/// How long killed processes get to vanish.
const LIMIT: Duration = Duration::from_secs(5);
/// Between looks.
const LOOK: Duration = Duration::from_millis(2);

/// Kills every process of the unit and waits until none is left; says how many there were. Blocks.
pub(crate) fn kill_leftovers(dir: &UnitDir) -> usize {
    let deadline = Instant::now() + LIMIT;
    let mut killed = BTreeSet::new();
    if let Some(group) = Cgroup::of(dir) {
        let members = group.members().into_iter();
        killed.extend(members.filter_map(|pid| Some((pid, Stat::read(pid).ok()?.start))));
        group.end();
    }
    loop {
        let found = leftovers(dir);
        if found.is_empty() || Instant::now() >= deadline {
            return killed.len();
        }
        for (pid, start) in found {
            signal_one(pid, start, Signal::KILL);
            killed.insert((pid, start));
        }
        std::thread::sleep(LOOK);
    }
}

/// Kills what outlived the command in its process group, as far as it carries the unit's mark, and waits until none of
/// it is left. Blocks; costs nothing when nothing outlived the command.
pub(crate) fn kill_survivors(dir: &UnitDir) {
    let Some(group) = dir.noted_group() else { return };
    let deadline = Instant::now() + LIMIT;
    let mark = mark(dir);
    let survivors = || {
        processes()
            .into_iter()
            .filter(|(pid, stat)| stat.group == group && !stat.dead && is_marked(*pid, &mark))
    };
    loop {
        let mut left = false;
        for (pid, stat) in survivors() {
            left = true;
            signal_one(pid, stat.start, Signal::KILL);
        }
        if !left || Instant::now() >= deadline {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

/// The living processes of a unit, with their start times.
fn leftovers(dir: &UnitDir) -> Vec<(u32, u64)> {
    let all = processes();
    let mark = mark(dir);
    let mut ours: BTreeSet<u32> = all.keys().copied().filter(|&pid| is_marked(pid, &mark)).collect();
    // A session is never left for another one that exists, so all of its members descend from the unit.
    let sessions: BTreeSet<u32> =
        ours.iter().filter_map(|pid| all.get(pid)).map(|stat| stat.session).collect();
    ours.extend(all.iter().filter(|(_, stat)| sessions.contains(&stat.session)).map(|(&pid, _)| pid));
    loop {
        let more: Vec<u32> = all
            .iter()
            .filter(|(pid, stat)| ours.contains(&stat.parent) && !ours.contains(pid))
            .map(|(&pid, _)| pid)
            .collect();
        if more.is_empty() {
            break;
        }
        ours.extend(more);
    }
    all.iter()
        .filter(|(pid, stat)| ours.contains(pid) && !stat.dead)
        .map(|(&pid, stat)| (pid, stat.start))
        .collect()
}

/// The variable that a unit's processes carry, as it stands in their environment.
fn mark(dir: &UnitDir) -> Vec<u8> {
    [MARK.as_bytes(), b"=", dir.path().as_os_str().as_bytes()].concat()
}

/// All processes there are.
fn processes() -> BTreeMap<u32, Stat> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, Stat::read(pid).ok()?))).collect()
}

fn is_marked(pid: u32, mark: &[u8]) -> bool {
    // Unreadable for processes of others, which are not the unit's.
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environment| environment.split(|&byte| byte == 0).any(|variable| variable == mark))
}
