//! Ending a command with everything it started. The runner adopts orphans (it is their subreaper), so the tree
//! below it is complete: processes that left the group or the session are found by their parents.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal};

use super::identity::Stat;
use crate::work::cgroup::Cgroup;

/// Sends a signal to the command's process group, to every descendant of this process outside it, and to whatever is
/// in the unit's control group, which is killed at once.
pub(super) fn signal_tree(group: Pid, cgroup: Option<&Cgroup>, signal: Signal) {
    let mut others: BTreeSet<(u32, u64)> = descendants().into_iter().collect();
    if let Some(cgroup) = cgroup {
        let members = cgroup.members().into_iter();
        others.extend(members.filter_map(|pid| Some((pid, Stat::read(pid).ok()?.start))));
        if signal == Signal::KILL {
            cgroup.kill();
        }
    }
    others.retain(|&(pid, _)| !in_group(pid, group));
    let _ = rustix::process::kill_process_group(group, signal);
    for (pid, start) in others {
        signal_one(pid, start, signal);
    }
}

fn in_group(pid: u32, group: Pid) -> bool {
    to_pid(pid).is_some_and(|pid| rustix::process::getpgid(Some(pid)).is_ok_and(|found| found == group))
}

pub(super) fn signal_one(pid: u32, start: u64, signal: Signal) {
    let Some(raw) = to_pid(pid) else { return };
    let Ok(descriptor) = rustix::process::pidfd_open(raw, PidfdFlags::empty()) else { return };
    // The number may have changed hands since it was read; the descriptor cannot.
    if Stat::read(pid).is_ok_and(|stat| stat.start == start) {
        let _ = rustix::process::pidfd_send_signal(descriptor, signal);
    }
}

fn to_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// All processes below this one, with their start times.
fn descendants() -> Vec<(u32, u64)> {
    let mut children: BTreeMap<u32, Vec<(u32, u64)>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = Stat::read(pid) else { continue };
        children.entry(stat.parent).or_default().push((pid, stat.start));
    }
    let mut found = Vec::new();
    let mut parents = vec![std::process::id()];
    while let Some(parent) = parents.pop() {
        for (pid, start) in children.remove(&parent).unwrap_or_default() {
            found.push((pid, start));
            parents.push(pid);
        }
    }
    found
}
